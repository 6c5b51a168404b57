"""Group commit: writes the buffered parts of all runs of a process. A batch stays in its buffer until it is committed.

One loop takes all runs that are due, writes them in one transaction, and repeats. Parts that arrive during a commit are
written by the next one. After a failed commit the same batches are written again, which is harmless: see
`khala.store.runs.parts`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Protocol
from uuid import UUID

import asyncpg
import structlog

from khala.domain.backoff import Backoff
from khala.domain.errors import Unavailable
from khala.domain.flush_policy import FlushPolicy, FlushSchedule
from khala.domain.fold import Content
from khala.domain.receipts import FIRST_HASH
from khala.signals.metrics import FLUSHES_DELAYED, FLUSHES_FAILED
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.runs.flush_telemetry import record_flush
from khala.store.runs.leases import Lease
from khala.store.runs.parts import AppendResult, Batch, append
from khala.store.runs.receipts import ReceiptChain
from khala.store.runs.run_buffer import RunBuffer

log = structlog.get_logger()

MIN_COMMIT_INTERVAL_SECONDS = 0.025
"""Seconds between the starts of two commits, at least. A commit also begins this long before its text is due, since
delivery to observers takes time; but at most a tenth of the flush policy's age before."""
EARLY_WINDOW = 0.25
"""A commit includes the runs that are due within this fraction of the flush policy's age. So runs are written together,
and the work per part falls as runs are added.
"""
MAX_EARLY_RUNS = 50
"""A commit of this many runs includes no further run early: that would hardly reduce the cost per part, and would
deliver parts in bursts."""
MAX_RUNS_PER_COMMIT = 500
MAX_PARTS_PER_COMMIT = 4000
"""Parts in one transaction, approximately. The limit bounds how long a run waits for the parts of others."""
TIMER_RESOLUTION_SECONDS = 0.001
"""A timer may be early by this. What is due within it is due, or timers of no length would follow until it is."""
HELD_TEXT_TIMEOUT_SECONDS = 0.015
"""Time that a commit waits for text that the models' clients left in the kernel. It takes about 50 µs per run."""
RETRY = Backoff(first_seconds=0.05, max_seconds=2.0)
"""Delays after a commit that failed because the database was unavailable."""
BUSY_RETRY = Backoff(first_seconds=0.025, max_seconds=0.2)
"""Delays of a run of which another transaction has locked the thread, or a budget or user that changes with its end.
Other runs are written meanwhile."""


class WakeBus(Protocol):
    """A message bus that wakes listeners, beside Postgres. Messages may be lost."""

    @property
    def connected(self) -> bool:
        """Whether a message published now would be sent."""

    async def publish(self, channel: str, payload: str) -> None:
        """Wake the listeners of this channel, without waiting for them."""


class OpenAppend(Protocol):
    """An append of this process that has begun."""

    def end(self, result: AppendResult | None) -> None:
        """The append has ended; without a result, it failed, and may still have been committed."""


class LocalFeed(Protocol):
    """Delivers committed parts to the observers of this process, without reading them."""

    def begin(self, pid: int | None, thread_ids: Collection[UUID]) -> OpenAppend:
        """An append to these threads begins. The backend with this `pid` will notify of the threads that it changes."""


class Writer:
    """The buffers of all runs of a process, and the loop that writes them.

    While `bus` is connected, it wakes listeners after each commit; otherwise Postgres notifies them. `local` gets
    what was committed at once.
    """

    def __init__(
        self, db: Database, policy: FlushPolicy, bus: WakeBus | None = None, local: LocalFeed | None = None
    ) -> None:
        self._db = db
        self._policy = policy
        self._schedule = FlushSchedule(policy)
        self._bus = bus
        self._local = local
        self._waiting: dict[RunBuffer, None] = {}
        self._wake = asyncio.Event()
        self._waits_until = math.inf
        self._pause, self._failures = 0.0, 0
        self._awaited: set[RunBuffer] = set()
        self._all_added = asyncio.Event()

    def open(
        self, lease: Lease, *, next_seq: int = 0, next_receipt: int = 0, last_receipt_hash: bytes = FIRST_HASH,
        content: Content = (), on_lost: Callable[[], None] = lambda: None,
        on_written: Callable[[], None] = lambda: None,
    ) -> RunBuffer:  # fmt: skip
        """A buffer for a claimed run that continues at `next_seq`, with the content folded from the parts before."""
        return RunBuffer(
            lease,
            next_seq=next_seq,
            receipts=ReceiptChain(lease.run_id, next_seq=next_receipt, last_hash=last_receipt_hash),
            content=content,
            on_added=self._await_flush,
            on_lost=on_lost,
            on_written=on_written,
        )

    async def run(self) -> None:
        """Write due batches, for ever."""
        while True:
            await self._wait_until_due()
            began = time.monotonic()
            until = began + max(MIN_COMMIT_INTERVAL_SECONDS, EARLY_WINDOW * self._policy.seconds)
            if due := await self._with_held_text(self._due(began, until)):
                await self._write(due)
            await asyncio.sleep(max(self._pause, began + MIN_COMMIT_INTERVAL_SECONDS - time.monotonic()))

    def _await_flush(self, buffer: RunBuffer) -> None:
        """Schedule the buffer, to which parts were added, or whose text is held from now on."""
        self._waiting[buffer] = None
        if not buffer.in_flight:
            self._schedule.join(buffer.pending)
        if self._awaited:
            self._awaited.discard(buffer)
            if not self._awaited:
                self._all_added.set()
        # The loop is woken only if this one is due first, and does not read the due times of all, which may be many.
        due_at = self._due_at(buffer)
        if due_at < self._waits_until:
            self._waits_until = due_at
            self._wake.set()

    async def _wait_until_due(self) -> None:
        self._waits_until = min(map(self._due_at, self._waiting), default=math.inf)
        while (seconds := self._waits_until - time.monotonic()) >= TIMER_RESOLUTION_SECONDS:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                    await self._wake.wait()

    def _due_at(self, buffer: RunBuffer) -> float:
        """The monotonic time at which the buffer is to be written next. A batch in flight waits for its retry."""
        due_at = None if buffer.in_flight else buffer.pending.due_at(self._policy)
        if due_at is None:
            return buffer.retry_at
        return due_at - min(MIN_COMMIT_INTERVAL_SECONDS, self._policy.seconds / 10)

    def _due(self, now: float, until: float) -> list[RunBuffer]:
        """The buffers that are due now, and others due before `until`, earliest first: as many as fit into a commit."""
        due: dict[UUID, RunBuffer] = {}
        parts = 0
        for at, buffer in sorted(((self._due_at(buffer), buffer) for buffer in self._waiting), key=itemgetter(0)):
            if at > until or (at > now and len(due) >= MAX_EARLY_RUNS):
                break
            # A run that was lost and claimed again has a buffer for each lease: they are written in separate commits.
            if buffer.lease.run_id not in due:
                parts += buffer.batch_size
                if due and parts > MAX_PARTS_PER_COMMIT:
                    break
                due[buffer.lease.run_id] = buffer
        return list(islice(due.values(), MAX_RUNS_PER_COMMIT))

    async def _with_held_text(self, due: list[RunBuffer]) -> list[RunBuffer]:
        """Have the held text of these buffers added. Returns those that have something to write."""
        self._awaited = {buffer for buffer in due if not buffer.in_flight and buffer.request_held_text()}
        if self._awaited:
            self._all_added.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(HELD_TEXT_TIMEOUT_SECONDS):
                    await self._all_added.wait()
            self._awaited.clear()
        ready = [buffer for buffer in due if buffer.in_flight or buffer.pending.since is not None]
        for buffer in due:
            if buffer.pending.since is None and not (buffer.in_flight or buffer.is_held):
                self._waiting.pop(buffer, None)
        return ready

    async def _write(self, buffers: list[RunBuffer]) -> None:
        began = time.monotonic()
        try:
            result = await self._commit(buffers)
        except Unavailable:
            FLUSHES_FAILED.inc()
            self._failures += 1
            self._pause = RETRY.delay(self._failures)
            log.warning("flush_failed", runs=len(buffers), retry_in=self._pause, exc_info=True)
            return
        except asyncpg.PostgresError:
            await self._write_separately(buffers)
            return
        self._pause, self._failures = 0.0, 0
        now = time.monotonic()
        stored = [buffer for buffer in buffers if buffer.lease.run_id in result.stored]
        oldest = min((buffer.batch_since for buffer in stored), default=began)
        record_flush([buffer.next_batch() for buffer in stored], began, now, oldest=oldest)
        active = [buffer.pending for buffer in stored if buffer.next_batch().ending is None]
        for buffer in buffers:
            if buffer.lease.run_id in result.busy:
                FLUSHES_DELAYED.inc()
                buffer.delay(BUSY_RETRY, now)
            else:
                self._acknowledge(buffer, held=buffer.lease.run_id in result.stored)
        self._schedule.continue_together(active)

    async def _commit(self, buffers: list[RunBuffer]) -> AppendResult:
        batches = [buffer.next_batch() for buffer in buffers]
        bus = self._bus if self._bus is not None and self._bus.connected else None
        async with self._db.driver() as driver:
            result = await self._append(driver, batches, notify=bus is None)
        if bus is not None:
            for channel, payload in wake_ups(batches, result.stored):
                await bus.publish(channel, payload)
        return result

    async def _append(self, driver: Driver, batches: Sequence[Batch], *, notify: bool) -> AppendResult:
        if self._local is None:
            return await append(driver, batches, notify=notify)
        # A pooler hides the number of the backend.
        pid = driver.get_server_pid() if notify and not self._db.pooled else None
        opened = self._local.begin(pid, {batch.lease.thread_id for batch in batches})
        result = None
        try:
            result = await append(driver, batches, notify=notify)
            return result
        finally:
            opened.end(result)

    async def _write_separately(self, buffers: list[RunBuffer]) -> None:
        """Write each buffer in a commit of its own, after Postgres refused the rows of one of them."""
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
        if buffer.pending.since is not None or buffer.is_held:
            self._waiting[buffer] = None  # Behind the buffers that have waited longer.


def wake_ups(batches: Sequence[Batch], written: Container[UUID]) -> Iterator[tuple[str, str]]:
    """The wake-ups to publish after a commit without NOTIFY, as channels and payloads.

    `written` are the runs whose batches are stored, including batches that an earlier commit stored without its reply
    arriving here.
    """
    changed = [batch for batch in batches if batch.lease.run_id in written]
    if changed:
        yield THREADS_CHANNEL, ",".join({str(batch.lease.thread_id) for batch in changed})
    if any(batch.ending for batch in changed):
        yield RUNS_CHANNEL, ""
