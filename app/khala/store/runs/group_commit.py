"""Group commit of all runs of a process. Nothing leaves a run's buffer before its commit.

One loop takes every run that is due, writes all of them in one transaction, and begins again. What comes during a
commit is gathered for the next one. A failed write keeps its batches and is retried, which is harmless: see
`khala.store.runs.parts`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Protocol
from uuid import UUID

import asyncpg
import structlog

from khala.domain.backoff import Backoff
from khala.domain.errors import Unavailable
from khala.domain.flush_policy import FlushPolicy
from khala.domain.fold import Content
from khala.domain.receipts import FIRST_HASH
from khala.signals.metrics import FLUSHES_FAILED
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.runs.flush_telemetry import record_flush
from khala.store.runs.leases import Lease
from khala.store.runs.parts import Batch, append
from khala.store.runs.receipts import ReceiptChain
from khala.store.runs.run_buffer import RunBuffer

log = structlog.get_logger()

MIN_COMMIT_INTERVAL_SECONDS = 0.025
"""Seconds between the starts of two commits, at least. A commit also begins so long before its text is due, because the
way to observers takes some time; but at most a tenth of the flush policy's time before."""
EARLY_WINDOW = 0.25
"""A commit takes along what is due within this part of the flush policy's time. So runs are written together, and
the work per part falls as runs are added.
"""
MAX_EARLY_RUNS = 50
"""Runs above which no more are taken along: by then a commit costs hardly more than its parts, and comes in a burst."""
MAX_RUNS_PER_COMMIT = 500
MAX_PARTS_PER_COMMIT = 4000
"""Parts in one transaction, approximately: no run waits long for those of others."""
RETRY = Backoff(first_seconds=0.05, max_seconds=2.0)
"""Delays after a commit that failed because the database was unavailable."""


class WakeBus(Protocol):
    """A way to listeners beside Postgres. It only wakes them: a message may be lost."""

    @property
    def connected(self) -> bool:
        """Whether a message that is published now goes out."""

    async def publish(self, channel: str, payload: str) -> None:
        """Wake the listeners of this channel, without waiting for any."""


class Writer:
    """The buffers of all runs of a process, and the loop that writes them.

    While the bus, if there is one, is connected, it wakes listeners after each commit; else Postgres notifies them.
    """

    def __init__(self, db: Database, policy: FlushPolicy, bus: WakeBus | None = None) -> None:
        self._db = db
        self._policy = policy
        self._bus = bus
        self._waiting: dict[RunBuffer, None] = {}
        self._wake = asyncio.Event()
        self._waits_until = math.inf
        self._pause, self._failures = 0.0, 0

    def open(
        self, lease: Lease, *, next_seq: int = 0, next_receipt: int = 0, last_receipt_hash: bytes = FIRST_HASH,
        content: Content = (), on_lost: Callable[[], None] = lambda: None,
    ) -> RunBuffer:  # fmt: skip
        """A buffer for a claimed run that continues at `next_seq`, with the content folded from the parts before."""
        return RunBuffer(
            lease,
            next_seq=next_seq,
            receipts=ReceiptChain(lease.run_id, next_seq=next_receipt, last_hash=last_receipt_hash),
            content=content,
            on_gathered=self._schedule,
            on_lost=on_lost,
        )

    async def run(self) -> None:
        """Write what is due, for ever."""
        while True:
            await self._wait_until_due()
            began = time.monotonic()
            until = began + max(MIN_COMMIT_INTERVAL_SECONDS, EARLY_WINDOW * self._policy.seconds)
            await self._write(self._due(began, until))
            await asyncio.sleep(max(self._pause, began + MIN_COMMIT_INTERVAL_SECONDS - time.monotonic()))

    def _schedule(self, buffer: RunBuffer) -> None:
        """The buffer has more to write than before."""
        self._waiting[buffer] = None
        # A buffer that is due later than what is waited for needs no look at all buffers, of which there may be many.
        if self._due_at(buffer) < self._waits_until:
            self._wake.set()

    async def _wait_until_due(self) -> None:
        while True:
            self._wake.clear()
            self._waits_until = min(map(self._due_at, self._waiting), default=math.inf)
            left = self._waits_until - time.monotonic()
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(left) else left):
                    await self._wake.wait()

    def _due_at(self, buffer: RunBuffer) -> float:
        """The monotonic time at which it is to be written next: at once, if it has a batch in flight."""
        due_at = None if buffer.in_flight else buffer.gathered.due_at(self._policy)
        return 0.0 if due_at is None else due_at - min(MIN_COMMIT_INTERVAL_SECONDS, self._policy.seconds / 10)

    def _due(self, now: float, until: float) -> list[RunBuffer]:
        """The buffers that are due now, and others due before `until`, the first first: as many as fit one commit."""
        due: dict[UUID, RunBuffer] = {}
        parts = 0
        for at, buffer in sorted(((self._due_at(buffer), buffer) for buffer in self._waiting), key=itemgetter(0)):
            if at > until or (at > now and len(due) >= MAX_EARLY_RUNS):
                break
            # Where a run was lost and claimed again, the buffers of its leases are written one after the other.
            if buffer.lease.run_id not in due:
                parts += buffer.batch_size
                if due and parts > MAX_PARTS_PER_COMMIT:
                    break
                due[buffer.lease.run_id] = buffer
        return list(islice(due.values(), MAX_RUNS_PER_COMMIT))

    async def _write(self, buffers: list[RunBuffer]) -> None:
        began = time.monotonic()
        try:
            new = await self._commit(buffers)
        except Unavailable:
            FLUSHES_FAILED.inc()
            self._failures += 1
            self._pause = RETRY.delay(self._failures)
            log.warning("flush_failed", runs=len(buffers), retry_in=self._pause, exc_info=True)
            return
        except asyncpg.PostgresError:
            await self._write_apart(buffers)
            return
        self._pause, self._failures = 0.0, 0
        record_flush([buffer.next_batch() for buffer in buffers if buffer.lease.run_id in new], began, time.monotonic())
        for buffer in buffers:
            self._acknowledge(buffer, held=buffer.lease.run_id in new)

    async def _commit(self, buffers: list[RunBuffer]) -> dict[UUID, int]:
        batches = [buffer.next_batch() for buffer in buffers]
        bus = self._bus if self._bus is not None and self._bus.connected else None
        async with self._db.driver() as driver:
            written = await append(driver, batches, notify=bus is None)
        if bus is not None:
            for channel, payload in wakes(batches, written):
                await bus.publish(channel, payload)
        return written

    async def _write_apart(self, buffers: list[RunBuffer]) -> None:
        """Write each buffer alone, after Postgres refused the rows of one: the fault of one run costs no other."""
        if len(buffers) == 1:
            FLUSHES_FAILED.inc()
            log.error("flush_rejected", run_id=str(buffers[0].lease.run_id), exc_info=True)
            self._acknowledge(buffers[0], held=False)
            return
        for buffer in buffers:
            await self._write([buffer])

    def _acknowledge(self, buffer: RunBuffer, *, held: bool) -> None:
        buffer.acknowledge(held=held)
        self._waiting.pop(buffer, None)
        if buffer.gathered.since is not None:
            self._waiting[buffer] = None  # behind those that have waited longer


def wakes(batches: Sequence[Batch], written: Container[UUID]) -> Iterator[tuple[str, str]]:
    """The channels and payloads of what a commit without NOTIFY has changed.

    `written` are the runs whose batches are stored, those of an earlier commit, whose answer was lost, included.
    """
    changed = [batch for batch in batches if batch.lease.run_id in written]
    if changed:
        yield THREADS_CHANNEL, ",".join({str(batch.lease.thread_id) for batch in changed})
    if any(batch.ending for batch in changed):
        yield RUNS_CHANNEL, ""
