"""The driver of a process looks for plans when it is notified, when a lease lapses, and rarely otherwise."""

import asyncio

import pytest

from khala.domain.budgets import BudgetPolicy
from khala.domain.plans.commands import Pause, Start
from khala.domain.program_level import PROGRAM_LEVEL
from khala.plans.checkout_cleaner import CheckoutCleaner
from khala.plans.driver import DriverOptions, PlanDriver
from khala.plans.pump import PumpOptions
from khala.plans.step_tasks import StepTasks
from khala.store.plans import plan_leases, plans
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from tests.support.statements import logged, on_one_line
from tests.support.store import CALLER, new_thread
from tests.support.stored_plans import drive, finished_plan, new_plan, started_plan

ROUNDS = 5
OPTIONS = DriverOptions()


class CountedDriver(PlanDriver):
    """A driver that does not wait, and stops after some rounds."""

    def __init__(self, db: Database) -> None:
        options = PumpOptions(budgets=BudgetPolicy(), per_owner=8, tasks=StepTasks(db, {}), probe=self._no_probe)
        super().__init__(db, options, OPTIONS, CheckoutCleaner(db, {}))
        self.waits: list[float] = []
        self.done = asyncio.Event()

    async def _no_probe(self, _: StoredPlan, __: str) -> bool:
        return False

    async def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) == ROUNDS:
            self.done.set()
            await asyncio.Event().wait()

    async def run_rounds(self) -> list[float]:
        """The seconds that the driver would have waited after each round."""
        running = asyncio.create_task(self.run())
        async with asyncio.timeout(20):
            await self.done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return self.waits


async def test_plans_that_do_not_go_on_cost_no_query(
    db: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_id = await new_thread(db)
    await new_plan(db, thread_id)
    await finished_plan(db, thread_id)
    paused = await started_plan(db, thread_id)
    await plans.command(db, paused, CALLER, Pause(force=True))
    assert (await drive(db, paused)).plan.status == "paused"
    with logged(monkeypatch) as statements:
        own = Database(database_url)
        driver = CountedDriver(own)
        assert await driver.run_rounds() == [OPTIONS.sweep_interval_seconds] * ROUNDS
        await own.close()
    assert [one for one in statements if " plan" in one] == [on_one_line(plan_leases.UNTIL_DUE)] * ROUNDS


async def test_plans_that_need_a_newer_program_are_not_due(db: Database) -> None:
    plan_id = await started_plan(db, await new_thread(db))
    async with db.driver() as driver:
        newer = "UPDATE plans SET state = jsonb_set(state, '{needs}', $2::text::jsonb) WHERE id = $1"
        await driver.execute(newer, plan_id, str(PROGRAM_LEVEL + 1))
        assert await plan_leases.seconds_until_due(driver, level=PROGRAM_LEVEL + 1) is not None
    assert await CountedDriver(db).run_rounds() == [OPTIONS.sweep_interval_seconds] * ROUNDS


async def test_a_driver_looks_again_when_the_lease_of_another_one_lapses(db: Database) -> None:
    plan_id = await new_plan(db, await new_thread(db))
    await plans.command(db, plan_id, CALLER, Start())
    [_] = await plan_leases.claim(db, most=1, owner="another", lease_seconds=7)
    waits = await CountedDriver(db).run_rounds()
    assert all(OPTIONS.retry_interval_seconds <= seconds <= 7 for seconds in waits), waits
