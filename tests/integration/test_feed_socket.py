"""The WebSocket: requests, responses, refusals, and the conditions under which the server closes it."""

import asyncio
import gc
import json
import logging
import uuid
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from websockets import InvalidStatus, Origin, Subprotocol
from websockets.asyncio.client import connect

from khala.api.http.http_protocol import BoundedHttpProtocol
from khala.api.http.websocket_protocol import WebSocketProtocol
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture, shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False, KHALA_RUNS_PER_OWNER="1000")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_with_origins(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    origins = "https://chat.example, http://localhost:3000"
    async with shared(postgres_url, template, with_executor=False, KHALA_ORIGINS=origins) as inside:
        yield inside


def assert_error(frame: dict[str, Any], code: str, path: str | None = None) -> None:
    place = {} if path is None else {"path": path}
    assert frame == {"type": "error", "code": code, "message": frame["message"], **place}
    assert frame["message"]


async def test_the_server_sends_hello_first_in_the_requested_subprotocol(server: InProcessServer) -> None:
    async with socket(server, greeted=False) as feed:
        assert await feed.next() == {"type": "hello", "protocol": 1, "heartbeatSeconds": 25}
        assert feed.connection.subprotocol == "khala.v1"
    for offered, spoken in ((None, None), (["graphql-ws"], None), (["graphql-ws", "khala.v1"], "khala.v1")):
        names = [Subprotocol(name) for name in offered] if offered else None
        async with socket(server, greeted=False, subprotocols=names) as feed:
            assert feed.connection.subprotocol == spoken
            assert (await feed.next())["type"] == "hello"


async def test_a_ping_is_answered(server: InProcessServer) -> None:
    async with socket(server) as feed:
        for _ in range(100):
            await feed.send({"type": "ping"})
        assert [await feed.next() for _ in range(100)] == [{"type": "pong"}] * 100


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param({"type": "levitate", "threadId": str(uuid.uuid4())}, id="unknown type"),
        pytest.param({"type": "presence", "threadId": str(uuid.uuid4()), "state": {}}, id="present, but not following"),
        pytest.param({"type": "presence", "threadId": str(uuid.uuid4()), "state": []}, id="a state that is no object"),
        pytest.param({"type": "presence", "threadId": str(uuid.uuid4())}, id="a presence without a state"),
        pytest.param({"type": "authenticate"}, id="an account without a token"),
        pytest.param({"type": "watch", "after": -1}, id="a watch after no revision"),
        pytest.param({"type": None}, id="no type"),
        pytest.param({}, id="nothing"),
        pytest.param("[]", id="an array"),
        pytest.param('"ping"', id="a string"),
        pytest.param("null", id="null"),
        pytest.param("", id="an empty frame"),
        pytest.param("{", id="cut off"),
        pytest.param("ping", id="no JSON"),
        pytest.param("[" * 60_000, id="nested"),
        pytest.param('{"type":"ping","a":' + "[" * 30_000 + "]" * 30_000 + "}", id="nested in an unknown field"),
        pytest.param('{"type":' + "9" * 60_000 + "}", id="a huge number"),
        pytest.param('{"type":"\\ud800"}', id="half a surrogate pair"),
        pytest.param('{"type":"ping"} {"type":"ping"}', id="two frames in one"),
        pytest.param(b'{"type":"ping"}', id="binary"),
        pytest.param({"type": "subscribe"}, id="a subscribe to nothing"),
        pytest.param({"type": "subscribe", "threadId": "abc"}, id="a subscribe to no id"),
        pytest.param({"type": "subscribe", "threadId": 5}, id="a subscribe to a number"),
    ],
)
async def test_an_invalid_frame_gets_an_error_and_the_socket_stays_open(server: InProcessServer, frame: Any) -> None:
    async with socket(server) as feed:
        await feed.send(frame)
        answer = await feed.next()
        answer.pop("threadId", None)
        is_known = isinstance(frame, dict) and "state" in frame and isinstance(frame["state"], dict)
        assert_error(answer, "invalid_input", path="threadId" if is_known else None)
        await feed.expect_nothing()


@pytest.mark.parametrize("after", ["x", "5", -1, 2**53, 10**400, 1.5, [], True])
async def test_a_cursor_that_is_no_revision_is_an_error_that_names_the_thread(
    server: InProcessServer, after: object
) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        answer = await feed.subscribe(thread, after=after)
        assert (answer["type"], answer["code"]) == ("error", "invalid_input")
        if after != 10**400:
            assert answer["threadId"] == thread.id
        await feed.expect_nothing()


async def test_a_frame_over_64_kib_gets_an_error_and_one_of_64_kib_does_not(server: InProcessServer) -> None:
    async with socket(server) as feed:
        frame = json.dumps({"type": "ping"}).ljust(65_536)
        await feed.send(frame)
        assert await feed.next() == {"type": "pong"}
        await feed.send(frame + " ")
        assert_error(await feed.next(), "payload_too_large")
        await feed.send(json.dumps({"type": "authenticate", "token": "é" * 33_000}, ensure_ascii=False))
        assert_error(await feed.next(), "payload_too_large")
        await feed.expect_nothing()


async def test_a_frame_over_a_mebibyte_closes(server: InProcessServer) -> None:
    async with socket(server) as feed:
        await feed.send("x" * ((1 << 20) + 1))
        assert (await feed.closed())[0] == 1009


async def test_the_tenth_invalid_frame_gets_an_error_and_closes_the_socket(server: InProcessServer) -> None:
    async with socket(server) as feed:
        for bad in ["no JSON", b"binary", "x" * 70_000, "{}", "[]"] * 2:
            await feed.send({"type": "ping"})
            await feed.send(bad)
        answers = [await feed.next() for _ in range(20)]
        assert [answer["type"] for answer in answers] == ["pong", "error"] * 10
        assert await feed.closed() == (1008, "Too many bad frames.")


async def test_refused_requests_do_not_count_as_invalid_frames(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        for _ in range(20):
            assert (await feed.subscribe(thread, anonKey="wrong"))["code"] == "forbidden"
        assert (await feed.subscribe(thread))["type"] == "snapshot"


async def test_a_socket_follows_a_hundred_threads_and_not_one_more(server: InProcessServer) -> None:
    key = uuid.uuid4().hex
    ids = [str(uuid.uuid4()) for _ in range(101)]
    bodies = [{"id": thread_id, "anonKey": key} for thread_id in ids]
    for body in bodies:
        (await server.http.post("/api/threads", json=body)).raise_for_status()
    threads = [Thread(server.http, thread_id, key) for thread_id in ids]
    async with socket(server) as feed:
        for thread in threads[:100]:
            await feed.send({"type": "subscribe", "threadId": thread.id, "anonKey": key})
        frames = [await feed.next() for _ in range(100)]
        assert {(frame["type"], frame["threadId"]) for frame in frames} == {
            ("snapshot", thread_id) for thread_id in ids[:100]
        }
        refused = await feed.subscribe(threads[100])
        assert refused == {
            "type": "error",
            "threadId": ids[100],
            "code": "rate_limited",
            "message": "A connection follows at most 100 threads.",
            "limit": "subscriptions",
            "scope": "connection",
            "most": "100",
            "retryAfter": 60,
        }
        assert (await feed.subscribe(threads[0]))["type"] == "snapshot", (
            "a followed thread can be subscribed again at the limit"
        )
        await feed.send({"type": "unsubscribe", "threadId": ids[0]})
        assert (await feed.subscribe(threads[100]))["type"] == "snapshot"
        await threads[100].send("Hello")
        assert (await feed.next())["threadId"] == ids[100]


async def test_after_an_unsubscribe_no_frame_comes_until_the_next_subscribe(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    async with socket(server) as feed, socket(server) as witness:
        await feed.subscribe(thread)
        await feed.subscribe(other)
        await witness.subscribe(thread)
        await feed.send({"type": "unsubscribe", "threadId": thread.id})
        await feed.send({"type": "unsubscribe", "threadId": str(uuid.uuid4())})
        await feed.expect_nothing()
        sent = await thread.send("Nobody hears")
        assert (await witness.next())["revision"] == sent["revision"]
        await feed.expect_nothing()
        await other.send("But this")
        assert (await feed.next())["threadId"] == other.id
        missed = await feed.subscribe(thread, after=1)
        assert (missed["type"], missed["from"], missed["revision"]) == ("delta", 1, sent["revision"])


async def test_two_threads_on_one_socket_keep_their_own_chains(server: InProcessServer) -> None:
    threads = [await server.thread() for _ in range(2)]
    queue = {"ifBusy": "queue"}
    async with socket(server) as feed:
        revisions = {thread.id: (await feed.subscribe(thread))["revision"] for thread in threads}
        await asyncio.gather(*(thread.send(f"Message {n}", options=queue) for n in range(10) for thread in threads))
        while min(revisions.values()) < 11:
            frame = await feed.next()
            assert (frame["type"], frame["from"]) == ("delta", revisions[frame["threadId"]])
            revisions[frame["threadId"]] = frame["revision"]
        assert set(revisions.values()) == {11}


async def test_a_second_subscribe_to_a_thread_starts_over(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        first = await feed.subscribe(thread)
        assert await feed.subscribe(thread) == first
        await thread.send("Hello")
        assert (await feed.next())["from"] == first["revision"]
        await feed.expect_nothing()


async def test_no_origin_and_our_own_may_connect(server: InProcessServer) -> None:
    for origin in (None, server.url):
        async with socket(server, origin=origin and Origin(origin)):
            pass


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "http://", "http://[::1", "http://127.0.0.1", "file://", "http://127.0.0.1:1",
     "{url}.evil.example", "{url}@evil.example", "http://evil.example/{url}",
     "ftp://{host}", "\xff", "{url}/", "{host}"],
)  # fmt: skip
async def test_a_foreign_origin_is_refused(server: InProcessServer, origin: str) -> None:
    given = origin.format(url=server.url, host=server.url.removeprefix("http://"))
    with pytest.raises(InvalidStatus) as refused:
        async with connect(server.socket_url, additional_headers={"Origin": given}):
            pass
    assert refused.value.response.status_code == 403


async def test_only_configured_origins_may_connect(server_with_origins: InProcessServer) -> None:
    for origin in ("https://chat.example", "http://localhost:3000", server_with_origins.url):
        async with socket(server_with_origins, origin=Origin(origin)):
            pass
    for origin in ("http://chat.example", "https://chat.example:8443", "https://sub.chat.example", "null"):
        with pytest.raises(InvalidStatus):
            await connect(server_with_origins.socket_url, origin=Origin(origin))


async def test_a_plain_request_for_the_socket_is_no_crash(server: InProcessServer) -> None:
    response = await server.http.get("/api/ws")
    assert (response.status_code, response.json()["code"]) in {(404, "not_found"), (405, "method_not_allowed")}
    with pytest.raises(InvalidStatus) as refused:
        await connect(server.socket_url.replace("/api/ws", "/api/nothing"))
    assert refused.value.response.status_code in {403, 404}


async def test_sockets_that_disconnect_leave_no_state_behind(
    server: InProcessServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    thread = await server.thread()
    queue = {"ifBusy": "queue"}
    sockets = [await connect(server.socket_url) for _ in range(20)]
    for number, connection in enumerate(sockets):
        await connection.send(json.dumps({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key}))
        if number % 2:
            await connection.send("no JSON")
    sending = [asyncio.create_task(thread.send(f"Message {n}", options=queue)) for n in range(20)]
    for connection in sockets:
        connection.transport.abort()
    await asyncio.gather(*sending)
    async with socket(server) as feed:
        assert (await feed.subscribe(thread))["revision"] == 21
        await feed.expect_nothing()
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "error" not in capsys.readouterr().out


async def test_a_closed_socket_is_freed_without_the_garbage_collector(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[object]] = []
    for kind in (BoundedHttpProtocol, WebSocketProtocol):
        begin = kind.connection_made

        def connection_made(self: Any, transport: Any, begin: Callable[[Any, Any], None] = begin) -> None:
            made.append(weakref.ref(self))
            begin(self, transport)

        monkeypatch.setattr(kind, "connection_made", connection_made)
    thread = await server.thread()
    made.clear()
    gc.disable()
    try:
        async with socket(server) as feed:
            await feed.send({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key})
            assert (await feed.next())["type"] == "snapshot"
            assert len(made) == 2
        async with asyncio.timeout(10):
            while any(reference() is not None for reference in made):
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
