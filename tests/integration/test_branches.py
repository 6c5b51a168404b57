"""Branches: a thread continues from its active leaf, and a question can have several answers."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.integration.test_api_threads import assert_problem
from tests.support.callers import owned_thread, person
from tests.support.client import Thread, text_of
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Server, serving
from tests.support.shared_server import server_fixture, shared
from tests.support.store import batch, claim, ending, write

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Server]:
    async with serving() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def working(postgres_url: str, template: str, provider: Server) -> AsyncIterator[InProcessServer]:
    """A server with an executor, and with a model whose prompts the test can read."""
    settings: dict[str, Any] = {
        "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "KHALA_MODEL": "openai:local",
        "KHALA_SYSTEM_PROMPT": "Be brief.", "KHALA_WELCOME": "", "KHALA_ANON_USD_PER_DAY": "0", "KHALA_TOOLS": "",
    }  # fmt: skip
    async with shared(postgres_url, template, **settings) as inside:
        yield inside


async def patch(thread: Thread, **body: Any) -> httpx.Response:
    return await thread.http.patch(f"/api/threads/{thread.id}", json=body, headers=thread.headers)


async def active_leaf(thread: Thread) -> str | None:
    found: str | None = (await thread.snapshot())["thread"].get("activeLeaf")
    return found


async def message(thread: Thread, message_id: str) -> dict[str, Any]:
    (found,) = [message for message in (await thread.snapshot())["messages"] if message["id"] == message_id]
    return dict(found)


async def regenerate(thread: Thread, message_id: str, **more: Any) -> dict[str, Any]:
    return dict((await thread.post("regenerate", {"messageId": message_id} | more)).raise_for_status().json())


async def cancel(thread: Thread, sent: dict[str, Any]) -> None:
    (await thread.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)).raise_for_status()


async def wait_for_answer(thread: Thread, sent: dict[str, Any]) -> dict[str, Any]:
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    return sent


def last_prompt(provider: Server) -> list[tuple[str, str]]:
    """The messages of the last request to the model, as roles and contents."""
    return [(message["role"], message["content"]) for message in provider.calls[-1].body["messages"]]


async def test_a_thread_names_its_active_leaf(server: InProcessServer) -> None:
    thread = await server.thread()
    [welcome] = (await thread.snapshot())["messages"]
    assert await active_leaf(thread) == welcome["id"]
    sent = await thread.send("Hello")
    assert await active_leaf(thread) == sent["assistantMessageId"]
    [listed] = (await server.http.get("/api/threads", headers=thread.headers)).json()["items"]
    assert listed["activeLeaf"] == sent["assistantMessageId"]
    await cancel(thread, sent)
    assert await active_leaf(thread) == sent["assistantMessageId"]


async def test_an_empty_thread_has_no_active_leaf_and_a_reset_removes_it(working: InProcessServer) -> None:
    thread = await working.thread()
    assert await active_leaf(thread) is None
    await wait_for_answer(thread, await thread.send("Hello"))
    assert await active_leaf(thread) is not None
    assert "activeLeaf" not in (await thread.post("reset")).raise_for_status().json()


async def test_a_send_moves_the_active_leaf_for_observers_and_a_cancel_does_not(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        await feed.subscribe(thread)
        sent = await thread.send("Hello")
        delta = await feed.next()
        assert delta["thread"]["activeLeaf"] == sent["assistantMessageId"]
        assert (delta["thread"]["revision"], delta["revision"]) == (sent["revision"], sent["revision"])
        await cancel(thread, sent)
        assert "thread" not in await feed.next()


async def test_choosing_another_branch_changes_it_for_every_observer(server: InProcessServer) -> None:
    thread = await server.thread()
    [welcome] = (await thread.snapshot())["messages"]
    sent = await thread.send("Hello")
    async with socket(server) as feed:
        revision = (await feed.subscribe(thread))["revision"]
        chosen = await patch(thread, activeLeaf=welcome["id"])
        assert (chosen.status_code, chosen.json()["activeLeaf"]) == (200, welcome["id"])
        delta = await feed.next()
        assert (delta["from"], delta["revision"], delta["messages"]) == (revision, revision + 1, [])
        assert delta["thread"] == chosen.json() == (await thread.snapshot())["thread"]
        assert (await patch(thread, activeLeaf=welcome["id"])).json() == chosen.json(), (
            "choosing the active leaf again changes nothing"
        )
        await feed.expect_nothing()
    other = await thread.send("Good day", options={"ifBusy": "queue"})
    assert (await message(thread, other["userMessageId"]))["parentId"] == welcome["id"]
    assert (await message(thread, sent["userMessageId"]))["parentId"] == welcome["id"]
    assert await active_leaf(thread) == other["assistantMessageId"]
    explicit = await thread.send("Hm", parentId=sent["assistantMessageId"], options={"ifBusy": "queue"})
    assert await active_leaf(thread) == explicit["assistantMessageId"]


async def test_choosing_another_branch_updates_the_members_thread_lists(
    server: InProcessServer, store: Database
) -> None:
    owner = await person(store)
    thread_id = str(await owned_thread(store, owner, welcome="Hello."))
    path = f"/api/threads/{thread_id}"
    [welcome] = (await server.http.get(path, headers=owner.headers)).json()["messages"]
    sent = await server.http.post(f"{path}/send", json={"text": "?"}, headers=owner.headers)
    async with socket(server, additional_headers=owner.headers) as feed:
        await feed.send({"type": "watch"})
        [listed] = (await feed.until("account"))["threads"]
        assert listed["thread"]["activeLeaf"] == sent.json()["assistantMessageId"]
        await server.http.patch(path, json={"activeLeaf": welcome["id"]}, headers=owner.headers)
        [listed] = (await feed.until("account"))["threads"]
        assert listed["thread"]["activeLeaf"] == welcome["id"]


async def test_an_active_leaf_must_be_a_message_of_the_thread(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    elsewhere = (await other.send("Elsewhere"))["userMessageId"]
    before = await thread.snapshot()
    for wrong in (elsewhere, str(uuid.uuid4()), None, "abc"):
        problem = assert_problem(await patch(thread, activeLeaf=wrong, title="Not this either"), 400, "invalid_input")
        assert [error["path"] for error in problem["errors"]] == ["activeLeaf"]
    assert await thread.snapshot() == before


async def test_a_regenerated_answer_is_a_sibling_of_the_first(server: InProcessServer) -> None:
    thread = await server.thread()
    sent = await thread.send("Hello")
    await cancel(thread, sent)
    answer_id = str(uuid.uuid4())
    async with socket(server) as feed:
        revision = (await feed.subscribe(thread))["revision"]
        response = await thread.post("regenerate", {"messageId": sent["userMessageId"], "answerId": answer_id})
        made = response.json()
        assert response.status_code == 202
        assert made == {
            "threadId": thread.id,
            "userMessageId": sent["userMessageId"],
            "assistantMessageId": answer_id,
            "runId": made["runId"],
            "revision": revision + 1,
        }
        delta = await feed.next()
    [head] = delta["messages"]
    assert (head["id"], head["parentId"], head["status"]) == (answer_id, sent["userMessageId"], "streaming")
    assert (head["runId"], delta["thread"]["activeLeaf"]) == (made["runId"], answer_id)
    messages = (await thread.snapshot())["messages"]
    assert [message["id"] for message in messages[1:]] == [sent["userMessageId"], sent["assistantMessageId"], answer_id]
    assert messages[2]["status"] == "canceled"


async def test_a_repeated_regenerate_makes_one_answer(server: InProcessServer) -> None:
    thread = await server.thread()
    sent = await thread.send("Hello")
    await cancel(thread, sent)
    body = {"messageId": sent["userMessageId"], "answerId": str(uuid.uuid4())}
    responses = await asyncio.gather(*(thread.post("regenerate", body) for _ in range(10)))
    assert sorted(response.status_code for response in responses) == [200] * 9 + [202]
    assert len({response.text for response in responses}) == 1
    await cancel(thread, responses[0].json())
    late = await thread.post("regenerate", body)
    assert (late.status_code, late.text) == (200, responses[0].text), (
        "a repeated request gets the first response, also after the answer has changed"
    )
    assert len((await thread.snapshot())["messages"]) == 4
    resent = await thread.post("send", {"text": "Hello", "messageId": sent["userMessageId"]})
    assert (resent.status_code, resent.json()) == (200, sent), (
        "a repeated send gets its own answer, not the regenerated one"
    )


async def test_only_questions_of_the_thread_can_be_regenerated(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    [welcome] = (await thread.snapshot())["messages"]
    sent, elsewhere = await thread.send("Hello"), await other.send("Elsewhere")
    await cancel(thread, sent)
    before = await thread.snapshot()
    for wrong in (welcome["id"], sent["assistantMessageId"], elsewhere["userMessageId"], str(uuid.uuid4())):
        problem = assert_problem(await thread.post("regenerate", {"messageId": wrong}), 400, "invalid_input")
        assert [error["path"] for error in problem["errors"]] == ["messageId"]
    question = sent["userMessageId"]
    for taken in (question, welcome["id"], elsewhere["assistantMessageId"]):
        problem = assert_problem(
            await thread.post("regenerate", {"messageId": question, "answerId": taken}), 409, "conflict"
        )
        assert problem["detail"] == "This answerId is taken."
    for body, path in (
        ({"options": {"model": "openai:gpt-none"}}, "options.model"),
        ({"options": {"tools": ["\0"]}}, "options"),
        ({"answerId": "abc"}, "answerId"),
    ):
        problem = assert_problem(await thread.post("regenerate", {"messageId": question} | body), 400, "invalid_input")
        assert [error["path"] for error in problem["errors"]] == [path]
    assert_problem(await thread.post("regenerate"), 400, "invalid_input")
    assert await thread.snapshot() == before


async def test_a_regenerate_waits_interrupts_or_is_refused_as_a_send(server: InProcessServer) -> None:
    thread = await server.thread()
    first = await thread.send("One")
    question = first["userMessageId"]
    assert_problem(await thread.post("regenerate", {"messageId": question}), 409, "run_active")
    waiting = await regenerate(thread, question, options={"ifBusy": "queue"})
    interrupting = await regenerate(thread, question, options={"ifBusy": "interrupt"})
    states = [(await thread.run(each_sent["runId"]))["status"] for each_sent in (first, waiting, interrupting)]
    assert states == ["canceled", "canceled", "queued"]


async def test_only_one_of_many_regenerates_at_once_runs_unless_they_may_wait(server: InProcessServer) -> None:
    thread = await server.thread()
    sent = await thread.send("Hello")
    await cancel(thread, sent)
    body = {"messageId": sent["userMessageId"]}
    responses = await asyncio.gather(*(thread.post("regenerate", body) for _ in range(10)))
    assert sorted(response.status_code for response in responses) == [202] + [409] * 9


async def test_a_regenerate_uses_budgets_as_a_send(database_url: str) -> None:
    env: dict[str, Any] = {"KHALA_ANON_RUNS_PER_HOUR": "2", "KHALA_RUNS_PER_OWNER": "2"}
    async with khala(database_url, with_executor=False, **env) as server:
        thread = await server.thread()
        sent = await thread.send("Hello")
        queued = {"messageId": sent["userMessageId"], "options": {"ifBusy": "queue"}}
        waiting = await thread.post("regenerate", queued)
        assert waiting.status_code == 202
        assert_problem(await thread.post("regenerate", queued), 429, "rate_limited")
        await cancel(thread, sent)
        problem = await thread.post("regenerate", queued)
        assert_problem(problem, 429, "budget_exhausted")
        assert int(problem.headers["retry-after"]) > 0
        assert await active_leaf(thread) == waiting.json()["assistantMessageId"]


async def test_runs_are_executed_in_the_order_of_their_requests(server: InProcessServer, store: Database) -> None:
    thread = await server.thread()
    first = await thread.send("One")
    queued: dict[str, Any] = {"options": {"ifBusy": "queue"}}
    second = await thread.send("Two", **queued)
    third = await regenerate(thread, first["userMessageId"], **queued)
    fourth = await thread.send("Three", **queued)
    fifth = await regenerate(thread, second["userMessageId"], **queued)
    order = [each_sent["runId"] for each_sent in (first, second, third, fourth, fifth)]
    begun: list[str] = []
    for _ in order:
        mine = [claimed.lease for claimed in await claim(store) if str(claimed.lease.thread_id) == thread.id]
        assert len(mine) == 1, "a thread has one running run at a time"
        begun.append(str(mine[0].run_id))
        await write(store, ending(mine[0], 0, ()))
    assert begun == order


async def test_a_send_after_any_message_has_the_history_from_the_root_to_it(
    working: InProcessServer, provider: Server
) -> None:
    thread = await working.thread()
    answer = ("assistant", "Hello, world!")
    first = await wait_for_answer(thread, await thread.send("One"))
    two = await wait_for_answer(thread, await thread.send("Two"))
    assert last_prompt(provider)[1:] == [("user", "One"), answer, ("user", "Two")]
    await wait_for_answer(thread, await thread.send("Instead of two", parentId=first["assistantMessageId"]))
    assert last_prompt(provider)[1:] == [("user", "One"), answer, ("user", "Instead of two")]
    await wait_for_answer(thread, await thread.send("Three"))
    assert last_prompt(provider)[1:] == [("user", "One"), answer, ("user", "Instead of two"), answer, ("user", "Three")]
    (await patch(thread, activeLeaf=two["assistantMessageId"])).raise_for_status()
    await wait_for_answer(thread, await thread.send("After two"))
    assert last_prompt(provider)[1:] == [("user", "One"), answer, ("user", "Two"), answer, ("user", "After two")]


async def test_a_regenerated_answer_has_neither_its_siblings_nor_later_messages_in_its_prompt(
    working: InProcessServer, provider: Server
) -> None:
    thread = await working.thread()
    answer = ("assistant", "Hello, world!")
    await wait_for_answer(thread, await thread.send("One"))
    two = await wait_for_answer(thread, await thread.send("Two"))
    await wait_for_answer(thread, await thread.send("Three"))
    other = await wait_for_answer(thread, await regenerate(thread, two["userMessageId"]))
    assert last_prompt(provider)[1:] == [("user", "One"), answer, ("user", "Two")]
    assert text_of(await message(thread, other["assistantMessageId"])) == "Hello, world!"
    await wait_for_answer(thread, await thread.send("Four"))
    assert last_prompt(provider)[1:] == [("user", "One"), answer, ("user", "Two"), answer, ("user", "Four")]
    assert len((await thread.snapshot())["messages"]) == 9


async def test_instructions_of_a_run_reach_the_model_only_then_and_before_the_threads(
    working: InProcessServer, provider: Server
) -> None:
    db = Database(working.database_url)
    owner = await person(db)
    await db.close()
    body = {"model": "khala", "messages": [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "A"}]}
    completed = (await working.http.post("/v1/chat/completions", json=body, headers=owner.headers)).raise_for_status()
    thread = Thread(working.http, completed.headers["x-thread-id"], "")
    thread.headers = owner.headers
    await wait_for_answer(thread, await thread.send("B", options={"instructions": "Speak French."}))
    assert last_prompt(provider)[0] == ("system", "Be brief.\n\nSpeak French.\n\nRhyme.")
    await wait_for_answer(thread, await thread.send("C"))
    assert last_prompt(provider)[0] == ("system", "Be brief.\n\nRhyme.")
    assert [message["role"] for message in provider.calls[-1].body["messages"]].count("system") == 1


async def test_a_regenerated_answer_continues_after_a_lost_executor(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        sent = await thread.send("/words=30 /pace=0")
        await cancel(thread, sent)
        other = await regenerate(thread, sent["userMessageId"])
        (dead,) = await claim(db, lease=0.2)
        await write(db, batch(dead.lease, 0, "word1 word2 wo"))
        async with khala(database_url):
            run = await thread.ended(other["runId"], within=10)
        found = await message(thread, other["assistantMessageId"])
    await db.close()
    assert (run["status"], run["attempt"]) == ("final", 2)
    assert text_of(found) == " ".join(f"word{n}" for n in range(1, 31))


async def test_a_message_without_a_parent_starts_a_new_branch_at_the_root(
    working: InProcessServer, provider: Server
) -> None:
    thread = await working.thread()
    first = await thread.send("apple")
    await thread.ended(first["runId"])
    other = await thread.send("pear", parentId=None)
    await thread.ended(other["runId"])
    assert "parentId" not in await message(thread, other["userMessageId"])
    assert "apple" not in str(provider.calls[-1].body)
    assert await active_leaf(thread) == other["assistantMessageId"]
