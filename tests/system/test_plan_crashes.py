"""Executors that are killed while they drive a plan: another one goes on, and no completed step is done again."""

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from khala.domain.plans.commands import Start
from khala.domain.plans.events import StepCompleted, StepStarted, Stopped
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from tests.support.client import Thread
from tests.support.observed_run import assert_verified
from tests.support.plans import COMPLETES, ThreadPlan, step
from tests.support.server import Server, Worker, ended

LEASE = 1.2
STEPS = 8
KILLS_AFTER = (1, 3, 6)
"""Completed steps after each of which all executors are killed."""


class Executors:
    """Two executors, which are killed and replaced together."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._running: list[Worker] = []
        self.all: list[Worker] = []

    def replace(self) -> None:
        """Kill the executors with SIGKILL, and start two others."""
        for worker in self._running:
            worker.kill()
        self._running = [Worker(self._folder / f"worker{len(self.all) + place}.log", self._env) for place in range(2)]
        self.all += self._running
        for worker in self._running:
            worker.start()

    def end(self) -> None:
        for worker in self._running:
            worker.kill()


@pytest.fixture
async def plan(database_url: str, db: Database, tmp_path: Path) -> AsyncIterator[tuple[ThreadPlan, Executors]]:
    env = {
        "DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": str(LEASE),
        "KHALA_GRACE_SECONDS": "0", "KHALA_COOLDOWN_MS": "0",
    }  # fmt: skip
    server = Server(tmp_path / "server.log", env, "--no-executor")
    executors = Executors(tmp_path, env)
    with ended(server):
        server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                yield ThreadPlan(db, await Thread.create(http)), executors
        finally:
            executors.end()
        assert not [line for worker in executors.all for line in worker.crashes()]
    assert_verified({"DATABASE_URL": database_url})


def has_completed(steps: int, stored: StoredPlan) -> bool:
    """Whether at least so many steps are completed."""
    return sum(step.status == "completed" for step in stored.plan.steps.values()) >= steps


async def test_killed_executors_repeat_no_completed_step_and_the_plan_ends_once(
    plan: tuple[ThreadPlan, Executors],
) -> None:
    of_thread, executors = plan
    slow = f"/wait=0.2 {COMPLETES}"
    await of_thread.create(*(step(f"s{number}", slow) for number in range(STEPS)), parallel=2)
    executors.replace()
    await of_thread.command(Start())
    for completed in KILLS_AFTER:
        await of_thread.wait(partial(has_completed, completed), seconds=60)
        executors.replace()
    stored = await of_thread.wait(lambda stored: stored.plan.status == "stopped", seconds=60)
    assert stored.plan.end == "completed"
    events = await of_thread.events()
    assert sum(isinstance(event, Stopped) for event in events) == 1
    assert set(Counter(event.step_id for event in events if isinstance(event, StepCompleted)).values()) == {1}
    for number in range(STEPS):
        attempts = [event for event in events if getattr(event, "step_id", "") == f"s{number}"]
        assert isinstance(attempts[-1], StepCompleted)
        assert isinstance(attempts[0], StepStarted)
