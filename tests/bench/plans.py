"""Costs of plans: `make bench ARGS="--plans"`.

The CPU time of a step beside that of the same run as an ordinary send, in turns. And a plan of 1,000 steps and 10,000
events: the time to open it over HTTP, and the size of the frames that carry its changes.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import httpx

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.chat import RunOptions
from khala.domain.plans import commands
from khala.domain.plans.commands import RetryStep, SkipStep, Start
from khala.domain.plans.events import Created
from khala.domain.plans.plan import PlanConfig, PlannedStep
from khala.store.plans import plan_rows, plans
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendRequest
from tests.bench import counters, fixtures
from tests.bench.costs import own_seconds
from tests.bench.figures import Figures
from tests.bench.fixtures import BenchEnvironment, Khala
from tests.bench.khala import new_threads
from tests.bench.short_runs import LIMITS
from tests.support.client import Thread

PLANS = 100
STEPS = 8
ROUNDS = 3
LARGE_STEPS = 1_000
LARGE_EVENTS = 10_000
OPENINGS = 20
ANSWER = "/pace=0 /echo\n<promise>COMPLETE</promise>\n"
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.25
MAX_STEP_MS = 2.0
MAX_OPEN_MS = 150.0
MAX_FRAME_BYTES = 64 << 10
CONFIG = PlanConfig(agents=("default",), parallel=STEPS, step_delay_ms=0)


class PlanCosts(Figures, frozen=True, kw_only=True):
    """Medians. `step_cpu_ms` and `run_cpu_ms` are CPU time of the executor and of Postgres.

    A run is sent by this process, whose time for that counts, too: a driver of plans queues the runs of steps in the
    executor. `open_ms` is the time to read a plan of 1,000 steps with its steps, and `frame_bytes` the size of the
    largest frame when all of its steps have changed.
    """

    step_cpu_ms: float
    run_cpu_ms: float
    open_ms: float
    frame_bytes: int

    @property
    def problems(self) -> list[str]:
        """None: no observer takes part."""
        return []

    @property
    def overhead_ms(self) -> float:
        """The CPU time of a step beyond that of its run."""
        return self.step_cpu_ms - self.run_cpu_ms


async def measure(environment: BenchEnvironment) -> PlanCosts:
    """Measure everything on a new database, with one executor."""
    async with (
        fixtures.database(environment) as url,
        fixtures.connected(url) as watch,
        fixtures.khala(url, environment, KHALA_MODEL="demo") as khala,
        fixtures.client(khala.web) as http,
    ):
        db = Database(url, pool_size=16)
        try:
            costs = [await _round(db, khala, http, watch) for _ in range(ROUNDS + 1)][1:]
            opened, size = await _large_plan(db, http)
        finally:
            await db.close()
    return PlanCosts(
        step_cpu_ms=statistics.median(step for step, _ in costs),
        run_cpu_ms=statistics.median(run for _, run in costs),
        open_ms=opened,
        frame_bytes=size,
    )


async def _round(db: Database, khala: Khala, http: httpx.AsyncClient, watch: Driver) -> tuple[float, float]:
    """Milliseconds of a step, and of a run."""
    conversations = await new_threads(http, PLANS)
    steps = tuple(PlannedStep(id=f"s{number}", title="Step", instructions=ANSWER) for number in range(STEPS))
    made = [await _create(db, thread, steps) for thread in conversations]
    before = await _cpu(khala, watch)
    async with asyncio.TaskGroup() as group:
        for plan_id, caller in made:
            group.create_task(plans.command(db, plan_id, caller, Start()))
    await _reach(watch, "SELECT count(*) FROM plans WHERE status <> 'stopped'")
    step_cpu = await _cpu(khala, watch) - before
    before = own_seconds() + await _cpu(khala, watch)
    async with asyncio.TaskGroup() as group:
        for thread in conversations:
            for _ in range(STEPS):
                group.create_task(_send(db, thread))
    await _reach(watch, "SELECT count(*) FROM runs WHERE status IN ('queued', 'running')")
    run_cpu = own_seconds() + await _cpu(khala, watch) - before
    return step_cpu * 1000 / (PLANS * STEPS), run_cpu * 1000 / (PLANS * STEPS)


async def _create(db: Database, thread: Thread, steps: Sequence[PlannedStep]) -> tuple[UUID, Caller]:
    caller, plan_id = Caller(anon_key_hash=key_hash(thread.key)), ids.new()
    created = Created(
        at=datetime.now(UTC), title="Plan", config=CONFIG, mode="autopilot", max_iterations=10_000, steps=tuple(steps)
    )
    await plans.create(db, plan_id, UUID(thread.id), caller, created)
    return plan_id, caller


async def _send(db: Database, thread: Thread) -> None:
    options = RunOptions(autopilot=True, if_busy="queue")
    question = SendRequest(
        thread_id=UUID(thread.id), message_id=ids.new(), text=ANSWER, options=options, parent_id=None
    )
    await sends.send(db, question, Caller(anon_key_hash=key_hash(thread.key)), LIMITS)


async def _reach(watch: Driver, left: str) -> None:
    """Wait until this query returns 0."""
    async with asyncio.timeout(WAIT_SECONDS):
        while await watch.fetchval(left):
            await asyncio.sleep(POLL_SECONDS)


async def _cpu(khala: Khala, watch: Driver) -> float:
    """CPU seconds of the executor and of Postgres."""
    cluster = (await counters.cluster(watch)).cpu
    if cluster is None:
        raise RuntimeError("Postgres has to run on this machine, under a user whose processes may be inspected.")
    return counters.cpu_seconds(list(khala.pids.get("executor", khala.pids["web"]))) + cluster


async def _large_plan(db: Database, http: httpx.AsyncClient) -> tuple[float, int]:
    """The time to open a large plan, and the bytes of the largest delta that has changes of it."""
    (thread,) = await new_threads(http, 1)
    text = "Write the part of the program that this step is about, and its tests. " * 4
    steps = [PlannedStep(id=f"s{number}", title=f"Step {number}", instructions=text) for number in range(LARGE_STEPS)]
    plan_id, _ = await _create(db, thread, steps)
    for _ in range(LARGE_EVENTS // LARGE_STEPS // 2):
        for command in (SkipStep, RetryStep):
            await change_all(db, UUID(thread.id), plan_id, command)
    before = (await thread.snapshot())["revision"] - 1
    times = []
    for _ in range(OPENINGS):
        began = time.perf_counter()
        for path in (f"/api/plans/{plan_id}", f"/api/plans/{plan_id}/steps"):
            (await http.get(path, headers=thread.headers)).raise_for_status()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times), await _largest_delta(http, thread, before)


async def change_all(db: Database, thread_id: UUID, plan_id: UUID, command: type[SkipStep | RetryStep]) -> None:
    """Give the command to each step, in one revision."""
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id)
        stored = await plan_rows.read(await driver_of(connection), thread_id, plan_id)
        assert stored is not None
        for step_id in list(stored.plan.steps):
            stored.apply(commands.decide(stored.plan, command(step_id=step_id), datetime.now(UTC)))
        await plans.save(connection, stored)


async def _largest_delta(http: httpx.AsyncClient, thread: Thread, after: int) -> int:
    url = f"/api/threads/{thread.id}/events?after={after}"
    async with http.stream("GET", url, headers=thread.headers) as answer, asyncio.timeout(WAIT_SECONDS):
        async for line in answer.aiter_lines():
            if line.startswith("data:") and '"delta"' in line:
                return len(line)
    raise RuntimeError("The server sent no delta.")


def table(costs: PlanCosts) -> tuple[str, bool]:
    """The table, and whether all targets are met."""
    rows = [
        ("CPU of a step beyond its run", costs.overhead_ms, MAX_STEP_MS, "ms"),
        ("opening 1,000 steps with 10,000 events", costs.open_ms, MAX_OPEN_MS, "ms"),
        ("the largest frame", costs.frame_bytes / 1024, MAX_FRAME_BYTES / 1024, "KiB"),
    ]
    lines = [f"CPU of a step {costs.step_cpu_ms:.2f} ms, of the same run by a send {costs.run_cpu_ms:.2f} ms"]
    lines += [f"{name:40} {value:8.2f} {unit} (at most {most:g})" for name, value, most, unit in rows]
    return "\n".join(lines), all(value <= most for _, value, most, _ in rows)
