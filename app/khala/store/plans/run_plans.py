"""Plans that runs create and change, by tools of their models. A run has the rights of the person who requested it."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.chat import StoredRunOptions
from khala.domain.errors import Forbidden, NotFound, RunNotFound
from khala.domain.plans import commands
from khala.domain.plans.commands import PlanCommand
from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.events import Created
from khala.domain.plans.fold import create as first_state
from khala.domain.plans.plan import Plan
from khala.store.plans import plan_rows, plans, step_runs
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.notifications import PLANS_CHANNEL, notify
from khala.store.postgres.retries import retried
from khala.store.threads import threads

RUN = "SELECT user_id, asker_key_id, user_message_id, options FROM runs WHERE id = $1 AND thread_id = $2"
OF_A_STEP = "The run of a step can't create or change plans."


class PlanningRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as far as plans need it: its requester, the message that it answers, and its options."""

    user_id: UUID | None
    key_id: UUID | None
    message_id: UUID
    options: StoredRunOptions


async def read(driver: Driver, thread_id: UUID, run_id: UUID) -> PlanningRun:
    """This run of the thread. Raises `RunNotFound`."""
    row = await driver.fetchrow(RUN, run_id, thread_id)
    if row is None:
        raise RunNotFound("There is no such run.")
    options = msgspec.json.decode(row["options"], type=StoredRunOptions)
    return PlanningRun(
        user_id=row["user_id"], key_id=row["asker_key_id"], message_id=row["user_message_id"], options=options
    )


@retried
async def create(
    db: Database, plan_id: UUID, thread_id: UUID, run_id: UUID, created: Created
) -> tuple[StoredPlan, bool]:
    """As `plans.create`, by a run. Raises `Forbidden` for the run of a step, and without the right to run plans."""
    check_steps(created.steps, completed=created.completed)
    async with db.transaction() as connection:
        thread = await threads.lock(connection, thread_id)
        run = await _authorize(connection, thread, run_id)
        plan = StoredPlan(
            id=plan_id,
            thread_id=thread_id,
            user_id=run.user_id,
            requester_key_id=run.key_id,
            plan=first_state(created),
            event_seq=0,
        )
        return await plans.insert(connection, plan, created)


@retried
async def change(
    db: Database,
    plan_id: UUID,
    thread_id: UUID,
    run_id: UUID,
    commands_for: Callable[[Plan], Iterable[PlanCommand]],
) -> tuple[StoredPlan, bool]:
    """Give a plan of the run's thread commands, all or none. Returns whether they changed it.

    An edit by the run of another person than the one for whom its steps act pauses the plan, as in `plans.command_all`.
    `commands_for` is called with the plan as it is, and sees the effect of each command before it yields the next one.
    """
    async with db.transaction() as connection:
        thread = await threads.lock(connection, thread_id)
        run = await _authorize(connection, thread, run_id)
        driver = await driver_of(connection)
        stored = await plan_rows.read(driver, thread_id, plan_id)
        if stored is None:
            raise NotFound("This conversation has no such plan.")
        await step_runs.report_ended(driver, stored)
        now = await plan_rows.read_time(driver)
        for given in commands_for(stored.plan):
            stored.apply(commands.decide(stored.plan, given, now))
        has_changed = bool(stored.unsaved)
        if has_changed:
            await plans.pause_for_review(driver, stored, run.user_id, run.user_id or run.key_id)
            await plans.save(connection, stored)
            await notify(connection, PLANS_CHANNEL, str(stored.id))
    stored.mark_saved()
    return stored, has_changed


async def _authorize(connection: AsyncConnection, thread: Row[Any], run_id: UUID) -> PlanningRun:
    driver = await driver_of(connection)
    run = await read(driver, thread.id, run_id)
    if run.options.step is not None:
        raise Forbidden(OF_A_STEP)
    await step_runs.check_person(driver, thread, run.user_id, run.key_id)
    return run
