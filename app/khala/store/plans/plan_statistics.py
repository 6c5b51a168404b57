"""Counts of plans that go on without a driver, or wait for a person, for monitoring."""

import msgspec

from khala.store.postgres.database import Driver

MAX_COUNTED = 10_000
UNDRIVEN_LEASES = 3
"""Durations of a lease without a renewal after which a plan counts as one without a driver."""

WAITS = "status = 'paused' AND state->>'pause_reason' <> 'requested'"
"""A condition on a row of `plans`: the plan has paused by itself. The index `plans_waiting_idx` has the same one."""
STATISTICS = f"""
    SELECT (
        SELECT count(*) FROM (
            SELECT FROM plans WHERE status IN ('running', 'pausing', 'stopping')
              AND coalesce(lease_expires_at, updated_at) < clock_timestamp() - make_interval(secs => $1)
            LIMIT {MAX_COUNTED}
        ) AS lapsed
    ) AS undriven, (
        SELECT count(*) FROM (SELECT FROM plans WHERE {WAITS} LIMIT {MAX_COUNTED}) AS paused
    ) AS waiting
"""
"""A plan has no lease before its first claim, and after its driver has given it up: the time of its last change is used
instead."""


class PlanStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Plans that should go on and that no driver holds, and plans that have paused by themselves."""

    undriven: int
    waiting: int


async def read_plan_statistics(driver: Driver, *, lease_seconds: float) -> PlanStatistics:
    """The counts, each up to `MAX_COUNTED`. `lease_seconds` is the duration of a lease."""
    row = await driver.fetchrow(STATISTICS, UNDRIVEN_LEASES * lease_seconds)
    assert row is not None
    return PlanStatistics(**row)
