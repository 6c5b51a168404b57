"""The reader: brings observers up to date who join, lag or come back, many at once, with few reads."""

import asyncio
from typing import TypeAlias, assert_never
from uuid import UUID

from khala.live.encoded_frame import EncodedFrame
from khala.live.feeds import Feed, FeedDelta, FeedSnapshot
from khala.live.observer import CatchUpRead
from khala.store.postgres.database import Database
from khala.store.threads.thread_feed import SnapshotNeeded, TopicGone, Unchanged

MAX_CONCURRENT_READS = 8
"""Reads at the same time; the others wait, and leave the pool's other connections to requests."""

ReadKey: TypeAlias = tuple[Feed, UUID, int]


class CatchUpReader:
    """Reads topics from a revision on. Who asks for the same at the same time shares one read and one encoding."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._reading: dict[ReadKey, asyncio.Task[CatchUpRead | None]] = {}
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def read(self, feed: Feed, topic_id: UUID, after: int) -> CatchUpRead | None:
        """What has changed after that revision, or all; no body for nothing, None for what is gone."""
        key = (feed, topic_id, after)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(_retrieve)
        # Shielded: who asked first may leave while others wait for the same.
        return await asyncio.shield(task)

    async def _read(self, key: ReadKey) -> CatchUpRead | None:
        feed, topic_id, after = key
        shared = True
        try:
            async with self._turns, self._db.snapshot() as driver:
                # Who comes from now on may know of more than this read will see, and reads anew.
                del self._reading[key]
                shared = False
                found = (await feed.read_changes(driver, {topic_id: after}))[topic_id]
                match found.change:
                    case FeedDelta() as news:
                        return _encoded(news, found.access_id)
                    case SnapshotNeeded(reset=reset):
                        whole = await feed.read_snapshot(driver, topic_id, reset=reset and after >= 0)
                        return None if whole is None else _encoded(whole, found.access_id)
                    case Unchanged():
                        return CatchUpRead(None, None, found.access_id)
                    case TopicGone():
                        return None
                    case _:
                        assert_never(found.change)
        finally:
            if shared:
                del self._reading[key]


def _encoded(news: FeedDelta | FeedSnapshot, access_id: UUID | None) -> CatchUpRead:
    return CatchUpRead(EncodedFrame.encode(news.frame), news.revision, access_id)


def _retrieve(done: "asyncio.Task[CatchUpRead | None]") -> None:
    """Whoever asked may have left, and an error that nobody hears is no news."""
    if not done.cancelled():
        done.exception()
