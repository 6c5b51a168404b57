"""What a model is told: within every limit, with the relevant tools, and recorded for the readers of the thread."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text

from khala.memory import tool_router
from khala.models.token_counter import estimate
from khala.runs.prompt_tokens import SAFETY_FACTOR
from khala.store.postgres.database import Database
from tests.integration.test_agents import verified
from tests.integration.test_compaction import answering, long_answer, send_question, until_summarised
from tests.integration.test_compaction import serve as serve_compacting
from tests.integration.test_routing import CONCEPTS
from tests.support.agents import act
from tests.support.client import Thread, text_of
from tests.support.embeddings_server import serving_embeddings
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Call, Reply, Server, serving
from tests.support.wires import UseTool

TOO_LONG = Reply(status=400, message="This model's maximum context length is 8192 tokens.")
LIMIT = 2000


@asynccontextmanager
async def serve(
    database_url: str, *replies: Reply, default: Callable[[Call], Reply] | None = None, **env: str
) -> AsyncIterator[tuple[InProcessServer, Server]]:
    async with serving(*replies, default=default) as provider:
        settings: dict[str, Any] = {
            "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "KHALA_MODEL": "openai:local",
            "KHALA_CONTEXT_TOKENS": str(LIMIT), "KHALA_SYSTEM_PROMPT": "Be brief.", "KHALA_WELCOME": "",
            "KHALA_COOLDOWN_MS": "0", "KHALA_ANON_USD_PER_DAY": "0",
        }  # fmt: skip
        async with khala(database_url, **(settings | env)) as inside:
            yield inside, provider
    await verified(database_url)


async def context_of(thread: Thread, run_id: str) -> list[dict[str, Any]]:
    response = await thread.http.get(f"/api/runs/{run_id}/context", headers=thread.headers)
    calls: list[dict[str, Any]] = response.raise_for_status().json()["calls"]
    return calls


def section(call: dict[str, Any], name: str) -> dict[str, Any]:
    return next(
        (found for found in call["sections"] if found["name"] == name), {"tokens": 0, "items": 0, "leftOut": []}
    )


def tokens(call: dict[str, Any]) -> int:
    return sum(section["tokens"] for section in call["sections"])


def sent_tokens(call: Call) -> int:
    """The estimated tokens of everything that the provider got."""
    body = call.body
    return estimate(json.dumps(body["messages"])) + estimate(json.dumps(body.get("tools", [])))


def tool_names(call: Call) -> list[str]:
    return [tool["function"]["name"] for tool in call.body.get("tools", [])]


def functions(count: int) -> list[dict[str, Any]]:
    return [{"name": f"own_{number}", "description": f"Does the thing {number}."} for number in range(count)]


async def test_each_call_says_what_went_in_and_what_was_left_out(database_url: str) -> None:
    async with serve(
        database_url,
        Reply(calls=(UseTool(name="glob", args={"pattern": "*"}),)),
        Reply(tokens=("Nothing there.",)),
    ) as (server, provider):
        thread = await server.thread()
        agent = await act(thread, "Which files are there?", tools=["glob", "grep"])
        await agent.ended()
        first, second = await context_of(thread, agent.run_id)
        receipts = await agent.receipts("model")
    assert (first["model"], first["purpose"], first["limit"], first["outcome"]) == (
        "openai:local", "answer", LIMIT, "tool_calls",
    )  # fmt: skip
    assert first["estimated"] is True
    assert first["at"] < second["at"]
    assert section(first, "instructions")["items"] == 1
    assert section(first, "turns")["items"] == 1
    assert section(second, "turns")["items"] == 2, "the question and the step"
    assert section(second, "turns")["tokens"] > section(first, "turns")["tokens"]
    assert section(first, "tools")["items"] == len(tool_names(provider.calls[0])) == 2
    assert [found["inputTokens"] for found in (first, second)] == [
        receipt["data"]["usage"]["inputTokens"] for receipt in receipts
    ]
    assert all(tokens(found) <= LIMIT for found in (first, second))
    assert second["outcome"] == "stop"
    for receipt, found in zip(receipts, (first, second), strict=True):
        assert receipt["data"]["context"].items() <= found.items()
        assert len(json.dumps(receipt["data"]["context"])) < 1000, "a receipt stays small"


async def test_messages_that_a_summary_replaces_are_reported_and_no_text_is_recorded(database_url: str) -> None:
    summary = Reply(tokens=("The colour is green.",))
    async with serve_compacting(database_url, answering(summary, long_answer)) as (server, _):
        thread = await server.thread()
        agent, count = await until_summarised(thread, _)
        asked, answered = await context_of(thread, agent.run_id)
        again = await send_question(thread, count + 1)
        (later,) = await context_of(thread, again.run_id)
        messages = [message["id"] for message in (await thread.snapshot())["messages"]]
    assert (asked["purpose"], answered["purpose"]) == ("summary", "answer")
    for found in (answered, later):
        (left,) = [left for left in section(found, "turns")["leftOut"] if left["why"] == "summarised"]
        assert left["what"].removeprefix("message:") in messages
        assert left["count"] >= 2
        assert left["tokens"] > 50
        assert section(found, "summary")["items"] == 1
    stored = json.dumps([asked, answered, later])
    assert not any(word in stored for word in ("green", "padding", "question", "Be brief"))


async def test_the_limit_of_a_run_is_honoured_if_it_is_lower_than_the_operators(database_url: str) -> None:
    async with serve(database_url, default=lambda _: Reply(tokens=("word " * 300,))) as (server, provider):
        thread = await server.thread()
        for number in range(4):
            agent = await act(thread, f"question {number}", tools=[], autopilot=False, contextTokens=600)
            await agent.ended()
        found = await context_of(thread, agent.run_id)
        more = await act(thread, "question 5", tools=[], autopilot=False, contextTokens=900_000)
        await more.ended()
        (whole, *_) = await context_of(thread, more.run_id)
    assert {call["limit"] for call in found} == {600}
    assert all(tokens(call) <= 600 for call in found)
    assert whole["limit"] == LIMIT
    assert sent_tokens(provider.calls[-2]) * SAFETY_FACTOR < 900


async def test_a_fallback_model_with_a_smaller_window_gets_a_shorter_prompt(database_url: str) -> None:
    refused = Reply(status=400, message="not today")

    answers: list[int] = []

    def reply(call: Call) -> Reply:
        return Reply(tokens=("word " * 1000,)) if call.body["model"] == "gpt-4" or len(answers) < 12 else refused

    env = {"KHALA_MODEL": "openai:local", "KHALA_FALLBACK_MODELS": "openai:gpt-4", "KHALA_CONTEXT_TOKENS": "60000"}
    async with serve(database_url, default=reply, **env) as (server, provider):
        thread = await server.thread()
        for number in range(12):
            await (await act(thread, f"question {number}", tools=[], autopilot=False)).ended()
            answers.append(number)
        agent = await act(thread, "and now?", tools=[], autopilot=False)
        await agent.ended()
        calls = [call for call in await context_of(thread, agent.run_id) if call["purpose"] == "answer"]
    large, small = calls[0], calls[-1]
    assert (large["model"], large["limit"]) == ("openai:local", 60_000)
    assert small["model"] == "openai:gpt-4"
    assert small["limit"] == 8192 * 3 // 4
    assert tokens(large) > small["limit"] >= tokens(small)
    assert provider.calls[-1].body["model"] == "gpt-4"
    assert section(small, "turns")["leftOut"]


async def test_a_prompt_that_the_provider_finds_too_long_is_shortened_once_with_a_notice(database_url: str) -> None:
    replies = [Reply(tokens=("word " * 120,))] * 4
    replies += [TOO_LONG, Reply(tokens=("They count.",)), Reply(tokens=("Short enough.",))]
    async with serve(database_url, *replies) as (server, provider):
        thread = await server.thread()
        for number in range(4):
            await (await act(thread, f"question {number}", tools=[], autopilot=False)).ended()
        agent = await act(thread, "and now?", tools=[], autopilot=False)
        run = await agent.ended()
        notices = await agent.parts("notice")
        answer = text_of(await agent.message())
        calls = [call for call in await context_of(thread, agent.run_id) if call["purpose"] == "answer"]
    assert run["status"] == "final"
    assert [notice["code"] for notice in notices] == ["context_shrunk"]
    assert "openai:local" in notices[0]["message"]
    assert answer.endswith("Short enough.")
    first, second = calls
    assert first["outcome"] == "context_exceeded"
    assert second["limit"] == tokens(first) // 2
    assert tokens(second) <= second["limit"]
    assert "and now?" in json.dumps(provider.calls[-1].body["messages"])


async def test_a_prompt_is_shortened_only_once_and_then_the_failure_is_shown(database_url: str) -> None:
    async with serve(database_url, default=lambda _: TOO_LONG) as (server, provider):
        thread = await server.thread()
        agent = await act(thread, "hello", tools=["glob"], autopilot=False)
        run = await agent.ended()
        (error,) = await agent.parts("error")
        notices = [notice["code"] for notice in await agent.parts("notice")]
    assert run["status"] == "error"
    assert error["code"] == "context_exceeded"
    assert notices == ["context_shrunk"]
    assert [tool_names(call) for call in provider.calls] == [["glob"], []]


async def test_with_many_tools_the_model_gets_the_pinned_ones_and_finds_the_others(database_url: str) -> None:
    script = (
        Reply(calls=(UseTool(name="find_tools", args={"query": "list files that match a pattern"}),)),
        Reply(calls=(UseTool(name="glob", args={"pattern": "*.txt"}),)),
        Reply(tokens=("There are none.",)),
    )
    async with serve(database_url, *script, KHALA_CONTEXT_TOKENS="20000") as (server, provider):
        thread = await server.thread()
        agent = await act(thread, "Which text files are there?", functions=functions(30))
        run = await agent.ended()
        cards = await agent.cards()
        calls = await context_of(thread, agent.run_id)
        again = await act(thread, "Once more, please.", functions=functions(30))
        await again.ended()
    first, second, third = (tool_names(call) for call in provider.calls[:3])
    own = [f"own_{number}" for number in range(30)]
    assert first == [*own, "find_tools"]
    assert set(first) < set(second)
    assert "glob" in second
    assert "glob" in third
    assert (run["status"], [card["state"] for card in cards]) == ("final", ["completed", "completed"])
    assert "glob" in [tool["name"] for tool in cards[0]["output"]["tools"]]
    (left,) = section(calls[0], "tools")["leftOut"]
    assert (left["what"], left["why"]) == ("tools", "unrelated")
    assert section(calls[0], "tools")["items"] == 31
    assert "own_" not in json.dumps(calls)
    assert "glob" in tool_names(provider.calls[3]), "a tool that this thread has called stays"


async def test_with_an_embedding_model_a_tool_is_found_by_its_meaning_and_the_context_says_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_router, "WAIT_SECONDS", 30.0)  # however busy the machine is

    def reply(call: Call) -> Reply:
        if call.body["messages"][-1]["role"] == "tool":
            return Reply(tokens=("Found.",))
        return Reply(calls=(UseTool(name="find_tools", args={"query": "beasts"}),))

    outputs: list[dict[str, Any]] = []
    contexts: list[list[dict[str, Any]]] = []
    async with serving_embeddings([*CONCEPTS, ("pattern", "beasts")]) as embeddings:
        variables = {"KHALA_EMBEDDINGS": "openai:near", "KHALA_EMBEDDINGS_URL": embeddings.url}
        async with serve(database_url, default=reply, KHALA_CONTEXT_TOKENS="20000", **variables) as (server, _):
            async with asyncio.timeout(20):
                while not outputs or outputs[-1]["by"] == "words":
                    thread = await server.thread()
                    agent = await act(thread, "What is there?", functions=functions(30))
                    await agent.ended()
                    outputs += [card["output"] for card in await agent.cards()]
                    contexts.append(await context_of(thread, agent.run_id))
    assert "glob" in [found["name"] for found in outputs[-1]["tools"]]
    first, last = (section(call, "tools")["leftOut"][0] for call in (contexts[0][0], contexts[-1][-1]))
    assert (first["by"], last["by"]) == ("words", "meaning"), "the vectors were missing at first"


async def test_tools_are_chosen_by_the_question_unless_there_are_few(database_url: str) -> None:
    async with serve(database_url, default=lambda _: Reply(tokens=("Fine.",)), KHALA_CONTEXT_TOKENS="20000") as (
        server,
        provider,
    ):
        thread = await server.thread()
        await (await act(thread, "Add a todo", functions=functions(3))).ended()
        await (await act(await server.thread(), "Add a todo", functions=functions(20))).ended()
        await (await act(await server.thread(), "Hm", functions=functions(20), tools=["grep", "*"])).ended()
    few, many, named = (tool_names(call) for call in provider.calls)
    assert "find_tools" not in few
    assert {"todo_add", "grep"} < set(few)
    assert "find_tools" in many
    assert "todo_add" in many
    assert len(many) == 24
    assert "grep" in named


async def test_a_context_is_deleted_with_its_thread_and_calls_without_a_record_are_left_out(
    database_url: str, db: Database
) -> None:
    async with serve(database_url, default=lambda _: Reply(tokens=("Fine.",))) as (server, _):
        thread = await server.thread()
        agent = await act(thread, "Hello?", tools=[], autopilot=False)
        await agent.ended()
        assert len(await context_of(thread, agent.run_id)) == 1
        for context in ("null", '{"at": "yesterday"}', '{"limit": 5}'):
            await _store_context(db, context)
            assert await context_of(thread, agent.run_id) == []
        async with db.transaction() as connection:
            await connection.execute(text("UPDATE receipts SET data = data - 'context'"))
        assert await context_of(thread, agent.run_id) == []
        # So that the hash chain is whole again for the verification at the end.
        await thread.http.post(f"/api/threads/{thread.id}/reset", headers=thread.headers)
        gone = await thread.http.get(f"/api/runs/{agent.run_id}/context", headers=thread.headers)
    assert (gone.status_code, gone.json()["code"]) == (404, "run_not_found")


async def _store_context(db: Database, context: str) -> None:
    async with db.transaction() as connection:
        query = "UPDATE receipts SET data = jsonb_set(data, '{context}', CAST(:context AS jsonb))"
        await connection.execute(text(query), {"context": context})
