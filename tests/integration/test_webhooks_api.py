"""Webhooks over REST and by the command: who gets which events, limits, tests, and the end of an account."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.domain.access import Caller, key_hash
from khala.domain.budgets import BudgetLimit, BudgetPolicy
from khala.domain.chat import RunOptions
from khala.domain.errors import BudgetExhausted
from khala.store.accounts import account_removal, claims
from khala.store.postgres.database import Database
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest
from tests.support.callers import Person, person
from tests.support.event_endpoint import EventEndpoint, event_endpoint, new_endpoint
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    env = {"KHALA_FETCH_ALLOW": "127.0.0.0/8", "KHALA_WEBHOOKS_PER_ACCOUNT": "2"}
    async with shared(postgres_url, template, with_executor=True, **env) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def receiver() -> AsyncIterator[EventEndpoint]:
    async with event_endpoint() as receiving:
        yield receiving


class Account:
    """An account that uses webhooks over REST."""

    def __init__(self, http: httpx.AsyncClient, who: Person) -> None:
        self.who = who
        self._http = http

    async def request(self, method: str, path: str = "", body: Any = None) -> httpx.Response:
        """A request about webhooks."""
        url = f"/api/webhooks{path}"
        return await self._http.request(method, url, headers=self.who.headers, json=body)

    async def create(self, url: str, **fields: Any) -> Any:
        """A new webhook."""
        created = await self.request("POST", body={"url": url, **fields})
        assert created.status_code == 201, created.text
        return created.json()

    async def new_thread(self, **fields: Any) -> str:
        """A new thread of the account."""
        created = await self._http.post("/api/threads", headers=self.who.headers, json=fields)
        return str(created.json()["thread"]["id"])

    async def send(self, thread_id: str, text: str) -> None:
        """Send a message."""
        sent = await self._http.post(f"/api/threads/{thread_id}/send", headers=self.who.headers, json={"text": text})
        assert sent.status_code == 202, sent.text


@pytest_asyncio.fixture(loop_scope="module")
async def account(server: InProcessServer, store: Database) -> Account:
    return Account(server.http, await person(store))


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(server: InProcessServer, store: Database) -> Account:
    return Account(server.http, await person(store))


async def test_an_account_gets_the_events_of_its_own_threads_and_the_operator_gets_all(
    server: InProcessServer, store: Database, account: Account, stranger: Account, receiver: EventEndpoint
) -> None:
    async with event_endpoint() as everything:
        hook = await account.create(receiver.url)
        assert hook["secret"].startswith("whsec_")
        operators = await new_endpoint(store, everything.url, events=["thread.created", "run.finished"])
        theirs = await stranger.new_thread()
        guests = await server.thread()
        mine = await account.new_thread()
        await account.send(mine, "Hello?")
        finished = await receiver.wait_for_type("run.finished")
        finished.verify(hook["secret"])
        assert {each.body["data"]["threadId"] for each in receiver.received} == {mine}
        assert [each.type for each in receiver.received] == [
            "thread.created", "message.created", "run.started", "run.finished",
        ]  # fmt: skip
        assert finished.body["data"]["ownerId"] == str(account.who.id)
        assert "text" not in finished.body["data"]
        await everything.wait_for_type("run.finished")
        created = [each.body["data"]["threadId"] for each in everything.received if each.type == "thread.created"]
        assert set(created) == {theirs, str(guests.id), mine}
        async with store.driver() as driver:
            await driver.execute("UPDATE webhook_endpoints SET is_enabled = false WHERE id = $1", operators.id)


async def test_a_claimed_thread_tells_its_new_owner(store: Database, account: Account, receiver: EventEndpoint) -> None:
    await account.create(receiver.url)
    key = key_hash("k" * 40)
    thread, _ = await threads.create(store, uuid.uuid4(), Caller(anon_key_hash=key), title=None, welcome="")
    await claims.claim(store, thread.id, key, account.who.caller)
    (claimed,) = await receiver.wait_for(1)
    assert claimed.type == "thread.claimed"
    assert claimed.body["data"]["ownerId"] == str(account.who.id)


async def test_only_the_owner_sees_a_webhook_and_secrets_are_shown_once(
    account: Account, stranger: Account, receiver: EventEndpoint
) -> None:
    hook = await account.create(receiver.url, events=["run.failed"], description="CI")
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {"enabled": False}),
        ("DELETE", "", None),
        ("POST", "/secret", {"overlapSeconds": 0}),
        ("POST", "/test", None),
        ("GET", "/deliveries", None),
        ("POST", "/replay", {"since": "2026-01-01T00:00:00Z"}),
    ):
        refused = await stranger.request(method, f"/{hook['id']}{path}", body)
        assert refused.status_code == 404, (method, path)
    assert (await stranger.request("GET")).json() == {"items": []}
    listed = (await account.request("GET")).json()["items"]
    assert listed == [{name: value for name, value in hook.items() if name != "secret"}]
    rotated = (await account.request("POST", f"/{hook['id']}/secret")).json()
    assert rotated["secret"] != hook["secret"]
    changed = await account.request("PATCH", f"/{hook['id']}", {"events": [], "enabled": False})
    assert (changed.json()["events"], changed.json()["enabled"]) == ([], False)
    assert (await account.request("DELETE", f"/{hook['id']}")).status_code == 204
    assert (await account.request("GET", f"/{hook['id']}")).status_code == 404


async def test_bad_input_and_too_many_webhooks_are_refused(account: Account, receiver: EventEndpoint) -> None:
    for body, path in (
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "http://8.8.8.8/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://user:secret@8.8.8.8/"}, "url"),
        ({"url": "https://xn--/"}, "url"),
        ({"url": receiver.url, "events": ["run.exploded"]}, "events[0]"),
        ({"url": receiver.url, "description": "x" * 201}, "description"),
    ):
        refused = await account.request("POST", body=body)
        assert refused.status_code == 400, body
        assert refused.json()["errors"][0]["path"] == path, refused.text
    hook = await account.create(receiver.url, events=["run.failed", "run.failed"])
    assert hook["events"] == ["run.failed"]
    await account.create(receiver.url)
    assert (await account.request("POST", body={"url": receiver.url})).status_code == 409
    since = "2026-01-01T00:00:00Z"
    for replay in ({}, {"since": since, "afterRevision": 1}, {"since": since, "limit": 0}, {"since": "soon"}):
        assert (await account.request("POST", f"/{hook['id']}/replay", replay)).status_code == 400
    assert (await account.request("GET", f"/{hook['id']}/deliveries?cursor=x")).status_code == 400


async def test_a_test_event_tells_the_outcome_and_deliveries_are_listed_and_replayed(
    account: Account, receiver: EventEndpoint
) -> None:
    hook = await account.create(receiver.url, events=["thread.created"])
    tested = await account.request("POST", f"/{hook['id']}/test")
    assert tested.status_code == 200
    assert (tested.json()["delivered"], tested.json()["status"]) == (True, 200)
    assert receiver.received[0].verify(hook["secret"])["type"] == "webhook.test"
    mine = [await account.new_thread() for _ in range(3)]
    await receiver.wait_for(4)
    listing = f"/{hook['id']}/deliveries"
    seen: list[Any] = []
    for _ in range(200):
        seen = (await account.request("GET", listing)).json()["items"]
        if [each["state"] for each in seen] == ["delivered"] * 3:
            break
    assert [each["threadId"] for each in seen] == mine[::-1]
    assert {(each["type"], each["status"], each["attempts"]) for each in seen} == {("thread.created", 200, 1)}
    assert all(each["durationMs"] >= 0 for each in seen)
    page = (await account.request("GET", f"{listing}?limit=2&state=delivered")).json()
    rest = (await account.request("GET", f"{listing}?limit=2&cursor={page['nextCursor']}")).json()
    assert [*page["items"], *rest["items"]] == seen
    assert "nextCursor" not in rest
    replayed = await account.request("POST", f"/{hook['id']}/replay", {"threadId": mine[0], "afterRevision": 0})
    assert replayed.json() == {"replayed": 1}
    again = (await receiver.wait_for(5))[4]
    assert again.id == seen[2]["id"]


async def test_the_end_of_an_account_ends_its_webhooks(
    store: Database, account: Account, receiver: EventEndpoint
) -> None:
    await account.create(receiver.url, events=["thread.deleted"])
    await account.new_thread()
    await account_removal.remove(store, account.who.caller, account.who.id)
    async with store.driver() as driver:
        row = await driver.fetchrow("SELECT * FROM webhook_endpoints WHERE scope_id = $1", account.who.id)
    assert (row["is_enabled"], row["url"], row["secret"], row["previous_secret"]) == (False, "", b"", None)
    assert receiver.received == []


async def test_a_message_that_is_refused_for_want_of_budget_is_told_once_an_hour(
    store: Database, account: Account, receiver: EventEndpoint
) -> None:
    await account.create(receiver.url, events=["budget.exhausted"])
    thread, _ = await threads.create(store, uuid.uuid4(), account.who.caller, title=None, welcome="")
    limits = SendLimits(
        budgets=BudgetPolicy(limits=(BudgetLimit(scope="user", measure="runs", most=1, window=3600),))  # type: ignore[arg-type]
    )

    async def send() -> None:
        request = SendRequest(
            thread_id=thread.id, message_id=uuid.uuid4(), text="?", options=RunOptions(if_busy="queue")
        )
        await sends.send(store, request, account.who.caller, limits)

    await send()
    for _ in range(3):
        with pytest.raises(BudgetExhausted):
            await send()
    (told,) = await receiver.wait_for(1)
    assert told.type == "budget.exhausted"
    assert told.body["data"]["cause"] == "send"
    async with store.driver() as driver:
        count = await driver.fetchval("SELECT count(*) FROM webhook_deliveries WHERE thread_id = $1", thread.id)
    assert count == 1
