"""The fallback poll: reads every watched topic again regularly, so that a lost NOTIFY costs seconds, never data.

It costs one small query for each process, however many topics are watched: while the database's snapshot is the same, a
read would return what the read before it returned.
"""

import asyncio
from collections.abc import Callable

import structlog

from khala.domain.errors import Unavailable
from khala.store.postgres.database import Database

log = structlog.get_logger()

POLL_INTERVAL_SECONDS = 5.0
"""Seconds between two queries."""

SNAPSHOT = "SELECT pg_current_snapshot()::text"
"""The writing transactions that have ended: two equal snapshots see the same rows."""


class FallbackPoll:
    """Calls `refresh_all` when any transaction has committed since the last query."""

    def __init__(self, db: Database, is_watched: Callable[[], bool], refresh_all: Callable[[], None]) -> None:
        self._db = db
        self._is_watched = is_watched
        self._refresh_all = refresh_all

    async def run(self) -> None:
        """Poll, for ever; no query while no topic is watched."""
        seen = None
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            if not self._is_watched():
                continue
            try:
                async with self._db.driver() as driver:
                    now = await driver.fetchval(SNAPSHOT)
            except Unavailable as error:
                log.warning("fallback_poll_failed", error=str(error.__cause__))
                continue
            if now != seen:
                seen = now
                self._refresh_all()
