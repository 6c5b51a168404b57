"""The feed as server-sent events: the same frames, numbered by revision, resumed by Last-Event-ID."""

import asyncio
import json
import uuid
from functools import partial
from itertools import pairwise

import pytest

from khala.api.http.http_protocol import BoundedHttpProtocol
from khala.api.threads import feed_reader
from khala.signals.metrics import REGISTRY
from tests.integration.test_api_threads import assert_problem
from tests.support.client import Observer, View
from tests.support.frames import NARROW_BYTES, events, socket, unread_events
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


async def test_events_are_the_frames_of_the_socket_numbered_by_revision(server: InProcessServer) -> None:
    thread = await server.thread()
    async with events(thread) as stream, socket(server) as feed:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert stream.response.headers["cache-control"] == "no-store"
        assert stream.response.headers["x-accel-buffering"] == "no"
        first = await stream.next()
        assert set(first) == {"id", "data"}
        assert first["id"] == "1"
        assert json.loads(first["data"]) == await feed.subscribe(thread)
        for number in range(3):
            await thread.send(f"Zeile\n{number}\r\ndata: x", options={"ifBusy": "queue"})
            event = await stream.next()
            assert event == {"id": str(number + 2), "data": await feed.text()}


@pytest.mark.parametrize(("query", "headers"), [("", {"Last-Event-ID": "2"}), ("?after=2", {})])
async def test_a_stream_resumes_after_the_revision_that_is_known(
    server: InProcessServer, query: str, headers: dict[str, str]
) -> None:
    thread = await server.thread()
    for number in range(3):
        await thread.send(f"Message {number}", options={"ifBusy": "queue"})
    async with events(thread, query=query, **headers) as stream:
        event = await stream.next()
        delta = json.loads(event["data"])
        assert (event["id"], delta["type"], delta["from"], delta["revision"]) == ("4", "delta", 2, 4)
        assert [message["role"] for message in delta["messages"]] == ["user", "assistant"] * 2


async def test_last_event_id_takes_precedence_over_the_query_that_a_browser_repeats(server: InProcessServer) -> None:
    thread = await server.thread()
    for number in range(3):
        await thread.send(f"Message {number}", options={"ifBusy": "queue"})
    async with events(thread, query="?after=1", **{"Last-Event-ID": "3"}) as stream:
        assert (await stream.frame())["from"] == 3


@pytest.mark.parametrize(
    "known",
    ["", "x", "-1", "1e3", "2.0", "+1", "0x1", "5,6", "NaN", "9" * 16, "9" * 5000, "9007199254740991",
     "9007199254740992", "1\tid: 7", "<script>", "\xb2", "\xff"],
)  # fmt: skip
async def test_an_invalid_last_event_id_gets_a_snapshot(server: InProcessServer, known: str) -> None:
    thread = await server.thread()
    path = f"/api/threads/{thread.id}/events"
    headers = [(b"Last-Event-ID", known.encode("latin-1")), (b"X-Anon-Key", thread.key.encode())]
    async with asyncio.timeout(5), server.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert await anext(lines) == "id: 1"
        assert json.loads((await anext(lines)).removeprefix("data: "))["type"] == "snapshot"


@pytest.mark.parametrize("after", ["-1", "x", "9007199254740992", "1.5", ""])
async def test_an_after_parameter_that_is_no_revision_is_refused(server: InProcessServer, after: str) -> None:
    thread = await server.thread()
    response = await server.http.get(f"/api/threads/{thread.id}/events?after={after}", headers=thread.headers)
    assert [error["path"] for error in assert_problem(response, 400, "invalid_input")["errors"]] == ["after"]


async def test_an_idle_stream_sends_keep_alives(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_reader, "KEEP_ALIVE_INTERVAL_SECONDS", 0.05)
    thread = await server.thread()
    async with events(thread) as stream:
        while (event := await stream.next()) == {"": "ping"}:
            pass
        assert event["id"] == "1"
        for _ in range(3):
            assert await stream.next() == {"": "ping"}
        await thread.send("Hello")
        while (event := await stream.next()) == {"": "ping"}:
            pass
        assert event["id"] == "2"


async def test_a_stream_ends_when_its_thread_is_gone(server: InProcessServer) -> None:
    thread = await server.thread()
    async with events(thread) as stream:
        await stream.next()
        await server.http.delete(f"/api/threads/{thread.id}", headers=thread.headers)
        last = await stream.next()
        assert set(last) == {"data"}, "no id: there is nothing to resume"
        assert json.loads(last["data"]) == {"type": "gone", "threadId": thread.id, "code": "thread_not_found"}
        await stream.next()
        assert stream.ended


async def test_a_reset_is_sent_to_streams(server: InProcessServer) -> None:
    thread = await server.thread()
    async with events(thread) as stream:
        await stream.next()
        await thread.post("reset")
        frame = await stream.frame()
        assert (frame["type"], frame["reset"], frame["revision"]) == ("snapshot", True, 2)


async def test_disconnected_streams_are_released(server: InProcessServer) -> None:
    thread = await server.thread()
    for _ in range(20):
        async with events(thread) as stream:
            await stream.next()
    async with events(thread) as stream:
        await stream.next()
        await thread.send("Hello")
        assert (await stream.frame())["revision"] == 2


async def test_clients_that_read_nothing_take_bounded_memory_and_delay_nobody(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports: list[asyncio.Transport] = []
    connection_made = BoundedHttpProtocol.connection_made

    def record(protocol: BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        transports.append(transport)
        connection_made(protocol, transport)

    monkeypatch.setattr(BoundedHttpProtocol, "connection_made", record)
    thread = await server.thread()
    quick, slow = server.observer(thread), Observer(server.socket_url, thread, receive_buffer=NARROW_BYTES)
    async with quick.following(), slow.following(), unread_events(server, thread) as unread:
        for observer in (quick, slow):
            await observer.until(lambda view: view.revision is not None)
        slow.pause()
        dropped, most = dropped_back(), 0
        for revision in range(2, 22):
            text = {"type": "text", "text": "x" * 100_000}
            message = {"id": str(uuid.uuid4()), "role": "assistant", "parts": [text]}
            (await thread.post("messages", {"messages": [message]})).raise_for_status()
            await quick.until(partial(reached, revision), within=5)
            most = max(most, *(transport.get_write_buffer_size() for transport in transports))
        assert 100_000 < most < 300_000, "the frame that a client does not take, and no other one"
        assert dropped_back() >= dropped + 2, "what waits for each of the two was dropped, and is read again"
        slow.resume()
        await slow.until(lambda view: view.revision == quick.view.revision)
        assert slow.view.texts == quick.view.texts
        frames = await unread.frames(21)
        assert all(frame["from"] == before["revision"] for before, frame in pairwise(frames))
        assert len(frames) < 20


def reached(revision: int, view: View) -> bool:
    return view.revision == revision


def dropped_back() -> float:
    return REGISTRY.get_sample_value("khala_observers_dropped_back_total") or 0.0
