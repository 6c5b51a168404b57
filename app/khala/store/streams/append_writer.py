"""Group commit of streams: one transaction stores all appends that have arrived since the last one began.

An append is acknowledged after its commit. Appends to one stream are decided in the order of their arrival, and the
producer's state is stored with the content, so that a repeated append is never stored twice.

The writer remembers the streams that it has written last. Appends to them are decided in memory and stored by one
statement, which stores nothing in a stream that has changed since. Those and all others are decided under a lock.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import structlog

from khala.domain.errors import Unavailable
from khala.domain.streams.appends import StreamAppend
from khala.store.postgres.database import Database
from khala.store.postgres.retries import retried
from khala.store.streams import byte_reservations
from khala.store.streams.append_transaction import (
    AppendTransaction,
    KnownStream,
    PendingAppend,
    StreamAppendResult,
    StreamKey,
)
from khala.store.streams.stream_rows import StreamLimits, StreamSpace

log = structlog.get_logger()

MAX_APPENDS_PER_COMMIT = 256
MAX_COMMIT_BYTES = 8 << 20
"""Bytes of the bodies in one transaction. It has at least one append."""
MAX_WAITING_APPENDS = 4_096
MAX_WAITING_BYTES = 64 << 20
"""Bytes of the bodies that wait for a commit in one process."""
MAX_KNOWN_STREAMS = 1_024
MAX_RESERVATION_TRIES = 5
"""Times in a row that reservations are taken back before any append has used them."""


class StreamWriter:
    """The appends of all clients of a process, and the loop that commits them."""

    def __init__(self, db: Database, limits: StreamLimits) -> None:
        self._db = db
        self._limits = limits
        self._waiting: deque[PendingAppend] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._known: OrderedDict[StreamKey, KnownStream] = OrderedDict()
        """The streams that were written last, the latest at the end."""

    async def append(self, space: StreamSpace, name: str, append: StreamAppend) -> StreamAppendResult:
        """Store the append, and return what was decided once that is committed.

        Raises `NotFound`, `StreamGone`, `InvalidInput` for a body that is not valid JSON, `PayloadTooLarge` for one
        with too many messages, `StorageExhausted` if all streams of the space together have too many bytes for it, and
        `Unavailable` if too many appends wait or the database is unavailable: then it is unknown whether the append was
        stored.
        """
        size = len(append.body)
        if len(self._waiting) >= MAX_WAITING_APPENDS or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise Unavailable("Too many appends are waiting. Try again in a moment.", retry_after=1)
        pending = PendingAppend(space, name, append)
        self._waiting.append(pending)
        self._waiting_bytes += size
        self._wake.set()
        return await pending.done

    async def run(self) -> None:
        """Commit appends, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next_batch():
                await self._write(batch)

    def _next_batch(self) -> list[PendingAppend]:
        batch: list[PendingAppend] = []
        size = 0
        while self._waiting and len(batch) < MAX_APPENDS_PER_COMMIT:
            size += len(self._waiting[0].append.body)
            if batch and size > MAX_COMMIT_BYTES:
                break
            batch.append(self._waiting.popleft())
            self._waiting_bytes -= len(batch[-1].append.body)
        return batch

    async def _write(self, batch: Sequence[PendingAppend]) -> None:
        """Store the appends and report their results. An unforeseen error of one append does not fail the others."""
        try:
            await self._store(batch)
        except Unavailable as error:
            log.warning("stream_appends_failed", appends=len(batch), error=str(error.__cause__))
            self._fail(batch, error)
        except Exception as error:
            unsettled = [pending for pending in batch if not pending.done.done()]
            log.exception("stream_append_crashed", appends=len(unsettled))
            if len(batch) == 1:
                self._fail(batch, error)
                return
            self._forget(unsettled)
            for pending in unsettled:
                await self._write([pending])
        except BaseException:
            self._fail(batch, Unavailable("The append could not be stored.", retry_after=1))
            raise

    def _fail(self, batch: Sequence[PendingAppend], error: Exception) -> None:
        self._forget(batch)
        for pending in batch:
            pending.settle(error)

    async def _store(self, batch: Sequence[PendingAppend]) -> None:
        known, others = self._decide_known(batch)
        if known is not None:
            stored = await self._commit_known(known)
            for pending, outcome in known.outcomes:
                if pending.key in stored:
                    pending.settle(outcome)
                else:
                    others.append(pending)
            self._remember(stored)
            self._forget(others)
        if others:
            ordered = [pending for pending in batch if pending in others] if known is not None else others
            await self._store_locked(ordered)

    async def _store_locked(self, batch: Sequence[PendingAppend]) -> None:
        """Store appends under the locks of their streams, those that need a further reservation after it."""
        tries, free = 0, dict[StreamKey, int]()
        while batch:
            transaction, changed = await self._commit(batch, free)
            self._remember(changed)
            for pending, outcome in transaction.outcomes:
                pending.settle(outcome)
            await self._extend(transaction, free)
            waiting = transaction.waiting
            # A reservation that was not used yet may be taken back for another stream.
            tries = 0 if len(waiting) < len(batch) else tries + 1
            if tries == MAX_RESERVATION_TRIES:
                raise Unavailable("Too many appends compete for the last bytes of the account.", retry_after=1)
            batch = waiting

    async def _extend(self, transaction: "AppendTransaction", free: dict[StreamKey, int]) -> None:
        """Extend the reservations of streams that are short.

        If the limit of a space leaves too little for one, `free` then has the bytes that it leaves. The next
        transaction refuses all appends to the stream that need more, so that they do not delay those of others.
        """
        full: dict[UUID, int] = {}
        for key, needed in transaction.short.items():
            appended = [pending for pending in transaction.waiting if pending.key == key]
            space, total = appended[0].space, sum(len(pending.append.body) for pending in appended)
            left = full.get(space.id)
            if left is None or needed <= left:
                left = await byte_reservations.reserve(self._db, space, key[1], needed, total, self._limits)
            if left is None:
                free.pop(key, None)
            else:
                free[key] = full[space.id] = left

    def _decide_known(self, batch: Sequence[PendingAppend]) -> "tuple[AppendTransaction | None, list[PendingAppend]]":
        """Decide about appends by what is known. Returns them, if there are any, and the others.

        The appends to a stream stay together. Only what is stored needs no look at the stream: everything else may be
        decided differently by now.
        """
        if self._db.pooled:  # Its sessions have Khala's settings only within transactions.
            return None, list(batch)
        by_stream: dict[StreamKey, list[PendingAppend]] = {}
        for pending in batch:
            by_stream.setdefault(pending.key, []).append(pending)
        decided, others = AppendTransaction(self._limits), []
        for key, appended in by_stream.items():
            known = self._known.get(key)
            if known is None or not decided.decide_known(known, key, appended):
                others += appended
        return decided if decided.outcomes else None, others

    @retried
    async def _commit_known(self, decided: "AppendTransaction") -> dict[StreamKey, KnownStream]:
        async with self._db.driver() as driver:
            return await decided.write(driver, is_locked=False)

    @retried
    async def _commit(
        self, batch: Sequence[PendingAppend], free: Mapping[StreamKey, int]
    ) -> "tuple[AppendTransaction, dict[StreamKey, KnownStream]]":
        async with self._db.driver() as driver, driver.transaction():
            transaction = AppendTransaction(self._limits, free)
            await transaction.lock(driver, batch)
            for pending in batch:
                await transaction.decide(driver, pending)
            return transaction, await transaction.write(driver, is_locked=True)

    def _remember(self, streams: Mapping[StreamKey, KnownStream]) -> None:
        for key, stream in streams.items():
            self._known[key] = stream
            self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN_STREAMS:
            self._known.popitem(last=False)

    def _forget(self, batch: Iterable[PendingAppend]) -> None:
        for pending in batch:
            self._known.pop(pending.key, None)
