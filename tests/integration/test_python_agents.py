"""Agents and tools in Python: what they offer, store, ask and refuse."""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from khala.domain.plans.commands import Start
from khala.store.postgres.database import Database
from tests.integration.test_api_threads import assert_problem
from tests.support import app_agents
from tests.support.account_with_data import account, own_thread
from tests.support.agents import Agent, act, call, rules
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.plans import ThreadPlan, step
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("app") / "journal"
    path.touch()
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, journal: Path) -> AsyncIterator[InProcessServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KHALA_APP_JOURNAL", str(journal))
        async with shared(postgres_url, template, KHALA_APP=app_agents.MODULE, KHALA_WELCOME="") as inside:
            yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def start(thread: Thread, name: str, text: str = "Hi", **options: Any) -> Agent:
    return Agent(thread, await thread.send(text, options={"agent": f"app:{name}"} | options))


async def done(thread: Thread, name: str, text: str = "Hi") -> tuple[Agent, dict[str, Any]]:
    agent = await start(thread, name, text)
    return agent, await agent.ended()


async def test_guests_see_and_choose_only_the_agents_for_guests(server: InProcessServer, thread: Thread) -> None:
    listed = {agent["name"]: agent for agent in (await server.http.get("/api/agents")).json()["items"]}
    assert (listed["app:steps"]["title"], listed["app:steps"]["tools"]) == ("Stepwise", ["weather"])
    assert listed["app:hang"]["description"] == "Wait for ever, and clean up when it is cancelled."
    assert "app:private" not in listed
    assert_problem(await server.http.get("/api/agents/app:private"), 404, "not_found")
    for name in ("app:private", "app:unknown", "app:"):
        body = {"text": "Hi", "options": {"agent": name}}
        sent = await server.http.post(f"/api/threads/{thread.id}/send", json=body, headers=thread.headers)
        assert_problem(sent, 400, "invalid_input")


async def test_an_agent_of_accounts_knows_who_asks(server: InProcessServer) -> None:
    async with account(server) as who:
        run, ended = await done(await own_thread(who), "private")
        assert ended["status"] == "final"
        assert await run.text() == (await who.http.get("/api/me")).json()["id"]


async def test_steps_and_calls_are_cards_of_the_answer(thread: Thread) -> None:
    agent, ended = await done(thread, "steps", "Hello")
    assert ended["status"] == "final"
    assert await agent.text() == (
        "You said Hello.\nThe step fail failed: ConnectionError.\n[0, 2, 4] Tuesday None 10000 1"
    )
    cards = await agent.cards()
    assert [card["tool"] for card in cards] == [*["double"] * 3, "weather", "nothing", "long", "fail"]
    assert [card["args"] for card in cards[:3]] == [{"number": number} for number in range(3)]
    assert [card["output"] for card in cards[:3]] == [0, 2, 4]
    assert cards[3]["output"] == {"city": "Ulm", "weekday": "Tuesday", "unit": "C", "guest": True}
    assert cards[5]["blob"]["size"] == 10_000
    assert (cards[6]["state"], cards[6]["output"]) == ("failed", "The step fail failed: ConnectionError.")
    sources = {receipt["data"]["tool"]: receipt["data"]["source"] for receipt in await agent.receipts("tool")}
    assert sources["double"] == sources["weather"] == "app"


@pytest.mark.parametrize("approved", [True, False])
async def test_an_agent_waits_for_approval_without_repeating_what_it_did(
    thread: Thread, journal: Path, *, approved: bool
) -> None:
    agent = await start(thread, "approval")
    await agent.status("blocked")
    before = journal.read_text().count("double 21")
    _, waiting = await agent.cards()
    assert (waiting["tool"], waiting["state"]) == ("send_mail", "blocked")
    assert waiting["args"] == {"to": "ann@example.org", "number": 42}
    edited = {"editedArgs": {"to": "bob@example.org", "number": 7}} if approved else {"reason": "Too late."}
    response = await agent.decide(waiting["toolCallId"], approved=approved, **edited)
    assert response.status_code < 300, response.text
    assert (await agent.ended())["status"] == "final"
    assert journal.read_text().count("double 21") == before
    text = await agent.text()
    if approved:
        assert text == "May I send 42?\napproved=True 7 "
        assert "sent {'to': 'bob@example.org', 'number': 7}" in journal.read_text()
    else:
        assert text.startswith("May I send 42?\napproved=False 42 Denied by")
        assert text.endswith("Too late.")


async def test_an_agent_waits_for_approval_when_the_step_beside_it_times_out(thread: Thread) -> None:
    agent = await start(thread, "approval-and-timeout")
    await agent.status("blocked")
    (waiting,) = [card for card in await agent.cards() if card["state"] == "blocked"]
    await agent.decide(waiting["toolCallId"], approved=True)
    assert (await agent.ended())["status"] == "final"
    assert await agent.text() == "approved=True"


async def test_an_agent_calls_models_and_lets_the_loop_answer(thread: Thread) -> None:
    # For the demo model, `generate` was the first step of its plan. So it begins with the second one.
    second = call("weather", place={"city": "Bonn"}, day="2026-11-23")
    agent, ended = await done(thread, "models", f"{call('weather')} /then {second} /say done")
    assert ended["status"] == "final"
    assert [card["tool"] for card in await agent.cards()] == ["generate", "weather"]
    assert (await agent.text()).startswith("It said blue. ")
    assert (await agent.text()).endswith("done")
    assert len(await agent.receipts("model")) == 3


async def test_usage_that_a_step_reports_counts_once(thread: Thread) -> None:
    agent = await start(thread, "reports")
    await agent.status("blocked")
    waiting = (await agent.cards())[-1]
    await agent.decide(waiting["toolCallId"], approved=True)
    assert (await agent.ended())["status"] == "final"
    assert "in the step that calls it" in await agent.text()
    [receipt] = await agent.receipts("model")
    assert receipt["toolCallId"] == (await agent.cards())[0]["toolCallId"]
    finish = (await agent.message())["finish"]
    assert finish["usage"] == {"inputTokens": 5, "outputTokens": 2}
    assert float(finish["costUsd"]) > 0


@pytest.mark.parametrize(
    ("name", "text"),
    [("crash", "Well\n\nThe agent failed with an internal error."), ("refuse", "I only speak about birds.")],
)
async def test_an_agent_that_fails_says_why_without_secrets(thread: Thread, name: str, text: str) -> None:
    agent, ended = await done(thread, name)
    assert (ended["status"], await agent.text()) == ("error", text)
    assert [part["code"] for part in await agent.parts("error")] == ["agent_failed"]


async def test_a_canceled_agent_cleans_up(thread: Thread, journal: Path) -> None:
    agent = await start(thread, "hang")
    await agent.status("running")
    await agent.cancel()
    assert (await agent.ended())["status"] == "canceled"
    assert "cleaned up" in journal.read_text()


async def test_an_agent_that_writes_another_text_when_it_goes_on_fails(thread: Thread) -> None:
    agent = await start(thread, "random")
    await agent.status("blocked")
    [waiting] = await agent.cards()
    await agent.decide(waiting["toolCallId"], approved=True)
    assert (await agent.ended())["status"] == "error"
    assert "wrote another text than before it was interrupted" in await agent.text()


async def test_an_agent_completes_the_steps_of_a_plan(server: InProcessServer, thread: Thread) -> None:
    db = Database(server.database_url, pool_size=1)
    try:
        plan = ThreadPlan(db, thread)
        await plan.create(step("a"), step("b"), agents=("app:missing", "app:planned"))
        await plan.command(Start())
        stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    finally:
        await db.close()
    assert (stored.plan.end, stored.plan.agent) == ("completed", "app:planned")
    assert [one.summary for one in stored.plan.steps.values()] == ["Counted."] * 2


async def test_a_step_that_nobody_waits_for_ends_with_the_run(thread: Thread, journal: Path) -> None:
    agent, ended = await done(thread, "careless")
    assert (ended["status"], await agent.states()) == ("final", ["cancelled"])
    async with asyncio.timeout(10):
        while "left behind" not in journal.read_text():
            await asyncio.sleep(0.02)


async def test_models_call_tools_in_python(thread: Thread) -> None:
    offered = await thread.http.get("/api/tools", params={"threadId": thread.id}, headers=thread.headers)
    tools = {one["name"]: one for one in offered.json()["items"]}
    assert tools["weather"]["source"] == "app"
    assert "pay" not in tools, "guests have no network"
    agent = await act(
        thread,
        " /then ".join(
            [
                call("weather", place={"city": "Ulm", "country": "FR"}, day="2026-11-24", unit="F"),
                call("weather", place={"city": "Ulm"}, day="tomorrow"),
                call("weather", place={"city": "Ulm"}, day="2026-11-24", extra=1),
                call("break", politely=True),
                call("break", politely=False),
                call("picture"),
            ]
        ),
    )
    await agent.ended()
    outputs = [card.get("output") or card["blob"]["mediaType"] for card in await agent.cards()]
    assert outputs[0] == {"city": "Ulm", "weekday": "Tuesday", "unit": "F", "guest": True}
    assert "day" in outputs[1]
    assert "extra" in outputs[2]
    assert outputs[3:] == [
        "It is out of order.",
        "The tool failed with an internal error.",
        "application/octet-stream",
    ]


async def test_a_tool_in_python_asks_people_with_an_account(server: InProcessServer, journal: Path) -> None:
    async with account(server) as who:
        agent = await act(await own_thread(who), call("pay", amount=5))
        await agent.status("blocked")
        assert "pay" not in journal.read_text()
        [waiting] = await agent.cards()
        await agent.decide(waiting["toolCallId"], approved=True)
        await agent.ended()
        assert journal.read_text().count("pay 5") == 1


def weather(city: str) -> str:
    return call("weather", place={"city": city}, day="2026-11-24")


async def scripted(thread: Thread, steps: int, *, approved: bool, **options: Any) -> tuple[Agent, list[dict[str, Any]]]:
    """A run with a step of three calls, of which one needs approval, and its parts without ids and times."""
    await rules(thread, picture="ask")
    text = f"/say Looking. {weather('Ulm')} {call('break', politely=True)} {call('picture')} /then {weather('Bonn')}"
    chosen = {"autopilot": True, "maxSteps": steps, "tools": app_agents.LOOP_TOOLS} | options
    agent = Agent(thread, await thread.send(f"{text} /then /say Done.", options=chosen))
    cards = await agent.until("completed", "failed", "blocked")
    await agent.status("blocked")
    decided = await agent.decide(cards[2]["toolCallId"], approved=approved)
    assert decided.status_code < 300, decided.text
    await agent.ended()
    return agent, without_ids_and_times(await agent.parts())


def without_ids_and_times(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts, with the text between two others as one, and the results of a step in the order of its calls."""
    ids = [part["toolCallId"] for part in parts if part["kind"] == "tool-call"]
    plain: list[dict[str, Any]] = []
    for part in parts:
        kept = {name: value for name, value in part.items() if not name.endswith(("Ms", "At")) and name != "witness"}
        if "toolCallId" in kept:
            kept["toolCallId"] = ids.index(kept["toolCallId"])
        if "blob" in kept:
            kept["blob"] = kept["blob"]["sha256"]
        if plain and kept["kind"] == plain[-1]["kind"] == "text-delta":
            plain[-1]["text"] += kept["text"]
        else:
            plain.append(kept)
    of_calls = ("tool-status", "tool-result")
    return [
        part
        for is_of_calls, group in groupby(plain, lambda part: part["kind"] in of_calls)
        for part in (sorted(group, key=lambda part: part["toolCallId"]) if is_of_calls else group)
    ]


@pytest.mark.parametrize(("steps", "approved"), [(20, True), (20, False), (1, True)])
async def test_a_loop_of_public_operations_stores_what_the_built_in_one_stores(
    server: InProcessServer, steps: int, *, approved: bool
) -> None:
    built_in, expected = await scripted(await server.thread(), steps, approved=approved)
    own, parts = await scripted(await server.thread(), steps, approved=approved, agent="app:loop")
    kinds = {part["kind"] for part in expected}
    assert kinds >= {"text-delta", "step", "tool-call", "tool-status", "tool-result", "finish"}
    assert expected[-1]["reason"] == ("stop" if steps > 1 else "max_steps")
    assert parts == expected
    assert await own.text() == await built_in.text()
    assert [one["type"] for one in await own.receipts()] == [one["type"] for one in await built_in.receipts()]


async def test_a_loop_that_does_what_it_may_not_do_is_told_why(thread: Thread) -> None:
    agent, ended = await done(thread, "misuse")
    assert ended["status"] == "error"
    text = await agent.text()
    refusals = ["not 0", "not 257", "code of a notice", "1,000 characters", "may not run beside", "not ended"]
    for reason in [*refusals, "one of these reasons", "5,000 operations"]:
        assert reason in text
    assert "It was allowed" not in text.replace("It was allowed.", "", 1), "the step beside which `reply` is refused"
    [error] = await agent.parts("error")
    assert (error["code"], error["message"], error["retryAfter"]) == ("gave_up", "I give up.", 7)


async def test_an_agent_that_is_replayed_has_no_loop(thread: Thread) -> None:
    agent, ended = await done(thread, "replayed-loop")
    assert (ended["status"], await agent.parts("step")) == ("error", [])
    assert "`replay=False`" in await agent.text()
