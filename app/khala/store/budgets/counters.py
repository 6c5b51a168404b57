"""Counters: limits of what needs no run, such as sign-ins, exports and uploads, in the windows of budgets."""

from datetime import UTC, datetime
from decimal import Decimal

from khala.domain.budgets import DAY_SECONDS, fixed_window
from khala.store.postgres.database import Database, Driver


async def count(
    db: Database, scope: str, key: bytes, measure: str, most: int, *, window_seconds: int, now: datetime | None = None
) -> float | None:
    """Count one more in the current window, in a transaction of its own, if it fits.

    Returns None; or, where it does not fit, the seconds until the window ends.
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
        fits = await driver.fetchval(query, scope, key, measure, starts_at, ends_at, most)
    return None if fits else max(1.0, (ends_at - moment).total_seconds())


async def count_amount(
    driver: Driver, scope: str, key: bytes, measure: str, amount: Decimal, *, most: int
) -> float | None:
    """Count an amount of today's limit, if it fits. Returns None; or, where it does not, the seconds until tomorrow."""
    moment = datetime.now(UTC)
    starts_at, ends_at = fixed_window(DAY_SECONDS, moment)
    query = """
        INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at, settled)
        SELECT $1, $2, $3, $4, $5, $6::numeric WHERE $6::numeric <= $7::numeric
        ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET settled = budget.settled + $6::numeric
        WHERE budget.settled + $6::numeric <= $7::numeric
        RETURNING true
    """
    fits = await driver.fetchval(query, scope, key, measure, starts_at, ends_at, amount, most)
    return None if fits else max(1.0, (ends_at - moment).total_seconds())


async def discount(
    db: Database, scope: str, key: bytes, measure: str, *, window_seconds: int, now: datetime | None = None
) -> None:
    """Take back one that was counted in the current window."""
    starts_at, _ = fixed_window(window_seconds, now or datetime.now(UTC))
    query = """
        UPDATE budgets SET settled = settled - 1
        WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4 AND settled > 0
    """
    async with db.driver() as driver:
        await driver.execute(query, scope, key, measure, starts_at)
