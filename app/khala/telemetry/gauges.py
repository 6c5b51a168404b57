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

MIN_REFRESH_INTERVAL_SECONDS = 5.0
"""Time for which the values of the last query are reused."""
QUERY_TIMEOUT_SECONDS = 3.0
"""Time that the database has to answer."""


class Gauges(Collector):
    """Gauges of the database, read through the first pool, and the use of each pool.

    `pools`: pools by name. `lease_seconds`: the duration of a lease.
    """

    def __init__(self, pools: Mapping[str, Database], lease_seconds: float) -> None:
        self._pools = pools
        self._lease_seconds = lease_seconds
        self._status: QueueStatus | None = None
        self._refreshed_at = float("-inf")

    async def refresh(self) -> None:
        """Query the database, unless the last values are recent enough."""
        if time.monotonic() - self._refreshed_at < MIN_REFRESH_INTERVAL_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_SECONDS), next(iter(self._pools.values())).driver() as driver:
                self._status = await read_queue_status(driver, lease_seconds=self._lease_seconds)
        except (Unavailable, TimeoutError) as error:
            # Old values would look like current ones, so none are reported.
            self._status = None
            log.warning("metrics_query_failed", error=repr(error.__cause__ or error))

    def collect(self) -> Iterable[Metric]:
        """The values of the last query."""
        yield from metrics.database_up_metric(ok=self._status is not None)
        yield from metrics.pool_metrics((name, pool.in_use, pool.most) for name, pool in self._pools.items())
        if (status := self._status) is not None:
            yield from metrics.database_metrics(
                status.queued, status.running, status.blocked, status.oldest, status.lease_age
            )

    def describe(self) -> Iterable[Metric]:
        """No metrics, because registration calls this and must not query the database."""
        return ()
