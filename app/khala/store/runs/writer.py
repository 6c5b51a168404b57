"""The writer: group commit of all runs of a process. Nothing leaves a run's buffer before its commit.

One loop takes every run that is due, writes all of it in one transaction, and begins again; what comes while a commit
is under way gathers for the next. A failed write keeps its batches and tries again, which is harmless: see
`khala.store.runs.parts`.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from operator import itemgetter
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import structlog

from khala.domain.backoff import Backoff
from khala.domain.budgets import SMALLEST_AMOUNT
from khala.domain.errors import Unavailable
from khala.domain.flush_policy import FlushPolicy, PendingText, replace_unstorable, split_by_json_bytes
from khala.domain.fold import Content, cancelled_statuses, fold, text_of
from khala.domain.parts import (
    MAX_INLINE_BYTES,
    Finish,
    PartData,
    ReasoningDelta,
    Step,
    TextDelta,
    ToolStatus,
    encode,
    json_text,
)
from khala.domain.receipts import FIRST_HASH, chained_hash
from khala.signals.metrics import FLUSHES_FAILED
from khala.store.postgres.database import Database
from khala.store.runs.flush_telemetry import flushed
from khala.store.runs.parts import Asked, Batch, Ending, Entry, Lease, append
from khala.store.runs.wake_ups import Bus, wakes

log = structlog.get_logger()

APART = 0.025
"""Seconds between the starts of two commits, at least; and how long before text is due its commit begins, since its way
to observers takes some time, but a tenth of the flush policy's time at most."""
EARLY = 0.25
"""A commit takes along what would be due within this part of the flush policy's time. So runs come to be written
together, and the work per part falls as runs are added.
"""
ENOUGH = 50
"""Runs, of which no more are taken along: by then a commit costs hardly more than its parts, and comes in a burst."""
MOST_RUNS = 500
"""Runs in one transaction."""
MOST_PARTS = 320
"""Parts of one run in one transaction, so that a round of tools begins in one; an outage's damming goes out in several.
"""
MOST_TOGETHER = 4000
"""Parts in one transaction, near enough: no run waits long for those of others."""
MOST_BUFFERED = 1 << 20
"""Characters that one run may hold back, in an outage say, before its turn has to wait."""
RETRY = Backoff(first_seconds=0.05, max_seconds=2.0)
"""Delays after a commit that failed because the database was unavailable."""
PIECE = MAX_INLINE_BYTES - 32
"""Bytes of text in one part, leaving room for what is around it."""


class LeaseLost(Exception):
    """The run belongs to another executor now, or is gone; nothing more may be written to it."""


class Stream:
    """One run's way into the store. `on_lost` is called once if the lease turns out to be lost."""

    def __init__(
        self,
        writer: "Writer",
        lease: Lease,
        *,
        next_seq: int,
        next_receipt: int,
        witness: bytes,
        content: Content,
        on_lost: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.gathered = PendingText()
        self._writer = writer
        self._seq = next_seq
        self._receipt = next_receipt
        self._witness = witness
        self._content = content
        self._texts: list[str] = []
        self._unwritten: deque[tuple[PartData, str, str]] = deque()
        self._entries: list[Entry] = []
        self._asked: list[Asked] = []
        self._ending: tuple[Literal["final", "error", "canceled"], Finish] | None = None
        self._batch: Batch | None = None
        self._on_lost = on_lost
        self._lost = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def said(self) -> bool:
        """Whether the answer has any text so far."""
        unwritten = any(isinstance(part, TextDelta) for part, _, _ in self._unwritten)
        return bool(self._texts or unwritten or text_of(self._content))

    @property
    def parts(self) -> int:
        """About how many parts its next batch has."""
        return min(MOST_PARTS, len(self._unwritten) + 1) if self._batch is None else len(self._batch.parts)

    @property
    def unsettled(self) -> bool:
        """Whether a batch was taken of which it is not known that it was written."""
        return self._batch is not None

    @property
    def full(self) -> bool:
        """Whether the turn should wait in `written` before it adds more."""
        return self.gathered.chars > MOST_BUFFERED

    def text(self, text: str) -> None:
        """More of the answer; the path of every token, so it does no more than gather."""
        self._texts.append(text)
        self._gather(len(text))

    def add(self, part: PartData) -> None:
        """A part of another kind than text. It is due at once."""
        self._cut()
        self._keep(part)
        self.gathered.urgent = True
        self._gather(0)

    def reason(self, text: str) -> None:
        """More of the model's reasoning."""
        self._cut()
        for piece in split_by_json_bytes(replace_unstorable(text), PIECE):
            self._keep(ReasoningDelta(text=piece))
        self._gather(len(text))

    def receipt(
        self,
        kind: Literal["model", "tool"],
        facts: dict[str, Any],
        cost_usd: Decimal | None,
        tool_call_id: str | None = None,
    ) -> None:
        """A call's receipt; it is committed with the run's next parts, at the latest with its finish."""
        data = json_text(facts)
        cost = None if cost_usd is None else cost_usd.quantize(SMALLEST_AMOUNT)
        self._witness = chained_hash(
            self._witness,
            run_id=self.lease.run_id,
            seq=self._receipt,
            kind=kind,
            tool_call_id=tool_call_id,
            data=msgspec.json.decode(data),
            cost_usd=cost,
        )
        self._entries.append(
            Entry(
                seq=self._receipt,
                type=kind,
                data=data,
                hash=self._witness,
                cost_usd=cost,
                tool_call_id=tool_call_id,
            )
        )
        self._receipt += 1

    def ask(self, status: ToolStatus, tool: str, args: dict[str, Any], parameters: dict[str, Any]) -> None:
        """A tool call is blocked until somebody approves of it; the question is committed with that part."""
        if status.digest is None or status.expires_at is None:
            raise ValueError("what is to be approved of has a digest and ends")
        self._asked.append(
            Asked(
                tool_call_id=status.tool_call_id,
                tool=tool,
                args=json_text(args),
                parameters=json_text(parameters),
                digest=status.digest,
                expires_at=status.expires_at,
            )
        )
        self.add(status)

    async def end(self, status: Literal["final", "error", "canceled"], finish: Finish) -> None:
        """Write the finish, the state and the folded message in one commit with what was gathered; returns after it.

        Tool calls that have not ended are cancelled in it.
        """
        self._cut()
        for left in cancelled_statuses(fold(self._content, [part for part, _, _ in self._unwritten])):
            self._keep(left)
        witness = self._witness.hex() if self._witness else None
        finish = msgspec.structs.replace(finish, witness=witness)
        self._ending = (status, finish)
        self.add(finish)
        await self.written()

    def handed_over(self) -> list[Entry]:
        """The receipts that no part took along."""
        entries, self._entries = self._entries, []
        return entries

    async def written(self) -> None:
        """Wait until all that was added is committed. Raises `LeaseLost`."""
        await self._idle.wait()
        if self._lost:
            raise LeaseLost

    def take(self) -> Batch:
        """What is to be written next; the same again until `settle` says that it was."""
        if self._batch is None:
            self._cut()
            parts = list(islice(self._unwritten, MOST_PARTS))
            for _ in parts:
                self._unwritten.popleft()
            numbered = [(self._seq + at, kind, data) for at, (_, kind, data) in enumerate(parts)]
            self._seq += len(numbered)
            self._content = fold(self._content, [part for part, _, _ in parts])
            self._batch = Batch(
                lease=self.lease,
                parts=numbered,
                receipts=self._entries,
                asked=self._asked,
                steps=max((part.step for part, _, _ in parts if isinstance(part, Step)), default=None),
                ending=self._end(),
            )
            self._entries, self._asked = [], []
            self.gathered.taken(at_once=bool(self._unwritten), now=time.monotonic())
        return self._batch

    def settle(self, *, held: bool) -> None:
        """The batch is committed; or, if the run isn't held any more, never will be."""
        self._batch = None
        if not held:
            self._texts.clear()
            self._unwritten.clear()
            self.gathered.taken(at_once=False, now=0)
            self._lost = True
            self._on_lost()
        if self.gathered.since is None:
            self._idle.set()

    def _end(self) -> Ending | None:
        if self._ending is None or self._unwritten:
            return None
        status, finish = self._ending
        return Ending(status=status, finish=finish, content=self._content, seq=self._seq)

    def _gather(self, chars: int) -> None:
        if self._lost:
            raise LeaseLost
        fresh = self.gathered.since is None
        self.gathered.add(chars, time.monotonic())
        self._idle.clear()
        self._writer.gathered(self, fresh=fresh)

    def _cut(self) -> None:
        text = replace_unstorable("".join(self._texts))
        self._texts.clear()
        for piece in split_by_json_bytes(text, PIECE):
            self._keep(TextDelta(text=piece))

    def _keep(self, part: PartData) -> None:
        # Encoded here, where a fault is that of the turn which made the part, and not in a batch with other runs.
        self._unwritten.append((part, *encode(part)))


class Writer:
    """All streams of a process, and the loop that writes them. With a bus, that tells of it while it is connected."""

    def __init__(self, db: Database, policy: FlushPolicy, bus: Bus | None = None) -> None:
        self._db = db
        self._policy = policy
        self._bus = bus
        self._waiting: dict[Stream, None] = {}
        self._wake = asyncio.Event()
        self._until = math.inf
        self._pause, self._failures = 0.0, 0

    def open(
        self, lease: Lease, *, next_seq: int = 0, next_receipt: int = 0, witness: bytes = FIRST_HASH,
        content: Content = (), on_lost: Callable[[], None] = lambda: None,
    ) -> Stream:  # fmt: skip
        """A stream for a claimed run that goes on at `next_seq`, with the content folded from the parts before.

        `witness` is the hash of the receipt before `next_receipt`.
        """
        return Stream(
            self,
            lease,
            next_seq=next_seq,
            next_receipt=next_receipt,
            witness=witness,
            content=content,
            on_lost=on_lost,
        )

    def gathered(self, stream: Stream, *, fresh: bool) -> None:
        """The stream has something more; `fresh` if it had nothing before."""
        if fresh:
            self._waiting[stream] = None
        # What is due later than what is waited for needs no look at all streams, of which there may be many.
        if self._next_at(stream) < self._until:
            self._wake.set()

    async def run(self) -> None:
        """Write what is due, for ever."""
        while True:
            await self._rest()
            began = time.monotonic()
            await self._write(self._next(began, began + max(APART, EARLY * self._policy.seconds)))
            await asyncio.sleep(max(self._pause, began + APART - time.monotonic()))

    async def _rest(self) -> None:
        """Wait until something is to be written."""
        while True:
            self._wake.clear()
            self._until = min(map(self._next_at, self._waiting), default=math.inf)
            left = self._until - time.monotonic()
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(left) else left):
                    await self._wake.wait()

    def _next_at(self, stream: Stream) -> float:
        """When it is to be written next: at once, if it has a batch under way."""
        due_at = None if stream.unsettled else stream.gathered.due_at(self._policy)
        return 0.0 if due_at is None else due_at - min(APART, self._policy.seconds / 10)

    def _next(self, now: float, until: float) -> list[Stream]:
        """The streams to be written now, and others until then, as many as go into one transaction, the first first."""
        found: dict[UUID, Stream] = {}
        parts = 0
        for at, stream in sorted(((self._next_at(stream), stream) for stream in self._waiting), key=itemgetter(0)):
            if at > until or (at > now and len(found) >= ENOUGH):
                break
            # Where a run was lost and taken again, the streams of its leases are written one after the other.
            if stream.lease.run_id not in found:
                parts += stream.parts
                if found and parts > MOST_TOGETHER:
                    break
                found[stream.lease.run_id] = stream
        return list(islice(found.values(), MOST_RUNS))

    async def _write(self, streams: list[Stream]) -> None:
        began = time.monotonic()
        try:
            new = await self._append(streams)
        except Unavailable:
            FLUSHES_FAILED.inc()
            self._failures += 1
            self._pause = RETRY.delay(self._failures)
            log.warning("flush_failed", runs=len(streams), retry_in=self._pause, exc_info=True)
            return
        except asyncpg.PostgresError:
            await self._write_apart(streams)
            return
        self._pause, self._failures = 0.0, 0
        flushed([stream.take() for stream in streams if stream.lease.run_id in new], began, time.monotonic())
        for stream in streams:
            self._settle(stream, held=stream.lease.run_id in new)

    async def _append(self, streams: list[Stream]) -> dict[UUID, int]:
        batches = [stream.take() for stream in streams]
        bus = self._bus if self._bus is not None and self._bus.connected else None
        async with self._db.driver() as driver:
            written = await append(driver, batches, notify=bus is None)
        if bus is not None:
            for channel, payload in wakes(batches, written):
                await bus.tell(channel, payload)
        return written

    async def _write_apart(self, streams: list[Stream]) -> None:
        """Postgres refused the rows of one of these: write each alone, so that one run's fault costs no other."""
        if len(streams) == 1:
            FLUSHES_FAILED.inc()
            log.error("flush_refused", run_id=str(streams[0].lease.run_id), exc_info=True)
            self._settle(streams[0], held=False)
            return
        for stream in streams:
            await self._write([stream])

    def _settle(self, stream: Stream, *, held: bool) -> None:
        stream.settle(held=held)
        self._waiting.pop(stream, None)
        if stream.gathered.since is not None:
            self._waiting[stream] = None  # behind those that have waited longer
