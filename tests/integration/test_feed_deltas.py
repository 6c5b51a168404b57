"""Deltas: chained by cursor without gap or repetition, and an explicit snapshot where no delta is possible."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.test_api_threads import assert_problem
from tests.support.client import View
from tests.support.frames import Socket, events, socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture, shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD = {"id", "threadId", "parentId", "role", "status", "runId", "seq", "createdAt", "updatedAt"}

server = server_fixture(KHALA_FLUSH_MS="20")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def idle_server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    """A server without an executor: only the test changes a thread's revision."""
    async with shared(postgres_url, template, with_executor=False) as inside:
        yield inside


async def until_finished(feed: Socket, answer: str) -> list[str]:
    """The texts of all frames up to the one with the answer's finish."""
    texts: list[str] = []
    while True:
        texts.append(await feed.text())
        frame = json.loads(texts[-1])
        if any(part["messageId"] == answer and part["kind"] == "finish" for part in frame.get("parts", ())):
            return texts


async def test_the_frames_of_an_answer_have_the_documented_shape(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        snapshot = await feed.subscribe(thread)
        assert set(snapshot) == {"type", "threadId", "revision", "thread", "messages", "hasMore"}
        assert snapshot == {"type": "snapshot", "threadId": thread.id} | await thread.snapshot()
        sent = await thread.send("/words=50 /pace=500")
        frames = [json.loads(text) for text in await until_finished(feed, sent["assistantMessageId"])]
    assert {frame["type"] for frame in frames} == {"delta"}
    assert [frame["from"] for frame in frames] == [snapshot["revision"], *[frame["revision"] for frame in frames[:-1]]]
    for frame in frames:
        assert set(frame) - {"thread"} == {"type", "threadId", "from", "revision", "messages", "parts"}
    assert [frame for frame in frames if "thread" in frame] == frames[:1], "the send moves the active leaf"
    question, head = frames[0]["messages"]
    assert set(question) == HEAD - {"runId"} | {"content", "authorId"}
    assert question["content"] == [{"type": "text", "text": "/words=50 /pace=500"}]
    assert set(head) == HEAD
    parts = [part for frame in frames for part in frame["parts"]]
    assert [part["seq"] for part in parts] == list(range(len(parts)))
    for part in parts:
        assert set(part) == {"runId", "messageId", "seq", "kind", "data", "createdAt"}
        assert (part["runId"], part["messageId"]) == (sent["runId"], sent["assistantMessageId"])
    [ended] = frames[-1]["messages"]
    assert set(ended) == HEAD | {"finish"}
    assert (ended["status"], ended["seq"]) == ("final", len(parts))
    assert parts[-1]["data"] == ended["finish"]
    assert set(ended["finish"]) == {
        "reason",
        "usage",
        "costUsd",
        "witness",
        "model",
        "provider",
        "timeToFirstTokenMs",
        "totalMs",
    } - ({"costUsd"} if "costUsd" not in ended["finish"] else set())
    assert "_" not in "".join(key for frame in frames for key in _keys(frame))


def _keys(value: Any) -> list[str]:
    if isinstance(value, list):
        return [key for inner in value for key in _keys(inner)]
    return [*value, *[key for element in value.values() for key in _keys(element)]] if isinstance(value, dict) else []


async def test_every_piece_of_text_is_sent_once_and_never_the_whole_text_again(server: InProcessServer) -> None:
    thread = await server.thread()
    await thread.ended((await thread.send("/words=2000 /pace=0"))["runId"])
    async with socket(server) as feed:
        await feed.subscribe(thread)
        sent = await thread.send("/words=300 /pace=1000")
        texts = await until_finished(feed, sent["assistantMessageId"])
    parts = [part for text in texts for part in json.loads(text)["parts"]]
    expected = " ".join(f"word{number}" for number in range(1, 301))
    assert "".join(part["data"].get("text", "") for part in parts) == expected
    assert len(texts) > 3, "it was streamed"
    assert not [text for text in texts if "word2000" in text]
    assert sum(map(len, texts)) < 1000 * len(texts) + len(expected)


async def test_the_frames_of_two_observers_are_the_same_bytes(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as first, socket(server) as two, events(thread) as three:
        for feed in (first, two):
            await feed.subscribe(thread)
        await three.frame()
        sent = await thread.send("/words=100 /pace=500")
        texts = await until_finished(first, sent["assistantMessageId"])
        assert await until_finished(two, sent["assistantMessageId"]) == texts
        assert [(await three.next())["data"] for _ in texts] == texts


async def test_a_reader_resumes_from_any_revision_without_a_gap(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        views = {0: View(thread.id)}
        views[0].apply(await feed.subscribe(thread))
        first = views[0].revision
        assert first is not None
        sent = await thread.send("/words=60 /pace=300")
        frames = [json.loads(text) for text in await until_finished(feed, sent["assistantMessageId"])]
        whole = View(thread.id)
        whole.apply(json.loads(json.dumps(await feed.subscribe(thread))))
        for known in range(len(frames) + 1):
            view = View(thread.id)
            view.apply({"type": "snapshot", **await first_snapshot(views[0], first)})
            for frame in frames[:known]:
                view.apply(frame)
            after = view.revision
            if known < len(frames):
                rest = await feed.subscribe(thread, after=after)
                assert (rest["type"], rest["from"]) == ("delta", after)
                view.apply(rest)
            assert view.text(sent["assistantMessageId"]) == whole.text(sent["assistantMessageId"])
            assert (view.revision, view.finished) == (whole.revision, whole.finished)


async def first_snapshot(view: View, revision: int) -> dict[str, Any]:
    """A snapshot of the view's first state: only the welcome message."""
    return {"revision": revision, "messages": list(view.messages.values())[:1]}


async def test_an_observer_that_is_disconnected_repeatedly_misses_nothing(server: InProcessServer) -> None:
    thread = await server.thread()
    observer = server.observer(thread)
    async with observer.following():
        await observer.until(lambda view: view.revision is not None)
        sent = await thread.send("/words=150 /pace=60")
        answer = sent["assistantMessageId"]
        for length in (50, 250, 450, 650):
            await observer.until(lambda view, length=length: len(view.text(answer)) > length)  # type: ignore[misc]
            await observer.drop()
        view = await observer.until(lambda view: answer in view.finished)
    assert view.text(answer).split() == [f"word{number}" for number in range(1, 151)]
    assert (view.snapshots, observer.connects) == (1, 5)


async def test_a_current_cursor_gets_no_frame_until_a_change(idle_server: InProcessServer) -> None:
    thread = await idle_server.thread()
    async with socket(idle_server) as feed:
        await feed.send({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key, "after": 1})
        await feed.expect_nothing()
        sent = await thread.send("Hello")
        delta = await feed.next()
        assert (delta["type"], delta["from"], delta["revision"]) == ("delta", 1, sent["revision"])


@pytest.mark.parametrize("after", [2, 1000, 2**53 - 1])
async def test_a_cursor_in_the_future_gets_a_snapshot_and_continues_from_it(
    idle_server: InProcessServer, after: int
) -> None:
    thread = await idle_server.thread()
    async with socket(idle_server) as feed, socket(idle_server) as other:
        first = await feed.subscribe(thread, after=after)
        assert (first["type"], first["revision"], first.get("reset")) == ("snapshot", 1, None)
        assert (await other.subscribe(thread))["type"] == "snapshot"
        for number in range(3):
            sent = await thread.send(f"Message {number}", options={"ifBusy": "interrupt"})
            for each_feed in (feed, other):
                frame = await each_feed.next()
                while frame["revision"] < sent["revision"]:
                    assert frame["type"] == "delta"
                    frame = await each_feed.next()
                assert (frame["type"], frame["revision"]) == ("delta", sent["revision"])
        await feed.expect_nothing()


async def test_a_cursor_from_before_a_reset_gets_a_snapshot_that_says_so(idle_server: InProcessServer) -> None:
    thread = await idle_server.thread()
    await thread.send("Before")
    async with socket(idle_server) as feed:
        before = (await feed.subscribe(thread))["revision"]
        reset = (await thread.post("reset")).json()
        live = await feed.next()
        assert (live["type"], live["reset"], live["revision"]) == ("snapshot", True, reset["revision"])
        assert live["thread"] == reset
        assert [message["role"] for message in live["messages"]] == ["assistant"]
        for after in (0, 1, before):
            assert await feed.subscribe(thread, after=after) == live
        fresh = await feed.subscribe(thread)
        assert fresh == {key: value for key, value in live.items() if key != "reset"}
        await thread.send("After")
        delta = await feed.next()
        assert (delta["type"], delta["from"]) == ("delta", reset["revision"])


async def test_a_reset_during_an_answer_ends_the_answer(server: InProcessServer) -> None:
    thread = await server.thread()
    async with server.observer(thread).following() as observer:
        sent = await thread.send("/words=2000 /pace=100")
        await observer.until(lambda view: len(view.text(sent["assistantMessageId"])) > 20)
        reset = await thread.post("reset")
        assert reset.status_code == 200
        view = await observer.until(lambda view: view.snapshots == 2)
        assert [message["role"] for message in view.messages.values()] == ["assistant"]
        assert sent["assistantMessageId"] not in view.messages
        again = await thread.send("/words=5 /pace=0")
        await observer.until(lambda view: again["assistantMessageId"] in view.finished)
        assert view.snapshots == 2, "no frame of the old answer came after the reset"
        assert set(view.texts) == set(view.messages)
    response = await server.http.get(f"/api/runs/{sent['runId']}", headers=thread.headers)
    assert_problem(response, 404, "run_not_found")
    assert len((await thread.snapshot())["messages"]) == 3


async def test_a_deleted_thread_is_gone_for_every_observer_and_other_threads_continue(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    gone = {"type": "gone", "threadId": thread.id, "code": "thread_not_found"}
    async with socket(server) as first, socket(server) as two, events(thread) as three:
        await first.subscribe(other)
        for feed in (first, two):
            await feed.subscribe(thread)
        await three.frame()
        sent = await thread.send("/words=2000 /pace=100")
        await server.http.delete(f"/api/threads/{thread.id}", headers=thread.headers)
        for feed in (first, two):
            assert await feed.until("gone") == gone
            await feed.expect_nothing()
        while (frame := await three.frame())["type"] != "gone":
            assert frame["type"] == "delta"
        assert frame == gone
        assert await three.next() == {}
        assert three.ended
        assert (await first.subscribe(thread))["code"] == "thread_not_found"
        await other.send("/words=1 /pace=0")
        assert (await first.next())["threadId"] == other.id
    assert_problem(await server.http.get(f"/api/runs/{sent['runId']}", headers=thread.headers), 404, "run_not_found")


async def test_a_deleted_thread_stays_deleted(idle_server: InProcessServer) -> None:
    thread = await idle_server.thread()
    await thread.send("Before")
    async with socket(idle_server) as feed:
        await feed.subscribe(thread)
        await idle_server.http.delete(f"/api/threads/{thread.id}", headers=thread.headers)
        assert (await feed.until("gone"))["code"] == "thread_not_found"
        remade = await idle_server.http.post("/api/threads", json={"id": thread.id, "anonKey": thread.key})
        assert_problem(remade, 409, "conflict")
        assert (await feed.subscribe(thread, after=1))["code"] == "thread_not_found"


async def test_a_reader_that_does_not_read_catches_up_later(server: InProcessServer) -> None:
    thread = await server.thread()
    options: dict[str, Any] = {"max_queue": 1, "ping_interval": None}
    async with socket(server, **options) as slow, socket(server) as quick:
        view = View(thread.id)
        view.apply(await slow.subscribe(thread))
        await quick.subscribe(thread)
        sent = [await thread.send("/words=4000 /pace=0", options={"ifBusy": "queue"}) for _ in range(5)]
        await until_finished(quick, sent[-1]["assistantMessageId"])
        async with asyncio.timeout(20):
            while sent[-1]["assistantMessageId"] not in view.finished:
                view.apply(await slow.next())
    expected = " ".join(f"word{number}" for number in range(1, 4001))
    assert [view.text(response["assistantMessageId"]) for response in sent] == [expected] * 5


async def test_changes_of_one_thread_are_not_sent_to_observers_of_another(idle_server: InProcessServer) -> None:
    thread, other = await idle_server.thread(), await idle_server.thread()
    async with socket(idle_server) as feed:
        await feed.subscribe(other)
        await thread.send("A secret")
        await thread.post("reset")
        await feed.expect_nothing()
