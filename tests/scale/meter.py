"""Counts milliseconds of wall time, shared buffers (8 KiB pages, hits and reads) and rows read of application calls.

Buffers and rows come from `pg_stat_database`. It needs no extension: pg_stat_statements has to be loaded when the
server starts, which a test can't do to a server that it is given. It also counts what `EXPLAIN` leaves out: COPY,
triggers of foreign keys, commits and the planner's own reads. Sessions report these counters once a second at most, so
the meter lets each connection of the measured pools call `pg_stat_force_next_flush`. The counters are exact while no
other session uses the database: the filler switches autovacuum off, and the meter reads through another database.
"""

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
MAX_SECONDS = 2.0
"""Seconds after which no further call begins, of warm-up and of counting."""
FORCE_FLUSH = "SELECT pg_stat_force_next_flush()"
COUNTERS = "SELECT blks_hit + blks_read AS buffers, tup_returned AS rows FROM pg_stat_database WHERE datname = $1"


class Usage(msgspec.Struct):
    """The cost of one call: milliseconds (the median of several); buffers, and rows and index entries read (means)."""

    milliseconds: float
    buffers: float
    rows: float


class Counters(msgspec.Struct, frozen=True):
    """The counters of the database at one moment."""

    buffers: int
    rows: int


class Meter:
    """Measures calls that use `db`, one at a time."""

    def __init__(self, db: Database, watch: Driver, name: str, *, counted_calls: int) -> None:
        self.db = db
        self._counted_calls = counted_calls
        self._watch = watch
        self._name = name

    async def once(self, call: Callable[[], Awaitable[object]]) -> Usage:
        """The cost of the first and only call."""
        before = await self._counted()
        began = time.monotonic()
        await call()
        milliseconds = (time.monotonic() - began) * 1000
        return await self._usage(before, [milliseconds])

    async def repeated(self, call: Callable[[], Awaitable[object]]) -> Usage:
        """The cost of a call that is repeated again and again: caches and plans are warm.

        A call that takes longer than `MAX_SECONDS` counts at once, and is not repeated.
        """
        before = await self._counted()
        first = await _repeat(call, 1)
        if first[0] > MAX_SECONDS * 1000:
            return await self._usage(before, first)
        await _repeat(call, WARM_CALLS - 1)
        before = await self._counted()
        milliseconds = await _repeat(call, self._counted_calls)
        return await self._usage(before, milliseconds)

    async def _usage(self, before: Counters, milliseconds: Sequence[float]) -> Usage:
        after, calls = await self._counted(), len(milliseconds)
        return Usage(
            milliseconds=statistics.median(milliseconds),
            buffers=(after.buffers - before.buffers) / calls,
            rows=(after.rows - before.rows) / calls,
        )

    async def _counted(self) -> Counters:
        async with self.db.transaction() as connection:
            await connection.execute(text(FORCE_FLUSH))
        async with self.db.driver() as driver:
            await driver.execute(FORCE_FLUSH)
        return Counters(*await self._watch.fetchrow(COUNTERS, self._name))


@asynccontextmanager
async def metered(url: str, *, counted_calls: int) -> AsyncIterator[Meter]:
    """A meter for the database at `url`, which counts up to so many calls of one that is repeated."""
    name = driver_url(url).partition("?")[0].rpartition("/")[2]
    watch = await asyncpg.connect(postgres.named(url, "postgres"))
    db = Database(url, pool_size=POOL_SIZE, timeout=STATEMENT_TIMEOUT_SECONDS)
    try:
        yield Meter(db, watch, name, counted_calls=counted_calls)
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
