"""Rows of streams: how a stream is found by its space and name, and what its row says."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.errors import KhalaError, NotFound
from khala.domain.streams.appends import StreamState
from khala.domain.streams.forks import StreamSegment
from khala.domain.streams.producers import ProducerClaim
from khala.store.postgres.database import Driver

SHARED_SPACE_ID = UUID(int=0)
"""The space of streams of people without an account."""
READ = "SELECT *, clock_timestamp() AS now FROM streams WHERE space_id = $1 AND name = $2"
LOCK = """
    SELECT streams.*, clock_timestamp() AS now FROM streams
    WHERE space_id = $1 AND name = ANY ($2::text[]) ORDER BY id FOR UPDATE
"""
LOCK_IDS = """
    SELECT streams.*, clock_timestamp() AS now FROM streams WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
"""
ROLLING = "UPDATE streams SET expires_at = clock_timestamp() + $2 * interval '1 second' WHERE id = $1"
TTL_TOLERANCE = 0.02
"""The share of its TTL by which a stream expires later than it may, so that not every read has to write."""


class StreamGone(KhalaError):
    """The stream was deleted while forks inherit from it."""

    code = "stream_gone"


class StreamSpace(msgspec.Struct, frozen=True):
    """The streams of one account, or of all people without one. Names are unique in a space."""

    user_id: UUID | None

    @property
    def id(self) -> UUID:
        """The id of the space in the rows of its streams."""
        return SHARED_SPACE_ID if self.user_id is None else self.user_id


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of streams: their number in a space, the bytes of one, and those of all streams of a space together."""

    per_space: int
    max_bytes: int
    max_space_bytes: int


class StoredStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream, as at the time of a read."""

    id: UUID
    name: str
    state: StreamState
    reserved_bytes: int
    """The bytes that its own chunks may have before it needs a further reservation."""
    start: int
    """The position of the first content that is not inherited."""
    ttl_seconds: int | None
    expires_at: datetime | None
    segments: tuple[StreamSegment, ...]
    """The inherited contents, in order."""
    source_id: UUID | None
    source_name: str | None
    source_offset: int | None
    source_sub_offset: int | None
    deleted: bool
    read_at: datetime

    @property
    def expired(self) -> bool:
        """Whether the stream has expired, and the purge is about to delete it."""
        return self.expires_at is not None and self.expires_at <= self.read_at

    @property
    def touch_due(self) -> bool:
        """Whether a read has to move the expiry."""
        if self.ttl_seconds is None or self.expires_at is None:
            return False
        return (self.expires_at - self.read_at).total_seconds() < self.ttl_seconds


def stored_stream(row: Mapping[Any, Any]) -> StoredStream:
    """Return a row of `streams`."""
    closing = row["closing_producer"]
    return StoredStream(
        id=row["id"],
        name=row["name"] or "",
        state=StreamState(
            content_type=row["content_type"],
            tail=row["tail"],
            stored_bytes=row["stored_bytes"],
            closed=row["closed"],
            closed_by=None if closing is None else ProducerClaim(closing, row["closing_epoch"], row["closing_seq"]),
            writer_seq=row["writer_seq"],
        ),
        reserved_bytes=row["reserved_bytes"],
        start=row["start_position"],
        ttl_seconds=row["ttl_seconds"],
        expires_at=row["expires_at"],
        segments=tuple(map(StreamSegment, row["inherited_ids"], row["inherited_ends"])),
        source_id=row["source_id"],
        source_name=row["source_name"],
        source_offset=row["source_offset"],
        source_sub_offset=row["source_sub_offset"],
        deleted=row["deleted_at"] is not None,
        read_at=row["now"],
    )


def usable(stream: StoredStream | None) -> StoredStream:
    """Return the stream. Raises `NotFound` if there is none or it has expired, and `StreamGone` if it was deleted."""
    if stream is None or (stream.expired and not stream.deleted):
        raise NotFound("There is no such stream.")
    if stream.deleted:
        raise StreamGone("This stream was deleted. Forks of it still exist.")
    return stream


async def find(driver: Driver, space: StreamSpace, name: str) -> StoredStream | None:
    """Return the stream of this name in the space, even if it has expired or is deleted."""
    row = await driver.fetchrow(READ, space.id, name)
    return None if row is None else stored_stream(row)


async def touch(driver: Driver, stream: StoredStream) -> None:
    """Move the expiry of a stream with a TTL that was read, a little further than promised."""
    if stream.touch_due and stream.ttl_seconds is not None:
        await driver.execute(ROLLING, stream.id, rolling_seconds(stream.ttl_seconds))


def rolling_seconds(ttl_seconds: int) -> float:
    """Return the seconds from a read or append to the expiry."""
    return ttl_seconds * (1 + TTL_TOLERANCE)
