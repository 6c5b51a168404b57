"""The schedules of accounts: create, read, change and delete them.

While a process fires an occurrence, it holds the schedule by a lease, and nothing changes the schedule. So what was
paused or deleted does not fire any more.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller
from khala.domain.chat import StoredRunOptions
from khala.domain.errors import Conflict, InvalidInput, NotFound
from khala.domain.parts import json_text
from khala.domain.schedules import MAX_DELAY, Schedule, Timing
from khala.store.plans import plans
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import SCHEDULES_CHANNEL
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.sharing import access
from khala.store.threads import thread_lists

MAX_SCHEDULES = 100
"""Schedules of one account that have not ended, delayed sends included."""

COUNT = "SELECT count(*) FROM schedules WHERE user_id = $1 AND status <> 'ended'"
INSERT = """
    INSERT INTO schedules (id, user_id, name, thread_id, plan_id, message, message_id, options, timing, status,
                           occurrence_at, due_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9::text::jsonb, 'active', $10, $10)
    ON CONFLICT (id) DO NOTHING RETURNING *
"""
READ = "SELECT * FROM schedules WHERE id = $1 AND user_id = $2"
LOCK = "SELECT *, coalesce(lease_expires_at > clock_timestamp(), false) AS held FROM schedules WHERE id = $1 AND user_id = $2 FOR UPDATE"  # noqa: E501
PAGE = """
    SELECT * FROM schedules
    WHERE user_id = $1 AND (created_at, id) < ($2, $3) AND ($5::uuid IS NULL OR thread_id = $5)
    ORDER BY created_at DESC, id DESC LIMIT $4
"""
CHANGE = """
    UPDATE schedules SET name = $2, message = $3, options = $4::text::jsonb, timing = $5::text::jsonb, status = $6,
           occurrence_at = $7, due_at = $7, reason = NULL, failures = 0, error = NULL, epoch = epoch + 1,
           lease_expires_at = NULL, updated_at = clock_timestamp()
    WHERE id = $1 RETURNING *
"""
NOW = "SELECT clock_timestamp()"
BEING_FIRED = "This is being sent now. Try again in a moment."


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as stored. It starts the plan `plan_id`, or sends `message`, whose id is `message_id` if it is set."""

    id: UUID
    user_id: UUID
    name: str | None = None
    thread_id: UUID | None = None
    plan_id: UUID | None = None
    message: str | None = None
    message_id: UUID | None = None
    options: StoredRunOptions | None = None
    timing: Timing


class ScheduleChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a schedule; what is unset stays. A change of the timing begins with the next time from now on."""

    name: str | msgspec.UnsetType | None = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    options: StoredRunOptions | msgspec.UnsetType = msgspec.UNSET
    timing: Timing | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET


@retried
async def create(db: Database, new: StoredSchedule, caller: Caller) -> tuple[Schedule, bool]:
    """Store the schedule. Returns whether it is new: the same id and content again changes nothing.

    Raises `Conflict` for an id that is taken and for too many schedules, `InvalidInput` if it has no time that is yet
    to come, and the errors of writing in its thread or starting its plan.
    """
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, new.user_id)
        before = await driver.fetchrow("SELECT * FROM schedules WHERE id = $1", new.id)
        if before is not None:
            return _same(before, new), False
        await _authorize(driver, new, caller)
        if await driver.fetchval(COUNT, new.user_id) >= MAX_SCHEDULES:
            raise Conflict(f"An account has at most {MAX_SCHEDULES} schedules that have not ended.")
        first = _first(new.timing, await driver.fetchval(NOW))
        arguments = (new.id, new.user_id, new.name, new.thread_id, new.plan_id, new.message, new.message_id)
        row = await driver.fetchrow(INSERT, *arguments, _json(new.options), json_text(new.timing), first)
        if row is None:
            raise Conflict("This id is taken.")
        await _notify(driver)
        return read_schedule(row), True


def _first(timing: Timing, now: datetime) -> datetime:
    """The first time from now on. A time that has just passed is now."""
    first = timing.after(now) if timing.cron is not None else timing.at
    if first is None or first > now + MAX_DELAY:
        raise InvalidInput("There is no such time within the next ten years.", path="cron" if timing.cron else "at")
    return first


async def _authorize(driver: Driver, new: StoredSchedule, caller: Caller) -> None:
    """Check what the account may do by itself: the schedule acts for it without the keys of this request."""
    caller = Caller(user_id=caller.user_id, name=caller.name)
    if new.plan_id is not None:
        await plans.find(driver, new.plan_id, caller, Action.RUN_PLANS)
    elif new.thread_id is not None:
        await access.authorize(driver, new.thread_id, caller, Action.SEND_MESSAGE)


def _same(row: Record, new: StoredSchedule) -> Schedule:
    content = (new.user_id, new.thread_id, new.plan_id, new.message, new.message_id)
    if tuple(row[name] for name in ("user_id", "thread_id", "plan_id", "message", "message_id")) != content:
        raise Conflict("This id is taken.")
    return read_schedule(row)


async def read(driver: Driver, schedule_id: UUID, user_id: UUID) -> Record:
    """The row of a schedule of this account. Raises `NotFound`."""
    row: Record | None = await driver.fetchrow(READ, schedule_id, user_id)
    if row is None:
        raise NotFound("There is no such schedule.")
    return row


async def list_page(
    db: Database, user_id: UUID, before: tuple[datetime, UUID], limit: int, thread_id: UUID | None = None
) -> list[Schedule]:
    """The account's schedules before this position, newest first; only those that send to a thread, if one is given."""
    async with db.driver() as driver:
        return [read_schedule(row) for row in await driver.fetch(PAGE, user_id, *before, limit, thread_id)]


@retried
async def change(db: Database, schedule_id: UUID, user_id: UUID, changes: ScheduleChanges) -> Schedule:
    """Change the schedule. Raises `Conflict` if it has ended or is being fired, and `InvalidInput` without a time."""
    async with db.driver() as driver, driver.transaction():
        row = await _lock(driver, schedule_id, user_id)
        if row["status"] == "ended":
            raise Conflict("This schedule has ended. Create another one.")
        stored, now = read_stored(row), await driver.fetchval(NOW)
        timing = stored.timing if changes.timing is msgspec.UNSET else changes.timing
        was_paused = row["status"] == "paused"
        is_paused = was_paused if changes.paused is msgspec.UNSET else changes.paused
        occurrence = row["occurrence_at"]
        if changes.timing is not msgspec.UNSET or (was_paused and not is_paused):
            occurrence = _first(timing, now)
        if (changes.message is not msgspec.UNSET or changes.options is not msgspec.UNSET) and stored.message is None:
            raise InvalidInput("A schedule of a plan sends no message.", path="text")
        changed = await driver.fetchrow(
            CHANGE,
            schedule_id,
            stored.name if changes.name is msgspec.UNSET else changes.name,
            stored.message if changes.message is msgspec.UNSET else changes.message,
            _json(stored.options if changes.options is msgspec.UNSET else changes.options),
            json_text(timing),
            "paused" if is_paused else "active",
            None if is_paused else occurrence,
        )
        assert changed is not None
        await _notify(driver)
        return read_schedule(changed)


@retried
async def remove(db: Database, schedule_id: UUID, user_id: UUID) -> None:
    """Delete the schedule. It fires nothing from then on. Raises `NotFound`, and `Conflict` while it is being fired."""
    async with db.driver() as driver, driver.transaction():
        await _lock(driver, schedule_id, user_id)
        await driver.execute("DELETE FROM schedules WHERE id = $1", schedule_id)


async def _lock(driver: Driver, schedule_id: UUID, user_id: UUID) -> Record:
    row: Record | None = await driver.fetchrow(LOCK, schedule_id, user_id)
    if row is None:
        raise NotFound("There is no such schedule.")
    if row["held"]:
        raise Conflict(BEING_FIRED)
    return row


async def _notify(driver: Driver) -> None:
    await driver.execute("SELECT pg_notify($1, '')", SCHEDULES_CHANNEL)


def read_stored(row: Record) -> StoredSchedule:
    """A row of `schedules`, as it is fired."""
    options = row["options"]
    return StoredSchedule(
        id=row["id"],
        user_id=row["user_id"],
        name=row["name"],
        thread_id=row["thread_id"],
        plan_id=row["plan_id"],
        message=row["message"],
        message_id=row["message_id"],
        options=None if options is None else msgspec.json.decode(options, type=StoredRunOptions),
        timing=msgspec.json.decode(row["timing"], type=Timing),
    )


def read_schedule(row: Record) -> Schedule:
    """A row of `schedules`, for its owner."""
    timing = msgspec.json.decode(row["timing"], type=Timing)
    options = read_stored(row).options or StoredRunOptions()
    same: dict[str, Any] = {
        name: row[name]
        for name in (
            "id", "name", "thread_id", "plan_id", "status", "reason", "last_at", "last_thread_id", "last_run_id",
            "failures", "error", "created_at", "updated_at",
        )
    }  # fmt: skip
    return Schedule(
        **same,
        text=row["message"],
        agent=options.agent,
        model=options.model,
        at=timing.at,
        cron=timing.cron,
        time_zone=timing.time_zone,
        missed=timing.missed,
        ends_at=timing.ends_at,
        next_at=row["occurrence_at"],
    )


def _json(options: StoredRunOptions | None) -> str | None:
    return None if options is None else json_text(options)
