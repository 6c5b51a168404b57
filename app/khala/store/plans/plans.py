"""Plans of threads: people create them and give them commands, and drivers append what happens.

Every change holds the thread's row lock, and is one revision of the thread.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Action, Caller, as_requester, presented_key_id
from khala.domain.budgets import BudgetPolicy
from khala.domain.errors import Conflict, NotFound
from khala.domain.plans import commands
from khala.domain.plans.commands import PlanCommand
from khala.domain.plans.dependencies import check_steps
from khala.domain.plans.events import Created, Paused, Resumed, Started, Stopped
from khala.domain.plans.fold import create as first_state
from khala.domain.plans.repeats import is_satisfied
from khala.domain.plans.views import PlanDetail
from khala.domain.push import notification_kind
from khala.store.accounts import audit
from khala.store.budgets.stripes import refilled
from khala.store.plans import plan_feed, plan_rows, step_runs
from khala.store.plans.plan_rows import IS_OF_THREAD, StoredPlan
from khala.store.plans.step_runs import StartOptions, StepTask
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.notifications import PLANS_CHANNEL, notify
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.push import push_outbox
from khala.store.schema.tables import threads as thread_table
from khala.store.sharing import access
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_PLAN
from khala.store.webhooks import outbox

MAX_PLANS = 100
"""Plans of one thread."""
ID_TAKEN = "This plan id is taken."
IS_DRAFTED = f"""
    SELECT EXISTS (SELECT FROM runs WHERE user_message_id = $1 AND thread_id IS NOT DISTINCT FROM $2
                   AND status IN ('queued', 'running', 'blocked'))
       AND NOT EXISTS (SELECT FROM plans WHERE id = $3 AND {IS_OF_THREAD.format("$2")})
"""
"""A draft of the plan is under way, and has not made it."""
LAST_EDIT = f"""
    SELECT max(seq) FROM plan_events
    WHERE plan_id = $1 AND seq > $2 AND data->>'type' = 'edited' AND {IS_OF_THREAD.format("$3")}
"""
SET_PERSON = f"""
    UPDATE plans SET user_id = $2, requester_key_id = $3, network = $4, edited_by = NULL
    WHERE id = $1 AND {IS_OF_THREAD.format("$5")}
"""
SET_EDITOR = f"UPDATE plans SET edited_by = $2 WHERE id = $1 AND {IS_OF_THREAD.format('$3')}"
DRIVEN = "SELECT event_seq, epoch, user_id, requester_key_id FROM plans WHERE id = $1 AND thread_id = $2"


def goal_id(plan_id: UUID) -> UUID:
    """The id of the message with the goal of this plan, if a draft makes it."""
    return ids.derived(plan_id, "goal")


@retried
async def create(
    db: Database, plan_id: UUID, thread_id: UUID, caller: Caller, created: Created
) -> tuple[StoredPlan, bool]:
    """Create a plan, which is idle. Returns whether it is new: the same id again changes nothing.

    Raises `InvalidInput` for steps that don't fit together, and `Conflict` for an id that is taken, also by a draft
    under way.
    """
    check_steps(created.steps, completed=created.completed)
    async with db.transaction() as connection:
        thread = await threads.lock_authorized(connection, thread_id, caller, Action.RUN_PLANS)
        driver = await driver_of(connection)
        if await driver.fetchval(IS_DRAFTED, goal_id(plan_id), thread_id, plan_id):
            raise Conflict("A draft makes the plan with this id. Wait for it or cancel its run, or choose another id.")
        plan = StoredPlan(
            id=plan_id,
            thread_id=thread_id,
            user_id=caller.user_id,
            requester_key_id=presented_key_id(caller, thread.anon_key_hash),
            plan=first_state(created),
            event_seq=0,
        )
        return await insert(connection, plan, created)


async def insert(connection: AsyncConnection, plan: StoredPlan, created: Created) -> tuple[StoredPlan, bool]:
    """As `create`, by a caller who holds the thread's lock."""
    driver = await driver_of(connection)
    before = await plan_rows.read(driver, plan.thread_id, plan.id)
    if before is not None:
        return before, False
    await check_room(driver, plan.thread_id)
    revision = await _bump(connection, plan.thread_id)
    try:
        await plan_rows.create(driver, plan, [created], revision)
    except asyncpg.UniqueViolationError as error:
        raise Conflict(ID_TAKEN) from error
    return plan, True


async def find(driver: Driver, plan_id: UUID, caller: Caller, action: Action = Action.READ_THREAD) -> Record:
    """The row of the plan, if the caller may do this in its thread. Raises `NotFound` and the errors of `authorize`."""
    row: Record | None = await driver.fetchrow(f"SELECT * FROM plans WHERE id = $1 AND {IS_PLAN}", plan_id)
    if row is None:
        raise NotFound("There is no such plan.")
    await access.authorize(driver, row["thread_id"], caller, action)
    return row


async def command(db: Database, plan_id: UUID, caller: Caller, given: PlanCommand) -> PlanDetail:
    """Give the plan one command: see `command_all`."""
    return await command_all(db, plan_id, caller, [given])


@retried
async def command_all(
    db: Database, plan_id: UUID, caller: Caller, given: Sequence[PlanCommand], *, edited_after: int | None = None
) -> PlanDetail:
    """Give the plan these commands, all or none. Its driver hears of them at the commit. Returns the plan after them.

    A command whose wish the plan already meets changes nothing. An edit by another person than the one for whom its
    steps act pauses the plan, until somebody resumes it. Raises the errors of `commands.decide`, and `Conflict`
    if somebody has edited the plan after the event `edited_after`.
    """
    async with db.driver() as driver:
        thread_id = (await find(driver, plan_id, caller, Action.RUN_PLANS))["thread_id"]
    async with db.transaction() as connection:
        thread = await threads.lock_authorized(connection, thread_id, caller, Action.RUN_PLANS)
        driver = await driver_of(connection)
        stored = await plan_rows.read(driver, thread_id, plan_id)
        if stored is None:
            raise NotFound("There is no such plan.")
        await _check_edits(driver, stored, edited_after)
        await step_runs.report_ended(driver, stored)
        now = await plan_rows.read_time(driver)
        is_requester = as_requester(caller, stored.user_id, stored.requester_key_id) is not None
        for one in given:
            if not is_satisfied(stored.plan, one):
                events = commands.decide(stored.plan, one, now)
                stored.apply(commands.attribute(events, by_requester=is_requester))
        if any(isinstance(event, Started | Resumed) for event in stored.unsaved):
            # Whoever lets a plan go on is the person for whom its steps act, and whose budgets they use.
            network = caller.network if caller.user_id is None else None
            person = caller.user_id, presented_key_id(caller, thread.anon_key_hash), network
            await driver.execute(SET_PERSON, plan_id, *person, thread_id)
            is_start = any(isinstance(event, Started) for event in stored.unsaved)
            action = "plan_started" if is_start else "plan_resumed"
            await audit.record(connection, action, caller, thread_id=thread_id, plan=str(plan_id))
        else:
            await pause_for_review(driver, stored, caller.user_id, caller.author_id)
        if stored.unsaved:
            await save(connection, stored)
            await notify(connection, PLANS_CHANNEL, str(stored.id))
        return plan_feed.detail(await driver.fetchrow(plan_rows.READ, plan_id, thread_id))


async def pause_for_review(driver: Driver, stored: StoredPlan, user_id: UUID | None, author_id: UUID | None) -> None:
    """Pause the plan if this user, or this author without an account, has edited it and it acts for another account."""
    if stored.user_id is None or stored.user_id == user_id:
        return
    events = commands.pause_for_review(stored.plan, stored.unsaved, await plan_rows.read_time(driver))
    if events:
        stored.apply(events)
        stored.edited_by = author_id
        await driver.execute(SET_EDITOR, stored.id, author_id, stored.thread_id)


@retried
async def remove(db: Database, plan_id: UUID, caller: Caller) -> None:
    """Delete a plan that is not being executed, with its steps and events. The runs of its steps stay.

    Observers get a snapshot, which does not have the plan.
    """
    async with db.driver() as driver:
        thread_id = (await find(driver, plan_id, caller, Action.RUN_PLANS))["thread_id"]
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.RUN_PLANS)
        driver = await driver_of(connection)
        stored = await plan_rows.read(driver, thread_id, plan_id)
        if stored is None:
            raise NotFound("There is no such plan.")
        if stored.plan.status not in ("idle", "paused", "stopped"):
            raise Conflict(f"The plan is {stored.plan.status}. Stop it first.")
        # A delta tells nothing of rows that are gone, so observers start again from a snapshot.
        await _bump(connection, thread_id, packed_revision=thread_table.c.revision + 1)
        await driver.execute(f"DELETE FROM plans WHERE id = $1 AND {IS_OF_THREAD.format('$2')}", plan_id, thread_id)
        # Drivers remove what it left in Git checkouts.
        await notify(connection, PLANS_CHANNEL, str(plan_id))
        await audit.record(connection, "plan_deleted", caller, thread_id=thread_id, plan=str(plan_id))
        await thread_lists.mark_changed(driver, [thread_id])


class PlanChanged(Exception):
    """The plan has changed since it was read, or another driver holds it."""


@retried
@refilled
async def save_driven(
    db: Database, stored: StoredPlan, epoch: int, tasks: Mapping[UUID, StepTask], policy: BudgetPolicy
) -> None:
    """Store the events that the plan's driver has applied. Queue the runs of the steps that start, with these tasks.

    After an error, `stored` must be read again: `PlanChanged`, if the plan has changed since it was read;
    `BudgetExhausted` or `Forbidden`, if a step may not start; or `Unavailable`.
    """
    async with db.transaction() as connection:
        thread = await threads.lock(connection, stored.thread_id)
        driver = await driver_of(connection)
        row = await driver.fetchrow(DRIVEN, stored.id, stored.thread_id)
        # A claim of the thread changes the person without an event.
        if row is None or tuple(row) != (stored.event_seq, epoch, stored.user_id, stored.requester_key_id):
            raise PlanChanged
        await save(connection, stored, StartOptions(tasks=tasks, thread=thread, policy=policy))
    stored.mark_saved()


async def save(connection: AsyncConnection, stored: StoredPlan, start: StartOptions | None = None) -> None:
    """Store the events that were applied, cancel the runs that are not waited for, and queue those that `start`.

    The caller holds the thread's lock.
    """
    driver = await driver_of(connection)
    revision = await _bump(connection, stored.thread_id)
    await plan_rows.save(driver, stored, revision)
    for event in stored.unsaved:
        if isinstance(event, Stopped):
            await outbox.record_one(driver, "plan.stopped", stored.thread_id, planId=stored.id, reason=event.reason)
        kind = notification_kind(event, is_edited=stored.edited_by is not None)
        if kind is not None:
            await push_outbox.record_plan(driver, stored.id, stored.thread_id, kind)
    await step_runs.change(driver, stored, revision, start)
    if any(isinstance(event, Paused | Resumed | Stopped) for event in stored.unsaved):
        # Last, because users' rows are locked after all others.
        await thread_lists.mark_changed(driver, [stored.thread_id])


async def _bump(connection: AsyncConnection, thread_id: UUID, **changes: Any) -> int:
    return await threads.bump(connection, thread_id, plans_revision=thread_table.c.revision + 1, **changes)


async def _check_edits(driver: Driver, stored: StoredPlan, after: int | None) -> None:
    if after is None:
        return
    seq = await driver.fetchval(LAST_EDIT, stored.id, after, stored.thread_id)
    if seq is not None:
        raise Conflict(
            f"Somebody has edited the plan since event {after}: see event {seq}. Read its steps again, and repeat the"
            f" edit with what they are now and ifEventSeq {seq}."
        )


async def check_room(driver: Driver, thread_id: UUID) -> None:
    """Raise `Conflict` if the thread can have no more plans."""
    count = await driver.fetchval(f"SELECT count(*) FROM plans WHERE thread_id = $1 AND {IS_PLAN}", thread_id)
    if count >= MAX_PLANS:
        raise Conflict(f"A thread has at most {MAX_PLANS} plans. Delete one first.")
