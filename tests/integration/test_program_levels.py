"""Levels: a run or plan that needs a newer program is left to it, and holds up nothing of other threads."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from khala.domain import ids
from khala.domain.plans.commands import Pause, Start
from khala.domain.plans.events import Created, StepStarted
from khala.domain.plans.plan import PlanConfig
from khala.domain.program_level import PROGRAM_LEVEL, STEP_LEVEL
from khala.plans.step_tasks import StepTasks
from khala.store.plans import plan_leases, plan_rows, plans
from khala.store.postgres.database import Database
from khala.store.runs import run_queue
from tests.support.store import CALLER, ask, new_thread
from tests.support.stored_plans import RULES, new_plan, planned

NEED = "UPDATE runs SET options = options || jsonb_build_object('needs', $2::int) WHERE id = $1"


async def claimed_runs(db: Database, level: int) -> list[UUID]:
    async with db.driver() as driver:
        claimed = await run_queue.claim(driver, most=9, owner="test", lease_seconds=30, level=level)
    return [run.lease.run_id for run in claimed]


async def test_a_run_that_needs_a_newer_executor_waits_for_it_and_others_do_not(db: Database) -> None:
    newer, same, older = [(await ask(db, await new_thread(db))).run_id for _ in range(3)]
    async with db.driver() as driver:
        await driver.execute(NEED, newer, PROGRAM_LEVEL + 1)
        await driver.execute(NEED, same, PROGRAM_LEVEL)
    assert await claimed_runs(db, PROGRAM_LEVEL - 1) == [older]
    assert await claimed_runs(db, PROGRAM_LEVEL) == [same]
    assert await claimed_runs(db, PROGRAM_LEVEL + 1) == [newer]


async def claimed_plans(db: Database, level: int = PROGRAM_LEVEL) -> Sequence[UUID]:
    leases = await plan_leases.claim(db, most=9, owner="test", lease_seconds=30, level=level)
    return [lease.plan_id for lease in leases]


async def test_a_plan_that_needs_a_newer_driver_waits_for_it_and_keeps_its_level(db: Database) -> None:
    thread_id, plan_id = await new_thread(db), ids.new()
    created = Created(
        at=datetime.now(UTC), title="Plan", config=PlanConfig(**RULES), mode="all", max_iterations=9,
        steps=(planned("a"),), needs=PROGRAM_LEVEL + 1,
    )  # fmt: skip
    await plans.create(db, plan_id, thread_id, CALLER, created)
    other = await new_plan(db, await new_thread(db))
    for started in (plan_id, other):
        await plans.command(db, started, CALLER, Start())
    assert await claimed_plans(db) == [other]
    await plans.command(db, plan_id, CALLER, Pause())  # By an older process, which stores the plan anew.
    assert await claimed_plans(db) == []
    assert await claimed_plans(db, PROGRAM_LEVEL + 1) == [plan_id]


async def test_the_runs_of_steps_need_an_executor_that_knows_plans(db: Database) -> None:
    thread_id = await new_thread(db)
    plan_id = await new_plan(db, thread_id)
    async with db.driver() as driver:
        stored = await plan_rows.read(driver, thread_id, plan_id)
    assert stored is not None
    started = StepStarted(at=datetime.now(UTC), step_id="a", attempt=1, agent="default")
    task = await StepTasks(db, {}).make(stored, started)
    assert task is not None
    assert task.options.needs == STEP_LEVEL
