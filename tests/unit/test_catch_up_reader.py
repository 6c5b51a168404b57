"""Catch-up reads: equal concurrent reads are shared, and no observer gets a result older than its request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID, uuid4

from khala.domain.frames import Pong
from khala.live.catch_up_reader import CatchUpReader
from khala.live.feeds import FeedDelta, TopicRead

ACCESS = uuid4()
TOPIC = uuid4()


class HeldFeed:
    """A database and a feed. A read returns the state at its start, and ends when the test allows it."""

    def __init__(self) -> None:
        self.revision = 1
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.reads = 0

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator["HeldFeed"]:
        yield self

    async def read_changes(self, driver: "HeldFeed", cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        self.reads += 1
        seen = self.revision
        self.begun.set()
        await self.may_end.wait()
        return {topic: TopicRead(FeedDelta(after, seen, Pong()), ACCESS) for topic, after in cursors.items()}


def held_reader(held: HeldFeed) -> tuple[CatchUpReader, Any]:
    feed: Any = held
    return CatchUpReader(feed), feed


async def test_concurrent_readers_share_a_read() -> None:
    held = HeldFeed()
    reader, feed = held_reader(held)
    held.may_end.set()
    found = await asyncio.gather(*(reader.read(feed, TOPIC, 0) for _ in range(5)))
    assert held.reads == 1
    assert {result.revision for result in found if result is not None} == {1}


async def test_a_request_after_a_read_began_gets_a_later_read() -> None:
    held = HeldFeed()
    reader, feed = held_reader(held)
    early = asyncio.create_task(reader.read(feed, TOPIC, 0))
    await held.begun.wait()
    held.revision = 2
    late = asyncio.create_task(reader.read(feed, TOPIC, 0))
    await asyncio.sleep(0)
    held.may_end.set()
    found = await asyncio.gather(early, late)
    assert [result and result.revision for result in found] == [1, 2]


async def test_a_cancelled_reader_does_not_cancel_the_others() -> None:
    held = HeldFeed()
    reader, feed = held_reader(held)
    first, second = [asyncio.create_task(reader.read(feed, TOPIC, 0)) for _ in range(2)]
    await held.begun.wait()
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    held.may_end.set()
    async with asyncio.timeout(2):
        found = await second
    assert found is not None
    assert found.revision == 1
