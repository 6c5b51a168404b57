"""Windows of budgets: the reserved and used amounts of each limit, by key and time."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeAlias

from khala.domain.access import Caller
from khala.domain.budgets import (
    END_OF_TIME,
    BudgetLimit,
    BudgetPolicy,
    BudgetUsage,
    WindowKey,
    WindowUsage,
    current_window,
)
from khala.domain.decimals import format_decimal
from khala.store.budgets import account_plans
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

Window: TypeAlias = tuple[str, bytes, str, datetime, datetime]
"""The scope, key, measure, start and end of a window."""

LOCK = """
    INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at)
    SELECT DISTINCT scope, key, measure, starts_at, ends_at
    FROM unnest($1::text[], $2::bytea[], $3::text[], $4::timestamptz[], $5::timestamptz[])
        AS requested (scope, key, measure, starts_at, ends_at)
    ORDER BY scope, key, measure, starts_at
    ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET reserved = budget.reserved
    RETURNING scope, key, measure, starts_at, reserved, settled
"""
"""A no-op upsert: locks and returns the rows, and creates those that are missing."""


async def lock_windows(driver: Driver, windows: Iterable[Window]) -> dict[WindowKey, WindowUsage]:
    """Lock these windows, in the order of `lock_order`, until the transaction ends. Returns their usage."""
    columns = list(zip(*windows, strict=True))
    rows = await driver.fetch(LOCK, *columns) if columns else []
    return {(row["scope"], row["key"], row["measure"], row["starts_at"]): _window_usage(row) for row in rows}


async def read_usage(
    driver: Driver, caller: Caller, policy: BudgetPolicy, now: datetime | None = None
) -> list[BudgetUsage]:
    """The usage of the caller's own limits: the account's, else the anonymous key's.

    The limits of the network and of all anonymous use are left out: they would reveal what others do.
    """
    scope, key = ("key", caller.anon_key_hash) if caller.user_id is None else ("user", caller.user_id.bytes)
    if caller.user_id is not None:
        policy = await account_plans.policy_of(driver, policy, {"user": caller.user_id.bytes})
    limits = [limit for limit in policy.limits if limit.scope == scope and key is not None]
    spans = [current_window(limit, now or datetime.now(UTC)) for limit in limits]
    query = """
        SELECT measure, starts_at, reserved, settled FROM budgets
        WHERE scope = $1 AND key = $2 AND starts_at = ANY($3::timestamptz[])
    """
    rows = await driver.fetch(query, scope, key, [starts_at for starts_at, _ in spans]) if limits else []
    levels = {(row["measure"], row["starts_at"]): _window_usage(row) for row in rows}
    return [
        _used(limit, levels.get((limit.measure, starts_at), WindowUsage()), ends_at)
        for limit, (starts_at, ends_at) in zip(limits, spans, strict=True)
    ]


def _window_usage(row: Record) -> WindowUsage:
    return WindowUsage(reserved=row["reserved"], settled=row["settled"])


def _used(limit: BudgetLimit, level: WindowUsage, ends_at: datetime) -> BudgetUsage:
    return BudgetUsage(
        scope=limit.scope,
        measure=limit.measure,
        used=format_decimal(level.settled),
        reserved=format_decimal(level.reserved),
        most=format_decimal(limit.most),
        ends_at=None if ends_at == END_OF_TIME else ends_at,
    )
