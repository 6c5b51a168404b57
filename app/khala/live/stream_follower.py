"""Follows durable streams: wakes their readers after commits, and shares equal reads.

A notification only says that a stream has changed; a reader reads the rows. A lost one delays a reader by seconds.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias
from uuid import UUID

import msgspec

from khala.domain.streams.content import StreamChunk
from khala.store.postgres.database import Database
from khala.store.postgres.notifications import EVERYTHING
from khala.store.streams import chunks, stream_rows
from khala.store.streams.stream_rows import StoredStream, StreamSpace

MAX_CONCURRENT_READS = 8
"""Reads at the same time. Further reads wait, so that requests can use the pool's other connections."""


class StreamRead(msgspec.Struct, frozen=True):
    """One read of a stream: its row, and contents from a position on."""

    stream: StoredStream
    chunks: list[StreamChunk]
    end: int
    """The position after the contents."""

    @property
    def up_to_date(self) -> bool:
        """Whether the stream has no further contents now."""
        return self.end >= self.stream.state.tail

    @property
    def closed(self) -> bool:
        """Whether there will be no further contents."""
        return self.up_to_date and self.stream.state.closed


_ReadKey: TypeAlias = tuple[UUID, str, int | None]


class StreamFollower:
    """The waiting readers of a process, by stream, and the reads in progress."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._reading: dict[_ReadKey, asyncio.Task[StreamRead | None]] = {}
        self._read_slots = asyncio.Semaphore(MAX_CONCURRENT_READS)

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for a stream."""
        return bool(self._waiting)

    @contextmanager
    def watch(self, stream_id: UUID) -> Iterator[asyncio.Event]:
        """Return an event that is set whenever the stream may have changed. The reader clears it before it reads."""
        event = asyncio.Event()
        self._waiting.setdefault(stream_id, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[stream_id].discard(event)
            if not self._waiting[stream_id]:
                del self._waiting[stream_id]

    def handle_notification(self, payload: str) -> None:
        """Wake the readers of these streams."""
        if payload == EVERYTHING:
            self.refresh_all()
            return
        for stream_id in map(UUID, payload.split(",")):
            for event in self._waiting.get(stream_id, ()):
                event.set()

    def refresh_all(self) -> None:
        """Wake all readers, because any stream may have changed."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def read(self, space: StreamSpace, name: str, first: int | None) -> StreamRead | None:
        """Read the stream from position `first` on; None: from its end. Equal reads at the same time share a query.

        Returns None if there is no such stream. The read counts as a use of the stream: it moves the expiry.
        """
        key = (space.id, name, first)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read(space, key))
            task.add_done_callback(_retrieve_error)
        # Shielded: the first reader may leave while others wait for the same read.
        return await asyncio.shield(task)

    async def _read(self, space: StreamSpace, key: _ReadKey) -> StreamRead | None:
        _, name, first = key
        shared = True
        try:
            async with self._read_slots, self._db.driver() as driver:
                # A later reader may know of newer contents than this read sees, so it has to start a new read.
                del self._reading[key]
                shared = False
                stream = await stream_rows.find(driver, space, name)
                if stream is None or stream.deleted or stream.expired:
                    return None if stream is None else StreamRead(stream, [], stream.state.tail)
                await stream_rows.touch(driver, stream)
                start = stream.state.tail if first is None else first
                found = await chunks.read(driver, stream, start, stream.state.tail)
                if found is None:
                    return None
                return StreamRead(stream, found, found[-1].end if found else start)
        finally:
            if shared:
                del self._reading[key]


def _retrieve_error(done: "asyncio.Task[StreamRead | None]") -> None:
    """Retrieve the error, so that asyncio does not log it as unhandled if all readers have left."""
    if not done.cancelled():
        done.exception()
