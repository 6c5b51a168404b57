"""Claims of due schedules: one process at a time fires an occurrence, and then records it.

A claim is a lease with an epoch. If its process dies before it has recorded the occurrence, another one fires the same
occurrence again, which adds nothing, because its message has the same id.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.schedules import BACKOFF, MAX_FAILURES, ScheduleStatus
from khala.store.accounts.account_marks import USER_IS_PRESENT, is_blocked
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.schedules.schedules import StoredSchedule, read_stored

LEASE_SECONDS = 30.0
"""The time that a process has to fire and record an occurrence. Then another one fires it, too, in vain."""

SECONDS_UNTIL_DUE = """
    SELECT extract(epoch FROM due_at - clock_timestamp())::float FROM schedules
    WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1
"""
CLAIM = """
    WITH picked AS MATERIALIZED (
        SELECT id FROM schedules WHERE due_at <= (SELECT clock_timestamp())
        ORDER BY due_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE schedules SET epoch = epoch + 1, due_at = clock_timestamp() + make_interval(secs => $2),
           lease_expires_at = clock_timestamp() + make_interval(secs => $2)
    FROM picked WHERE schedules.id = picked.id RETURNING schedules.*, clock_timestamp() AS now
"""
"""As a subquery, the time is a bound of the index; called for each row, it would be a filter of all rows."""
RECORD = """
    UPDATE schedules SET status = $3, reason = $4, occurrence_at = $5, due_at = $6, failures = $7, error = $8,
           last_at = coalesce($9, last_at), last_thread_id = coalesce($10, last_thread_id),
           last_run_id = coalesce($11, last_run_id), lease_expires_at = NULL, updated_at = clock_timestamp()
    WHERE id = $1 AND epoch = $2
"""
LAST_RUN_FAILED = "SELECT status = 'error' FROM runs WHERE id = $1 AND thread_id = $2"


class ClaimedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that this process fires, with the occurrence that is due. `now` is the database's time."""

    schedule: StoredSchedule
    epoch: int
    occurrence: datetime
    failures: int
    last_thread_id: UUID | None
    last_run_id: UUID | None
    now: datetime


class FiredOccurrence(msgspec.Struct, frozen=True, kw_only=True):
    """The thread and the run of an occurrence that was fired."""

    thread_id: UUID | None = None
    run_id: UUID | None = None


async def seconds_until_due(driver: Driver) -> float | None:
    """The seconds until the first schedule is due; None without any. One probe of an index."""
    seconds: float | None = await driver.fetchval(SECONDS_UNTIL_DUE)
    return seconds


@retried
async def claim(db: Database, most: int, *, lease_seconds: float = LEASE_SECONDS) -> list[ClaimedSchedule]:
    """Claim up to `most` schedules that are due."""
    async with db.driver() as driver, driver.transaction():
        rows = await driver.fetch(CLAIM, most, lease_seconds)
    return [
        ClaimedSchedule(
            schedule=read_stored(row),
            epoch=row["epoch"],
            occurrence=row["occurrence_at"],
            failures=row["failures"],
            last_thread_id=row["last_thread_id"],
            last_run_id=row["last_run_id"],
            now=row["now"],
        )
        for row in rows
    ]


async def has_owner(driver: Driver, claimed: ClaimedSchedule) -> bool:
    """Whether the schedule's account exists."""
    return bool(await driver.fetchval(USER_IS_PRESENT, claimed.schedule.user_id))


async def is_owner_blocked(driver: Driver, claimed: ClaimedSchedule) -> bool:
    """Whether the operator has blocked the schedule's account."""
    return await is_blocked(driver, claimed.schedule.user_id)


async def last_run_failed(driver: Driver, claimed: ClaimedSchedule) -> bool:
    """Whether the run of the previous occurrence has ended with an error."""
    if claimed.last_run_id is None:
        return False
    return bool(await driver.fetchval(LAST_RUN_FAILED, claimed.last_run_id, claimed.last_thread_id))


async def record_fired(
    db: Database,
    claimed: ClaimedSchedule,
    *,
    fired: FiredOccurrence | None,
    following: datetime | None,
    failures: int = 0,
) -> None:
    """Record that the occurrence was fired, or skipped if `fired` is None, and wait for the next one."""
    fired = fired or FiredOccurrence()
    status: ScheduleStatus = "ended" if following is None else "active"
    reason = None if following is not None else "done"
    last_at = claimed.occurrence if fired.thread_id is not None else None
    await _record(db, claimed, status, reason, following, following, failures, None, last_at, fired)


async def record_failure(db: Database, claimed: ClaimedSchedule, error: str) -> None:
    """Try the occurrence again later, with increasing delays. After too many failures in a row, pause the schedule."""
    failures = claimed.failures + 1
    if failures >= MAX_FAILURES:
        await pause(db, claimed, "failed", error)
        return
    seconds = BACKOFF.delay(failures)
    async with db.driver() as driver:
        due = await driver.fetchval("SELECT clock_timestamp() + make_interval(secs => $1)", seconds)
    await _record(db, claimed, "active", None, claimed.occurrence, due, failures, error, None, FiredOccurrence())


async def pause(db: Database, claimed: ClaimedSchedule, reason: str, error: str | None) -> None:
    """Pause the schedule until its owner lets it go on."""
    await _record(
        db, claimed, "paused", reason, claimed.occurrence, None, claimed.failures + 1, error, None, FiredOccurrence()
    )


async def end(db: Database, claimed: ClaimedSchedule, reason: str) -> None:
    """End the schedule for good."""
    await _record(db, claimed, "ended", reason, None, None, claimed.failures, None, None, FiredOccurrence())


@retried
async def _record(
    db: Database,
    claimed: ClaimedSchedule,
    status: ScheduleStatus,
    reason: str | None,
    occurrence: datetime | None,
    due: datetime | None,
    failures: int,
    error: str | None,
    last_at: datetime | None,
    fired: FiredOccurrence,
) -> None:
    """Change the schedule, if no other process has claimed it since."""
    arguments = (status, reason, occurrence, due, failures, error, last_at, fired.thread_id, fired.run_id)
    async with db.driver() as driver:
        await driver.execute(RECORD, claimed.schedule.id, claimed.epoch, *arguments)
