"""The streams of an account, for its export."""

from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

from khala.domain.chat import WireStruct
from khala.store.postgres.database import Database

PAGE_CHUNKS = 4
"""Chunks in memory at once."""
STREAMS = """
    SELECT id, name, content_type, tail, closed, ttl_seconds, expires_at, source_name, created_at FROM streams
    WHERE user_id = $1 AND name IS NOT NULL AND id > $2 ORDER BY id LIMIT 1
"""
CHUNKS = """
    SELECT stream_id, position, length, data FROM stream_chunks WHERE stream_id = $1 AND position > $2
    ORDER BY position LIMIT $3
"""


class ExportedStream(WireStruct, frozen=True, kw_only=True):
    """A stream of an account."""

    id: UUID
    name: str
    content_type: str
    tail: int
    closed: bool
    ttl_seconds: int | None
    expires_at: datetime | None
    source_name: str | None
    created_at: datetime


class ExportedChunk(WireStruct, frozen=True, kw_only=True):
    """Contents of a stream; the bytes are written in base64. JSON messages are joined by commas."""

    stream_id: UUID
    position: int
    length: int
    data: bytes


async def entries(db: Database, user_id: UUID) -> AsyncIterator[ExportedStream | ExportedChunk]:
    """Yield each stream of the account, and after it its contents without those that it has inherited."""
    last = UUID(int=0)
    while True:
        async with db.driver() as driver:
            row = await driver.fetchrow(STREAMS, user_id, last)
        if row is None:
            return
        last = row["id"]
        yield ExportedStream(**row)
        async for chunk in _chunks(db, last):
            yield chunk


async def _chunks(db: Database, stream_id: UUID) -> AsyncIterator[ExportedChunk]:
    position, more = -1, True
    while more:
        async with db.driver() as driver:
            page = await driver.fetch(CHUNKS, stream_id, position, PAGE_CHUNKS)
        for row in page:
            yield ExportedChunk(**row)
        more, position = len(page) == PAGE_CHUNKS, page[-1]["position"] if page else position
