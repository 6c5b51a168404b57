"""Creates plans directly in the store, and drives them without a server: their attempts have no runs."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.budgets import BudgetPolicy
from khala.domain.plans import engine
from khala.domain.plans.attempts import Attempt, AttemptCompleted, Outcome, report
from khala.domain.plans.commands import Start
from khala.domain.plans.events import Created
from khala.domain.plans.plan import PlanConfig, PlannedStep
from khala.store.plans import plan_leases, plan_rows, plans
from khala.store.plans.plan_leases import PlanLease
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from tests.support.store import CALLER

RULES: dict[str, Any] = {"agents": ("default",), "step_delay_ms": 0, "retry_base_ms": 0, "parallel": 2}


def planned(step_id: str, **fields: Any) -> PlannedStep:
    """A step."""
    return PlannedStep(id=step_id, title=f"Step {step_id}", **fields)


async def new_plan(db: Database, thread_id: UUID, caller: Caller = CALLER, *, steps: str = "ab") -> UUID:
    """An idle plan with a step for each letter, each after the one before it but for the first two."""
    made = [planned(step_id, depends_on=(steps[at - 1],) if at > 1 else ()) for at, step_id in enumerate(steps)]
    created = Created(
        at=datetime.now(UTC),
        title="Plan",
        goal="Test",
        config=PlanConfig(**RULES),
        mode="autopilot",
        max_iterations=100,
        steps=tuple(made),
    )
    stored, _ = await plans.create(db, ids.new(), thread_id, caller, created)
    return stored.id


async def started_plan(db: Database, thread_id: UUID, caller: Caller = CALLER, *, steps: str = "ab") -> UUID:
    """A running plan, whose first steps are under way."""
    plan_id = await new_plan(db, thread_id, caller, steps=steps)
    await plans.command(db, plan_id, caller, Start())
    await drive(db, plan_id)
    return plan_id


async def lease_of_plan(db: Database, plan_id: UUID) -> PlanLease:
    """Claim the plan, whoever holds it, and leave all other plans alone."""
    async with db.driver() as driver:
        query = "UPDATE plans SET lease_expires_at = NULL WHERE id = $1"
        await driver.execute(query, plan_id)
        others = [row["id"] for row in await driver.fetch("SELECT id FROM plans WHERE id <> $1", plan_id)]
    [lease] = await plan_leases.claim(db, most=1, owner="test", lease_seconds=30, held=others)
    return lease


async def stored_plan(db: Database, plan_id: UUID) -> StoredPlan:
    """The plan as it is stored."""
    async with db.driver() as driver:
        row = await driver.fetchrow("SELECT * FROM plans WHERE id = $1", plan_id)
        return await plan_rows.read_whole(driver, row)


async def drive(db: Database, plan_id: UUID, outcome: Outcome | None = None) -> StoredPlan:
    """Do one turn of a driver: end the attempts under way with this outcome, if one is given, and what follows."""
    lease = await lease_of_plan(db, plan_id)
    stored = await stored_plan(db, plan_id)
    for step_id in stored.plan.running_steps if outcome is not None else ():
        assert outcome is not None
        attempt = Attempt(step_id=step_id, number=stored.plan.steps[step_id].attempts)
        stored.apply(report(stored.plan, attempt, outcome, datetime.now(UTC)))
    while events := engine.advance(stored.plan, datetime.now(UTC)):
        stored.apply(events)
    if stored.unsaved:
        await plans.save_driven(db, stored, lease.epoch, {}, BudgetPolicy())
    return stored


async def finished_plan(db: Database, thread_id: UUID, caller: Caller = CALLER, *, steps: str = "ab") -> UUID:
    """A plan that has completed its steps."""
    plan_id = await started_plan(db, thread_id, caller, steps=steps)
    while (await drive(db, plan_id, AttemptCompleted(summary="Done."))).plan.status != "stopped":
        pass
    return plan_id
