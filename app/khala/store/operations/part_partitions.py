"""Monthly partitions of `message_parts`: creates those of the next months, and drops old ones that are empty.

It does nothing unless the table was partitioned by `khala partition-parts month`. Each change needs the table for
itself for a moment: it gives up after `LOCK_TIMEOUT`, so that it delays no text for longer, and is tried again later.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import structlog

from khala.store.postgres.database import Database, Driver

MONTHS_AHEAD = 2
"""Months after the current one that have a partition."""
MIN_DROP_AGE = timedelta(days=1)
"""The time from the end of a month until its partition may be dropped. Runs of that month have begun by then."""
MAX_EMPTY_BYTES = 1 << 20
"""The size from which a partition counts as not empty, whether or not it has rows: vacuum has yet to shrink it."""
LOCK_TIMEOUT = "200ms"
PARTITION_LOCK_KEY = 0x6B68616C64
"""The key of the advisory lock that the process holds that changes partitions."""

IS_MONTHLY = """
    SELECT EXISTS (SELECT FROM pg_partitioned_table
                   WHERE partrelid = to_regclass('message_parts') AND partstrat = 'r')
"""
MISSING = """
    SELECT month FROM generate_series(0, $1::int) AS ahead
    CROSS JOIN date_trunc('month', now() + ahead * interval '1 month', 'UTC') AS month
    WHERE to_regclass('message_parts_' || to_char(month AT TIME ZONE 'UTC', 'YYYY_MM')) IS NULL ORDER BY month
"""
OLD = """
    SELECT relname::text AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'message_parts'::regclass AND relname ~ '^message_parts_[0-9]{4}_[0-9]{2}$'
      AND relname < 'message_parts_' || to_char($1::timestamptz AT TIME ZONE 'UTC', 'YYYY_MM')
      AND pg_relation_size(pg_class.oid) <= $2
    ORDER BY relname
"""
"""The partitions of the months before this time that vacuum has shrunk to nothing, or almost."""

log = structlog.get_logger()


async def maintain_partitions(db: Database) -> None:
    """Create the partitions of the next months, and drop those of past months that have no rows."""
    async with db.driver() as driver:
        if not await driver.fetchval(IS_MONTHLY):
            return
        missing = [row["month"] for row in await driver.fetch(MISSING, MONTHS_AHEAD)]
        old = [row["name"] for row in await driver.fetch(OLD, datetime.now(UTC) - MIN_DROP_AGE, MAX_EMPTY_BYTES)]
    for month in missing:
        await _change(db, "partition_created", f"{month:%Y-%m}", partial(_create, month))
    for name in old:
        await _change(db, "partition_dropped", name, partial(_drop, name))


async def _change(db: Database, event: str, name: str, change: Callable[[Driver], Awaitable[bool]]) -> None:
    """Make one change in a transaction, unless another process or transaction prevents it."""
    async with db.driver() as driver:
        try:
            changed = await _change_alone(driver, change)
        except asyncpg.LockNotAvailableError:
            log.info("partition_locked", partition=name)
        except (asyncpg.CheckViolationError, asyncpg.InsufficientPrivilegeError) as error:
            # Parts without a partition of their month go to the last one, so writing continues.
            log.warning("partition_not_changed", partition=name, error=str(error))
        else:
            if changed:
                log.info(event, partition=name)


async def _change_alone(driver: Driver, change: Callable[[Driver], Awaitable[bool]]) -> bool:
    async with driver.transaction():
        await driver.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        is_alone = await driver.fetchval("SELECT pg_try_advisory_xact_lock($1)", PARTITION_LOCK_KEY)
        return bool(is_alone) and await change(driver)


async def _create(month: datetime, driver: Driver) -> bool:
    await driver.execute("SELECT message_parts_month($1)", month)
    return True


async def _drop(name: str, driver: Driver) -> bool:
    """Drop the partition if it has no rows, which no other transaction can change meanwhile."""
    await driver.execute(f'LOCK TABLE "{name}" IN ACCESS EXCLUSIVE MODE')
    if await driver.fetchval(f'SELECT EXISTS (SELECT FROM "{name}")'):
        return False
    await driver.execute(f'DROP TABLE "{name}"')
    return True
