"""Counters: limit actions other than runs, such as sign-ins, exports and uploads, in the windows of budgets."""

from datetime import UTC, datetime
from decimal import Decimal

from khala.domain.budgets import DAY_SECONDS, fixed_window
from khala.store.postgres.database import Database, Driver


async def count(
    db: Database, scope: str, key: bytes, measure: str, most: int, *, window_seconds: int, now: datetime | None = None
) -> float | None:
    """Count one action in the current window, in a transaction of its own, unless that exceeds the limit `most`.

    Returns None if it was counted, or else the seconds until the window ends.
    """
    moment = now or datetime.now(UTC)
    starts_at, ends_at = fixed_window(window_seconds, moment)
    query = """
        INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at, settled)
        SELECT $1, $2, $3, $4, $5, 1 WHERE $6::int > 0
        ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET settled = budget.settled + 1
        WHERE budget.settled < $6::int
        RETURNING true
    """
    async with db.driver() as driver:
        counted = await driver.fetchval(query, scope, key, measure, starts_at, ends_at, most)
    return None if counted else max(1.0, (ends_at - moment).total_seconds())


async def count_amount(
    driver: Driver, scope: str, key: bytes, measure: str, amount: Decimal, *, most: int
) -> float | None:
    """Count an amount against the limit `most` of today (UTC), unless that exceeds the limit.

    Returns None if it was counted, or else the seconds until tomorrow.
    """
    moment = datetime.now(UTC)
    starts_at, ends_at = fixed_window(DAY_SECONDS, moment)
    query = """
        INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at, settled)
        SELECT $1, $2, $3, $4, $5, $6::numeric WHERE $6::numeric <= $7::numeric
        ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET settled = budget.settled + $6::numeric
        WHERE budget.settled + $6::numeric <= $7::numeric
        RETURNING true
    """
    counted = await driver.fetchval(query, scope, key, measure, starts_at, ends_at, amount, most)
    return None if counted else max(1.0, (ends_at - moment).total_seconds())


async def discount(
    db: Database, scope: str, key: bytes, measure: str, *, window_seconds: int, now: datetime | None = None
) -> None:
    """Undo the count of one action in the current window."""
    starts_at, _ = fixed_window(window_seconds, now or datetime.now(UTC))
    query = """
        UPDATE budgets SET settled = settled - 1
        WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4 AND settled > 0
    """
    async with db.driver() as driver:
        await driver.execute(query, scope, key, measure, starts_at)
