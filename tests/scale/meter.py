"""Counts the shared buffers (8 KiB pages, hits and reads) and the wall milliseconds of calls of the application.

Buffers are those of `pg_stat_database`, as all sessions of the database have reported them. They include what
pg_stat_statements leaves out unless it is loaded at the start of the server (and no other way reaches a container or a
managed server), and what `EXPLAIN` never sees: COPY, foreign keys' triggers, commits and the planner's own reads. A
session reports once a second at most, so each session of the measured pools is told by `pg_stat_force_next_flush` to
report at once. The figure is exact if no other session uses the database: the filler switches autovacuum off, and the
counters are read through another database of the server.
"""

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import msgspec
from sqlalchemy import text

from khala.store.postgres.database import Database, Driver, driver_url
from tests.support import postgres

POOL_SIZE = 2
"""One connection of each of the database's two pools, which a meter can tell to report."""
STATEMENT_TIMEOUT_SECONDS = 600.0
"""Longer than the application's, so that a slow statement gets a figure."""
WARM_CALLS = 6
"""Calls before those that count: from the sixth on, Postgres may use a plan that does not depend on arguments."""
COUNTED_CALLS = 5
MAX_SECONDS = 2.0
"""Seconds after which no further call begins, of warm-up and of counting."""
FORCE_FLUSH = "SELECT pg_stat_force_next_flush()"
COUNTERS = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = $1"


class Usage(msgspec.Struct):
    """The cost of one call: milliseconds (the median of several) and buffers (the mean)."""

    milliseconds: float = 0.0
    buffers: float = 0.0


class Meter:
    """Measures calls that use `db`, one at a time."""

    def __init__(self, db: Database, watch: Driver, name: str) -> None:
        self.db = db
        self._watch = watch
        self._name = name

    async def once(self, call: Callable[[], Awaitable[object]]) -> Usage:
        """The cost of the first and only call."""
        before = await self._counted()
        began = time.monotonic()
        await call()
        milliseconds = (time.monotonic() - began) * 1000
        return Usage(milliseconds, await self._counted() - before)

    async def repeated(self, call: Callable[[], Awaitable[object]]) -> Usage:
        """The cost of a call that is repeated again and again: caches and plans are warm."""
        await _repeat(call, WARM_CALLS)
        before = await self._counted()
        milliseconds = await _repeat(call, COUNTED_CALLS)
        return Usage(statistics.median(milliseconds), (await self._counted() - before) / len(milliseconds))

    async def _counted(self) -> int:
        async with self.db.transaction() as connection:
            await connection.execute(text(FORCE_FLUSH))
        async with self.db.driver() as driver:
            await driver.execute(FORCE_FLUSH)
        return int(await self._watch.fetchval(COUNTERS, self._name))


@asynccontextmanager
async def metered(url: str) -> AsyncIterator[Meter]:
    """A meter for the database at `url`."""
    name = driver_url(url).partition("?")[0].rpartition("/")[2]
    watch = await asyncpg.connect(postgres.named(url, "postgres"))
    db = Database(url, pool_size=POOL_SIZE, timeout=STATEMENT_TIMEOUT_SECONDS)
    try:
        yield Meter(db, watch, name)
    finally:
        await db.close()
        await watch.close()


async def _repeat(call: Callable[[], Awaitable[object]], most: int) -> list[float]:
    """The milliseconds of up to `most` calls."""
    began = time.monotonic()
    taken: list[float] = []
    while len(taken) < most and (not taken or time.monotonic() - began < MAX_SECONDS):
        start = time.monotonic()
        await call()
        taken.append((time.monotonic() - start) * 1000)
    return taken
