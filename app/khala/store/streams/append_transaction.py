"""One transaction that stores appends to streams: their decisions, and the statement that stores what they change."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.errors import InvalidInput, KhalaError, NotFound, PayloadTooLarge, Unavailable
from khala.domain.streams import appends
from khala.domain.streams.appends import Accepted, AppendDecision, StreamAppend, StreamState
from khala.domain.streams.content import StreamChunk
from khala.domain.streams.producers import ProducerState
from khala.store.postgres.array_arguments import unnested
from khala.store.postgres.database import CONFLICT_MESSAGE, Driver, TransactionConflict
from khala.store.postgres.notifications import EVERYTHING, MAX_IDS_PER_PAYLOAD, STREAMS_CHANNEL
from khala.store.streams import byte_reservations
from khala.store.streams.stream_rows import (
    StoredStream,
    StreamGone,
    StreamLimits,
    StreamSpace,
    rolling_seconds,
    stored_stream,
    usable,
)

MAX_PRODUCERS = 1_000
"""Producers of one stream."""
MAX_KNOWN_PRODUCERS = 16
"""Producers of one stream that are remembered."""

LOCK = f"""
    SELECT streams.*, streams.xmin::text AS version, clock_timestamp() AS now FROM streams
    JOIN (SELECT DISTINCT space_id, name FROM {unnested(1, "uuid", "text")} AS wanted (space_id, name)) AS wanted
      USING (space_id, name)
    ORDER BY streams.id FOR NO KEY UPDATE OF streams
"""
PRODUCERS = f"""
    SELECT stream_id, producer_id, epoch, seq FROM stream_producers
    JOIN {unnested(1, "uuid", "text")} AS wanted (stream_id, producer_id) USING (stream_id, producer_id)
"""
COUNT_PRODUCERS = "SELECT count(*) FROM stream_producers WHERE stream_id = $1"
WRITE = f"""
    WITH changed AS (
        SELECT * FROM {
    unnested(
        1, "uuid", "bigint", "bigint", "bool", "text", "bigint", "bigint", "bytea", "float8", "text", "bigint", "bool"
    )
}
            AS changed (id, tail, stored_bytes, closed, closing_producer, closing_epoch, closing_seq, writer_seq,
                        rolling, version, old_tail, is_news)
    ), locked AS (
        SELECT streams.id FROM streams JOIN changed ON changed.id = streams.id
        ORDER BY streams.id FOR NO KEY UPDATE OF streams
    ), updated AS (
        UPDATE streams SET tail = changed.tail, stored_bytes = changed.stored_bytes, closed = changed.closed,
            closing_producer = changed.closing_producer, closing_epoch = changed.closing_epoch,
            closing_seq = changed.closing_seq, writer_seq = changed.writer_seq, updated_at = clock_timestamp(),
            expires_at = coalesce(clock_timestamp() + changed.rolling * interval '1 second', streams.expires_at)
        FROM changed JOIN locked ON locked.id = changed.id
        WHERE streams.id = changed.id AND streams.xmin::text = changed.version AND streams.tail = changed.old_tail
            AND ($21 OR streams.expires_at IS NULL OR streams.expires_at > clock_timestamp())
        RETURNING streams.id, streams.xmin::text AS version, changed.is_news
    ), chunks AS (
        INSERT INTO stream_chunks (stream_id, position, length, data)
        SELECT added.stream_id, added.position, added.length, added.data
        FROM {unnested(13, "uuid", "bigint", "int", "bytea")} AS added (stream_id, position, length, data)
        JOIN updated ON updated.id = added.stream_id
    ), producers AS (
        INSERT INTO stream_producers (stream_id, producer_id, epoch, seq)
        SELECT saved.stream_id, saved.producer_id, saved.epoch, saved.seq
        FROM {unnested(17, "uuid", "text", "bigint", "bigint")} AS saved (stream_id, producer_id, epoch, seq)
        JOIN updated ON updated.id = saved.stream_id
        ON CONFLICT (stream_id, producer_id) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq
    ), notified AS (
        SELECT pg_notify('{STREAMS_CHANNEL}', CASE WHEN count(*) > {MAX_IDS_PER_PAYLOAD} THEN '{EVERYTHING}'
                                                   ELSE string_agg(id::text, ',') END)
        FROM updated WHERE is_news HAVING count(*) > 0
    )
    SELECT updated.id, updated.version, (SELECT count(*) FROM notified) FROM updated
"""
"""Stores changes of streams whose row still has this version (`xmin`), and notifies their readers.

Returns the streams that were changed, with their new versions. It stores nothing in others, nor in one that has
expired, unless $21.
"""


class TooManyProducers(msgspec.Struct, frozen=True):
    """The stream has as many producers as one may have."""

    max_producers: int


StreamAppendResult: TypeAlias = AppendDecision | TooManyProducers
AppendOutcome: TypeAlias = StreamAppendResult | KhalaError
StreamKey: TypeAlias = tuple[UUID, str]
"""The id of a space, and the name of a stream in it."""


class PendingAppend:
    """One append that waits for its commit."""

    def __init__(self, space: StreamSpace, name: str, append: StreamAppend) -> None:
        self.space = space
        self.key: StreamKey = (space.id, name)
        self.append = append
        self.done: asyncio.Future[StreamAppendResult] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: "StreamAppendResult | Exception") -> None:
        """Report the result, unless the client has left."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class KnownStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as of one version of its row. `producers` are those of its producers that are known."""

    stream: StoredStream
    state: StreamState
    version: str
    producers: Mapping[str, ProducerState]


async def append_within(
    driver: Driver, space: StreamSpace, name: str, append: StreamAppend, limits: StreamLimits
) -> "AppendOutcome":
    """Store one append in a transaction of the caller, who holds no lock of a stream.

    Returns what was decided, or the error.
    """
    pending = PendingAppend(space, name, append)
    refused = await byte_reservations.extend_if_short(driver, space, name, len(append.body), limits)
    transaction = AppendTransaction(limits)
    await transaction.lock(driver, [pending])
    await transaction.decide(driver, pending)
    await transaction.write(driver, is_locked=True)
    if not transaction.short:
        return transaction.outcomes[0][1]
    if refused is None:  # Another stream has taken the reservation back.
        return Unavailable("Too many appends compete for the last bytes of the account.", retry_after=1)
    return byte_reservations.exhausted_error(space, limits)


class AppendTransaction:
    """The streams of one batch of appends, the decisions about them, and what these change.

    `free` has streams of which a reservation was refused, with the bytes that the limit left: appends that need more
    are refused.
    """

    def __init__(self, limits: StreamLimits, free: Mapping[StreamKey, int] | None = None) -> None:
        self._limits = limits
        self._free = free or {}
        self.outcomes: list[tuple[PendingAppend, AppendOutcome]] = []
        self.short: dict[StreamKey, int] = {}
        """Streams whose reservation is used up, with the bytes that the first of their appends that wait needs."""
        self.waiting: list[PendingAppend] = []
        """The appends to these streams that were not decided, in order."""
        self._streams: dict[StreamKey, StoredStream] = {}
        self._states: dict[StreamKey, StreamState] = {}
        self._versions: dict[StreamKey, tuple[str, int]] = {}
        """The version of each stream's row, and its tail."""
        self._producers: dict[StreamKey, dict[str, ProducerState]] = {}
        self._changed: set[StreamKey] = set()
        self._touched: set[StreamKey] = set()
        self._chunks: list[tuple[UUID, StreamChunk]] = []
        self._saved: dict[tuple[StreamKey, str], ProducerState] = {}

    async def lock(self, driver: Driver, batch: Sequence[PendingAppend]) -> None:
        """Lock the streams in the order of their ids, and read their producers."""
        spaces, names = zip(*(each.key for each in batch), strict=True)
        for row in await driver.fetch(LOCK, spaces, names):
            stream = stored_stream(row)
            self._add((row["space_id"], stream.name), stream, stream.state, row["version"])
        keys = {stream.id: key for key, stream in self._streams.items()}
        wanted = {
            (self._streams[each.key].id, each.append.claim.producer_id)
            for each in batch
            if each.append.claim is not None and each.key in self._streams
        }
        if wanted:
            stream_ids, producer_ids = zip(*wanted, strict=True)
            for row in await driver.fetch(PRODUCERS, stream_ids, producer_ids):
                state = ProducerState(row["epoch"], row["seq"])
                self._producers[keys[row["stream_id"]]][row["producer_id"]] = state

    def _add(self, key: StreamKey, stream: StoredStream, state: StreamState, version: str) -> None:
        self._streams[key], self._states[key] = stream, state
        self._versions[key] = version, state.tail
        self._producers[key] = {}

    def decide_known(self, known: KnownStream, key: StreamKey, appended: Sequence[PendingAppend]) -> bool:
        """Decide about all appends to a stream by what is known of it, and return whether all of them are accepted.

        If not, it is as if they had not been decided.
        """
        state, producers = known.state, dict(known.producers)
        accepted: list[Accepted] = []
        for pending in appended:
            claim = pending.append.claim
            if claim is not None and claim.producer_id not in producers:
                return False
            producer = None if claim is None else producers[claim.producer_id]
            try:
                decided = appends.decide(state, pending.append, producer, max_bytes=self._limits.max_bytes)
            except (InvalidInput, PayloadTooLarge):
                return False
            if not isinstance(decided, Accepted) or _needed_bytes(known.stream, decided):
                return False
            state = decided.state
            if claim is not None and decided.producer is not None:
                producers[claim.producer_id] = decided.producer
            accepted.append(decided)
        self._add(key, known.stream, known.state, known.version)
        self._producers[key] = dict(known.producers)
        for pending, one in zip(appended, accepted, strict=True):
            self._accept(pending, one)
            self.outcomes.append((pending, one))
        return True

    async def decide(self, driver: Driver, pending: PendingAppend) -> None:
        """Decide about an append to a stream that is locked, and keep what it changes.

        An append that needs more than the stream's reservation is not decided, nor are those after it.
        """
        outcome = None if pending.key in self.short else await self._decide(driver, pending)
        if outcome is None:
            self.waiting.append(pending)
        else:
            self.outcomes.append((pending, outcome))

    async def _decide(self, driver: Driver, pending: PendingAppend) -> "AppendOutcome | None":
        claim = pending.append.claim
        try:
            stream = usable(self._streams.get(pending.key))
            known = None if claim is None else self._producers[pending.key].get(claim.producer_id)
            decided = appends.decide(self._states[pending.key], pending.append, known, max_bytes=self._limits.max_bytes)
        except (NotFound, StreamGone, InvalidInput, PayloadTooLarge) as error:
            return error
        self._touched.add(pending.key)
        if not isinstance(decided, Accepted):
            return decided
        if claim is not None and known is None and await self._has_most_producers(driver, pending.key, stream.id):
            return TooManyProducers(MAX_PRODUCERS)
        if needed := _needed_bytes(stream, decided):
            if needed > self._free.get(pending.key, needed):
                return byte_reservations.exhausted_error(pending.space, self._limits)
            self.short[pending.key] = needed
            return None
        self._accept(pending, decided)
        return decided

    def _accept(self, pending: PendingAppend, decided: Accepted) -> None:
        key, claim = pending.key, pending.append.claim
        self._states[key] = decided.state
        self._changed.add(key)
        if decided.chunk is not None:
            self._chunks.append((self._streams[key].id, decided.chunk))
        if claim is not None and decided.producer is not None:
            self._producers[key][claim.producer_id] = self._saved[key, claim.producer_id] = decided.producer

    async def _has_most_producers(self, driver: Driver, key: StreamKey, stream_id: UUID) -> bool:
        stored: int = await driver.fetchval(COUNT_PRODUCERS, stream_id)
        new = sum(saved == key for saved, _ in self._saved)
        return stored + new >= MAX_PRODUCERS

    async def write(self, driver: Driver, *, is_locked: bool) -> dict[StreamKey, KnownStream]:
        """Write all changes, and notify the readers of the streams. Returns the streams that were written.

        `is_locked`: the transaction holds the locks. Otherwise streams that have changed meanwhile are left out.
        """
        written = sorted(
            self._changed | {key for key in self._touched if self._streams[key].ttl_seconds is not None},
            key=lambda key: self._streams[key].id,
        )
        if not written:
            return {}
        rows = [
            (*_row(self._streams[key], self._states[key]), *self._versions[key], key in self._changed)
            for key in written
        ]
        chunks = [(stream_id, chunk.position, chunk.length, chunk.data) for stream_id, chunk in self._chunks]
        saved = [
            (self._streams[key].id, producer_id, state.epoch, state.seq)
            for (key, producer_id), state in self._saved.items()
        ]
        arguments = (*_columns(rows, 12), *_columns(chunks, 4), *_columns(saved, 4), is_locked)
        versions = {row["id"]: row["version"] for row in await driver.fetch(WRITE, *arguments)}
        if is_locked and len(versions) < len(written):
            # The rows are locked, so this cannot be. But what is not stored must not be acknowledged.
            raise TransactionConflict(CONFLICT_MESSAGE, retry_after=1)
        return {
            key: self._known(key, versions[stream.id])
            for key in written
            if (stream := self._streams[key]).id in versions
        }

    def _known(self, key: StreamKey, version: str) -> KnownStream:
        producers = dict(list(self._producers[key].items())[-MAX_KNOWN_PRODUCERS:])
        return KnownStream(stream=self._streams[key], state=self._states[key], version=version, producers=producers)


def _needed_bytes(stream: StoredStream, decided: Accepted) -> int:
    """Return the bytes of the append if the stream's reservation does not suffice for it, else 0."""
    size = 0 if decided.chunk is None else len(decided.chunk.data)
    return size if decided.state.stored_bytes > stream.reserved_bytes else 0


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


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
