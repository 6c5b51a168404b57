"""Creates streams and forks. A repeated request with the same configuration finds the stream that it has created."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from khala.domain import ids
from khala.domain.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    ReachedLimit,
    Unauthorized,
)
from khala.domain.streams import content, forks
from khala.domain.streams.content import DEFAULT_TYPE, StreamChunk
from khala.domain.streams.forks import MAX_FORK_DEPTH, StreamSegment
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import notify_streams
from khala.store.postgres.retries import retried
from khala.store.streams import byte_reservations, chunks, removal
from khala.store.streams.byte_reservations import MIN_PORTION_BYTES
from khala.store.streams.stream_rows import (
    LOCK,
    StoredStream,
    StreamLimits,
    StreamSpace,
    rolling_seconds,
    stored_stream,
)

LOCK_USER = "SELECT id FROM users WHERE id IN (SELECT $1::uuid) ORDER BY id FOR KEY SHARE"
"""The foreign key of a new stream takes this lock, too, but after the lock of a source."""
COUNT = "SELECT count(*) FROM streams WHERE space_id = $1"
INSERT = """
    INSERT INTO streams (id, space_id, user_id, name, content_type, ttl_seconds, expires_at, start_position, tail,
                         stored_bytes, reserved_bytes, closed, source_id, source_name, source_offset,
                         source_sub_offset, inherited_ids, inherited_ends)
    VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, clock_timestamp() + $8 * interval '1 second'), $9, $10, $11, $12,
            $13, $14, $15, $16, $17, $18, $19)
    ON CONFLICT (space_id, name) DO NOTHING RETURNING *, clock_timestamp() AS now
"""
INSERT_CHUNK = "INSERT INTO stream_chunks (stream_id, position, length, data) VALUES ($1, $2, $3, $4)"
MAX_TRIES = 3
"""Times that a request finds another one creating the same stream."""


class ForkSource(msgspec.Struct, frozen=True):
    """The source of a fork: `offset` None is its end, and `sub_offset` counts from there into the next append."""

    name: str
    offset: int | None = None
    sub_offset: int | None = None


class NewStream(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a stream to create. Without a content type, a fork has that of its source."""

    name: str
    content_type: str | None
    body: bytes = b""
    ttl_seconds: int | None = None
    expires_at: datetime | None = None
    closed: bool = False
    source: ForkSource | None = None


class CreatedStream(msgspec.Struct, frozen=True):
    """The stream, and whether this request has created it."""

    stream: StoredStream
    created: bool


async def create(db: Database, space: StreamSpace, new: NewStream, limits: StreamLimits) -> CreatedStream:
    """Create the stream, or find the one that an equal request has created.

    Raises `Conflict` if a stream of this name has another configuration, `NotFound` if there is no such source,
    `InvalidInput`, `RateLimited` if the space has as many streams as it may have, and `PayloadTooLarge` and
    `StorageExhausted` if the contents are over a limit.
    """
    for _ in range(MAX_TRIES):
        done = await _try(db, space, new, limits)
        if done is not None:
            return done
    raise Conflict("Another request is creating this stream.")


@retried
async def _try(db: Database, space: StreamSpace, new: NewStream, limits: StreamLimits) -> CreatedStream | None:
    """Try to create the stream. None: another request has created it meanwhile."""
    async with db.driver() as driver, driver.transaction():
        held = await driver.fetchval(LOCK_USER, space.id)
        if space.user_id is not None and held is None:
            raise Unauthorized("This account was deleted.")
        names = [new.name] if new.source is None else [new.name, new.source.name]
        free = await byte_reservations.lock_free_bytes(driver, space, len(new.body), limits, names)
        rows = [stored_stream(row) for row in await driver.fetch(LOCK, space.id, names)]
        found = {row.name: row for row in rows}
        known = found.get(new.name)
        if known is not None and not await _replaces(driver, known):
            return CreatedStream(_same(known, new), created=False)
        if await driver.fetchval(COUNT, space.id) >= limits.per_space:
            limit = ReachedLimit("streams", "deployment" if space.user_id is None else "account", limits.per_space)
            raise RateLimited(f"There may be at most {limits.per_space:,} streams. Delete some first.", limit=limit)
        return await _insert(driver, space, new, found, limits, free)


async def _replaces(driver: Driver, known: StoredStream) -> bool:
    """Whether a new stream may take the name of this one: it has expired. Then it is removed."""
    if known.deleted or not known.expired:
        return False
    return await removal.remove_locked(driver, known.id)


def _same(known: StoredStream, new: NewStream) -> StoredStream:
    """Return the known stream if it has the configuration of the new one. Raises `Conflict`."""
    if known.deleted or known.expired:
        raise Conflict("A deleted stream has this name, and forks of it still exist.")
    wanted = new.source or ForkSource("")
    known_type = content.media_type(known.state.content_type)
    inherits_type = new.source is not None and new.content_type is None
    inherits_expiry = new.source is not None and new.ttl_seconds is None and new.expires_at is None
    ttl = known.ttl_seconds if inherits_expiry else new.ttl_seconds
    expires_at = known.expires_at if inherits_expiry or ttl is not None else new.expires_at
    configuration = (
        inherits_type or content.media_type(new.content_type or DEFAULT_TYPE) == known_type,
        (ttl, expires_at) == (known.ttl_seconds, known.expires_at),
        new.closed == known.state.closed,
        (new.source and wanted.name, wanted.offset, wanted.sub_offset or 0)
        == (known.source_name, known.source_offset, known.source_sub_offset or 0),
    )
    if not all(configuration):
        raise Conflict("A stream of this name exists with another configuration.")
    return known


class _Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a new stream takes from its source."""

    content_type: str
    position: int = 0
    segments: Sequence[StreamSegment] = ()
    source: StoredStream | None = None


async def _insert(
    driver: Driver, space: StreamSpace, new: NewStream, found: dict[str, StoredStream], limits: StreamLimits,
    free: int,
) -> CreatedStream | None:  # fmt: skip
    """Insert the stream. `free`: the bytes that may still be reserved in the space, whose lock the caller holds."""
    if new.source is None:
        origin = _Origin(content_type=new.content_type or DEFAULT_TYPE)
    else:
        origin = await _origin(driver, new.source, found.get(new.source.name), new.content_type)
    first = content.encode_chunk(origin.content_type, new.body, origin.position) if new.body else None
    size = 0 if first is None else len(first.data)
    if size > limits.max_bytes:
        raise PayloadTooLarge(f"A stream has at most {limits.max_bytes:,} bytes.")
    if size > free:
        raise byte_reservations.exhausted_error(space, limits)
    ttl, expires_at = _lifetime(new, origin.source)
    row = await driver.fetchrow(
        INSERT, ids.new(), space.id, space.user_id, new.name, origin.content_type, ttl, expires_at,
        None if ttl is None else rolling_seconds(ttl), origin.position,
        origin.position if first is None else first.end, size,
        min(size + MIN_PORTION_BYTES, free), new.closed,
        origin.source and origin.source.id, new.source and new.source.name, new.source and new.source.offset,
        new.source and new.source.sub_offset, [segment.stream_id for segment in origin.segments],
        [segment.end for segment in origin.segments],
    )  # fmt: skip
    if row is None:
        return None
    stream = stored_stream(row)
    await _insert_chunk(driver, stream, first)
    return CreatedStream(stream, created=True)


async def _insert_chunk(driver: Driver, stream: StoredStream, first: StreamChunk | None) -> None:
    if first is not None and first.length:
        await driver.execute(INSERT_CHUNK, stream.id, first.position, first.length, first.data)
    await notify_streams(driver, [stream.id])


def _lifetime(new: NewStream, source: StoredStream | None) -> tuple[int | None, datetime | None]:
    """Return the TTL and the time of expiry. A fork without either has those of its source."""
    if new.ttl_seconds is not None or new.expires_at is not None or source is None:
        return new.ttl_seconds, new.expires_at
    return source.ttl_seconds, source.expires_at if source.ttl_seconds is None else None


async def _origin(driver: Driver, wanted: ForkSource, source: StoredStream | None, content_type: str | None) -> _Origin:
    if source is None or (source.expired and not source.deleted):
        raise NotFound("There is no such stream to fork.")
    if source.deleted:
        raise Conflict("The stream to fork was deleted.")
    known = source.state.content_type
    if content_type is not None and content.media_type(content_type) != content.media_type(known):
        raise Conflict(f"The stream to fork has the content type {known}.")
    if len(source.segments) + 1 > MAX_FORK_DEPTH:
        raise InvalidInput(f"Forks of forks may be at most {MAX_FORK_DEPTH} deep.", path="Stream-Forked-From")
    position = source.state.tail if wanted.offset is None else wanted.offset
    if position > source.state.tail:
        raise InvalidInput("The offset is beyond the end of the stream to fork.", path="Stream-Fork-Offset")
    if wanted.sub_offset:
        if wanted.sub_offset > await chunks.length_at(driver, source, position):
            raise InvalidInput("The sub-offset is beyond the end of the append.", path="Stream-Fork-Sub-Offset")
        position += wanted.sub_offset
    segments = forks.inherited(source.segments, source.id, position)
    return _Origin(content_type=known, position=position, segments=segments, source=source)
