"""Executors that are killed while tools run: no effect happens twice, no result is lost, and the run ends."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest

from tests.support import forked_runs, postgres
from tests.support.agents import PECULIAR, Agent, act, call, peculiar, rules
from tests.support.client import Thread
from tests.support.mcp_server import calls
from tests.support.observed_run import assert_verified
from tests.support.server import Server, Worker, ended

LEASE = 60.0
"""Seconds. An executor that a busy machine delays keeps its lease; `Stage.kill` ends the lease of a killed one."""
STEPS, AT_ONCE = 5, 4
PROMPTLY = 60.0
STORED = """
    SELECT count(*) FROM message_parts
    WHERE run_id = $1 AND kind = $2 AND ($3::int IS NULL OR (data ->> 'step')::int = $3)
"""
"""Asks for one number: a look at the moment that a test waits for costs the server and this process next to nothing."""
LAPSE = """
    UPDATE runs SET lease_expires_at = clock_timestamp() - interval '1 second'
    WHERE lease_owner = $1 AND status = 'running'
"""
"""Ends the leases of an executor, as time does."""


class Stage:
    """An API server without executors, one executor that can be killed, and tools that survive it."""

    def __init__(
        self, http: httpx.AsyncClient, store: asyncpg.Connection, journal: Path, folder: Path, env: dict[str, str]
    ) -> None:
        self.http = http
        self.journal = journal
        self._store = store
        self._folder = folder
        self._env = env
        self._workers: list[Worker] = []

    def start_executor(self) -> None:
        """Start an executor."""
        worker = Worker(self._folder / f"worker{len(self._workers)}.log", self._env)
        self._workers.append(worker)
        worker.start()

    async def kill(self) -> None:
        """Kill the executor, end its leases, and start another one."""
        await self.lose_executor()
        self.start_executor()

    async def lose_executor(self) -> None:
        """Kill the executor, and end its leases once it and the processes of its isolated runs have ended."""
        worker = self._workers[-1]
        name, children = worker.id, psutil.Process(worker.pid).children()
        worker.kill()

        async def have_ended() -> bool:
            return not any(map(runs, children))

        await until(have_ended)
        await self._store.execute(LAPSE, name)

    async def thread(self) -> Thread:
        thread = await Thread.create(self.http)
        await rules(thread, _all="allow")
        return thread

    def event_counts(self, tool: str, event: str = "did") -> Counter[str]:
        """The number of these events by call."""
        return Counter(call["key"] for call in calls(self.journal, tool, event))

    async def stored(self, agent: Agent, kind: str, step: int | None = None) -> int:
        """The number of stored parts of this kind of the run, or of one of its steps."""
        return int(await self._store.fetchval(STORED, agent.run_id, kind, step))

    @property
    def workers(self) -> list[Worker]:
        return self._workers


@pytest.fixture
async def stage(database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with peculiar(tmp_path) as (served, journal):
        config = tmp_path / "mcp.json"
        address = f"http://127.0.0.1:{served.port}/mcp"
        peculiar_server = {"url": address, "anonymous": True, "elicitation": True}
        config.write_text(json.dumps({"mcpServers": {"peculiar": peculiar_server}}))
        env = {
            "DATABASE_URL": database_url,
            "KHALA_MODEL": "demo",
            "KHALA_LEASE_SECONDS": str(LEASE),
            "KHALA_GRACE_SECONDS": "0",
            "KHALA_COOLDOWN_MS": "0",
            "KHALA_MCP_CONFIG": str(config),
            forked_runs.VARIABLE: "1",
        }
        server = Server(tmp_path / "server.log", env, "--no-executor")
        with ended(server):
            server.start()
            async with (
                httpx.AsyncClient(base_url=server.url, timeout=30) as http,
                postgres.connected(database_url) as store,
            ):
                stage = Stage(http, store, journal, tmp_path, env)
                stage.start_executor()
                try:
                    yield stage
                finally:
                    for worker in stage.workers:
                        if worker.running():
                            worker.kill()
            assert not server.crashes()
            assert not [line for worker in stage.workers for line in worker.crashes()]
    assert_verified({"DATABASE_URL": database_url})


def runs(process: psutil.Process) -> bool:
    """Whether the process has not ended."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def five_steps(tool: str) -> str:
    """Five steps of four calls each, and an answer that takes seconds, so that the last kill comes before its end."""
    steps = [
        " ".join(call(PECULIAR + tool, n=AT_ONCE * step + place) for place in range(AT_ONCE)) for step in range(STEPS)
    ]
    return "/pace=10 " + " /then ".join(steps) + f" /say Finished. {'And so on. ' * 15}"


async def until(condition: Callable[[], Awaitable[bool]], *, within: float = PROMPTLY) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)


Boundary = Callable[[Stage, Agent, int], Awaitable[bool]]


async def calls_stored(stage: Stage, agent: Agent, step: int) -> bool:
    """Whether the calls of the step are stored; they may not have started yet."""
    return await stage.stored(agent, "tool-call", step) == AT_ONCE


async def effect_happened(stage: Stage, agent: Agent, step: int) -> bool:
    """Whether a tool of the step has had its effect; its result may not be stored yet."""
    return len(stage.event_counts("deed") + stage.event_counts("risk")) > AT_ONCE * (step - 1)


async def result_stored(stage: Stage, agent: Agent, step: int) -> bool:
    """Whether a result of the step is stored."""
    return await stage.stored(agent, "tool-result") > AT_ONCE * (step - 1)


@pytest.mark.parametrize("boundary", [calls_stored, effect_happened, result_stored])
# From the second loss on, each take-over of the run starts a child process.
@pytest.mark.timeout(180)
async def test_a_killed_executor_causes_no_effect_twice(stage: Stage, boundary: Boundary) -> None:
    agent = await act(await stage.thread(), five_steps("deed"))
    for step in range(1, STEPS + 1):

        async def there(step: int = step) -> bool:
            return await boundary(stage, agent, step)

        await until(there)
        await stage.kill()
    run = await agent.ended(within=60)
    assert (run["status"], run["steps"], run["attempt"]) == ("final", STEPS, STEPS + 1)
    deeds = stage.event_counts("deed")
    assert len(deeds) == STEPS * AT_ONCE
    assert set(deeds.values()) == {1}
    await assert_complete(agent, STEPS * AT_ONCE)


@pytest.mark.parametrize("boundary", [calls_stored, effect_happened, result_stored])
@pytest.mark.timeout(180)
async def test_a_killed_executor_makes_no_call_twice_that_is_not_idempotent(stage: Stage, boundary: Boundary) -> None:
    agent = await act(await stage.thread(), five_steps("risk"))
    for step in range(1, STEPS + 1):

        async def there(step: int = step) -> bool:
            return await boundary(stage, agent, step)

        await until(there)
        await stage.kill()
    assert (await agent.ended(within=60))["status"] == "final"
    # The tool refuses no call: it counts each call and each effect.
    received = Counter(call["n"] for call in calls(stage.journal, "risk", "began"))
    effects = Counter(call["n"] for call in calls(stage.journal, "risk", "did"))
    assert set(received.values()) == set(effects.values()) == {1}
    cards = await agent.cards()
    assert [card["args"]["n"] for card in cards] == list(range(STEPS * AT_ONCE))
    completed = {card["args"]["n"] for card in cards if card["state"] == "completed"}
    assert completed <= effects.keys()
    assert all(
        card["state"] == "failed" and "unknown" in card["summary"]
        for card in cards
        if card["args"]["n"] not in completed
    )
    assert boundary is not effect_happened or len(completed) < len(cards)
    assert (await agent.text()).count("Finished.") == 1


@pytest.mark.timeout(120)
async def test_a_call_with_an_unknown_outcome_is_shown_and_not_repeated(stage: Stage) -> None:
    text = f"{call(PECULIAR + 'risk', n=1)} {call('todo_add', text='x')} /say Finished."
    agent = await act(await stage.thread(), text)

    async def risked() -> bool:
        return bool(stage.event_counts("risk")) and await stage.stored(agent, "tool-result") == 1

    await until(risked)
    await stage.kill()
    run = await agent.ended(within=30)
    assert run["status"] == "final"
    assert stage.event_counts("risk", "began").total() == 1
    risky, added = await agent.cards()
    assert (risky["state"], added["state"]) == ("failed", "completed")
    assert "unknown" in risky["summary"]
    assert [receipt["data"]["outcome"] for receipt in await agent.receipts("tool")] == ["ok", "unknown"]
    assert (await agent.text()).endswith("Finished.")


@pytest.mark.timeout(120)
async def test_an_answer_to_a_tool_survives_the_death_of_the_executor(stage: Stage) -> None:
    agent = await act(await stage.thread(), f"/pace=0 {call(PECULIAR + 'question')} /say Finished.")

    async def questions(state: str) -> list[dict[str, Any]]:
        found = await stage.http.get(f"/api/runs/{agent.run_id}/approvals", headers=agent.thread.headers)
        return [one for one in found.raise_for_status().json()["items"] if one["state"] == state]

    async def asked() -> bool:
        return bool(await questions("pending"))

    await until(asked)
    (question,) = await questions("pending")
    await stage.lose_executor()
    answer = {"approved": True, "editedArgs": {"name": "Nexus"}, "digest": question["digest"]}
    assert (await agent.decide(question["toolCallId"], **answer)).status_code == 200
    stage.start_executor()
    assert (await agent.ended(within=60))["status"] == "final"
    (card,) = await agent.cards()
    assert json.loads(card["output"]) == [{"action": "accept", "content": {"name": "Nexus"}}]
    assert stage.event_counts("question", "began").total() == 2, "the call was repeated"
    assert len(await questions("approved")) == 1, "the person was not asked again"


@pytest.mark.timeout(120)
async def test_approval_survives_the_death_of_the_executor(stage: Stage) -> None:
    thread = await stage.thread()
    await rules(thread, _all="allow", **{PECULIAR + "risk": "ask"})
    agent = await act(thread, f"{call(PECULIAR + 'deed', n=1)} {call(PECULIAR + 'risk', n=1)} /say Finished.")
    cards = await agent.until("running", "blocked")
    await stage.kill()  # the sibling is running, and there is no decision yet
    await agent.status("blocked")
    assert (await agent.states()) == ["completed", "blocked"]
    await stage.kill()  # no executor holds the blocked run
    assert (await agent.decide(cards[1]["toolCallId"], approved=True)).status_code == 200
    run = await agent.ended(within=30)
    assert run["status"] == "final"
    assert list(stage.event_counts("deed").values()) == [1]
    assert list(stage.event_counts("risk").values()) == [1]
    await assert_complete(agent, 2)


async def assert_complete(agent: Agent, count: int) -> None:
    """Assert that every card has completed exactly once, and that the text is complete, without repetition."""
    cards = await agent.cards()
    assert len(cards) == count
    assert {card["state"] for card in cards} == {"completed"}
    results: Counter[Any] = Counter(part["toolCallId"] for part in await agent.parts("tool-result"))
    assert set(results.values()) == {1}
    assert (await agent.text()).count("Finished.") == 1
    receipts = Counter(receipt["toolCallId"] for receipt in await agent.receipts("tool"))
    assert receipts == results


@pytest.mark.timeout(120)
async def test_an_approved_idempotent_call_that_was_running_is_repeated_without_another_approval(stage: Stage) -> None:
    thread = await stage.thread()
    await rules(thread, _all="ask")
    agent = await act(thread, f"{call(PECULIAR + 'deed', n=1)} /say Finished.")
    (card,) = await agent.until("blocked")
    assert (await agent.decide(card["toolCallId"], approved=True, editedArgs={"n": 2})).status_code == 200

    async def acted() -> bool:
        return bool(stage.event_counts("deed"))

    await until(acted)
    await stage.kill()
    run = await agent.ended(within=30)
    assert run["status"] == "final"
    (card,) = await agent.cards()
    assert (card["state"], card["args"], card["output"]) == ("completed", {"n": 2}, "deed 2 is done")
    assert [part["state"] for part in await agent.parts("tool-status")] == ["blocked", "running", "running"]
    assert set(stage.event_counts("deed").values()) == {1}


@pytest.mark.timeout(120)
async def test_an_approved_call_with_effects_that_was_running_is_made_once_with_an_unknown_outcome(
    stage: Stage,
) -> None:
    thread = await stage.thread()
    await rules(thread, _all="ask")
    agent = await act(thread, f"{call(PECULIAR + 'risk', n=1)} /say Finished.")
    (card,) = await agent.until("blocked")
    assert (await agent.decide(card["toolCallId"], approved=True)).status_code == 200

    async def risked() -> bool:
        return bool(stage.event_counts("risk"))

    await until(risked)
    await stage.kill()
    run = await agent.ended(within=30)
    assert run["status"] == "final"
    assert stage.event_counts("risk", "began").total() == 1
    (card,) = await agent.cards()
    assert card["state"] == "failed"
    assert "unknown" in card["summary"]
    assert [part["state"] for part in await agent.parts("tool-status")] == ["blocked", "running"]
    (receipt,) = await agent.receipts("tool")
    assert (receipt["data"]["outcome"], receipt["data"]["approval"]["state"]) == ("unknown", "approved")
    assert (await agent.text()).endswith("Finished.")
