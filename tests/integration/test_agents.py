"""Runs with tools: parallel calls, limits, approvals, and the stored results."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from tests.support.agents import PECULIAR, act, call, done, rules, with_peculiar
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Reply, serving
from tests.support.wires import UseTool


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url) as inside:
        yield inside
    await verified(database_url)


async def verified(database_url: str) -> None:
    db = Database(database_url)
    try:
        assert [found async for found in find_differences(db, VerifyProgress())] == []
    finally:
        await db.close()


async def test_steps_with_tools_continue_until_the_answer(server: InProcessServer) -> None:
    thread = await server.thread()
    calls = f"{call('write_file', path='a.txt', content='one')} {call('todo_add', text='two')}"
    text = f"{calls} /then {call('read_file', path='a.txt')} /then {call('glob', pattern='*.txt')} /say All done."
    agent = await act(thread, text)
    run = await agent.ended()
    assert (run["status"], run["steps"], run["finish"]["reason"]) == ("final", 3, "stop")
    cards = await agent.cards()
    assert [(card["tool"], card["step"]) for card in cards] == [
        ("write_file", 1), ("todo_add", 1), ("read_file", 2), ("glob", 3),
    ]  # fmt: skip
    assert {card["state"] for card in cards} == {"completed"}
    assert cards[2]["output"] == "one"
    assert (await agent.text()).endswith("All done.")
    steps = await agent.parts("step")
    assert [(step["step"], step["maxSteps"], step["toolCount"]) for step in steps] == [
        (1, 20, 2),
        (2, 20, 1),
        (3, 20, 1),
    ]
    assert steps[1]["usage"]["inputTokens"] > steps[0]["usage"]["inputTokens"]


async def test_all_calls_of_a_step_are_announced_before_any_update(server: InProcessServer) -> None:
    agent = await act(await server.thread(), "/times=40 " + call("todo_add", text="{i}"))
    await agent.ended()
    kinds = [part["kind"] for part in await agent.parts()]
    assert kinds[:41] == ["step", *["tool-call"] * 40]
    assert kinds.count("tool-result") == 40
    assert kinds.index("tool-result") > kinds.index("tool-status")


async def test_two_hundred_tools_run_in_one_step(server: InProcessServer) -> None:
    thread = await server.thread()
    agent = await act(thread, "/times=200 " + call("write_file", path="f{i}.txt", content="{i}") + " /say Written.")
    await agent.ended(within=60)
    assert set(await agent.states()) == {"completed"}
    found = await act(thread, call("glob", pattern="f*.txt") + " /say Found.")
    await found.ended()
    assert (await found.cards())[0]["summary"].startswith("200 files")


async def test_without_autopilot_there_is_one_step_and_then_the_answer(server: InProcessServer) -> None:
    agent = await act(await server.thread(), f"{call('todo_list')} /then {call('todo_list')}", autopilot=False)
    run = await agent.ended()
    assert (run["steps"], run["finish"]["reason"]) == (1, "stop")
    assert await agent.text()
    assert await agent.parts("notice") == []


@pytest.mark.parametrize(
    ("requested", "most"), [(3, 3), (99, 50), ("many", 20), (0, 20), (None, 20), (2.5, 20), (True, 20)]
)
async def test_steps_are_limited_and_an_invalid_limit_counts_as_twenty(
    server: InProcessServer, requested: Any, most: int
) -> None:
    agent = await act(await server.thread(), call("todo_list"), maxSteps=requested)
    await agent.ended()
    assert [step["maxSteps"] for step in await agent.parts("step")] == [most]


async def test_at_the_limit_a_summary_says_so(server: InProcessServer) -> None:
    agent = await act(await server.thread(), "/loop " + call("glob", pattern="{round}*"), maxSteps=3)
    run = await agent.ended()
    assert (run["status"], run["steps"], run["finish"]["reason"]) == ("final", 3, "max_steps")
    (notice,) = await agent.parts("notice")
    assert notice == {"code": "max_steps", "message": "Stopped after 3 steps, the limit of this run."}
    assert (await agent.text()).startswith("Stopped after 3 rounds.")


async def test_the_same_calls_with_the_same_results_stop_the_run(server: InProcessServer) -> None:
    agent = await act(await server.thread(), "/loop " + call("todo_list"))
    run = await agent.ended()
    assert (run["steps"], run["finish"]["reason"]) == (3, "no_progress")


async def test_steps_in_which_every_call_fails_stop_the_run(server: InProcessServer) -> None:
    agent = await act(await server.thread(), "/loop " + call("read_file", path="missing{round}.txt"))
    run = await agent.ended()
    assert (run["steps"], run["finish"]["reason"]) == (5, "no_progress")


async def test_a_budget_of_calls_stops_the_run_with_a_summary(server: InProcessServer) -> None:
    text = "/times=3 " + call("todo_add", text="{i}") + " /loop"
    agent = await act(await server.thread(), text, budget={"toolCalls": 5})
    run = await agent.ended()
    assert run["finish"]["reason"] == "budget"
    assert len(await agent.cards()) == 5
    assert [notice["message"] for notice in await agent.parts("notice")] == [
        "1 of 3 calls are over the limit.", "Stopped after 5 tool calls, the limit of this run.",
    ]  # fmt: skip


async def test_a_budget_of_tokens_stops_the_loop_and_says_why(server: InProcessServer) -> None:
    agent = await act(await server.thread(), "/loop " + call("glob", pattern="{round}*"), budget={"tokens": 300})
    run = await agent.ended()
    assert (run["status"], run["finish"]["reason"]) == ("error", "budget")
    assert "budget" in (await agent.text())
    assert (await agent.parts("error"))[0]["code"] == "budget_exhausted"


async def test_a_reply_that_only_asks_or_plans_is_followed_by_a_request_to_continue(server: InProcessServer) -> None:
    text = f"/ask Shall I look at the list? /plan I will now look at the list. {call('todo_list')} /say Nothing to do."
    agent = await act(await server.thread(), text)
    run = await agent.ended()
    assert [part["code"] for part in await agent.parts("notice")] == ["reprompted", "reprompted"]
    assert run["steps"] == 1
    assert (await agent.text()).endswith("Nothing to do.")


async def test_an_answer_that_contains_the_word_next_is_the_answer(server: InProcessServer) -> None:
    agent = await act(await server.thread(), "/say The next train leaves at noon; I found two more.")
    await agent.ended()
    assert await agent.parts("notice") == []
    assert await agent.text() == "The next train leaves at noon; I found two more."


async def test_missing_arguments_and_unknown_tools_are_failed_cards_and_the_run_continues(
    server: InProcessServer,
) -> None:
    text = f'{call("read_file")} {call("no_such_tool")} /call todo_add {{"text": }} {call("todo_list")} /say On.'
    agent = await act(await server.thread(), text)
    run = await agent.ended()
    assert run["status"] == "final"
    states = await agent.states()
    assert (states[0], states[1], states[-1]) == ("failed", "failed", "completed")
    cards = await agent.cards()
    assert "path" in cards[0]["summary"]
    assert "no_such_tool" in cards[1]["summary"]


async def test_summaries_are_one_short_line(server: InProcessServer) -> None:
    thread = await server.thread()
    await (await act(thread, call("write_file", path="long.txt", content="word\n" * 300))).ended()
    agent = await act(thread, call("read_file", path="long.txt"))
    await agent.ended()
    (result,) = await agent.parts("tool-result")
    assert len(result["summary"]) <= 120
    assert "\n" not in result["summary"]


async def test_a_large_output_and_large_arguments_are_blobs_that_only_readers_of_the_thread_get(
    server: InProcessServer,
) -> None:
    thread, other = await server.thread(), await server.thread()
    content = "0123456789" * 2000
    await (await act(thread, call("write_file", path="big.txt", content=content))).ended()
    agent = await act(thread, call("read_file", path="big.txt") + " /say Read.")
    await agent.ended()
    (result,) = await agent.parts("tool-result")
    assert "output" not in result
    assert result["blob"]["size"] == len(content)
    assert content.startswith(result["blob"]["preview"])
    path = f"/api/blobs/{result['blob']['blobId']}"
    assert (await server.http.get(path, headers=thread.headers)).text == content
    assert (await server.http.get(path, headers=other.headers)).status_code == 403
    assert all(len(json.dumps(part)) < 4200 for part in await agent.parts())
    first = (await thread.snapshot())["messages"][2]
    args = next(block for block in first["content"] if block["type"] == "tool")["argsBlob"]
    found = await server.http.get(f"/api/blobs/{args['blobId']}", headers=thread.headers)
    assert found.json() == {"path": "big.txt", "content": content}


async def test_earlier_results_reach_the_next_prompt_without_their_secrets(database_url: str) -> None:
    db = Database(database_url)
    async with serving() as provider:
        settings = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "KHALA_MODELS": "openai:*"}
        async with khala(database_url, with_executor=True, **settings) as server:
            thread = await server.thread()
            async with db.engine.begin() as connection:
                kept = {"owner": thread.id, "content": b"password=hunter2secret\ncolour=green"}
                command = "INSERT INTO files (owner_id, path, content) VALUES (:owner, 'env', :content)"
                await connection.execute(text(command), kept)
            await (await act(thread, call("read_file", path="env") + " /say Read.")).ended()
            await (await act(thread, "And the colour?", model="openai:gpt-test")).ended()
    messages = json.dumps(provider.calls[-1].body["messages"])
    assert "colour=green" in messages
    assert "hunter2secret" not in messages
    assert "[redacted]" in messages
    await db.close()


async def test_every_call_leaves_a_receipt_and_a_changed_one_is_found(database_url: str) -> None:
    async with khala(database_url) as server:
        agent = await act(await server.thread(), f"{call('todo_add', text='a')} {call('read_file')} /say Done.")
        run = await agent.ended()
        receipts = await agent.receipts()
    assert [receipt["type"] for receipt in receipts].count("model") == 2
    tools = {receipt["data"]["tool"]: receipt["data"] for receipt in receipts if receipt["type"] == "tool"}
    assert (tools["todo_add"]["outcome"], tools["read_file"]["outcome"]) == ("ok", "bad_arguments")
    assert receipts[-1]["hash"] == run["finish"]["witness"]
    await verified(database_url)
    db = Database(database_url)
    for tampering in (
        "UPDATE receipts SET cost_usd = 5 WHERE seq = 0",
        "UPDATE receipts SET data = jsonb_set(data, '{outcome}', '\"ok\"') WHERE data->>'tool' = 'read_file'",
        "DELETE FROM receipts WHERE seq = 3",
        "DELETE FROM receipts WHERE seq = 1",
    ):
        async with db.engine.connect() as connection:
            await connection.execute(text(tampering))
            await connection.commit()
        found = [difference.problem async for difference in find_differences(db, VerifyProgress())]
        assert len(found) == 1, tampering
        assert "receipt" in found[0]
    await db.close()


async def test_a_call_that_hangs_fails_at_its_timeout_and_the_others_continue(
    database_url: str, tmp_path: Path
) -> None:
    async with with_peculiar(database_url, tmp_path, TIMEOUT="1.5") as (server, _):
        thread = await server.thread()
        await rules(thread, _all="allow")
        text = f"{call(PECULIAR + 'hang')} {call(PECULIAR + 'echo', text='hi')} {call('todo_list')} /say On."
        agent = await act(thread, text)
        await agent.until("running", "completed", "completed", within=3)
        run = await agent.ended(within=10)
        assert run["status"] == "final"
        hung, echoed, _ = await agent.cards()
        assert (hung["state"], echoed["output"]) == ("failed", "hi")
        assert "imed out" in hung["summary"]
        order = [part["toolCallId"] for part in await agent.parts("tool-result")]
        assert order[-1] == hung["toolCallId"]


async def test_the_progress_of_a_call_is_on_its_card(database_url: str, tmp_path: Path) -> None:
    async with with_peculiar(database_url, tmp_path) as (server, _):
        thread = await server.thread()
        await rules(thread, _all="allow")
        agent = await act(thread, call(PECULIAR + "slow") + " /say On.")
        assert (await agent.ended())["status"] == "final"
        reasons = [part.get("reason") for part in await agent.parts("tool-status")]
        assert (len(reasons), reasons[0]) == (2, None)
        assert "step 1" in str(reasons[1])
        assert await agent.states() == ["completed"]


async def test_stop_cancels_model_and_tools_within_a_second(database_url: str, tmp_path: Path) -> None:
    async with with_peculiar(database_url, tmp_path) as (server, journal):
        thread = await server.thread()
        await rules(thread, _all="allow")
        agent = await act(thread, f"{call(PECULIAR + 'hang')} {call('todo_list')}")
        await agent.until("running", "completed")
        while not done(journal, "hang"):
            await asyncio.sleep(0.02)
        began = time.monotonic()
        await agent.cancel()
        run = await agent.ended(within=5)
        assert time.monotonic() - began < 1
        assert (run["status"], await agent.states()) == ("canceled", ["cancelled", "completed"])
        async with asyncio.timeout(3):
            while not done(journal, "hang", "cancelled"):
                await asyncio.sleep(0.02)


async def test_a_call_of_the_callers_function_is_handed_to_the_caller(server: InProcessServer) -> None:
    function = {"name": "blink", "description": "Blink.", "parameters": {"type": "object"}}
    agent = await act(await server.thread(), call("blink", times=2), functions=[function])
    run = await agent.ended()
    assert (run["status"], run["finish"]["reason"]) == ("final", "tool_calls")
    (card,) = await agent.cards()
    assert card["args"] == {"times": 2}


async def test_arguments_that_are_too_large_or_cannot_be_stored_fail_their_call_alone(database_url: str) -> None:
    async with khala(database_url, KHALA_GUEST_BLOB_MB="1") as server:
        thread = await server.thread()
        for number in range(12):  # until the thread's storage quota is used up
            content = chr(97 + number) * 90_000
            full = await act(
                thread, f"{call('write_file', path='a.txt', content=content)} {call('todo_list')} /say On."
            )
            assert (await full.ended())["status"] == "final"
        assert await full.states() == ["failed", "completed"]
        assert "could not be stored" in (await full.cards())[0]["summary"]


async def test_a_tool_that_is_forbidden_while_its_call_waits_is_not_run(server: InProcessServer) -> None:
    thread = await server.thread()
    agent = await act(thread, call("delete_file", path="a.txt") + " /say On.")
    (card,) = await agent.until("blocked")
    await agent.status("blocked")
    await rules(thread, delete_file="deny")
    assert (await agent.decide(card["toolCallId"], approved=True)).status_code == 200
    assert (await agent.ended())["status"] == "final"
    assert await agent.states() == ["failed"]


async def test_the_shown_arguments_are_exactly_those_that_are_run(server: InProcessServer) -> None:
    thread = await server.thread()
    agent = await act(
        thread, '/call write_file {"path":"a.txt","content":"x\\u0000y"} /then ' + call("read_file", path="a.txt")
    )
    run = await agent.ended()
    assert (run["status"], run["attempt"]) == ("final", 1)
    wrote, read = await agent.cards()
    assert (wrote["args"]["content"], read["output"]) == ("x\ufffdy", "x\ufffdy")
    db = Database(server.database_url)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT content FROM files") == "x\ufffdy".encode()
    await db.close()


async def test_the_third_plan_in_a_row_is_the_answer(server: InProcessServer) -> None:
    plans = " ".join(f"/plan I will now look at list {number}." for number in range(3))
    agent = await act(await server.thread(), f"{plans} {call('todo_list')} /say Done.")
    run = await agent.ended()
    assert [part["code"] for part in await agent.parts("notice")] == ["reprompted", "reprompted"]
    assert (run["status"], run["steps"]) == ("final", 0)
    assert (await agent.text()).endswith("list 2.")


async def test_text_before_the_calls_of_a_step_is_in_the_models_next_prompt(database_url: str) -> None:
    use = UseTool(name="todo_list")
    async with serving(Reply(tokens=("Let ", "me ", "see."), calls=(use,)), Reply(tokens=("Nothing.",))) as provider:
        settings = {"OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "KHALA_MODELS": "openai:*"}
        async with khala(database_url, with_executor=True, **settings) as server:
            agent = await act(await server.thread(), "What is to do?", model="openai:gpt-test")
            assert (await agent.ended())["status"] == "final"
    with_calls = [message for message in provider.calls[1].body["messages"] if message.get("tool_calls")]
    assert [result["content"] for result in with_calls] == ["Let me see."]


async def test_a_step_with_a_call_of_the_callers_function_ends_the_run(server: InProcessServer) -> None:
    function = {"name": "blink", "description": "Blink.", "parameters": {"type": "object"}}
    text = f"{call('todo_list')} {call('blink', times=2)} /say Never said."
    agent = await act(await server.thread(), text, functions=[function])
    run = await agent.ended()
    assert (run["status"], run["finish"]["reason"], run["steps"]) == ("final", "tool_calls", 1)
    assert await agent.states() == ["completed", "completed"]
    assert "Never said" not in await agent.text()
