"""Gauges that are read from the database when metrics are scraped, at most every 5 seconds."""

import asyncio
import time
from collections.abc import Iterable, Mapping

import structlog
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from khala.domain.errors import Unavailable
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.store.runs.run_queue import QueueStatus, read_queue_status

log = structlog.get_logger()

FRESH = 5.0
"""Seconds for which an answer is good."""
PATIENCE = 3.0
"""Seconds that the database has to answer."""


class Gauges(Collector):
    """Gauges of the database, read through the first pool, and the use of each pool by its name.

    `lease`: seconds that a lease lasts.
    """

    def __init__(self, pools: Mapping[str, Database], lease: float) -> None:
        self._pools = pools
        self._lease = lease
        self._standing: QueueStatus | None = None
        self._asked_at = float("-inf")

    async def refresh(self) -> None:
        """Ask again, if it is time."""
        if time.monotonic() - self._asked_at < FRESH:
            return
        self._asked_at = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE), next(iter(self._pools.values())).driver() as driver:
                self._standing = await read_queue_status(driver, lease_seconds=self._lease)
        except (Unavailable, TimeoutError) as error:
            # Left out, since what was is not what is.
            self._standing = None
            log.warning("metrics_query_failed", error=repr(error.__cause__ or error))

    def collect(self) -> Iterable[Metric]:
        """As of the last time."""
        yield from metrics.database_up_metric(ok=self._standing is not None)
        yield from metrics.pool_metrics((name, pool.in_use, pool.most) for name, pool in self._pools.items())
        if (now := self._standing) is not None:
            yield from metrics.database_metrics(now.queued, now.running, now.blocked, now.oldest, now.lease_age)

    def describe(self) -> Iterable[Metric]:
        """No metric: reading them takes the database, which registration must not."""
        return ()
