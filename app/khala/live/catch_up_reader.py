"""Catch-up reads for observers that join, lag or reconnect. Observers at the same revision share a read."""

import asyncio
from typing import TypeAlias, assert_never
from uuid import UUID

from khala.live.encoded_frame import EncodedFrame
from khala.live.feeds import Feed, FeedDelta, FeedSnapshot
from khala.live.observer import CatchUpRead
from khala.store.postgres.database import Database
from khala.store.threads.thread_feed import SnapshotNeeded, TopicGone, Unchanged

MAX_CONCURRENT_READS = 8
"""Reads at the same time. Further reads wait, so that requests can use the pool's other connections."""

ReadKey: TypeAlias = tuple[Feed, UUID, int]


class CatchUpReader:
    """Reads topics from a revision on. Equal reads at the same time share one query and one encoding."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._reading: dict[ReadKey, asyncio.Task[CatchUpRead | None]] = {}
        self._read_slots = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def read(self, feed: Feed, topic_id: UUID, after: int) -> CatchUpRead | None:
        """The changes after this revision, or a snapshot. No body: nothing has changed. None: the topic is gone."""
        key = (feed, topic_id, after)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(_retrieve_error)
        # Shielded: the first observer may leave while others wait for the same read.
        return await asyncio.shield(task)

    async def _read(self, key: ReadKey) -> CatchUpRead | None:
        feed, topic_id, after = key
        shared = True
        try:
            async with self._read_slots, self._db.snapshot() as driver:
                # A later observer may know of a newer revision than this read sees, so it has to start a new read.
                del self._reading[key]
                shared = False
                read = (await feed.read_changes(driver, {topic_id: after}))[topic_id]
                match read.change:
                    case FeedDelta() as delta:
                        return _encoded(delta, read.access_id)
                    case SnapshotNeeded(reset=reset):
                        snapshot = await feed.read_snapshot(driver, topic_id, reset=reset and after >= 0)
                        return None if snapshot is None else _encoded(snapshot, read.access_id)
                    case Unchanged():
                        return CatchUpRead(None, None, read.access_id)
                    case TopicGone():
                        return None
                    case _:
                        assert_never(read.change)
        finally:
            if shared:
                del self._reading[key]


def _encoded(change: FeedDelta | FeedSnapshot, access_id: UUID | None) -> CatchUpRead:
    return CatchUpRead(EncodedFrame.encode(change.frame), change.revision, access_id)


def _retrieve_error(done: "asyncio.Task[CatchUpRead | None]") -> None:
    """Retrieve the error, so that asyncio does not log it as unhandled if all observers have left."""
    if not done.cancelled():
        done.exception()
