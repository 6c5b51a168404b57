"""The poll: what is watched is looked at now and then anyhow, so that a lost NOTIFY costs seconds and never data.

One small query a process, whatever is watched: while the database's snapshot is the same, every read would see what
the reads before it have seen.
"""

import asyncio
from collections.abc import Callable

import structlog

from khala.domain.errors import Unavailable
from khala.store.postgres.database import Database

log = structlog.get_logger()

POLL_INTERVAL_SECONDS = 5.0
"""Seconds between two looks."""

SNAPSHOT = "SELECT pg_current_snapshot()::text"
"""Which transactions that write have ended: two that are equal see the same rows."""


class FallbackPoll:
    """Has all looked at again when something was committed since the last time, by whomever."""

    def __init__(self, db: Database, is_watched: Callable[[], bool], refresh_all: Callable[[], None]) -> None:
        self._db = db
        self._is_watched = is_watched
        self._refresh_all = refresh_all

    async def run(self) -> None:
        """Look, for ever; while nothing is watched, not even that."""
        seen = None
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            if not self._is_watched():
                continue
            try:
                async with self._db.driver() as driver:
                    now = await driver.fetchval(SNAPSHOT)
            except Unavailable as error:
                log.warning("poll_failed", error=str(error.__cause__))
                continue
            if now != seen:
                seen = now
                self._refresh_all()
