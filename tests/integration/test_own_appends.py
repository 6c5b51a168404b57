"""Committed parts are delivered by the process that wrote them without a read, exactly as other processes read them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest

from khala.domain.flush_policy import FlushPolicy
from khala.domain.fold import text_of
from khala.domain.parts import Finish, TokenUsage, ToolCall
from khala.live import fallback_poll
from khala.live.feeds import ThreadFeed, TopicRead
from khala.store.postgres.database import Database, Driver
from khala.store.runs import parts
from khala.store.runs.group_commit import Writer
from khala.store.runs.leases import Lease
from khala.store.threads import thread_feed, threads
from tests.support.live import FrameRecorder, follow, process
from tests.support.store import CALLER, lease_of, new_thread, writing

POLICY = FlushPolicy(milliseconds=20)


@pytest.fixture(autouse=True, params=["one-call", "transaction"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store few parts by one call of the database's function, and by a transaction as many parts are."""
    if request.param == "transaction":
        monkeypatch.setattr(parts, "MAX_CALLED_PARTS", 0)


class Observed(msgspec.Struct, frozen=True):
    """A writer, an observer in its process, whose reads are counted, and an observer in another process."""

    writer: Writer
    near: FrameRecorder
    feed: "CountingFeed"
    far: FrameRecorder


@contextlib.asynccontextmanager
async def observed(db: Database, lease: Lease) -> AsyncIterator[Observed]:
    """Follow the run in two processes, of which one writes to it."""
    feed = CountingFeed()
    async with (
        process(db, 1) as (live, (near,)),
        process(db, 1) as (other, (far,)),
        writing(db, POLICY, local=live.own_appends) as writer,
    ):
        live.threads._feed = feed
        for service, recorder in ((live, near), (other, far)):
            await follow(service.threads, db, recorder.client, lease.thread_id)
            await recorder.until(2)
        yield Observed(writer, near, feed, far)


class CountingFeed(ThreadFeed):
    """Counts the hub's reads."""

    def __init__(self) -> None:
        self.reads = 0

    async def read_changes_in_one_query(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """See `Feed`."""
        self.reads += 1
        return await super().read_changes_in_one_query(driver, cursors)


def text_in(frames: list[dict[str, Any]]) -> str:
    return "".join(
        part["data"]["text"] for frame in frames for part in frame.get("parts", ()) if part["kind"] == "text-delta"
    )


async def test_text_is_delivered_without_a_read_as_another_process_reads_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback_poll, "POLL_INTERVAL_SECONDS", 600)
    lease = await lease_of(db, await new_thread(db))
    async with observed(db, lease) as observers:
        near, far = observers.near, observers.far
        buffer = observers.writer.open(lease)
        for n in range(5):
            buffer.append_text(f'{n} „ü" ')
            if n == 3:
                args = {"b": 1.50, "a": [True, None], "ü": 10**15}
                buffer.append(ToolCall(tool_call_id="1", step=0, tool="add", args=args))
            await buffer.wait_written()
            await asyncio.gather(near.until(3 + n), far.until(3 + n))
        assert observers.feed.reads == 0
        await buffer.end("final", Finish(reason="stop", usage=TokenUsage()))
        await asyncio.gather(near.until(8), far.until(8))
    assert near.frames == far.frames
    assert text_in(near.frames) == "".join(f'{n} „ü" ' for n in range(5))


async def test_changes_between_appends_are_read(db: Database) -> None:
    choices = random.Random(5)
    lease = await lease_of(db, await new_thread(db))
    async with observed(db, lease) as observers:
        near, far = observers.near, observers.far
        buffer = observers.writer.open(lease)
        for n in range(40):
            buffer.append_text(f"{n} ")
            match choices.randrange(4):
                case 0:
                    await threads.update_thread(db, lease.thread_id, CALLER, title=f"title {n}")
                case 1:
                    await buffer.wait_written()
                case 2:
                    await asyncio.sleep(0.01)
        await buffer.end("final", Finish(reason="stop", usage=TokenUsage()))
        async with db.driver() as driver:
            revision = await thread_feed.read_revision(driver, lease.thread_id)
        await asyncio.gather(near.until(revision), far.until(revision))
        async with db.snapshot() as driver:
            snapshot = await thread_feed.read_snapshot(driver, lease.thread_id, limit=10)
    expected = "".join(f"{n} " for n in range(40))
    for recorder in (near, far):
        assert text_in(recorder.frames) == text_of(snapshot.messages[-1].content or ()) == expected
        assert_contiguous(recorder)
        titles = [frame["thread"]["title"] for frame in recorder.frames if "title" in frame.get("thread", {})]
        assert titles[-1] == snapshot.thread.title


def assert_contiguous(recorder: FrameRecorder) -> None:
    assert all(after["from"] == before["revision"] for before, after in pairwise(recorder.frames))
