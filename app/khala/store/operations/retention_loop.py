"""Purges regularly, and maintains partitions."""

import asyncio
import random
import time

import structlog

from khala.domain.errors import Unavailable
from khala.signals import metrics
from khala.store.operations.part_partitions import maintain_partitions
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database

log = structlog.get_logger()

PURGE_INTERVAL_SECONDS = 60.0
"""Seconds between two purges, on average."""


class RetentionLoop:
    """The loop that purges, and maintains partitions. Several processes may run it; one of them purges at a time."""

    def __init__(self, db: Database, policy: RetentionPolicy) -> None:
        self._db = db
        self._policy = policy

    async def run(self) -> None:
        """Purge regularly, for ever."""
        while True:
            await asyncio.sleep(PURGE_INTERVAL_SECONDS * random.uniform(0.5, 1.5))
            began = time.monotonic()
            try:
                deleted = {kind: count for kind, count in (await purge(self._db, self._policy)).items() if count}
                await maintain_partitions(self._db)
            except Unavailable as error:
                metrics.PURGES_FAILED.inc()
                log.warning("expired_data_not_deleted", error=str(error.__cause__))
                continue
            metrics.PURGE.observe(time.monotonic() - began)
            for kind, count in deleted.items():
                metrics.PURGED_ROWS.labels(kind.replace(" ", "_")).inc(count)
            if deleted:
                log.info("expired_data_deleted", **{kind.replace(" ", "_"): count for kind, count in deleted.items()})
