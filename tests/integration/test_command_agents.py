"""Command agents: who may choose them, what their runs show, and how these end."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.plans.commands import Start
from khala.domain.plans.completion import is_marked_complete
from khala.models.model_names import ModelRef
from khala.models.port import LanguageModel
from khala.plans import agent_probe
from khala.runs.command_output import MAX_LIVE_BYTES, MAX_TAIL_BYTES
from khala.store.postgres.database import Database
from khala.tools.commands import CommandRunner, read_commands
from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import account, own_thread
from tests.support.agents import Agent
from tests.support.client import Thread
from tests.support.command_agents import with_mark, write_commands
from tests.support.in_process import InProcessServer
from tests.support.plans import ThreadPlan, step
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("echo", "stream", "fail", "finish", "limited", "lucky", "mention", "invalid", "flood", "hang", "early")
MIB = 1 << 20
DEMO = ModelRef("demo", "demo")


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FIFO, whose path is in the command line of all commands."""
    path = tmp_path_factory.mktemp("commands") / ids.new().hex
    os.mkfifo(path)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, mark: Path) -> AsyncIterator[InProcessServer]:
    config = write_commands(mark.parent, *NAMES, mark=str(mark))
    async with shared(postgres_url, template, KHALA_COMMANDS=str(config), KHALA_WELCOME="") as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def start(thread: Thread, name: str, text: str = "Hi", **options: Any) -> Agent:
    return Agent(thread, await thread.send(text, options={"agent": f"command:{name}"} | options))


async def done(thread: Thread, name: str, text: str = "Hi", **options: Any) -> tuple[Agent, dict[str, Any]]:
    agent = await start(thread, name, text, **options)
    return agent, await agent.ended()


async def test_guests_see_and_choose_only_the_commands_for_guests(server: InProcessServer, thread: Thread) -> None:
    listed = {agent["name"]: agent for agent in (await server.http.get("/api/agents")).json()["items"]}
    assert "command:echo" in listed
    assert "command:private" not in listed
    assert_problem(await server.http.get("/api/agents/command:private"), 404, "not_found")
    body = {"text": "Hi", "options": {"agent": "command:private"}}
    for path in (f"/api/threads/{thread.id}/send",):
        problem = assert_problem(await server.http.post(path, json=body, headers=thread.headers), 400, "invalid_input")
        assert [error["path"] for error in problem["errors"]] == ["options.agent"]
    body["options"]["agent"] = "command:unknown"  # type: ignore[index]
    assert_problem(
        await server.http.post(f"/api/threads/{thread.id}/send", json=body, headers=thread.headers),
        400,
        "invalid_input",
    )


async def test_accounts_choose_all_commands_and_change_none(server: InProcessServer) -> None:
    async with account(server) as who:
        agent = (await who.http.get("/api/agents/command:private")).raise_for_status().json()
        assert (agent["title"], agent["tools"], agent.get("owner")) == ("Private", [], None)
        assert_problem(await who.http.patch("/api/agents/command:private", json={"title": "Mine"}), 404, "not_found")
        assert_problem(await who.http.delete("/api/agents/command:private"), 404, "not_found")
        made = await who.http.post("/api/agents", json={"name": "command:private", "title": "Mine"})
        assert_problem(made, 400, "invalid_input")
        run, ended = await done(await own_thread(who), "private", "Hello")
        assert (ended["status"], await run.text()) == ("final", "Hello\n")


async def test_output_streams_as_plain_text_before_the_command_ends(
    server: InProcessServer, thread: Thread, mark: Path
) -> None:
    agent = await start(thread, "stream")
    async with server.observer(thread).following() as observer:
        view = await observer.until(lambda view: view.text(agent.answer) == "first\n")
        assert view.messages[agent.answer]["status"] == "streaming"
        with mark.open("w"):
            pass
        await observer.until(lambda view: view.messages[agent.answer]["status"] == "final")
    text = await agent.text()
    assert text == "first\nsecond\n\n<promise>COMPLETE</promise>\n"
    assert is_marked_complete(text)
    [card] = await agent.cards()
    assert (card["tool"], card["args"], card["state"]) == ("run_command", {"command": "stream"}, "completed")
    assert card["output"] == f"{text}\n[stderr]\nprogress\n"
    [receipt] = await agent.receipts("tool")
    assert (receipt["data"]["source"], receipt["data"]["outcome"]) == ("command", "ok")


async def test_the_prompt_has_the_conversation_and_the_instructions(thread: Thread) -> None:
    await done(thread, "echo", "One?")
    agent, _ = await done(thread, "caged", "Two?", instructions="In French.")
    text = await agent.text()
    assert text.startswith("Be brief.\n\nIn French.\n\nThe conversation so far:\n\n")
    assert "User: One?\n\nAssistant: One?\n" in text
    assert text.endswith("The new message:\n\nTwo?")


async def test_an_argument_has_the_prompt_and_its_size_is_bounded(thread: Thread) -> None:
    for _ in range(9):
        agent, ended = await done(thread, "argument", "é" * 8_000)
        assert ended["status"] == "final"
    shown = await agent.text()
    assert shown.endswith("The new message:\n\n" + "é" * 8_000)
    assert 100_000 < len(shown.encode()) <= 120_000


@pytest.mark.parametrize(
    ("name", "code", "retry_after"),
    [
        ("fail", "failed", None),
        ("limited", "rate_limited", 20),
        ("mention", "failed", None),
        ("missing", "unavailable", None),
        ("short", "timeout", None),
    ],
)
async def test_a_failed_command_has_a_code_and_the_time_to_wait(
    thread: Thread, name: str, code: str, retry_after: float | None
) -> None:
    agent, ended = await done(thread, name)
    assert (ended["status"], ended["finish"]["reason"]) == ("error", "error")
    [found] = await agent.parts("error")
    assert (found["code"], found.get("retryAfter")) == (code, retry_after)
    assert (await agent.text()).endswith(found["message"])
    assert await agent.states() == ["failed"]


async def test_a_rate_limit_never_overrides_success(thread: Thread) -> None:
    agent, ended = await done(thread, "lucky")
    assert (ended["status"], await agent.text(), await agent.parts("error")) == ("final", "fine\n", [])


@pytest.mark.parametrize(("name", "text"), [("invalid", "caf\ufffd \ufffd\ufffd\n"), ("early", "early\n")])
async def test_invalid_output_and_an_unread_prompt_are_no_error(thread: Thread, name: str, text: str) -> None:
    agent, ended = await done(thread, name)
    assert (ended["status"], await agent.text()) == ("final", text)


async def test_of_100_mb_the_ends_are_shown_and_the_whole_is_stored(server: InProcessServer) -> None:
    async with account(server) as who:
        before = memory = psutil.Process().memory_info().rss
        agent = await start(await own_thread(who), "flood", "100")
        while (ended := await agent.run())["status"] in ("queued", "running"):
            memory = max(memory, psutil.Process().memory_info().rss)
            await asyncio.sleep(0.05)
        assert ended["status"] == "final"
        assert memory - before < 60 * MIB
        text = await agent.text()
        assert len(text) < MAX_LIVE_BYTES + MAX_TAIL_BYTES + 1_000
        assert text.startswith("0123456789abcde\n")
        assert "bytes are left out here" in text
        assert is_marked_complete(text)
        [card] = await agent.cards()
        assert card["blob"]["size"] == 100 * MIB + len("\n<promise>COMPLETE</promise>\n")
        path = f"/api/blobs/{card['blob']['blobId']}"
        tail = await who.http.get(path, headers={"Range": "bytes=-28"})
        assert tail.text.strip() == "<promise>COMPLETE</promise>"


async def test_a_canceled_command_is_gone_when_its_run_has_ended(thread: Thread, mark: Path) -> None:
    agent = await start(thread, "hang")
    await agent.until("running")
    async with asyncio.timeout(20):
        while "hanging" not in await agent.text():
            await asyncio.sleep(0.02)
    assert with_mark(str(mark))
    await agent.cancel()
    assert (await agent.ended())["status"] == "canceled"
    assert await agent.states() == ["cancelled"]
    assert not with_mark(str(mark))


async def test_a_budget_of_time_ends_a_command(thread: Thread, mark: Path) -> None:
    _, ended = await done(thread, "hang", budget={"seconds": 0.5})
    assert (ended["status"], ended["finish"]["reason"]) == ("error", "budget")
    assert not with_mark(str(mark))


@pytest_asyncio.fixture(loop_scope="module")
async def plan(server: InProcessServer, thread: Thread) -> AsyncIterator[ThreadPlan]:
    db = Database(server.database_url, pool_size=1)
    yield ThreadPlan(db, thread)
    await db.close()


async def test_a_command_completes_the_steps_of_a_plan_by_its_marker_after_one_that_is_missing(
    plan: ThreadPlan,
) -> None:
    await plan.create(step("a"), step("b"), agents=("command:missing", "command:finish"))
    await plan.command(Start())
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    assert (stored.plan.end, stored.plan.agent) == ("completed", "command:finish")
    assert [one.summary for one in stored.plan.steps.values()] == ["Counted the words."] * 2


@pytest.mark.parametrize("agent", ["command:echo", "command:private"])
async def test_a_command_that_repeats_its_task_or_is_not_for_guests_completes_no_step(
    plan: ThreadPlan, agent: str
) -> None:
    await plan.create(step("a"), agents=(agent,), no_progress=1)
    await plan.command(Start())
    stored = await plan.wait(lambda stored: stored.plan.status == "paused")
    assert stored.plan.steps["a"].status == "open"
    assert "completed" not in {one.status for one in stored.plan.steps.values()}


async def test_a_limited_command_is_probed_by_running_it(
    server: InProcessServer, plan: ThreadPlan, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plan.create(step("a"))
    stored = await plan.read()
    runner = CommandRunner(read_commands(mark.parent / "commands.json", {}))
    db = Database(server.database_url, pool_size=1)
    probe = agent_probe.AgentProbe(db, runner, _no_model, DEMO)
    names = ("echo", "limited", "missing", "unknown")
    assert [await probe.probe(stored, f"command:{name}") for name in names] == [True, False, False, False]
    monkeypatch.setattr(agent_probe, "PROBE_SECONDS", 0.5)
    assert not await probe.probe(stored, "command:hang")
    assert not with_mark(str(mark))
    await db.close()


def _no_model(ref: ModelRef) -> LanguageModel:
    raise AssertionError(f"{ref} was called")
