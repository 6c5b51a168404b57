"""Cursors far behind: a delta has a limit; beyond it, a reader restarts from a snapshot."""

import asyncio
from uuid import UUID

import pytest

from khala.domain import ids
from khala.domain.thread_changes import Delta
from khala.store.postgres.database import Database
from khala.store.threads import thread_feed, threads
from khala.store.threads.thread_feed import MAX_DELTA_MESSAGES, MAX_DELTA_PARTS, SnapshotNeeded, ThreadRead
from tests.support.live import follow, process
from tests.support.store import CALLER, batch, lease_of, new_thread, revision_of, write

SAID = """
    INSERT INTO messages (id, thread_id, position, role, status, content, revision)
    VALUES ($1, $2, $3, 'user', 'final', '[{"type": "text", "text": "said"}]', $4)
"""


async def append_messages(db: Database, thread_id: UUID, count: int, *, at_once: bool = False) -> None:
    """Append so many messages, each with its own revision, or all with one."""
    async with db.driver() as driver, driver.transaction():
        revision = await revision_of(db, thread_id)
        position = await driver.fetchval(
            "SELECT coalesce(max(position), 0) FROM messages WHERE thread_id = $1", thread_id
        )
        rows = [(ids.new(), thread_id, position + at, revision + (1 if at_once else at)) for at in range(1, count + 1)]
        await driver.executemany(SAID, rows)
        await driver.execute("UPDATE threads SET revision = $2 WHERE id = $1", thread_id, rows[-1][3])


async def write_parts(db: Database, thread_id: UUID, count: int) -> int:
    """Append so many parts of one run, in several commits; returns the revision before them."""
    lease = await lease_of(db, thread_id)
    before = await revision_of(db, thread_id)
    for first in range(0, count, 500):
        await write(db, batch(lease, first, *["x"] * min(500, count - first)))
    return before


async def read_both_ways(db: Database, thread_id: UUID, after: int) -> ThreadRead:
    """The result of the two-step read. The read in one query must have the same result where it has one."""
    async with db.snapshot() as driver:
        look = (await thread_feed.read_changes(driver, {thread_id: after}))[thread_id]
    async with db.driver() as driver:
        glanced = await thread_feed.read_changes_in_one_query(driver, {thread_id: after})
    assert glanced.get(thread_id, look) == look
    return look


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_delta_carries_100_messages_and_no_more(db: Database, *, at_once: bool) -> None:
    thread_id = await new_thread(db)
    before = await revision_of(db, thread_id)
    await append_messages(db, thread_id, MAX_DELTA_MESSAGES, at_once=at_once)
    found = (await read_both_ways(db, thread_id, before)).change
    assert isinstance(found, Delta)
    assert len(found.messages) == MAX_DELTA_MESSAGES == 100
    await append_messages(db, thread_id, 1, at_once=at_once)
    now = await revision_of(db, thread_id)
    assert (await read_both_ways(db, thread_id, before)).change == SnapshotNeeded(revision=now, reset=False)
    assert isinstance((await read_both_ways(db, thread_id, now - 1)).change, Delta)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_delta_carries_2000_parts_and_no_more(db: Database, more: int) -> None:
    thread_id = await new_thread(db)
    before = await write_parts(db, thread_id, MAX_DELTA_PARTS + more)
    found = (await read_both_ways(db, thread_id, before)).change
    if more:
        assert found == SnapshotNeeded(revision=await revision_of(db, thread_id), reset=False)
    else:
        assert isinstance(found, Delta)
        assert [part.seq for part in found.parts] == list(range(2000))
    nearer = (await read_both_ways(db, thread_id, before + 1)).change
    assert isinstance(nearer, Delta)
    assert nearer.parts[0].seq == 500


@pytest.mark.parametrize(("parts", "messages"), [(2000, 0), (2001, 0), (0, 100), (0, 101)])
async def test_an_observer_further_behind_gets_a_snapshot_and_continues_from_it(
    db: Database, parts: int, messages: int
) -> None:
    thread_id = await new_thread(db)
    before = await write_parts(db, thread_id, parts) if parts else await revision_of(db, thread_id)
    if messages:
        await append_messages(db, thread_id, messages)
    now = await revision_of(db, thread_id)
    async with process(db, 1) as (live, (recorder,)):
        await follow(live.threads, db, recorder.client, thread_id, after=before)
        first = await recorder.until(now)
        await append_messages(db, thread_id, 1)
        live.threads.handle_notification(str(thread_id))
        second = await recorder.until(now + 1)
    assert first["type"] == ("snapshot" if parts == 2001 or messages == 101 else "delta")
    assert "reset" not in first
    assert (second["type"], second["from"], len(second["messages"])) == ("delta", now, 1)


async def test_observers_equally_far_behind_get_the_same_snapshot(db: Database) -> None:
    thread_id = await new_thread(db)
    before = await write_parts(db, thread_id, MAX_DELTA_PARTS + 1)
    now = await revision_of(db, thread_id)
    async with process(db, 5) as (live, recorders):
        for recorder in recorders:
            await follow(live.threads, db, recorder.client, thread_id, after=before)
        found = await asyncio.gather(*(recorder.until(now) for recorder in recorders))
    assert [len(recorder.frames) for recorder in recorders] == [1] * 5
    assert all(result == found[0] and result["type"] == "snapshot" for result in found)
    assert found[0]["messages"][-1]["seq"] == MAX_DELTA_PARTS + 1


async def test_a_cursor_at_a_reset_continues_from_it(db: Database) -> None:
    thread_id = await new_thread(db)
    await append_messages(db, thread_id, 3)
    reset = (await threads.reset(db, thread_id, CALLER, welcome="Hello.")).revision
    assert (await read_both_ways(db, thread_id, reset - 1)).change == SnapshotNeeded(revision=reset, reset=True)
    await append_messages(db, thread_id, 1)
    found = (await read_both_ways(db, thread_id, reset)).change
    assert isinstance(found, Delta)
    assert len(found.messages) == 1
    await append_messages(db, thread_id, MAX_DELTA_MESSAGES)
    now = await revision_of(db, thread_id)
    assert (await read_both_ways(db, thread_id, reset)).change == SnapshotNeeded(revision=now, reset=False)


async def test_a_change_of_the_thread_itself_is_sent_once(db: Database) -> None:
    thread_id = await new_thread(db)
    renamed = (await threads.update_thread(db, thread_id, CALLER, title="Aiur")).revision
    await append_messages(db, thread_id, 1)
    found = [(await read_both_ways(db, thread_id, after)).change for after in (renamed - 1, renamed)]
    assert all(isinstance(result, Delta) for result in found)
    assert [isinstance(result, Delta) and result.thread is not None for result in found] == [True, False]


async def test_a_page_has_one_message_or_as_many_as_fit_into_its_bytes(db: Database) -> None:
    thread_id = await new_thread(db)
    await append_messages(db, thread_id, 3)
    async with db.driver() as driver:
        long = "x" * (thread_feed.MAX_PAGE_BYTES // 2 + 1000)
        query = "UPDATE messages SET content = jsonb_build_array(jsonb_build_object('type', 'text', 'text', $2::text))"
        await driver.execute(f"{query} WHERE thread_id = $1", thread_id, long)
    async with db.snapshot() as driver:
        found = await thread_feed.read_snapshot(driver, thread_id, limit=100)
    assert (len(found.messages), found.has_more) == (1, True)
