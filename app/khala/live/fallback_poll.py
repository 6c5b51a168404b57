"""The fallback poll: regularly reads all watched topics again, so that a lost NOTIFY delays changes by seconds only.

If nothing was written, the poll costs a process one small query, however many topics are watched: while the database's
snapshot is the same, every read would return the same as before.
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
"""Identifies the writing transactions that have ended. Two equal snapshots see the same rows."""


class FallbackPoll:
    """Calls `refresh_all` when any transaction has committed since the last query."""

    def __init__(self, db: Database, is_watched: Callable[[], bool], refresh_all: Callable[[], None]) -> None:
        self._db = db
        self._is_watched = is_watched
        self._refresh_all = refresh_all

    async def run(self) -> None:
        """Poll, for ever. Queries nothing while no topic is watched."""
        last_snapshot = None
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            if not self._is_watched():
                continue
            try:
                async with self._db.driver() as driver:
                    snapshot = await driver.fetchval(SNAPSHOT)
            except Unavailable as error:
                log.warning("fallback_poll_failed", error=str(error.__cause__))
                continue
            if snapshot != last_snapshot:
                last_snapshot = snapshot
                self._refresh_all()
