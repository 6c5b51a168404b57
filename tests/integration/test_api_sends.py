"""Sends and cancels: a send is atomic, idempotent by message id, and one answer is written at a time."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from khala.domain.access import author_id_of_key, key_hash
from tests.integration.test_api_threads import assert_problem
from tests.support.client import Thread, text_of
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import server_fixture, shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def working(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template) as inside:
        yield inside


def words(count: int) -> str:
    return " ".join(f"word{number}" for number in range(1, count + 1))


async def cancel(thread: Thread, run_id: str, **body: Any) -> Any:
    return await thread.http.post(f"/api/runs/{run_id}/cancel", json=body or None, headers=thread.headers)


async def test_a_send_returns_its_ids_at_once_and_all_its_rows_exist(server: InProcessServer) -> None:
    thread = await server.thread()
    [welcome] = (await thread.snapshot())["messages"]
    response = await thread.post("send", {"text": "What is a Khala?"})
    sent = response.json()
    assert response.status_code == 202
    assert set(sent) == {"threadId", "userMessageId", "assistantMessageId", "runId", "revision"}
    assert (sent["threadId"], sent["revision"]) == (thread.id, 2)
    _, question, answer = (await thread.snapshot())["messages"]
    common = {"threadId": thread.id, "createdAt": question["createdAt"], "updatedAt": question["updatedAt"], "seq": 0}
    assert question == common | {
        "id": sent["userMessageId"],
        "parentId": welcome["id"],
        "role": "user",
        "status": "final",
        "authorId": str(author_id_of_key(key_hash(thread.key))),
        "content": [{"type": "text", "text": "What is a Khala?"}],
    }
    assert answer == common | {
        "id": sent["assistantMessageId"],
        "parentId": sent["userMessageId"],
        "role": "assistant",
        "status": "streaming",
        "runId": sent["runId"],
        "content": [],
    }
    run = await thread.run(sent["runId"])
    assert set(run) == {"id", "threadId", "messageId", "status", "attempt", "steps", "createdAt"}
    assert (run["messageId"], run["status"], run["attempt"]) == (answer["id"], "queued", 0)


async def test_a_send_becomes_visible_all_at_once(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        await feed.subscribe(thread)
        sending = asyncio.create_task(thread.send("Hello"))
        while len((seen := await thread.snapshot())["messages"]) == 1:
            await asyncio.sleep(0)
        assert [message["role"] for message in seen["messages"]] == ["assistant", "user", "assistant"]
        sent = await sending
        delta = await feed.next()
        assert (delta["from"], delta["revision"]) == (1, sent["revision"])
        assert [message["id"] for message in delta["messages"]] == [sent["userMessageId"], sent["assistantMessageId"]]


async def test_a_repeated_send_makes_one_run(server: InProcessServer) -> None:
    thread = await server.thread()
    body = {"text": "Hello", "messageId": str(uuid.uuid4())}
    first, again = await thread.post("send", body), await thread.post("send", body)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    assert first.json()["userMessageId"] == body["messageId"]
    assert len((await thread.snapshot())["messages"]) == 3


async def test_twenty_equal_sends_at_once_make_one_run_and_get_the_same_response(server: InProcessServer) -> None:
    thread = await server.thread()
    body = {"text": "Hello", "messageId": str(uuid.uuid4())}
    responses = await asyncio.gather(*(thread.post("send", body) for _ in range(20)))
    assert sorted(response.status_code for response in responses) == [200] * 19 + [202]
    assert len({response.text for response in responses}) == 1


async def test_a_message_id_is_refused_with_another_text(server: InProcessServer) -> None:
    thread = await server.thread()
    sent = await thread.send("Hello")
    other = await thread.post("send", {"text": "Hello!", "messageId": sent["userMessageId"]})
    assert_problem(other, 409, "conflict")
    of_an_answer = await thread.post("send", {"text": "Hello", "messageId": sent["assistantMessageId"]})
    assert_problem(of_an_answer, 409, "conflict")
    assert len((await thread.snapshot())["messages"]) == 3


async def test_a_message_id_of_another_thread_conflicts_without_revealing_more(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    sent = await other.send("A secret")
    for text in ("A secret", "Another text"):
        problem = assert_problem(
            await thread.post("send", {"text": text, "messageId": sent["userMessageId"]}), 409, "conflict"
        )
        assert problem["detail"] == "This messageId is taken."
    assert len((await thread.snapshot())["messages"]) == 1


async def test_a_parent_must_be_a_message_of_the_thread(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    elsewhere = (await other.send("Elsewhere"))["userMessageId"]
    for parent in (elsewhere, str(uuid.uuid4())):
        problem = assert_problem(await thread.post("send", {"text": "Hello", "parentId": parent}), 400, "invalid_input")
        assert [error["path"] for error in problem["errors"]] == ["parentId"]
    [welcome] = (await thread.snapshot())["messages"]
    sent = await thread.send("Hello", parentId=welcome["id"])
    question = (await thread.snapshot())["messages"][1]
    assert (question["id"], question["parentId"]) == (sent["userMessageId"], welcome["id"])


async def test_a_second_send_is_refused_unless_it_may_wait_or_interrupt(server: InProcessServer) -> None:
    thread = await server.thread()
    first = await thread.send("One")
    for body in ({"text": "Two"}, {"text": "Two", "options": {}}, {"text": "Two", "options": {"ifBusy": "reject"}}):
        assert_problem(await thread.post("send", body), 409, "run_active")
    waiting = await thread.send("Three", options={"ifBusy": "queue"})
    interrupting = await thread.send("Four", options={"ifBusy": "interrupt"})
    states = [(await thread.run(each_sent["runId"]))["status"] for each_sent in (first, waiting, interrupting)]
    assert states == ["canceled", "canceled", "queued"]
    assert [message["status"] for message in (await thread.snapshot())["messages"]] == [
        *("final", "final", "canceled"),
        *("final", "canceled"),
        *("final", "streaming"),
    ]


async def test_only_one_of_sixty_sends_at_once_makes_a_run(server: InProcessServer) -> None:
    thread = await server.thread()
    responses = await asyncio.gather(*(thread.post("send", {"text": f"Send {n}"}) for n in range(60)))
    assert sorted(response.status_code for response in responses) == [202] + [409] * 59
    assert len((await thread.snapshot())["messages"]) == 3


async def test_queued_answers_come_one_after_the_other(working: InProcessServer) -> None:
    thread = await working.thread()
    sent = [await thread.send(f"/words={n} /pace=0", options={"ifBusy": "queue"}) for n in (30, 20, 10)]
    ended = [await thread.ended(response["runId"]) for response in sent]
    assert [run["status"] for run in ended] == ["final"] * 3
    answers = {message["id"]: text_of(message) for message in (await thread.snapshot())["messages"]}
    assert [answers[response["assistantMessageId"]] for response in sent] == [words(30), words(20), words(10)]


async def test_an_interrupted_answer_keeps_its_text_and_the_next_one_follows(working: InProcessServer) -> None:
    thread = await working.thread()
    async with working.observer(thread).following() as observer:
        first = await thread.send("/words=5 /pace=0 /hang=3")
        await observer.until(lambda view: view.text(first["assistantMessageId"]) == "word1 word2 word3 ")
        second = await thread.send("/words=4 /pace=0", options={"ifBusy": "interrupt"})
        await observer.until(lambda view: second["assistantMessageId"] in view.finished)
    messages = {message["id"]: message for message in (await thread.snapshot())["messages"]}
    interrupted, answered = messages[first["assistantMessageId"]], messages[second["assistantMessageId"]]
    assert (interrupted["status"], text_of(interrupted)) == ("canceled", "word1 word2 word3 ")
    assert (answered["status"], text_of(answered)) == ("final", words(4))


async def test_a_full_queue_says_when_to_try_again(database_url: str) -> None:
    async with khala(database_url, with_executor=False, KHALA_RUNS_PER_OWNER="1") as server:
        thread = await server.thread()
        first = await thread.send("One")
        full = await thread.post("send", {"text": "Two", "options": {"ifBusy": "queue"}})
        assert_problem(full, 429, "rate_limited")
        assert full.headers["retry-after"] == "5"
        again = await thread.post("send", {"text": "One", "messageId": first["userMessageId"]})
        assert (again.status_code, again.json()) == (200, first)
        assert (await (await server.thread()).post("send", {"text": "Another owner's"})).status_code == 202


async def test_a_full_global_queue_refuses_every_send(database_url: str) -> None:
    async with khala(database_url, with_executor=False, KHALA_QUEUE_LIMIT="1") as server:
        await (await server.thread()).send("One")
        assert_problem(await (await server.thread()).post("send", {"text": "Two"}), 429, "rate_limited")


async def test_a_queued_run_is_canceled_at_once(server: InProcessServer) -> None:
    thread = await server.thread()
    sent = await thread.send("Hello")
    response = await cancel(thread, sent["runId"], reason="Changed my mind")
    run = response.json()
    assert (response.status_code, run["status"], run["finish"]["reason"]) == (202, "canceled", "canceled")
    assert run == await thread.run(sent["runId"])
    answer = (await thread.snapshot())["messages"][-1]
    assert (answer["status"], answer["content"], answer["seq"]) == ("canceled", [], 1)
    assert [part["kind"] for part in await thread.parts(sent["runId"])] == ["finish"]
    again = await cancel(thread, sent["runId"])
    assert (again.status_code, again.json()) == (200, run)
    assert (await thread.post("send", {"text": "And again"})).status_code == 202


async def test_a_run_that_has_ended_is_not_changed_by_a_cancel(working: InProcessServer) -> None:
    thread = await working.thread()
    sent = await thread.send("/words=3 /pace=0")
    run = await thread.ended(sent["runId"])
    before = await thread.snapshot()
    response = await cancel(thread, sent["runId"])
    assert (response.status_code, response.json()) == (200, run)
    assert run["status"] == "final"
    assert await thread.snapshot() == before


async def test_a_running_answer_is_canceled_and_keeps_its_text(working: InProcessServer) -> None:
    thread = await working.thread()
    async with working.observer(thread).following() as observer:
        sent = await thread.send("/words=5 /pace=0 /hang=2")
        answer = sent["assistantMessageId"]
        await observer.until(lambda view: view.text(answer) == "word1 word2 ")
        responses = await asyncio.gather(*(cancel(thread, sent["runId"]) for _ in range(3)))
        assert {response.status_code for response in responses} <= {200, 202}
        await observer.until(lambda view: answer in view.finished, within=5)
    assert (await thread.ended(sent["runId"]))["finish"]["reason"] == "canceled"
    assert text_of((await thread.snapshot())["messages"][-1]) == "word1 word2 "
    kinds = [part["kind"] for part in await thread.parts(sent["runId"])]
    assert kinds[-1] == "finish"
    assert set(kinds[:-1]) == {"text-delta"}


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"reason": null}', b'{"reason": "%s"}' % (b"x" * 200)])
async def test_a_cancel_needs_no_reason(server: InProcessServer, body: bytes) -> None:
    thread = await server.thread()
    run_id = (await thread.send("Hello"))["runId"]
    headers = thread.headers | {"Content-Type": "application/json"}
    response = await server.http.post(f"/api/runs/{run_id}/cancel", content=body, headers=headers)
    assert response.status_code == 202


async def test_a_thread_accepts_a_send_as_soon_as_a_finish_is_visible(working: InProcessServer) -> None:
    thread = await working.thread()
    async with socket(working) as feed:
        await feed.subscribe(thread)
        for _ in range(5):
            await thread.send("/words=3 /pace=0")
            while "finish" not in [part["kind"] for part in (await feed.until("delta"))["parts"]]:
                pass


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u2003"])
async def test_a_message_without_text_is_refused(server: InProcessServer, text: str) -> None:
    thread = await server.thread()
    problem = assert_problem(await thread.post("send", {"text": text}), 400, "invalid_input")
    assert problem["errors"] == [{"path": "text", "message": "A message needs text."}]


async def test_the_longest_text_is_accepted_and_a_longer_one_is_refused(server: InProcessServer) -> None:
    thread = await server.thread()
    assert_problem(await thread.post("send", {"text": "𝄞" * 100_001}), 413, "payload_too_large")
    assert (await thread.post("send", {"text": "𝄞" * 100_000})).status_code == 202
    assert text_of((await thread.snapshot())["messages"][1]) == "𝄞" * 100_000


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"text": "a", "messageId": "b"}, "messageId"),
        ({"text": "a", "messageId": 10**18}, "messageId"),
        ({"text": "a", "options": None}, "options"),
        ({"text": "a", "options": {"ifBusy": "maybe"}}, "options.ifBusy"),
        ({"text": "a", "options": {"model": "openai:not-offered"}}, "options.model"),
        ({"text": "a", "options": {"model": "\0"}}, "options.model"),
        ([], ""),
        (None, ""),
        ("text", ""),
    ],
)
async def test_an_invalid_send_is_refused_with_the_invalid_field(
    server: InProcessServer, body: object, path: str
) -> None:
    thread = await server.thread()
    response = await server.http.post(f"/api/threads/{thread.id}/send", json=body, headers=thread.headers)
    if body is None:
        assert response.request.content == b""
    problem = assert_problem(response, 400, "invalid_input")
    assert [error["path"] for error in problem["errors"]] == [path]
    assert problem["errors"][0]["message"]


async def test_a_text_is_returned_unchanged(server: InProcessServer) -> None:
    thread = await server.thread()
    text = "\u202e\ufeff\u2028 𝄞 \r\n\\u0000 <script> \u001b[31m \x7f ' \" ; DROP TABLE threads -- "
    await thread.send(text)
    assert text_of((await thread.snapshot())["messages"][1]) == text
