"""Ephemeral threads: on no thread list, open to their owner by id, and deleted when they expire."""

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
import websockets

from khala.domain import ids
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy, count_due, purge
from khala.store.postgres.database import Database
from tests.integration.test_openai_retries import IMAGE
from tests.support.account_with_data import Account, account
from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer
from tests.support.openai_api import Requester, user
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

EPHEMERAL = {"x-thread": "ephemeral"}
NO_TTLS = ("59", "604801", "-1", "1.5", "soon", "9" * 99)
KEEP = RetentionPolicy(idle=timedelta(0))

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def requester(server: InProcessServer, store: Database) -> Requester:
    return await Requester.new(server, store)


async def ask(requester: Requester, text: str = "/echo yes", **headers: str) -> str:
    """The id of the ephemeral thread that this request has made."""
    answer = await requester.post({"model": "khala", "messages": user(text)}, **(EPHEMERAL | headers))
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-thread-id"])


async def status(requester: Requester, thread_id: str) -> int:
    return (await requester.inside.http.get(f"/api/threads/{thread_id}", headers=requester.person.headers)).status_code


async def seconds_left(store: Database, thread_id: str) -> float:
    async with store.driver() as driver:
        query = "SELECT extract(epoch FROM expires_at - now())::float FROM ephemeral_threads WHERE thread_id = $1"
        return float(await driver.fetchval(query, UUID(thread_id)))


async def shorten_expiry(store: Database, thread_id: str, seconds: float) -> None:
    async with store.driver() as driver:
        query = "UPDATE ephemeral_threads SET expires_at = expires_at - make_interval(secs => $2) WHERE thread_id = $1"
        assert await driver.execute(query, UUID(thread_id), seconds) == "UPDATE 1"


async def listed(requester: Requester) -> list[str]:
    return [item["id"] for item in (await requester.get("/api/threads"))["items"]]


async def test_an_ephemeral_thread_is_on_no_list_and_only_its_owner_has_access(
    server: InProcessServer, store: Database, requester: Requester
) -> None:
    usual = (await requester.post({"model": "khala", "messages": user("/echo usual")})).headers["x-thread-id"]
    thread_id = await ask(requester)
    assert await listed(requester) == [usual]
    assert [text_of(message) for message in await requester.thread(thread_id)] == ["/echo yes", "yes"]
    assert await status(await Requester.new(server, store), thread_id) == 403
    async with websockets.connect(server.socket_url, additional_headers=requester.person.headers) as socket:
        await socket.send(json.dumps({"type": "watch"}))
        await socket.send(json.dumps({"type": "subscribe", "threadId": thread_id}))
        async with asyncio.timeout(20):
            frames = [json.loads(await socket.recv()) for _ in range(3)]
    by_type = {result["type"]: result for result in frames}
    assert [entry["thread"]["id"] for entry in by_type["account"]["threads"]] == [usual]
    assert by_type["snapshot"]["thread"]["id"] == thread_id


async def test_an_ephemeral_thread_with_a_file_in_its_first_message_is_on_no_list(
    store: Database, requester: Requester
) -> None:
    content = [{"type": "text", "text": "/echo seen"}, {"type": "image_url", "image_url": IMAGE}]
    body = {"model": "khala", "messages": [{"role": "user", "content": content}]}
    answer = await requester.post(body, **EPHEMERAL)
    assert answer.json()["choices"][0]["message"]["content"] == "seen"
    assert await listed(requester) == []
    assert 3500 < await seconds_left(store, answer.headers["x-thread-id"]) <= 3600


async def test_an_ephemeral_thread_that_continues_stays_off_the_list(requester: Requester) -> None:
    thread_id = await ask(requester)
    again = await requester.post({"model": "khala", "messages": user("/echo on")}, x_thread_id=thread_id)
    assert again.headers["x-thread-id"] == thread_id
    assert [text_of(message) for message in await requester.thread(thread_id)][-1] == "on"
    assert await listed(requester) == []


@pytest.mark.parametrize(("headers", "lasts"), [({}, 3600), ({"x-thread-ttl": "90"}, 90)])
async def test_an_ephemeral_thread_is_deleted_when_it_expires_and_not_before(
    store: Database, requester: Requester, headers: dict[str, str], lasts: int
) -> None:
    thread_id = await ask(requester, **headers)
    assert lasts - 60 < await seconds_left(store, thread_id) <= lasts
    await shorten_expiry(store, thread_id, lasts - 60)
    assert (await purge(store, KEEP))["expired threads"] == 0
    assert await status(requester, thread_id) == 200
    await shorten_expiry(store, thread_id, 60)
    assert (await count_due(store, KEEP))["expired threads"] == 1
    assert (await purge(store, KEEP))["expired threads"] == 1
    assert await status(requester, thread_id) == 404
    async with store.driver() as driver:
        for table in ("messages", "message_parts", "receipts", "runs", "ephemeral_threads"):
            query = f"SELECT count(*) FROM {table} WHERE thread_id = $1"
            assert await driver.fetchval(query, UUID(thread_id)) == 0, table


async def test_an_ephemeral_thread_is_kept_while_an_answer_is_written_and_deleted_after_it(
    store: Database, requester: Requester
) -> None:
    async with requester.stream("/hang=2", x_autopilot="false", **EPHEMERAL) as stream:
        thread_id, run_id = stream.response.headers["x-thread-id"], stream.response.headers["x-run-id"]
        await shorten_expiry(store, thread_id, 4000)
        assert (await purge(store, KEEP))["expired threads"] == 0
        assert await status(requester, thread_id) == 200
        cancel = await requester.inside.http.post(f"/api/runs/{run_id}/cancel", headers=requester.person.headers)
        cancel.raise_for_status()
        await requester.ended(run_id)
    assert (await purge(store, KEEP))["expired threads"] == 1
    assert await status(requester, thread_id) == 404


async def test_a_batch_closes_a_bounded_number_of_expired_threads(
    store: Database, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await ask(requester) for _ in range(3)]
    for thread_id in ids:
        await shorten_expiry(store, thread_id, 4000)
    monkeypatch.setattr(retention, "MAX_BATCH_THREADS", 1)
    monkeypatch.setattr(retention, "MAX_BATCHES", 2)
    assert (await purge(store, KEEP))["expired threads"] == 2
    assert (await purge(store, KEEP))["expired threads"] == 1


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-thread": "permanent"}, "x-thread"),
        ({"x-thread-ttl": "90"}, "x-thread-ttl"),
        *[
            ({"x-thread-ttl": ttl, **EPHEMERAL}, "x-thread-ttl")
            for ttl in ("59", "604801", "-1", "1.5", "soon", "9" * 99)
        ],
        ({"x-thread-id": "00000000-0000-0000-0000-000000000000", **EPHEMERAL}, "x-thread"),
    ],
)
async def test_invalid_headers_for_ephemeral_threads_are_refused(
    requester: Requester, headers: dict[str, str], param: str
) -> None:
    refused = await requester.post({"model": "khala", "messages": user("x")}, **headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert await listed(requester) == []


async def test_a_temporary_thread_expires_in_a_day_and_is_on_no_list_and_in_no_search(
    server: InProcessServer, store: Database
) -> None:
    async with account(server, "Artanis") as who:
        thread_id = str(ids.new())
        body = {"id": thread_id, "temporary": True}
        created = await who.http.post("/api/threads", json=body)
        again = await who.http.post("/api/threads", json=body)
        assert (created.status_code, again.status_code) == (201, 200)
        assert again.json()["expiresAt"] == created.json()["expiresAt"]
        thread = Thread(who.http, thread_id, "")
        assert 86_300 < await seconds_left(store, thread.id) <= 86_400
        await thread.ended((await thread.send("/echo zerglings"))["runId"])
        assert [item["id"] for item in (await who.http.get("/api/threads")).json()["items"]] == []
        search = "/api/search?q=zerglings"
        async with asyncio.timeout(20):
            while not (await who.http.get(f"{search}&threadId={thread.id}")).json()["items"]:
                await asyncio.sleep(0.1)
        assert (await who.http.get(search)).json()["items"] == []


async def test_a_guest_has_temporary_threads_too(server: InProcessServer) -> None:
    created = (await server.http.post("/api/threads", json={"temporary": True})).raise_for_status().json()
    key = {"X-Anon-Key": created["anonKey"]}
    assert (await server.http.get("/api/threads", headers=key)).json()["items"] == []
    assert (await server.http.get(f"/api/threads/{created['thread']['id']}", headers=key)).status_code == 200


async def test_a_temporary_thread_says_its_end_wherever_it_is_sent(server: InProcessServer) -> None:
    async with account(server, "Fenix") as who, account(server, "Tassadar") as member:
        created = (await who.http.post("/api/threads", json={"temporary": True})).raise_for_status().json()
        thread_id, end = created["thread"]["id"], created["expiresAt"]
        assert created["thread"]["expiresAt"] == end
        path = f"/api/threads/{thread_id}"
        assert (await who.http.get(path)).json()["thread"]["expiresAt"] == end
        export = (await who.http.get(f"{path}/export?format=json")).raise_for_status().json()
        assert export["thread"]["expiresAt"] == end
        async with socket_of(server, who) as socket:
            await socket.send(json.dumps({"type": "subscribe", "threadId": thread_id}))
            assert (await next_frame(socket, "snapshot"))["thread"]["expiresAt"] == end
            renamed = (await who.http.patch(path, json={"title": "Aiur"})).raise_for_status().json()
            assert renamed["expiresAt"] == end
            assert (await next_frame(socket, "delta"))["thread"]["expiresAt"] == end
        (await who.http.put(f"{path}/members/{member.id}", json={"role": "viewer"})).raise_for_status()
        (await member.http.post(f"{path}/join")).raise_for_status()
        (listed,) = (await member.http.get("/api/threads")).json()["items"]
        assert listed["expiresAt"] == end
        async with socket_of(server, member) as socket:
            await socket.send(json.dumps({"type": "watch"}))
            (entry,) = (await next_frame(socket, "account"))["threads"]
            assert entry["thread"]["expiresAt"] == end


def socket_of(server: InProcessServer, who: Account) -> websockets.connect:
    """A connection of the account."""
    cookies = "; ".join(f"{name}={value}" for name, value in who.http.cookies.items())
    return websockets.connect(server.socket_url, additional_headers={"Cookie": cookies})


async def next_frame(socket: websockets.ClientConnection, kind: str) -> dict[str, Any]:
    """The next frame of this type."""
    async with asyncio.timeout(20):
        while True:
            frame: dict[str, Any] = json.loads(await socket.recv())
            if frame["type"] == kind:
                return frame


async def test_usual_threads_have_no_end(server: InProcessServer) -> None:
    created = (await server.http.post("/api/threads", json={})).raise_for_status().json()
    assert "expiresAt" not in created
    assert "expiresAt" not in created["thread"]
    key = {"X-Anon-Key": created["anonKey"]}
    read = (await server.http.get(f"/api/threads/{created['thread']['id']}", headers=key)).raise_for_status().json()
    assert "expiresAt" not in read["thread"]
    refused = await server.http.post("/api/threads", json={"temporary": "soon"})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "temporary")


@pytest.mark.parametrize("api", ["chat completions", "responses"])
async def test_an_ephemeral_thread_of_the_openai_api_is_not_sent_as_temporary(
    server: InProcessServer, requester: Requester, api: str
) -> None:
    headers = requester.person.headers
    if api == "responses":
        body = {"model": "khala", "input": "/echo yes", "store": False}
        answer = (await server.http.post("/v1/responses", json=body, headers=headers)).raise_for_status()
        thread_id = str(answer.headers["x-thread-id"])
    else:
        thread_id = await ask(requester, **{"x-thread-ttl": "90"})
    path = f"/api/threads/{thread_id}"
    assert "expiresAt" not in (await requester.get(path))["thread"]
    export = await server.http.get(f"{path}/export?format=json", headers=headers)
    assert "expiresAt" not in export.raise_for_status().json()["thread"]
    async with websockets.connect(server.socket_url, additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "subscribe", "threadId": thread_id}))
        assert "expiresAt" not in (await next_frame(socket, "snapshot"))["thread"]
        renamed = await requester.inside.http.patch(path, json={"title": "Aiur"}, headers=headers)
        assert "expiresAt" not in renamed.raise_for_status().json()
        assert "expiresAt" not in (await next_frame(socket, "delta"))["thread"]


async def test_a_claimed_temporary_thread_stays_off_the_list(server: InProcessServer) -> None:
    created = (await server.http.post("/api/threads", json={"temporary": True})).raise_for_status().json()
    thread_id = created["thread"]["id"]
    async with account(server, "Selendis") as who:
        claimed = await who.http.post(f"/api/threads/{thread_id}/claim", json={"anonKey": created["anonKey"]})
        assert claimed.raise_for_status().json()["ownerId"] == str(who.id)
        assert claimed.json()["expiresAt"] == created["expiresAt"]
        assert (await who.http.get("/api/threads")).json()["items"] == []
        cookies = "; ".join(f"{name}={value}" for name, value in who.http.cookies.items())
        async with websockets.connect(server.socket_url, additional_headers={"Cookie": cookies}) as socket:
            await socket.send(json.dumps({"type": "watch"}))
            async with asyncio.timeout(20):
                while (frame := json.loads(await socket.recv()))["type"] != "account":
                    pass
        assert frame["threads"] == []
