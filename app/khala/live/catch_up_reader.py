"""The reader: brings observers up to date who join, lag or come back, many at once, with few reads."""

import asyncio
from typing import TypeAlias, assert_never
from uuid import UUID

from khala.live.encoded_frame import Body
from khala.live.feeds import Feed, News, Whole
from khala.live.observer import Read
from khala.store.postgres.database import Database
from khala.store.threads.thread_feed import Behind, Gone, Unchanged

MOST_READS = 8
"""Reads at the same time; the others wait, and leave the pool's other connections to requests."""

Key: TypeAlias = tuple[Feed, UUID, int]


class Reader:
    """Reads topics from a revision on. Who asks for the same at the same time shares one read and one encoding."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._reading: dict[Key, asyncio.Task[Read | None]] = {}
        self._turns = asyncio.Semaphore(MOST_READS)

    async def read(self, feed: Feed, topic_id: UUID, after: int) -> Read | None:
        """What has changed after that revision, or all; no body for nothing, None for what is gone."""
        key = (feed, topic_id, after)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(_retrieve)
        # Shielded: who asked first may leave while others wait for the same.
        return await asyncio.shield(task)

    async def _read(self, key: Key) -> Read | None:
        feed, topic_id, after = key
        shared = True
        try:
            async with self._turns, self._db.snapshot() as driver:
                # Who comes from now on may know of more than this read will see, and reads anew.
                del self._reading[key]
                shared = False
                found = (await feed.since(driver, {topic_id: after}))[topic_id]
                match found.change:
                    case News() as news:
                        return _encoded(news, found.access_id)
                    case Behind(reset=reset):
                        whole = await feed.whole(driver, topic_id, reset=reset and after >= 0)
                        return None if whole is None else _encoded(whole, found.access_id)
                    case Unchanged():
                        return Read(None, None, found.access_id)
                    case Gone():
                        return None
                    case _:
                        assert_never(found.change)
        finally:
            if shared:
                del self._reading[key]


def _encoded(news: News | Whole, access_id: UUID | None) -> Read:
    return Read(Body.of(news.frame), news.revision, access_id)


def _retrieve(done: "asyncio.Task[Read | None]") -> None:
    """Whoever asked may have left, and an error that nobody hears is no news."""
    if not done.cancelled():
        done.exception()
