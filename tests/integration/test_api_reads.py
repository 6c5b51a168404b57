"""Reads: the newest messages first, older messages in pages, and every part of a run, however many there are."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.test_api_threads import assert_problem
from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture, shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False, KHALA_RUNS_PER_OWNER="1000")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def working(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    """A server that stores every token as its own part, so that a long answer has thousands of parts."""
    async with shared(postgres_url, template, KHALA_FLUSH_PARTS="1", KHALA_FLUSH_MS="10") as inside:
        yield inside


async def read(thread: Thread, path: str) -> Any:
    return (await thread.http.get(path, headers=thread.headers)).raise_for_status().json()


async def test_a_long_thread_is_read_from_its_newest_messages_page_by_page(server: InProcessServer) -> None:
    thread = await server.thread()
    for number in range(52):
        await thread.send(f"Message {number}", options={"ifBusy": "queue"})
    path = f"/api/threads/{thread.id}"
    newest = await read(thread, path)
    assert (len(newest["messages"]), newest["hasMore"]) == (100, True)
    assert text_of(newest["messages"][-2]) == "Message 51"
    found, more = newest["messages"], True
    while more:
        page = await read(thread, f"{path}/messages?before={found[0]['id']}&limit=2")
        assert set(page) == {"items", "hasMore"}
        assert 1 <= len(page["items"]) <= 2
        found, more = page["items"] + found, page["hasMore"]
    assert len({message["id"] for message in found}) == len(found) == 105
    questions = [text_of(message) for message in found if message["role"] == "user"]
    assert questions == [f"Message {number}" for number in range(52)]
    assert (await read(thread, f"{path}/messages?before={found[0]['id']}")) == {"items": [], "hasMore": False}
    assert [len((await read(thread, f"{path}?limit={n}"))["messages"]) for n in (1, 105, 200)] == [1, 105, 105]
    assert (await read(thread, f"{path}?limit=105"))["hasMore"] is False


async def test_a_run_of_thousands_of_parts_is_read_whole(working: InProcessServer) -> None:
    thread = await working.thread()
    before = (await thread.snapshot())["revision"]
    sent = await thread.send("/words=2500 /pace=2000")
    run = await thread.ended(sent["runId"], within=60)
    expected = " ".join(f"word{number}" for number in range(1, 2501))
    parts: list[dict[str, Any]] = []
    after, done = -1, False
    while not done:
        page = await read(thread, f"/api/runs/{sent['runId']}/parts?after={after}&limit=1000")
        parts, after, done = parts + page["items"], page["nextAfter"], page["done"]
    assert [part["seq"] for part in parts] == list(range(len(parts)))
    assert {part["kind"] for part in parts[:-1]} == {"text-delta"}
    assert "".join(part["data"]["text"] for part in parts[:-1]) == expected
    answer = (await thread.snapshot())["messages"][-1]
    assert (text_of(answer), answer["seq"]) == (expected, len(parts))
    async with working.observer(thread).following() as observer:
        observer.view.revision = before
        view = await observer.until(lambda seen: sent["assistantMessageId"] in seen.finished)
        assert view.text(sent["assistantMessageId"]) == expected
    assert run["finish"] == answer["finish"] == parts[-1]["data"]


async def test_parts_are_read_from_any_seq_on(working: InProcessServer) -> None:
    thread = await working.thread()
    sent = await thread.send("/words=40 /pace=0")
    await thread.ended(sent["runId"])
    path = f"/api/runs/{sent['runId']}/parts"
    whole = await read(thread, path)
    assert set(whole) == {"items", "nextAfter", "done"}
    assert set(whole["items"][0]) == {"runId", "messageId", "seq", "kind", "data", "createdAt"}
    last = len(whole["items"]) - 1
    assert (whole["nextAfter"], whole["done"]) == (last, True)
    for after in (-1, 0, last - 1, last, last + 5):
        rest = await read(thread, f"{path}?after={after}")
        assert rest["items"] == whole["items"][after + 1 :]
        assert (rest["nextAfter"], rest["done"]) == (max(after, last), True)
    first = await read(thread, f"{path}?limit=1")
    assert (first["items"], first["nextAfter"], first["done"]) == (whole["items"][:1], 0, False)


@pytest.mark.parametrize("query", ["after=-2", "after=2147483648", "after=x", "limit=0", "limit=1001", "limit=1e400"])
async def test_limits_of_a_page_of_parts_are_enforced(server: InProcessServer, query: str) -> None:
    thread = await server.thread()
    sent = await thread.send("Hello")
    response = await thread.http.get(f"/api/runs/{sent['runId']}/parts?{query}", headers=thread.headers)
    assert [error["path"] for error in assert_problem(response, 400, "invalid_input")["errors"]] == [
        query.partition("=")[0]
    ]


async def test_a_finished_run_has_its_usage_and_a_receipt(working: InProcessServer) -> None:
    thread = await working.thread()
    sent = await thread.send("/words=5 /pace=0")
    run = await thread.ended(sent["runId"])
    finish = run["finish"]
    assert (run["status"], finish["reason"], finish["model"], finish["provider"]) == ("final", "stop", "demo", "demo")
    assert finish["usage"]["outputTokens"] == 5
    assert 0 <= finish["timeToFirstTokenMs"] <= finish["totalMs"]
    receipts = (await read(thread, f"/api/runs/{sent['runId']}/receipts"))["items"]
    assert [(receipt["type"], receipt["runId"], receipt["seq"]) for receipt in receipts] == [
        ("model", sent["runId"], 0)
    ]


async def test_a_reader_during_an_answer_gets_a_prefix_of_the_final_text(working: InProcessServer) -> None:
    thread = await working.thread()
    async with working.observer(thread).following() as early:
        sent = await thread.send("/words=200 /pace=400")
        answer = sent["assistantMessageId"]
        await early.until(lambda view: len(view.text(answer)) > 200)
        midst = (await thread.snapshot())["messages"][-1]
        async with working.observer(thread).following() as late:
            views = [await observer.until(lambda view: answer in view.finished) for observer in (early, late)]
    whole = (await thread.snapshot())["messages"][-1]
    assert midst["status"] == "streaming"
    assert text_of(midst)
    assert text_of(whole).startswith(text_of(midst))
    assert midst["seq"] < whole["seq"]
    assert [view.text(answer) for view in views] == [text_of(whole)] * 2


async def test_reads_during_an_answer_never_go_back(working: InProcessServer) -> None:
    thread = await working.thread()
    sent = await thread.send("/words=100 /pace=300")
    seen = [""]
    while (await thread.run(sent["runId"]))["status"] != "final":
        snapshot = await thread.snapshot()
        seen.append(text_of(snapshot["messages"][-1]))
        await asyncio.sleep(0)
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
