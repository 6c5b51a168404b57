"""Compaction of conversations that are longer than the model's window: summaries replace the oldest messages."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from khala.domain.parts import MAX_INLINE_BYTES
from khala.models.port import SUMMARISE
from khala.runs.prompt_items import SUMMARY_HEADING
from tests.integration.test_agents import verified
from tests.support.agents import Agent, act, call
from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Call, Reply, Server, serving
from tests.support.wires import UseTool

CONTEXT = 1000
IN_SHORT = "They count to ten; the colour is green."


def asks_for_summary(request: Call) -> bool:
    return SUMMARISE in request.wire.prompt(request.body)


def summaries(provider: Server) -> list[Call]:
    return [call for call in provider.calls if asks_for_summary(call)]


def prompt_text(request: Call) -> str:
    return json.dumps(request.body["messages"])


def answering(summary: Reply, otherwise: Callable[[Call], Reply]) -> Callable[[Call], Reply]:
    return lambda request: summary if asks_for_summary(request) else otherwise(request)


def long_answer(request: Call) -> Reply:
    return Reply(tokens=("answer " * 60,))


@contextlib.asynccontextmanager
async def serve(
    database_url: str, default: Callable[[Call], Reply], **env: str
) -> AsyncIterator[tuple[InProcessServer, Server]]:
    async with serving(default=default) as provider:
        settings: dict[str, Any] = {
            "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "KHALA_MODEL": "openai:local",
            "KHALA_CONTEXT_TOKENS": str(CONTEXT), "KHALA_SYSTEM_PROMPT": "Be brief.", "KHALA_WELCOME": "",
            "KHALA_COOLDOWN_MS": "0", "KHALA_ANON_USD_PER_DAY": "0",
        }  # fmt: skip
        async with khala(database_url, **(settings | env)) as inside:
            yield inside, provider
    await verified(database_url)


async def send_question(thread: Thread, number: int, **options: Any) -> Agent:
    agent = await act(thread, f"question{number} " + "padding " * 70, **({"tools": [], "autopilot": False} | options))
    await agent.ended()
    return agent


async def until_summarised(thread: Thread, provider: Server) -> tuple[Agent, int]:
    """Send messages until a summary is requested; returns the answer that needed it, and the number of messages."""
    for number in range(1, 12):
        agent = await send_question(thread, number)
        if summaries(provider):
            return agent, number
    raise AssertionError("no summary was asked for")


async def test_a_long_thread_is_summarised_once_and_later_prompts_use_the_summary(database_url: str) -> None:
    async with serve(database_url, answering(Reply(tokens=(IN_SHORT,)), long_answer)) as (server, provider):
        thread = await server.thread()
        agent, count = await until_summarised(thread, provider)
        assert 3 <= count <= 6
        (part,) = await agent.parts("compaction")
        content = (await agent.message())["content"]
        assert content[0] == {"type": "compaction"} | part
        assert part["summary"] == IN_SHORT
        assert part["messageId"] in [message["id"] for message in (await thread.snapshot())["messages"]]
        (summary_request,) = summaries(provider)
        assert "question1 " in prompt_text(summary_request)
        assert "tools" not in summary_request.body
        last = provider.calls[-1]
        assert SUMMARY_HEADING.splitlines()[0] in prompt_text(last)
        assert IN_SHORT in prompt_text(last)
        assert "question1 " not in prompt_text(last)
        assert f"question{count} " in prompt_text(last)
        again = await send_question(thread, count + 1)
        assert len(summaries(provider)) == 1
        assert await again.parts("compaction") == []
        assert IN_SHORT in prompt_text(provider.calls[-1])
        assert "question1 " not in prompt_text(provider.calls[-1])
        receipts = await agent.receipts("model")
        assert [receipt["data"]["outcome"] for receipt in receipts] == ["stop", "stop"]
        assert [receipt["data"]["attempt"] for receipt in receipts] == [1, 2]
        assert (await agent.run())["finish"]["usage"] == {"inputTokens": 22, "outputTokens": 14}


async def test_a_second_summary_is_made_from_the_first_and_replaces_it(database_url: str) -> None:
    def summary(request: Call) -> Reply:
        return Reply(tokens=("second" if "first" in prompt_text(request) else "first",))

    def choose(request: Call) -> Reply:
        return summary(request) if asks_for_summary(request) else long_answer(request)

    async with serve(database_url, choose) as (server, provider):
        thread = await server.thread()
        _, count = await until_summarised(thread, provider)
        for number in range(count + 1, count + 8):
            await send_question(thread, number)
            if len(summaries(provider)) == 2:
                break
        assert "second" in prompt_text(provider.calls[-1])
        assert "first" not in prompt_text(provider.calls[-1])
        contents = [block for message in (await thread.snapshot())["messages"] for block in message["content"]]
        assert [block["summary"] for block in contents if block["type"] == "compaction"] == ["first", "second"]


async def test_after_a_failed_summary_the_oldest_messages_are_left_out_and_the_answer_comes(database_url: str) -> None:
    refused = Reply(status=400, message="no summaries today")
    async with serve(database_url, answering(refused, long_answer)) as (server, provider):
        thread = await server.thread()
        agent, count = await until_summarised(thread, provider)
        run = await agent.run()
        assert (run["status"], run["finish"]["reason"]) == ("final", "stop")
        assert await agent.parts("compaction") == []
        assert len(summaries(provider)) == 1
        assert "question1 " not in prompt_text(provider.calls[-1])
        assert f"question{count} " in prompt_text(provider.calls[-1])
        assert text_of(await agent.message()).startswith("answer ")
        assert [receipt["data"]["outcome"] for receipt in await agent.receipts("model")] == ["refused", "stop"]


async def test_an_empty_summary_is_ignored(database_url: str) -> None:
    async with serve(database_url, answering(Reply(tokens=(" \n",)), long_answer)) as (server, provider):
        agent, _ = await until_summarised(await server.thread(), provider)
        assert (await agent.run())["status"] == "final"
        assert await agent.parts("compaction") == []


async def test_a_summary_of_any_length_fits_into_its_part_and_contains_no_secret(database_url: str) -> None:
    long = "password=hunter2secret 🦄" + '"\n🦄' * 2000
    async with serve(database_url, answering(Reply(tokens=(long,)), long_answer)) as (server, provider):
        agent, _ = await until_summarised(await server.thread(), provider)
        (part,) = await agent.parts("compaction")
        assert len(json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode()) <= MAX_INLINE_BYTES
        assert part["summary"].startswith("password=[redacted] 🦄")
        assert len(part["summary"]) > 500


async def test_one_message_that_is_too_long_to_summarise_whole_is_summarised_in_part(database_url: str) -> None:
    async with serve(database_url, answering(Reply(tokens=(IN_SHORT,)), long_answer)) as (server, provider):
        thread = await server.thread()
        pasted = "begin " + "middle " * 480 + "end"
        await (await act(thread, pasted, tools=[], autopilot=False)).ended()
        agent, _ = await until_summarised(thread, provider)
        assert "begin middle" in prompt_text(summaries(provider)[0])
        assert (await agent.run())["status"] == "final"


def in_steps(most: int) -> Callable[[Call], Reply]:
    """A reply for each request: so many steps that call `glob`, each with other arguments, and then an answer."""
    made = iter(range(1, most + 1))

    def choose(one: Call) -> Reply:
        number = next(made, None)
        if number is None:
            return Reply(tokens=("All done.",))
        return Reply(
            tokens=(f"round{number} " + "words " * 60,), calls=(UseTool(name="glob", args={"pattern": f"{number}*"}),)
        )

    return choose


async def test_a_long_loop_of_tool_calls_is_compacted(database_url: str) -> None:
    async with serve(database_url, answering(Reply(tokens=(IN_SHORT,)), in_steps(8))) as (server, provider):
        agent = await act(await server.thread(), "Count.", tools=["glob"], maxSteps=30)
        run = await agent.ended()
        assert (run["status"], run["steps"]) == ("final", 8)
        parts = await agent.parts("compaction")
        assert 1 <= len(parts) <= 5
        assert [part["step"] for part in parts] == sorted({part["step"] for part in parts})
        assert all("messageId" not in part for part in parts)
        last = provider.calls[-1]
        assert IN_SHORT in prompt_text(last)
        assert "Count." in prompt_text(last)
        assert "round1 " not in prompt_text(last)
        assert "round8 " in prompt_text(last)
        assert len(await agent.receipts("model")) == 9 + len(parts)
        assert [card["state"] for card in await agent.cards()] == ["completed"] * 8
        assert (await agent.text()).endswith("All done.")


async def test_the_demo_model_with_large_outputs_ends_at_the_step_limit(database_url: str) -> None:
    async with khala(database_url, KHALA_CONTEXT_TOKENS="2000", KHALA_COOLDOWN_MS="0", KHALA_WELCOME="") as server:
        thread = await server.thread()
        written = call("write_file", path="big{i}.txt", content="0123456789 " * 250)
        await (await act(thread, f"/times=3 {written}")).ended()
        text = f"/loop {call('read_file', path='big1.txt')} {call('glob', pattern='{round}*')}"
        agent = await act(thread, text, maxSteps=12)
        run = await agent.ended()
        assert (run["status"], run["steps"], run["finish"]["reason"]) == ("final", 12, "max_steps")
        parts = await agent.parts("compaction")
        assert parts
        assert all(part["summary"].startswith("Summary of ") for part in parts)
        assert (await agent.text()).startswith("Stopped after 12 rounds.")
        patterns = [card["args"]["pattern"] for card in await agent.cards() if card["tool"] == "glob"]
        assert patterns == [f"{number}*" for number in range(1, 13)]
    await verified(database_url)
