"""The hub and its observers: few reads for any number of observers, and a bounded outbox for each slow one."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from khala.domain.errors import Unavailable
from khala.domain.frames import Pong
from khala.live.catch_up_reader import CatchUpReader, ReadKey
from khala.live.feeds import FeedDelta, ThreadFeed, TopicRead
from khala.live.hub import Hub
from khala.live.observer import MAX_OUTBOX_BYTES, CatchUpRead
from khala.live.service import LiveService
from khala.store.postgres.database import Database, Driver
from khala.store.threads import threads
from tests.support.live import follow, recording
from tests.support.store import CALLER, ask, batch, lease_of, new_thread, write


def live_with_reader(db: Database, reader: CatchUpReader) -> LiveService:
    """The live service of one process, whose threads are read by this reader."""
    live = LiveService(db, db)
    live.threads = Hub(db, reader, ThreadFeed(), live.guard, live.deliveries)
    return live


class CountingReader(CatchUpReader):
    """A reader that counts the reads that reach the database."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.reads = 0

    async def _read(self, key: ReadKey) -> CatchUpRead | None:
        self.reads += 1
        return await super()._read(key)


async def test_observers_that_subscribe_together_share_one_read_and_need_no_later_one(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    reader = CountingReader(db)
    live = live_with_reader(db, reader)
    hub = live.threads
    async with recording(live, 50) as recorders:
        authorization = await hub.authorize(db, lease.thread_id, CALLER)
        for recorder in recorders:
            hub.subscribe(recorder.client, lease.thread_id, None, authorization)
        await asyncio.gather(*(recorder.until(2) for recorder in recorders))
        joined = reader.reads
        for seq in range(3):
            await write(db, batch(lease, seq, f"{seq} "))
            hub.handle_notification(str(lease.thread_id))
            await asyncio.gather(*(recorder.until(3 + seq) for recorder in recorders))
    assert joined == 1
    assert reader.reads == joined
    assert all(
        [frame["type"] for frame in recorder.frames] == ["snapshot", "delta", "delta", "delta"]
        for recorder in recorders
    )


async def test_a_slow_observer_falls_back_and_catches_up_with_one_read(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    reader = CountingReader(db)
    live = live_with_reader(db, reader)
    hub = live.threads
    async with recording(live, 2) as (quick, stuck):
        for recorder in (quick, stuck):
            await follow(hub, db, recorder.client, lease.thread_id)
        await asyncio.gather(quick.until(2), stuck.until(2))
        stuck.open.clear()
        before, rounds = reader.reads, MAX_OUTBOX_BYTES // 3000 + 20
        for seq in range(rounds):
            await write(db, batch(lease, seq, "x" * 3000))
            hub.handle_notification(str(lease.thread_id))
            await quick.until(3 + seq)
            assert stuck.client._bytes <= MAX_OUTBOX_BYTES
        stuck.open.set()
        await stuck.until(2 + rounds)
    texts = [
        "".join(part["data"]["text"] for frame in recorder.frames for part in frame.get("parts", []))
        for recorder in (quick, stuck)
    ]
    assert texts[0] == texts[1] == "x" * 3000 * rounds
    assert all(after["from"] == at["revision"] for at, after in zip(stuck.frames, stuck.frames[1:], strict=False))
    assert len(stuck.frames) < rounds / 2
    assert reader.reads - before <= 3


async def test_one_wake_up_reports_parts_messages_a_title_and_an_end(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    asked, renamed, removed = [await new_thread(db) for _ in range(3)]
    reader = CountingReader(db)
    live = live_with_reader(db, reader)
    hub = live.threads
    watched = (lease.thread_id, asked, renamed, removed)
    async with recording(live, 4) as recorders:
        for recorder, thread_id in zip(recorders, watched, strict=True):
            await follow(hub, db, recorder.client, thread_id)
        await asyncio.gather(recorders[0].until(2), *(recorder.until(1) for recorder in recorders[1:]))
        await write(db, batch(lease, 0, "hello"))
        sent = await ask(db, asked)
        await threads.update_thread(db, renamed, CALLER, title="Aiur")
        await threads.remove(db, removed, CALLER)
        hub.handle_notification(",".join(map(str, watched)))
        ends = (recorders[0].until(3), recorders[1].until(2), recorders[2].until(2), recorders[3].wait_gone())
        text, question, name = (await asyncio.gather(*ends))[:3]
    assert [part["data"]["text"] for part in text["parts"]] == ["hello"]
    assert [message["id"] for message in question["messages"]] == [
        str(sent.user_message_id),
        str(sent.assistant_message_id),
    ]
    assert name["thread"]["title"] == "Aiur"
    assert reader.reads == len(watched), "observers only read when they subscribe"


class DelayedReader(CatchUpReader):
    """A reader whose first result is delayed until the test releases it."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.read_once = asyncio.Event()
        self.release = asyncio.Event()

    async def _read(self, key: ReadKey) -> CatchUpRead | None:
        first = not self.read_once.is_set()
        out = await super()._read(key)
        if first:
            self.read_once.set()
            await self.release.wait()
        return out


async def test_an_observer_whose_first_read_is_overtaken_catches_up(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    reader = DelayedReader(db)
    live = live_with_reader(db, reader)
    hub = live.threads
    async with recording(live, 2) as (late, quick):
        await follow(hub, db, late.client, lease.thread_id)
        await reader.read_once.wait()
        await write(db, batch(lease, 0, "hello"))
        await follow(hub, db, quick.client, lease.thread_id)
        await quick.until(3)
        reader.release.set()
        async with asyncio.timeout(2):
            await late.until(3)
    assert [part["data"]["text"] for part in late.frames[-1]["parts"]] == ["hello"]


async def test_after_a_second_subscribe_no_frame_of_the_first_one_comes(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    live = live_with_reader(db, CatchUpReader(db))
    hub = live.threads
    async with recording(live, 2) as (quick, stuck):
        for recorder in (quick, stuck):
            await follow(hub, db, recorder.client, lease.thread_id)
        await asyncio.gather(quick.until(2), stuck.until(2))
        stuck.open.clear()
        for seq in range(4):
            await write(db, batch(lease, seq, "x"))
            hub.handle_notification(str(lease.thread_id))
            await quick.until(3 + seq)
        await follow(hub, db, stuck.client, lease.thread_id, after=2)
        stuck.open.set()
        await stuck.until(6)
    chain = [(frame.get("from"), frame["revision"]) for frame in stuck.frames]
    assert chain in ([(None, 2), (2, 6)], [(None, 2), (2, 3), (2, 6)])


async def test_a_deleted_thread_is_gone_for_all_and_leaves_nothing_behind(db: Database) -> None:
    thread_id = await new_thread(db)
    live = live_with_reader(db, CatchUpReader(db))
    hub = live.threads
    async with recording(live, 3) as recorders:
        for recorder in recorders:
            await follow(hub, db, recorder.client, thread_id)
        await asyncio.gather(*(recorder.until(1) for recorder in recorders))
        await threads.remove(db, thread_id, CALLER)
        hub.handle_notification(str(thread_id))
        async with asyncio.timeout(5):
            while not all(recorder.frames[-1]["type"] == "gone" for recorder in recorders):
                await asyncio.sleep(0.01)
    assert not hub._topics
    assert not any(recorder.client.subscriptions for recorder in recorders)


async def test_a_read_from_an_earlier_cursor_moves_no_observer_back(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    live = live_with_reader(db, CatchUpReader(db))
    hub = live.threads
    async with recording(live, 1) as (recorder,):
        subscription = await follow(hub, db, recorder.client, lease.thread_id)
        await recorder.until(2)
        await write(db, batch(lease, 0, "hello"))
        hub.handle_notification(str(lease.thread_id))
        await recorder.until(3)
    stale = {lease.thread_id: TopicRead(FeedDelta(2, 3, Pong()), subscription.access_id)}
    await hub._deliver({lease.thread_id: 2}, stale, time.monotonic())
    assert [frame["revision"] for frame in recorder.frames] == [2, 3]
    assert hub._changed == {lease.thread_id}, "the thread is read again"


class UnavailableDatabase(Database):
    """A database whose next uses fail as unavailable."""

    failures = 0

    @contextlib.asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("Away.") from ConnectionError("away")
        async with super().driver() as driver:
            yield driver


async def test_a_failed_read_is_retried(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    live = live_with_reader(db, CatchUpReader(db))
    hub, away = live.threads, UnavailableDatabase(db.url)
    hub._db = away
    async with recording(live, 1) as (recorder,):
        await follow(hub, db, recorder.client, lease.thread_id)
        await recorder.until(2)
        away.failures = 2
        await write(db, batch(lease, 0, "hello"))
        hub.handle_notification(str(lease.thread_id))
        async with asyncio.timeout(3):
            await recorder.until(3)
    assert away.failures == 0
    await away.close()
