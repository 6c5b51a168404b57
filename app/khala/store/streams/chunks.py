"""Reads the contents of a stream, and of the streams that it inherits from, in order."""

from collections.abc import Iterator, Sequence

from khala.domain.streams import content
from khala.domain.streams.content import StreamChunk
from khala.domain.streams.forks import StreamSegment
from khala.store.postgres.database import Driver
from khala.store.streams.stream_rows import StoredStream

MAX_READ_BYTES = 1 << 20
"""Bytes of one read. It has at least one chunk."""
MAX_READ_CHUNKS = 2_000

READ = """
    SELECT position, length, data FROM (
        SELECT position, length, data,
               sum(octet_length(data)) OVER (ORDER BY position) - octet_length(data) AS bytes_before
        FROM (
            SELECT position, length, data FROM stream_chunks
            WHERE stream_id = $1 AND position < $3 AND position >= coalesce((
                SELECT position FROM stream_chunks WHERE stream_id = $1 AND position <= $2
                ORDER BY position DESC LIMIT 1), $2)
            ORDER BY position LIMIT $4
        ) AS following
    ) AS measured WHERE bytes_before < $5 ORDER BY position
"""
CHUNK_AT = "SELECT position, length, data FROM stream_chunks WHERE stream_id = $1 AND position = $2"


async def read(driver: Driver, stream: StoredStream, first: int, end: int) -> list[StreamChunk] | None:
    """Return contents from position `first` on, up to `end` or the limit of one read.

    None: contents are missing, because the stream was deleted meanwhile.
    """
    chunks: list[StreamChunk] = []
    position, size = first, 0
    for segment, start in _segments(stream):
        stop = min(segment.end, end)
        while position < stop and position >= start and size < MAX_READ_BYTES:
            rows = await driver.fetch(READ, segment.stream_id, position, stop, MAX_READ_CHUNKS, MAX_READ_BYTES - size)
            found = [StreamChunk(row["position"], row["length"], row["data"]) for row in rows]
            parts = [content.cut(stream.state.content_type, chunk, position, stop) for chunk in found]
            if not _contiguous(parts, position):
                return None
            chunks += parts
            size += sum(len(chunk.data) for chunk in parts)
            position = parts[-1].end
    return chunks


def _segments(stream: StoredStream) -> Iterator[tuple[StreamSegment, int]]:
    """Yield the segments of the stream with the position at which each begins."""
    start = 0
    for segment in (*stream.segments, StreamSegment(stream.id, stream.state.tail)):
        yield segment, start
        start = segment.end


def _contiguous(chunks: Sequence[StreamChunk], position: int) -> bool:
    """Whether the chunks begin at the position and have no gap."""
    for chunk in chunks:
        if chunk.position != position or not chunk.length:
            return False
        position = chunk.end
    return bool(chunks)


async def length_at(driver: Driver, stream: StoredStream, position: int) -> int:
    """Return the length of the append that begins at this position; 0 if none does."""
    for segment, start in _segments(stream):
        if start <= position < segment.end:
            row = await driver.fetchrow(CHUNK_AT, segment.stream_id, position)
            return 0 if row is None else min(row["length"], segment.end - position)
    return 0
