"""Subscriptions to durable streams: wakes of webhooks and of workers that claim, their leases, and who may do what."""

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture
from tests.support.webhook_receiver import ReceivedWebhook, WebhookReceiver, webhook_receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTROL = "/v1/stream/__ds/subscriptions"
JSON = {"Content-Type": "application/json"}

server = server_fixture(with_executor=False, KHALA_FETCH_ALLOW="127.0.0.0/8")


@pytest_asyncio.fixture(loop_scope="module")
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as receiving:
        yield receiving


class Account:
    """An account with streams of its own."""

    def __init__(self, http: httpx.AsyncClient, who: Person) -> None:
        self.http = http
        self.headers = who.headers

    async def put(self, name: str, *events: Any) -> httpx.Response:
        """Create a stream of JSON with these events."""
        return await self.http.put(f"/v1/stream/{name}", headers=self.headers | JSON, json=list(events))

    async def append(self, name: str, event: Any) -> None:
        """Append an event."""
        done = await self.http.post(f"/v1/stream/{name}", headers=self.headers | JSON, json=event)
        assert done.status_code == 204, done.text

    async def events(self, name: str) -> list[Any]:
        """All events of a stream."""
        found: list[Any] = (await self.http.get(f"/v1/stream/{name}", headers=self.headers)).json()
        return found

    async def subscribe(self, name: str, **config: Any) -> httpx.Response:
        """Create a subscription."""
        return await self.http.put(f"{CONTROL}/{name}", headers=self.headers, json={"lease_ttl_ms": 60_000} | config)

    async def subscription(self, name: str) -> Any:
        """The subscription as the server shows it."""
        return (await self.http.get(f"{CONTROL}/{name}", headers=self.headers)).json()

    async def claim(self, name: str, worker: str = "one") -> httpx.Response:
        """Claim the wake of a subscription."""
        return await self.http.post(f"{CONTROL}/{name}/claim", headers=self.headers, json={"worker": worker})

    async def report(self, name: str, wake: Any, verb: str = "ack", **fields: Any) -> httpx.Response:
        """Report about a claimed wake."""
        body = {"wake_id": wake["wake_id"], "generation": wake["generation"]} | fields
        headers = {"Authorization": f"Bearer {wake['token']}"}
        return await self.http.post(f"{CONTROL}/{name}/{verb}", headers=headers, json=body)


@pytest_asyncio.fixture(loop_scope="module")
async def account(server: InProcessServer, store: Database) -> Account:
    return Account(server.http, await person(store))


async def until(condition: Any) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def called_back(http: httpx.AsyncClient, received: ReceivedWebhook, **fields: Any) -> httpx.Response:
    body = received.body
    report = {"wake_id": body["wake_id"], "generation": body["generation"]} | fields
    headers = {"Authorization": f"Bearer {body['callback_token']}"}
    return await http.post(body["callback_url"], headers=headers, json=report)


def stream_of(listed: list[Any], path: str) -> Any:
    (found,) = (stream for stream in listed if stream["path"] == path)
    return found


async def test_a_webhook_is_woken_for_new_contents_only_and_its_signature_is_valid(
    account: Account, receiver: WebhookReceiver, server: InProcessServer
) -> None:
    await account.put("events/old", "before")
    created = await account.subscribe("hook", type="webhook", pattern="events/*", webhook={"url": receiver.url})
    assert created.status_code == 201, created.text
    receiver.answer = lambda _: (200, {"done": True})
    await account.append("events/old", "after")
    received = await receiver.next()
    stream = stream_of(received.body["streams"], "events/old")
    assert (stream["acked_offset"], stream["tail_offset"]) == (f"{0:016d}_{1:016d}", f"{0:016d}_{2:016d}")
    keys = (await server.http.get(created.json()["webhook"]["signing"]["jwks_url"])).json()["keys"]
    check_signature(received, keys[0])
    with pytest.raises(InvalidSignature):
        check_signature(ReceivedWebhook(received.headers, received.raw + b" "), keys[0])

    async def acknowledged() -> bool:
        shown = stream_of((await account.subscription("hook"))["streams"], "events/old")
        return bool(shown["acked_offset"] == stream["tail_offset"])

    await until(acknowledged)
    await account.put("events/new", "first")
    second = await receiver.next()
    assert second.body["generation"] == received.body["generation"] + 1
    assert stream_of(second.body["streams"], "events/new")["has_pending"] is True
    assert "events/deep/er" not in str(second.body)


def check_signature(received: ReceivedWebhook, key: dict[str, str]) -> None:
    found = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([\w-]+)", received.headers["webhook-signature"])
    assert found is not None
    assert found[2] == key["kid"]
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
    signature = base64.urlsafe_b64decode(found[3] + "==")
    public.verify(signature, f"{found[1]}.".encode() + received.raw)


async def test_a_callback_needs_the_token_of_its_wake_and_no_account(
    account: Account, receiver: WebhookReceiver, server: InProcessServer
) -> None:
    await account.put("a")
    await account.subscribe("first", type="webhook", streams=["a"], webhook={"url": receiver.url})
    await account.append("a", 1)
    received = await receiver.next()
    tail = stream_of(received.body["streams"], "a")["tail_offset"]
    await account.append("a", 2)
    acks = [{"stream": "a", "offset": tail}]
    alive = await called_back(server.http, received, acks=acks)
    assert (alive.status_code, alive.json()) == (200, {"ok": True, "next_wake": False}), "its lease is extended"
    forged = {"Authorization": "Bearer khala_wake_" + "A" * 75}
    body = {"wake_id": received.body["wake_id"], "generation": received.body["generation"], "done": True}
    refused = await server.http.post(received.body["callback_url"], headers=forged, json=body)
    assert refused.status_code == 404, "no subscription has this token"
    tampered = received.body["callback_token"][:-4] + "AAAA"
    refused = await server.http.post(
        received.body["callback_url"], headers={"Authorization": f"Bearer {tampered}"}, json=body
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "TOKEN_INVALID")
    done = await called_back(server.http, received, done=True)
    assert done.json() == {"ok": True, "next_wake": True}
    second = await receiver.next()
    assert stream_of(second.body["streams"], "a")["acked_offset"] == tail
    stale = await called_back(server.http, received, done=True)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "FENCED")
    await server.http.delete(f"{CONTROL}/first", headers=account.headers)
    assert (await called_back(server.http, second, done=True)).status_code == 404


async def test_a_lease_that_lapses_is_followed_by_another_wake(
    account: Account, receiver: WebhookReceiver, server: InProcessServer
) -> None:
    await account.put("a")
    await account.subscribe("s", type="webhook", streams=["a"], webhook={"url": receiver.url}, lease_ttl_ms=1_000)
    await account.append("a", 1)
    first, second = await receiver.next(), await receiver.next()
    assert second.body["generation"] == first.body["generation"] + 1
    assert (await called_back(server.http, first, done=True)).status_code == 409
    tail = stream_of(second.body["streams"], "a")["tail_offset"]
    done = await called_back(server.http, second, acks=[{"stream": "a", "offset": tail}], done=True)
    assert done.json() == {"ok": True, "next_wake": False}


@pytest.mark.parametrize("status", [500, 302])
async def test_a_webhook_that_fails_is_called_again_later(
    account: Account, receiver: WebhookReceiver, status: int
) -> None:
    receiver.answer = lambda _: (status, {})
    await account.put("a")
    await account.subscribe("s", type="webhook", streams=["a"], webhook={"url": receiver.url})
    await account.append("a", 1)
    first = await receiver.next()
    receiver.answer = lambda _: (200, {"done": True})

    async def failed() -> bool:
        return bool((await account.subscription("s"))["status"] == "failed")

    async def active() -> bool:
        return bool((await account.subscription("s"))["status"] == "active")

    await until(failed)
    second = await receiver.next()
    assert second.body["generation"] > first.body["generation"]
    await until(active)


async def test_of_many_workers_one_gets_the_wake_and_its_reports_are_fenced(account: Account, store: Database) -> None:
    for name in ("wake/pool", "jobs/a"):
        assert (await account.put(name)).status_code == 201
    async with store.driver() as driver:
        # The wakes need a further reservation of the account's bytes.
        await driver.execute("UPDATE streams SET reserved_bytes = 0")
    created = await account.subscribe("pool", type="pull-wake", pattern="jobs/**", wake_stream="wake/pool")
    assert created.status_code == 201
    await asyncio.gather(*(account.append("jobs/a", number) for number in range(20)))

    async def announced() -> bool:
        return bool(await account.events("wake/pool"))

    await until(announced)
    claims = await asyncio.gather(*(account.claim("pool", f"worker-{number}") for number in range(16)))
    (won,) = (claim.json() for claim in claims if claim.status_code == 200)
    lost = [claim.json()["error"] for claim in claims if claim.status_code == 409]
    assert len(lost) == 15
    assert {error["code"] for error in lost} == {"ALREADY_CLAIMED"}
    assert len({error["current_holder"] for error in lost}) == 1
    (event,) = await account.events("wake/pool")
    assert (event["type"], event["subscription_id"], event["generation"]) == ("wake", "pool", won["generation"])

    def offset(position: int) -> list[Any]:
        return [{"stream": "jobs/a", "offset": f"{0:016d}_{position:016d}"}]

    for acks in (offset(21), [{"stream": "jobs/b", "offset": offset(1)[0]["offset"]}]):
        refused = await account.report("pool", won, acks=acks)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "INVALID_OFFSET")
    assert (await account.report("pool", won, acks=offset(7))).status_code == 200
    assert (await account.report("pool", won, acks=offset(6))).status_code == 409, "a cursor never goes back"
    assert (await account.report("pool", won, "release")).status_code == 204
    assert len(await account.events("wake/pool")) == 2, "what is pending is announced again"
    assert (await account.report("pool", won, acks=offset(20), done=True)).status_code == 409
    again = (await account.claim("pool")).json()
    assert stream_of(again["streams"], "jobs/a")["acked_offset"] == offset(7)[0]["offset"]
    done = await account.report("pool", again, acks=offset(20), done=True)
    assert done.json() == {"ok": True, "next_wake": False}
    nothing = await account.claim("pool")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (409, "NO_PENDING_WORK")
    assert len(await account.events("wake/pool")) == 2


async def test_a_wake_stream_that_does_not_exist_yet_gets_the_wake_later(account: Account) -> None:
    await account.put("jobs/a")
    await account.subscribe("pool", type="pull-wake", streams=["jobs/a"], wake_stream="wake/later")
    await account.append("jobs/a", 1)

    async def failed() -> bool:
        return bool((await account.subscription("pool"))["status"] == "failed")

    await until(failed)
    await account.put("wake/later")

    async def announced() -> bool:
        return bool(await account.events("wake/later"))

    await until(announced)
    assert (await account.subscription("pool"))["status"] == "active"


async def test_a_stream_that_is_created_again_is_read_from_its_beginning(account: Account) -> None:
    await account.put("wake")
    await account.put("a", 1, 2)
    await account.subscribe("pool", type="pull-wake", streams=["a", "missing"], wake_stream="wake")
    shown = (await account.subscription("pool"))["streams"]
    assert stream_of(shown, "a")["acked_offset"] == f"{0:016d}_{2:016d}"
    assert "tail_offset" not in stream_of(shown, "missing")
    await account.http.delete("/v1/stream/a", headers=account.headers)
    await account.put("a", 3)
    await account.put("missing", 4)

    async def both() -> bool:
        listed = (await account.subscription("pool"))["streams"]
        return all(stream.get("has_pending") for stream in listed)

    await until(both)
    assert {stream["acked_offset"] for stream in (await account.claim("pool")).json()["streams"]} == {
        f"{0:016d}_{0:016d}"
    }


async def test_an_explicit_stream_that_the_pattern_matches_stays_when_it_is_removed(account: Account) -> None:
    await account.put("events/a")
    await account.subscribe("s", type="pull-wake", pattern="events/*", streams=["other"], wake_stream="wake")
    add = await account.http.post(
        f"{CONTROL}/s/streams", headers=account.headers, json={"streams": ["events/a", "third"]}
    )
    assert add.status_code == 204
    listed = {each["path"]: each["link_type"] for each in (await account.subscription("s"))["streams"]}
    assert listed == {"events/a": "explicit", "other": "explicit", "third": "explicit"}
    for path in ("events/a", "third", "never"):
        removed = await account.http.delete(f"{CONTROL}/s/streams/{path}", headers=account.headers)
        assert removed.status_code == 204
    listed = {each["path"]: each["link_type"] for each in (await account.subscription("s"))["streams"]}
    assert listed == {"events/a": "glob", "other": "explicit"}


async def test_a_subscription_is_its_accounts_own_and_ends_with_it(
    account: Account, server: InProcessServer, store: Database, receiver: WebhookReceiver
) -> None:
    await account.put("a")
    config = {"type": "webhook", "streams": ["a"], "webhook": {"url": receiver.url}}
    assert (await account.subscribe("mine", **config)).status_code == 201
    assert (await account.subscribe("mine", **config)).status_code == 200
    other = Account(server.http, await person(store))
    assert (await other.http.get(f"{CONTROL}/mine", headers=other.headers)).status_code == 404
    assert (await server.http.get(f"{CONTROL}/mine")).status_code == 401
    changed = await account.subscribe("mine", **config, description="another")
    assert (changed.status_code, changed.json()["error"]["code"]) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    await account.append("a", 1)
    received = await receiver.next()
    assert (await server.http.delete("/api/me", headers=account.headers)).status_code == 204
    assert (await called_back(server.http, received, done=True)).status_code == 404
    async with store.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM stream_subscriptions WHERE name = 'mine'") == 0


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"type": "webhook", "pattern": "a/*", "webhook": {"url": "http://10.0.0.1/hook"}}, "WEBHOOK_URL_REJECTED"),
        ({"type": "webhook", "pattern": "a/*", "webhook": {"url": "http://192.0.43.10/"}}, "WEBHOOK_URL_REJECTED"),
        ({"type": "webhook", "pattern": "a/*", "webhook": {"url": "https://a:b@127.0.0.1/"}}, "WEBHOOK_URL_REJECTED"),
        ({"type": "webhook", "pattern": "a/*", "webhook": {"url": "file:///etc/passwd"}}, "WEBHOOK_URL_REJECTED"),
        (
            {"type": "webhook", "pattern": "a/*", "webhook": {"url": "https://[::ffff:10.0.0.1]/"}},
            "WEBHOOK_URL_REJECTED",
        ),
        ({"type": "webhook", "pattern": "a/*"}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "pattern": "a/*"}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w"}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "pattern": "a*/b"}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "pattern": "/".join(["**"] * 65)}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "threads/x", "pattern": "a"}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "streams": ["__ds/x"]}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": 999}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": 600_001}, "INVALID_REQUEST"),
        ({"type": "push", "pattern": "a"}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "streams": ["a\x00b"]}, "INVALID_REQUEST"),
        ({"type": "pull-wake", "wake_stream": "w", "pattern": "a", "description": "a\x00b"}, "INVALID_REQUEST"),
    ],
)
async def test_an_invalid_configuration_is_refused_and_stores_nothing(
    account: Account, config: dict[str, Any], code: str
) -> None:
    refused = await account.subscribe("s", **config)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text
    assert (await account.http.get(f"{CONTROL}/s", headers=account.headers)).status_code == 404


async def test_a_name_that_no_subscription_can_have_is_refused(account: Account) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/claim"),
        ("POST", "/streams"),
        ("DELETE", "/streams/a"),
    ):
        body = {"worker": "w", "streams": ["a"]} if method == "POST" else None
        refused = await account.http.request(method, f"{CONTROL}/a%00b{path}", json=body, headers=account.headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST"), path


async def test_an_account_has_a_hundred_subscriptions(account: Account, store: Database) -> None:
    async with store.driver() as driver:
        me = (await account.http.get("/api/me", headers=account.headers)).json()["id"]
        await driver.execute(
            """INSERT INTO stream_subscriptions (id, space_id, user_id, name, config, config_digest, url, token_key)
               SELECT gen_random_uuid(), $1, $1, 'filled-' || number, '{"kind": "pull-wake"}', '', '', ''
               FROM generate_series(1, 99) AS number""",
            me,
        )
    assert (await account.subscribe("last", type="pull-wake", pattern="a", wake_stream="w")).status_code == 201
    refused = await account.subscribe("more", type="pull-wake", pattern="a", wake_stream="w")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "TOO_MANY_SUBSCRIPTIONS")


async def test_contents_whose_notification_was_lost_are_found_by_a_look_at_all_subscriptions(
    account: Account, store: Database
) -> None:
    await account.put("wake")
    await account.put("a")
    await account.subscribe("s", type="pull-wake", streams=["a"], wake_stream="wake")
    me = (await account.http.get("/api/me", headers=account.headers)).json()["id"]
    async with store.driver() as driver:
        await driver.execute("UPDATE streams SET tail = 1 WHERE space_id = $1 AND name = 'a'", me)
        await driver.execute("SELECT pg_notify('khala_stream_subscriptions', '*')")

    async def announced() -> bool:
        return bool(await account.events("wake"))

    await until(announced)
