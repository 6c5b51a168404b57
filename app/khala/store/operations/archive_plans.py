"""Plans of an archive: an import checks that they follow from their events, and pauses those that were going on."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.archive_format import ArchiveRefusedError
from khala.domain.errors import InvalidInput
from khala.domain.plans import commands, engine
from khala.domain.plans.commands import Pause
from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.plan import MAX_GOAL_CHARACTERS, MAX_TITLE_CHARACTERS, Plan
from khala.store.operations.plan_checks import plan_differences
from khala.store.plans import plan_rows, plans, step_runs
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Driver, driver_of

PLANS = "SELECT * FROM plans WHERE thread_id = ANY($1::uuid[]) ORDER BY id"


async def check_plans(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Raise `ArchiveRefusedError` unless each plan of these threads is the fold of its events, and is within limits."""
    for row in await driver.fetch(PLANS, thread_ids):
        differences = await plan_differences(driver, row["id"])
        if differences:
            raise ArchiveRefusedError(f"The {differences[0].place} is damaged: {differences[0].problem}.")
        _check_limits(row["id"], (await plan_rows.read_whole(driver, row)).plan)


def _check_limits(plan_id: UUID, plan: Plan) -> None:
    try:
        check_steps([step.planned for step in plan.steps.values()])
    except InvalidInput as error:
        raise ArchiveRefusedError(f"The plan {plan_id} is invalid: {error.message}") from error
    if len(plan.title) > MAX_TITLE_CHARACTERS or len(plan.goal) > MAX_GOAL_CHARACTERS:
        raise ArchiveRefusedError(f"The plan {plan_id} is invalid: its title or its goal is too long.")


async def pause_plans(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> int:
    """Pause the plans of these threads that were going on: an import starts nothing. Returns their number.

    Plans that were being stopped stop. The caller holds the locks of the threads, all of whose runs have ended.
    """
    driver = await driver_of(connection)
    going_on = [row for row in await driver.fetch(PLANS, thread_ids) if row["status"] in plan_rows.DRIVEN_STATUSES]
    for row in going_on:
        stored = await plan_rows.read_whole(driver, row)
        await step_runs.report_ended(driver, stored)
        _settle(stored, datetime.now(UTC))
        await plans.save(connection, stored)
    return len(going_on)


def _settle(stored: StoredPlan, now: datetime) -> None:
    """Pause the plan at once. Nothing of it is under way any more."""
    if stored.plan.status in ("running", "pausing"):
        stored.apply(commands.decide(stored.plan, Pause(force=True), now))
    while events := engine.advance(stored.plan, now):
        stored.apply(events)
