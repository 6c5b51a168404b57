"""Measurements of writes: sends against one budget, text beside a locked thread, and WAL of a part."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from uuid import UUID

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.budgets import DAY_SECONDS, BudgetLimit, BudgetPolicy
from khala.domain.chat import RunOptions
from khala.domain.flush_policy import FlushPolicy
from khala.operations import partitions
from khala.store.postgres.database import Database, Driver
from khala.store.runs.group_commit import Writer
from khala.store.runs.leases import Lease
from khala.store.runs.run_buffer import RunBuffer
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest
from tests.scale.figures import Figure
from tests.scale.filler import ACTIVE_PARTS, remove_queue
from tests.scale.stage import ScaleStage
from tests.support.store import batch, write

CONCURRENCIES = (1, 4, 16)
LIMITS = SendLimits(
    per_owner=1_000_000,
    waiting=1_000_000,
    budgets=BudgetPolicy(
        limits=(BudgetLimit(scope="accounts", measure="usd", most=Decimal(1_000_000), window=DAY_SECONDS),)
    ),
)
"""One window that all sends share and never exhaust."""

WRITING_RUNS = 20
"""Runs that write while the thread of one of them is locked."""
TOKEN_INTERVAL_SECONDS = 0.05
POLL_INTERVAL_SECONDS = 0.02
SETTLE_SECONDS = 1.0
"""Seconds of text before and after the lock."""
GAP_TARGET_SECONDS = 0.5

FLUSHED_RUNS = 100
DELTA = "And then the tide turned, as it always does, w.. "
"""About 50 characters: 350 ms of an answer."""
WAL_TARGET_BYTES = 450.0

HELD = """
    SELECT id AS run_id, thread_id, message_id, epoch FROM runs WHERE status = 'running' ORDER BY id OFFSET $1 LIMIT $2
"""
REVISIONS = "SELECT id, revision FROM threads WHERE id = ANY($1::uuid[])"
WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


async def measure_wal(stage: ScaleStage) -> list[Figure]:
    """WAL of a part in steady state: in a database that was purged and vacuumed, from a checkpoint on."""
    return [await _part_wal(stage, "WAL of a part", ACTIVE_PARTS, target=WAL_TARGET_BYTES)]


async def measure_wal_by_layout(stage: ScaleStage) -> list[Figure]:
    """The same once old parts are packed and vacuumed, in one table and in partitions by month."""
    first = ACTIVE_PARTS + stage.effort.flushes
    packed = await _part_wal(stage, "WAL of a part, old parts packed", first)
    async with stage.connection() as driver:
        await driver.execute(partitions.script("month"))
    first += stage.effort.flushes
    return [packed, await _part_wal(stage, "WAL of a part, by month", first, target=WAL_TARGET_BYTES)]


async def _part_wal(stage: ScaleStage, name: str, first_seq: int, *, target: float | None = None) -> Figure:
    """The WAL holds a whole page at its first change after a checkpoint, so parts on scattered pages take more."""
    async with stage.connection() as driver:
        await driver.execute("VACUUM (ANALYZE)")
        await driver.execute("CHECKPOINT")
        leases = await _held(driver, WRITING_RUNS, FLUSHED_RUNS)
        before = await driver.fetchval(WAL)
    flushes = stage.effort.flushes
    db = Database(stage.url)
    try:
        for flush in range(flushes):
            new = await write(db, *(batch(lease, first_seq + flush, DELTA) for lease in leases))
            assert set(new.values()) == {1}, "each part is new"
    finally:
        await db.close()
    async with stage.connection() as driver:
        wal = await driver.fetchval(WAL) - before
    size = f"{flushes} flushes of {len(leases)} runs"
    return Figure(name=name, size=size, value=wal / flushes / len(leases), unit="bytes", target=target)


async def measure_locked_thread(stage: ScaleStage) -> list[Figure]:
    """The longest time without new text in any other thread, while one thread's row is locked."""
    async with stage.connection() as driver:
        leases = await _held(driver, 0, WRITING_RUNS)
    locked, *others = leases
    db = Database(stage.url)
    try:
        gaps = _Gaps([lease.thread_id for lease in others])
        async with stage.connection() as watch, _text(db, leases), gaps.watched(watch):
            await asyncio.sleep(SETTLE_SECONDS)
            async with _lock(stage, locked.thread_id):
                await asyncio.sleep(stage.effort.lock_seconds)
            await asyncio.sleep(SETTLE_SECONDS)
    finally:
        await db.close()
    size = f"one of {len(leases)} threads, for {stage.effort.lock_seconds:g} s"
    return [
        Figure(name="gap beside a locked thread", size=size, value=gaps.longest, unit="s", target=GAP_TARGET_SECONDS)
    ]


async def measure_sends(stage: ScaleStage) -> list[Figure]:
    """Sends per second against one budget of the whole deployment, each user in a thread of their own."""
    async with stage.connection() as driver:
        await remove_queue(driver)
        users = [row["id"] for row in await driver.fetch("SELECT id FROM users ORDER BY id DESC LIMIT 20")]
    callers = [Caller(user_id=user) for user in users]
    db = Database(stage.url, pool_size=2 * max(CONCURRENCIES))
    try:
        return [await _sends(db, callers, stage.effort.sends, concurrency) for concurrency in CONCURRENCIES]
    finally:
        await db.close()


async def _sends(db: Database, callers: Sequence[Caller], count: int, concurrency: int) -> Figure:
    targets: list[tuple[UUID, Caller]] = []
    for _, caller in zip(range(count), itertools.cycle(callers), strict=False):
        thread, _ = await threads.create(db, ids.new(), caller, title=None, welcome="")
        targets.append((thread.id, caller))
    waiting = iter(targets)

    async def send() -> None:
        for thread_id, caller in waiting:
            question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
            await sends.send(db, question, caller, LIMITS)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(send())
    rate = count / (time.monotonic() - began)
    return Figure(name="sends against one budget", size=f"{concurrency} at once", value=rate, unit="sends/s")


@contextlib.asynccontextmanager
async def _text(db: Database, leases: Sequence[Lease]) -> AsyncIterator[None]:
    """Write tokens to all of these runs, as an executor does."""
    writer = Writer(db, FlushPolicy())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(writer.run())]
        async with db.driver() as driver:
            next_seqs = [await _next_seq(driver, lease) for lease in leases]
        buffers = [writer.open(lease, next_seq=seq) for lease, seq in zip(leases, next_seqs, strict=True)]
        tasks += [group.create_task(_tokens(buffer)) for buffer in buffers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _tokens(buffer: RunBuffer) -> None:
    while True:
        buffer.append_text("word ")
        await asyncio.sleep(TOKEN_INTERVAL_SECONDS)


class _Gaps:
    """Watches the revisions of threads, and keeps the longest time in which one of them did not change."""

    def __init__(self, thread_ids: Sequence[UUID]) -> None:
        self.longest = 0.0
        self._thread_ids = thread_ids
        self._changed: dict[UUID, tuple[int, float]] = {}

    @contextlib.asynccontextmanager
    async def watched(self, connection: Driver) -> AsyncIterator[None]:
        """Watch over this connection until the block ends."""
        task = asyncio.create_task(self._watch(connection))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _watch(self, connection: Driver) -> None:
        while True:
            found = await connection.fetch(REVISIONS, self._thread_ids)
            now = time.monotonic()
            for row in found:
                revision, since = self._changed.setdefault(row["id"], (row["revision"], now))
                self.longest = max(self.longest, now - since)
                if row["revision"] != revision:
                    self._changed[row["id"]] = (row["revision"], now)
            await asyncio.sleep(POLL_INTERVAL_SECONDS)


@contextlib.asynccontextmanager
async def _lock(stage: ScaleStage, thread_id: UUID) -> AsyncIterator[None]:
    """Hold the thread's row lock, as a long reset does."""
    async with stage.connection() as driver, driver.transaction():
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", thread_id)
        yield


async def _held(driver: Driver, first: int, count: int) -> list[Lease]:
    return [Lease(**dict(row)) for row in await driver.fetch(HELD, first, count)]


async def _next_seq(driver: Driver, lease: Lease) -> int:
    return int(await driver.fetchval("SELECT count(*) FROM message_parts WHERE run_id = $1", lease.run_id))
