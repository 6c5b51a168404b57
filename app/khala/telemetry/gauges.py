"""Gauges that are read from the database when metrics are scraped: the queue at most every 5 s, sizes every minute."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import structlog
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from khala.domain.errors import Unavailable
from khala.signals import metrics
from khala.store.operations.database_statistics import (
    DatabaseActivity,
    StorageStatistics,
    read_activity,
    read_storage,
)
from khala.store.plans.plan_statistics import PlanStatistics, read_plan_statistics
from khala.store.postgres.database import Database, Driver
from khala.store.runs.run_queue import QueueStatus, read_queue_status
from khala.store.webhooks import deliveries
from khala.store.webhooks.deliveries import OutboxStatus

log = structlog.get_logger()

T = TypeVar("T")

MIN_REFRESH_INTERVAL_SECONDS = 5.0
"""Time for which the values of the last query are reused."""
MIN_STORAGE_INTERVAL_SECONDS = 60.0
"""Time for which sizes and the purge's backlog are reused."""
QUERY_TIMEOUT_SECONDS = 3.0
"""Time that the database has to answer."""


class Gauges(Collector):
    """Gauges of the database, read through the first pool, and the use of each pool.

    `pools`: pools by name. `lease_seconds`: the duration of a lease.
    """

    def __init__(self, pools: Mapping[str, Database], lease_seconds: float) -> None:
        self._pools = pools
        self._lease_seconds = lease_seconds
        self._status: tuple[QueueStatus, PlanStatistics, OutboxStatus, DatabaseActivity] | None = None
        self._refreshed_at = float("-inf")
        self._storage: StorageStatistics | None = None
        self._storage_at = float("-inf")

    async def refresh(self) -> None:
        """Query the database, unless the last values are recent enough."""
        # If a query fails, its metrics are missing: old values would look like current ones.
        if time.monotonic() - self._refreshed_at >= MIN_REFRESH_INTERVAL_SECONDS:
            self._refreshed_at = time.monotonic()
            self._status = await self._query(self._read_status)
        if self._status is None:
            self._storage, self._storage_at = None, float("-inf")
        elif time.monotonic() - self._storage_at >= MIN_STORAGE_INTERVAL_SECONDS:
            self._storage_at = time.monotonic()
            self._storage = await self._query(read_storage)

    def collect(self) -> Iterable[Metric]:
        """The values of the last queries."""
        yield from metrics.database_up_metric(ok=self._status is not None)
        yield from metrics.pool_metrics((name, pool.in_use, pool.most) for name, pool in self._pools.items())
        if self._status is not None:
            status, plans, outbox, activity = self._status
            yield from metrics.database_metrics(
                status.queued, status.running, status.blocked, status.oldest, status.lease_age
            )
            yield from metrics.plan_metrics(plans.undriven, plans.waiting)
            yield from metrics.webhook_metrics(outbox.waiting, outbox.oldest_seconds, outbox.disabled)
            yield from metrics.activity_metrics(
                activity.lock_waiters, activity.longest_lock_wait, activity.oldest_transaction
            )
        if (storage := self._storage) is not None:
            yield from metrics.storage_metrics(storage.database_bytes, storage.backlog, storage.oldest_backlog_seconds)
            yield from metrics.search_metrics(storage.search_waiting)
            yield from metrics.table_metrics(
                (table.name, table.table_bytes, table.index_bytes, table.live_rows, table.dead_rows)
                for table in storage.tables
            )
            yield from metrics.freeze_metric((table.name, table.transaction_age) for table in storage.tables)

    def describe(self) -> Iterable[Metric]:
        """No metrics, because registration calls this and must not query the database."""
        return ()

    async def _read_status(self, driver: Driver) -> tuple[QueueStatus, PlanStatistics, OutboxStatus, DatabaseActivity]:
        queue = await read_queue_status(driver, lease_seconds=self._lease_seconds)
        plans = await read_plan_statistics(driver, lease_seconds=self._lease_seconds)
        return queue, plans, await deliveries.read_status(driver), await read_activity(driver)

    async def _query(self, read: Callable[[Driver], Awaitable[T]]) -> T | None:
        """The result, or None if the database does not answer in time."""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_SECONDS), next(iter(self._pools.values())).driver() as driver:
                return await read(driver)
        except (Unavailable, TimeoutError) as error:
            log.warning("metrics_query_failed", error=repr(error.__cause__ or error))
            return None
