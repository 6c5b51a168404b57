"""Measurements of the queue of runs, with many queued and active runs."""

from khala.store.accounts import account_feed
from khala.store.runs import run_queue
from tests.scale.deployment import COLLECTOR_ID, MAX_QUEUED
from tests.scale.figures import Figure, usage_figures
from tests.scale.filler import queue_runs
from tests.scale.stage import ScaleStage

CLAIMED_RUNS = 16
"""Free places of the executor that claims."""
LEASE_SECONDS = 30.0
CLAIM_TARGET_MS = 30.0


class _RolledBack(Exception):
    """Ends a transaction without its changes."""


async def measure_account_feed(stage: ScaleStage) -> list[Figure]:
    """The first frame of the account feed for the user with the long list, while other users' runs are active."""

    async def watch() -> None:
        async with stage.db.snapshot() as driver:
            assert await account_feed.full_list(driver, COLLECTOR_ID) is not None

    usage = await stage.meter.repeated(watch)
    return usage_figures("account feed, first frame", f"{stage.size.active:,} active runs", usage)


async def measure_claims(stage: ScaleStage) -> list[Figure]:
    """A claim with a fortieth, a quarter, and all of the queued runs.

    Statistics stay those of the time before, as in a burst that is sooner than the next ANALYZE.
    """
    figures: list[Figure] = []
    queued = 0
    for target in (stage.size.queued // 40, stage.size.queued // 4, stage.size.queued):
        async with stage.connection() as driver:
            await queue_runs(driver, stage.size, queued, target - queued)
        queued = target
        usage = await stage.meter.repeated(lambda: _claim(stage))
        limit = CLAIM_TARGET_MS if queued == MAX_QUEUED else None
        figures += usage_figures("claim", f"{queued:,} queued runs", usage, milliseconds=limit)
    return figures


async def measure_queue_status(stage: ScaleStage) -> list[Figure]:
    """The queue's status, which each scrape of the metrics reads. The claims were measured before."""

    async def read() -> None:
        async with stage.db.driver() as driver:
            status = await run_queue.read_queue_status(driver, lease_seconds=LEASE_SECONDS)
        assert status.queued == stage.size.queued

    usage = await stage.meter.repeated(read)
    return usage_figures("queue status for metrics", f"{stage.size.queued:,} queued runs", usage)


async def _claim(stage: ScaleStage) -> None:
    """Claim as an executor does, and leave the queue as it was."""
    async with stage.db.driver() as driver:
        try:
            async with driver.transaction():
                claimed = await run_queue.claim(driver, most=CLAIMED_RUNS, owner="scale", lease_seconds=LEASE_SECONDS)
                assert claimed, "nothing was claimed"
                raise _RolledBack
        except _RolledBack:
            pass
