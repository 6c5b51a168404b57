"""Group commit of streams: one transaction stores all appends that have arrived since the last one began.

An append is acknowledged after its commit. Appends to one stream are decided in the order of their arrival, and the
producer's state is stored with the content, so that a repeated append is never stored twice.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog

from khala.domain.errors import InvalidInput, KhalaError, NotFound, PayloadTooLarge, Unavailable
from khala.domain.streams import appends
from khala.domain.streams.appends import Accepted, AppendDecision, StreamAppend, StreamState
from khala.domain.streams.content import StreamChunk
from khala.domain.streams.producers import ProducerState
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import notify_streams
from khala.store.postgres.retries import retried
from khala.store.streams.stream_rows import (
    StoredStream,
    StreamGone,
    StreamSpace,
    rolling_seconds,
    stored_stream,
    usable,
)

log = structlog.get_logger()

MAX_APPENDS_PER_COMMIT = 256
MAX_COMMIT_BYTES = 8 << 20
"""Bytes of the bodies in one transaction. It has at least one append."""
MAX_WAITING_APPENDS = 4_096
MAX_WAITING_BYTES = 64 << 20
"""Bytes of the bodies that wait for a commit in one process."""
MAX_PRODUCERS = 1_000
"""Producers of one stream."""

LOCK = """
    SELECT streams.*, clock_timestamp() AS now FROM streams
    JOIN (SELECT DISTINCT space_id, name FROM unnest($1::uuid[], $2::text[]) AS wanted (space_id, name)) AS wanted
      USING (space_id, name)
    ORDER BY streams.id FOR NO KEY UPDATE OF streams
"""
PRODUCERS = """
    SELECT stream_id, producer_id, epoch, seq FROM stream_producers
    JOIN unnest($1::uuid[], $2::text[]) AS wanted (stream_id, producer_id) USING (stream_id, producer_id)
"""
COUNT_PRODUCERS = "SELECT count(*) FROM stream_producers WHERE stream_id = $1"
INSERT_CHUNKS = """
    INSERT INTO stream_chunks (stream_id, position, length, data)
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::int[], $4::bytea[])
"""
UPDATE = """
    UPDATE streams SET tail = changed.tail, stored_bytes = changed.stored_bytes, closed = changed.closed,
        closing_producer = changed.closing_producer, closing_epoch = changed.closing_epoch,
        closing_seq = changed.closing_seq, writer_seq = changed.writer_seq, updated_at = clock_timestamp(),
        expires_at = coalesce(clock_timestamp() + changed.rolling * interval '1 second', streams.expires_at)
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bool[], $5::text[], $6::bigint[], $7::bigint[],
                $8::bytea[], $9::float8[])
        AS changed (id, tail, stored_bytes, closed, closing_producer, closing_epoch, closing_seq, writer_seq, rolling)
    WHERE streams.id = changed.id
"""
SAVE_PRODUCERS = """
    INSERT INTO stream_producers (stream_id, producer_id, epoch, seq)
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[])
    ON CONFLICT (stream_id, producer_id) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq
"""


class TooManyProducers(msgspec.Struct, frozen=True):
    """The stream has as many producers as one may have."""

    max_producers: int


StreamAppendResult: TypeAlias = AppendDecision | TooManyProducers
_Outcome: TypeAlias = StreamAppendResult | KhalaError
_ProducerKey: TypeAlias = tuple[UUID, str]


class _Pending:
    """One append that waits for its commit."""

    def __init__(self, space: StreamSpace, name: str, append: StreamAppend) -> None:
        self.space = space
        self.name = name
        self.append = append
        self.done: asyncio.Future[StreamAppendResult] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: "_Outcome") -> None:
        """Report the result, unless the client has left."""
        if self.done.done():
            return
        if isinstance(outcome, KhalaError):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class StreamWriter:
    """The appends of all clients of a process, and the loop that commits them."""

    def __init__(self, db: Database, *, max_stream_bytes: int) -> None:
        self._db = db
        self._max_stream_bytes = max_stream_bytes
        self._waiting: deque[_Pending] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()

    async def append(self, space: StreamSpace, name: str, append: StreamAppend) -> StreamAppendResult:
        """Store the append, and return what was decided once that is committed.

        Raises `NotFound`, `StreamGone`, `InvalidInput` for a body that is not valid JSON, `PayloadTooLarge` for one
        with too many messages, and `Unavailable` if too many appends wait or the database is unavailable: then it is
        unknown whether the append was stored.
        """
        size = len(append.body)
        if len(self._waiting) >= MAX_WAITING_APPENDS or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise Unavailable("Too many appends are waiting. Try again in a moment.", retry_after=1)
        pending = _Pending(space, name, append)
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

    def _next_batch(self) -> list[_Pending]:
        batch: list[_Pending] = []
        size = 0
        while self._waiting and len(batch) < MAX_APPENDS_PER_COMMIT:
            size += len(self._waiting[0].append.body)
            if batch and size > MAX_COMMIT_BYTES:
                break
            batch.append(self._waiting.popleft())
            self._waiting_bytes -= len(batch[-1].append.body)
        return batch

    async def _write(self, batch: Sequence[_Pending]) -> None:
        try:
            outcomes = await self._commit(batch)
        except Unavailable as error:
            log.warning("stream_appends_failed", appends=len(batch), error=str(error.__cause__))
            outcomes = [error] * len(batch)
        except BaseException:
            for pending in batch:
                pending.settle(Unavailable("The append could not be stored.", retry_after=1))
            raise
        for pending, outcome in zip(batch, outcomes, strict=True):
            pending.settle(outcome)

    @retried
    async def _commit(self, batch: Sequence[_Pending]) -> "list[_Outcome]":
        async with self._db.driver() as driver, driver.transaction():
            transaction = _Transaction(driver, self._max_stream_bytes)
            await transaction.lock(batch)
            outcomes = [await transaction.decide(pending) for pending in batch]
            await transaction.write()
        return outcomes


async def append_within(
    driver: Driver, space: StreamSpace, name: str, append: StreamAppend, *, max_stream_bytes: int
) -> "_Outcome":
    """Store one append in a transaction of the caller. Returns what was decided, or the error."""
    pending = _Pending(space, name, append)
    transaction = _Transaction(driver, max_stream_bytes)
    await transaction.lock([pending])
    outcome = await transaction.decide(pending)
    await transaction.write()
    return outcome


class _Transaction:
    """The streams of one batch of appends, from their locks to the changes."""

    def __init__(self, driver: Driver, max_stream_bytes: int) -> None:
        self._driver = driver
        self._max_stream_bytes = max_stream_bytes
        self._streams: dict[tuple[UUID, str], StoredStream] = {}
        self._states: dict[UUID, StreamState] = {}
        self._producers: dict[_ProducerKey, ProducerState] = {}
        self._changed: dict[UUID, StoredStream] = {}
        self._touched: dict[UUID, StoredStream] = {}
        self._chunks: list[tuple[UUID, StreamChunk]] = []
        self._saved: dict[_ProducerKey, ProducerState] = {}

    async def lock(self, batch: Sequence[_Pending]) -> None:
        """Lock the streams in the order of their ids, and read their producers."""
        rows = await self._driver.fetch(LOCK, [each.space.id for each in batch], [each.name for each in batch])
        for row in rows:
            stream = stored_stream(row)
            self._streams[row["space_id"], stream.name] = stream
            self._states[stream.id] = stream.state
        wanted = dict.fromkeys(key for each in batch if (key := self._producer_key(each)) is not None)
        if wanted:
            stream_ids, names = zip(*wanted, strict=True)
            for row in await self._driver.fetch(PRODUCERS, stream_ids, names):
                key = (row["stream_id"], row["producer_id"])
                self._producers[key] = ProducerState(row["epoch"], row["seq"])

    def _producer_key(self, pending: _Pending) -> _ProducerKey | None:
        stream = self._streams.get((pending.space.id, pending.name))
        claim = pending.append.claim
        return None if stream is None or claim is None else (stream.id, claim.producer_id)

    async def decide(self, pending: _Pending) -> "_Outcome":
        """Decide about the append, and keep what it changes."""
        append = pending.append
        try:
            stream = usable(self._streams.get((pending.space.id, pending.name)))
            key = self._producer_key(pending)
            known = None if key is None else self._producers.get(key)
            decided = appends.decide(self._states[stream.id], append, known, max_bytes=self._max_stream_bytes)
        except (NotFound, StreamGone, InvalidInput, PayloadTooLarge) as error:
            return error
        self._touched[stream.id] = stream
        if not isinstance(decided, Accepted):
            return decided
        if key is not None and known is None and await self._has_most_producers(stream.id):
            return TooManyProducers(MAX_PRODUCERS)
        self._states[stream.id] = decided.state
        self._changed[stream.id] = stream
        if decided.chunk is not None:
            self._chunks.append((stream.id, decided.chunk))
        if key is not None and decided.producer is not None:
            self._producers[key] = self._saved[key] = decided.producer
        return decided

    async def _has_most_producers(self, stream_id: UUID) -> bool:
        stored: int = await self._driver.fetchval(COUNT_PRODUCERS, stream_id)
        new = sum(key[0] == stream_id for key in self._saved)
        return stored + new >= MAX_PRODUCERS

    async def write(self) -> None:
        """Write all changes, and notify the readers of the streams."""
        if self._chunks:
            rows = [(stream_id, chunk.position, chunk.length, chunk.data) for stream_id, chunk in self._chunks]
            await self._driver.execute(INSERT_CHUNKS, *zip(*rows, strict=True))
        if self._saved:
            saved = [(*key, state.epoch, state.seq) for key, state in self._saved.items()]
            await self._driver.execute(SAVE_PRODUCERS, *zip(*saved, strict=True))
        written = self._changed | {key: each for key, each in self._touched.items() if each.ttl_seconds is not None}
        if written:
            rows_of_streams = [_row(stream, self._states[stream.id]) for stream in written.values()]
            await self._driver.execute(UPDATE, *zip(*rows_of_streams, strict=True))
        if self._changed:
            await notify_streams(self._driver, self._changed)


def _row(stream: StoredStream, state: StreamState) -> tuple[object, ...]:
    closing = state.closed_by
    return (
        stream.id,
        state.tail,
        state.stored_bytes,
        state.closed,
        closing and closing.producer_id,
        closing and closing.epoch,
        closing and closing.seq,
        state.writer_seq,
        None if stream.ttl_seconds is None else rolling_seconds(stream.ttl_seconds),
    )
