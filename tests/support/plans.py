"""Plans of threads, created and commanded in the store."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.plans.commands import PlanCommand
from khala.domain.plans.events import Created, PlanEvent
from khala.domain.plans.plan import PlanConfig, PlanMode, PlannedStep
from khala.store.plans import plan_rows, plans
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from tests.support.client import Thread

COMPLETES = '/call complete_step {"summary": "done"}'
"""Instructions with which the demo model completes a step."""
SECONDS = 20


class ThreadPlan:
    """A plan of a thread, which a guest with the thread's key creates unless another caller is given."""

    def __init__(self, db: Database, thread: Thread, caller: Caller | None = None) -> None:
        self._db = db
        self.thread = thread
        self.thread_id = UUID(thread.id)
        self.caller = caller or Caller(anon_key_hash=key_hash(thread.key))
        self.id = ids.new()

    async def create(self, *steps: PlannedStep, mode: PlanMode = "autopilot", **config: Any) -> None:
        fields: dict[str, Any] = {"agents": ("default",), "step_delay_ms": 0, "retry_base_ms": 1} | config
        rules = PlanConfig(**fields)
        created = Created(
            at=datetime.now(UTC), title="Plan", goal="Test", config=rules, mode=mode, max_iterations=50, steps=steps
        )
        await plans.create(self._db, self.id, self.thread_id, self.caller, created)

    async def command(self, command: PlanCommand) -> None:
        await plans.command(self._db, self.id, self.caller, command)

    async def remove(self) -> None:
        await plans.remove(self._db, self.id, self.caller)

    async def read(self) -> StoredPlan:
        async with self._db.driver() as driver:
            stored = await plan_rows.read(driver, self.thread_id, self.id)
        assert stored is not None
        return stored

    async def events(self) -> list[PlanEvent]:
        query = "SELECT data FROM plan_events WHERE plan_id = $1 ORDER BY seq"
        async with self._db.driver() as driver:
            return [msgspec.json.decode(row["data"], type=PlanEvent) for row in await driver.fetch(query, self.id)]

    async def wait(self, holds: Callable[[StoredPlan], bool], *, seconds: float = SECONDS) -> StoredPlan:
        async with asyncio.timeout(seconds):
            while not holds(stored := await self.read()):
                await asyncio.sleep(0.02)
        return stored


def step(step_id: str, instructions: str = COMPLETES, **fields: Any) -> PlannedStep:
    """A step, which the demo model completes by default."""
    return PlannedStep(**{"id": step_id, "title": step_id, "instructions": instructions} | fields)
