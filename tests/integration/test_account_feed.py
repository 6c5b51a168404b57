"""The account's feed: a user's thread list, numbered by the user's own revision and chained like a thread's deltas."""

import asyncio
import random
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.frames import AccountDeltaFrame
from khala.live.hub import Hub
from khala.live.service import LiveService
from khala.store.accounts import account_feed
from khala.store.postgres.database import Database, driver_of
from khala.store.sharing import sharing
from khala.store.threads import thread_lists, threads
from khala.store.threads.thread_feed import SnapshotNeeded
from tests.scale.meter import Usage, metered
from tests.support.live import FrameRecorder, follow, process
from tests.support.people import add_member, change_access, new_user, signed_in
from tests.support.store import ask, batch, claim, ending, write


@pytest.fixture
async def user(db: Database) -> Caller:
    return await signed_in(db, await new_user(db))


def user_id_of(caller: Caller) -> UUID:
    assert caller.user_id is not None
    return caller.user_id


async def own_thread(db: Database, caller: Caller) -> UUID:
    return (await threads.create(db, ids.new(), caller, title=None, welcome=""))[0].id


async def rename(db: Database, thread_id: UUID, title: str) -> None:
    """Rename the thread as the command does."""
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id)
        await threads.bump(connection, thread_id, title=title)
        await thread_lists.mark_changed(await driver_of(connection), [thread_id])


async def revision_of(db: Database, user_id: UUID) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT revision FROM users WHERE id = $1", user_id))


async def up_to_date(db: Database, recorder: FrameRecorder, user_id: UUID) -> dict[str, Any]:
    return await recorder.until(await revision_of(db, user_id))


class FoldedThreadList:
    """A user's thread list, folded as a client does it."""

    def __init__(self) -> None:
        self.revision: int | None = None
        self.threads: dict[str, dict[str, Any]] = {}
        self.wholes = 0

    def apply(self, frames: list[dict[str, Any]]) -> "FoldedThreadList":
        for frame in frames:
            assert frame["type"] == "account"
            if frame.get("whole"):
                self.wholes += 1
                self.threads = {}
            else:
                assert frame["from"] == self.revision
                assert frame["revision"] > frame["from"]
            self.revision = frame["revision"]
            self.threads |= {entry["thread"]["id"]: entry for entry in frame["threads"]}
            for thread_id in frame.get("removed", []):
                self.threads.pop(thread_id, None)
        return self


async def watch(
    live: LiveService, db: Database, recorder: FrameRecorder, caller: Caller, after: int | None = None
) -> Hub:
    await follow(live.accounts, db, recorder.client, user_id_of(caller), caller, after=after)
    return live.accounts


async def test_a_watch_begins_with_the_whole_list_even_if_it_is_empty(db: Database, user: Caller) -> None:
    async with process(db, 2) as (live, (empty, full)):
        await watch(live, db, empty, user)
        assert await empty.until(0) == {
            "type": "account",
            "revision": 0,
            "whole": True,
            "threads": [],
            "hasMore": False,
        }
        ids_ = [str(await own_thread(db, user)) for _ in range(3)]
        await watch(live, db, full, user)
        whole = await up_to_date(db, full, user_id_of(user))
        await up_to_date(db, empty, user_id_of(user))
    assert [entry["thread"]["id"] for entry in whole["threads"]] == ids_[::-1]
    assert set(FoldedThreadList().apply(empty.frames).threads) == set(ids_)


async def test_each_listed_thread_has_its_pending_items_for_its_reader(db: Database, user: Caller) -> None:
    thread_id, other = await own_thread(db, user), await signed_in(db, await new_user(db, "Artanis"))
    await add_member(db, thread_id, user_id_of(other), "editor")
    async with process(db, 2) as (live, (mine, theirs)):
        await watch(live, db, mine, user)
        await watch(live, db, theirs, other)

        async def look(role: str, recorder: FrameRecorder) -> tuple[bool, bool, bool]:
            caller = user if recorder is mine else other
            (entry,) = (await up_to_date(db, recorder, user_id_of(caller)))["threads"]
            assert (entry["thread"]["id"], entry["role"]) == (str(thread_id), role)
            assert set(entry) == {"thread", "role", "unread", "running", "needsApproval", "changedAt"}
            return entry["unread"], entry["running"], entry["needsApproval"]

        assert await look("owner", mine) == (False, False, False)
        assert await look("editor", theirs) == (False, False, False)
        await ask(db, thread_id, caller=user)
        assert await look("owner", mine) == (False, True, False)
        assert await look("editor", theirs) == (True, True, False)
        (claimed,) = await claim(db)
        async with db.transaction() as connection:
            await connection.execute(text("UPDATE runs SET status = 'blocked'"))
            await thread_lists.mark_changed(await driver_of(connection), [thread_id])
        assert await look("owner", mine) == (False, True, True)
        async with db.driver() as driver:
            await driver.execute("UPDATE runs SET status = 'running'")
        await write(db, batch(claimed.lease, 0, "en taro"))
        await write(db, ending(claimed.lease, 1, ()))
        assert await look("owner", mine) == (True, False, False)
        await rename(db, thread_id, "Aiur")
        titled = await up_to_date(db, mine, user_id_of(user))
        assert titled["threads"][0]["thread"]["title"] == "Aiur"
    assert FoldedThreadList().apply(mine.frames).wholes == 1
    assert FoldedThreadList().apply(theirs.frames).wholes == 1


async def test_what_leaves_the_list_is_removed(db: Database, user: Caller) -> None:
    first, second = await own_thread(db, user), await own_thread(db, user)
    guest = await signed_in(db, await new_user(db, "Zeratul"))
    await add_member(db, first, user_id_of(guest))
    async with process(db, 2) as (live, (mine, theirs)):
        await watch(live, db, mine, user)
        await watch(live, db, theirs, guest)
        await up_to_date(db, mine, user_id_of(user))
        await up_to_date(db, theirs, user_id_of(guest))
        await threads.remove(db, second, user)
        gone = await up_to_date(db, mine, user_id_of(user))
        assert (gone["threads"], gone["removed"]) == ([], [str(second)])
        await sharing.remove_member(db, first, user_id_of(guest), user)
        gone = await up_to_date(db, theirs, user_id_of(guest))
        assert (gone["threads"], gone["removed"]) == ([], [str(first)])
        await change_access(db, first)
    assert set(FoldedThreadList().apply(mine.frames).threads) == {str(first)}
    assert not FoldedThreadList().apply(theirs.frames).threads


async def test_a_watch_resumes_after_the_revision_that_is_known(db: Database, user: Caller) -> None:
    thread_ids = [await own_thread(db, user) for _ in range(3)]
    known = await revision_of(db, user_id_of(user))
    for thread_id in thread_ids[:2]:
        await rename(db, thread_id, "New")
    async with process(db, 2) as (live, (recorder, still)):
        await watch(live, db, recorder, user, after=known)
        delta = await up_to_date(db, recorder, user_id_of(user))
        assert delta["from"] == known
        assert {entry["thread"]["id"] for entry in delta["threads"]} == set(map(str, thread_ids[:2]))
        assert delta["removed"] == []
        await watch(live, db, still, user, after=await revision_of(db, user_id_of(user)))
        await rename(db, thread_ids[2], "Newer")
        await up_to_date(db, still, user_id_of(user))
    assert [frame["type"] for frame in still.frames] == ["account"], "a watch without changes begins without a frame"
    assert not still.frames[0].get("whole")


@pytest.mark.parametrize("reason", ["floor", "future", "many"])
async def test_a_cursor_that_cannot_be_served_gets_the_whole_list(
    db: Database, user: Caller, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_ids = [await own_thread(db, user) for _ in range(6)]
    after = {"floor": 2, "future": 1000, "many": 0}[reason]
    async with db.driver() as driver:
        if reason == "floor":
            await driver.execute("UPDATE users SET floor_revision = 3")
        if reason == "many":
            limited = account_feed.ENTRIES.replace(f"LIMIT {account_feed.MAX_LISTED_THREADS + 1}", "LIMIT 6")
            newest = account_feed.NEWEST.replace(f"LIMIT {account_feed.MAX_LISTED_THREADS + 1}", "LIMIT 6")
            monkeypatch.setattr(account_feed, "ENTRIES", limited)
            monkeypatch.setattr(account_feed, "NEWEST", newest)
            monkeypatch.setattr(account_feed, "MAX_LISTED_THREADS", 5)
    async with process(db, 1) as (live, (recorder,)):
        await watch(live, db, recorder, user, after=after)
        whole = await up_to_date(db, recorder, user_id_of(user))
    assert whole["whole"]
    assert whole["hasMore"] is (reason == "many")
    expected = thread_ids[:0:-1] if reason == "many" else thread_ids[::-1]
    assert [entry["thread"]["id"] for entry in whole["threads"]] == list(map(str, expected))


async def test_a_watcher_misses_no_change_of_two_processes(db: Database, user: Caller) -> None:
    thread_ids = [await own_thread(db, user) for _ in range(8)]
    dice = random.Random(7)

    async def change(number: int) -> None:
        for turn in range(15):
            if dice.random() < 0.2:
                await own_thread(db, user)
            else:
                await rename(db, dice.choice(thread_ids), f"{number} {turn}")

    async with process(db, 2) as (one, here), process(db, 2) as (other, there):
        for live, recorders in ((one, here), (other, there)):
            for recorder in recorders:
                await watch(live, db, recorder, user)
        await asyncio.gather(*(change(number) for number in range(4)))
        for recorder in (*here, *there):
            await up_to_date(db, recorder, user_id_of(user))
        fresh = FrameRecorder(one)
        pumping = asyncio.create_task(fresh.client.pump(fresh.send))
        await watch(one, db, fresh, user)
        await up_to_date(db, fresh, user_id_of(user))
        pumping.cancel()
    truth = FoldedThreadList().apply(fresh.frames).threads
    for recorder in (*here, *there):
        assert FoldedThreadList().apply(recorder.frames).threads == truth
        assert FoldedThreadList().apply(recorder.frames).wholes == 1
        revisions = [frame["revision"] for frame in recorder.frames]
        assert all(before < after for before, after in pairwise(revisions))


async def test_watchers_of_many_accounts_share_one_read(db: Database) -> None:
    callers = [await signed_in(db, await new_user(db, f"user {number}")) for number in range(10)]
    thread_id = await own_thread(db, callers[0])
    for caller in callers[1:]:
        await add_member(db, thread_id, user_id_of(caller))
    async with process(db, 10) as (live, recorders):
        for recorder, caller in zip(recorders, callers, strict=True):
            await watch(live, db, recorder, caller)
            await up_to_date(db, recorder, user_id_of(caller))
        reads: list[int] = []
        since = live.accounts._feed.read_changes

        async def counted(driver: Any, cursors: Any) -> Any:
            reads.append(len(cursors))
            return await since(driver, cursors)

        live.accounts._feed.read_changes = counted  # type: ignore[method-assign]
        await rename(db, thread_id, "For all")
        for recorder, caller in zip(recorders, callers, strict=True):
            await up_to_date(db, recorder, user_id_of(caller))
    assert sum(size == 10 for size in reads) == 1
    assert len(reads) <= 2


async def test_a_deleted_user_receives_no_more_frames(db: Database, user: Caller) -> None:
    async with process(db, 1) as (live, (recorder,)):
        await watch(live, db, recorder, user)
        await recorder.until(0)
        async with db.driver() as driver:
            await driver.execute("DELETE FROM users")
        live.accounts.handle_notification(str(user_id_of(user)))
        error = await recorder.wait_for(lambda frame: frame["type"] == "error")
    assert error["code"] == "unauthorized"


async def test_messages_after_a_read_mark_are_unread_whatever_their_content(db: Database, user: Caller) -> None:
    thread_id, other = await own_thread(db, user), await signed_in(db, await new_user(db, "Artanis"))
    await add_member(db, thread_id, user_id_of(other), "editor")

    async def unread() -> list[bool]:
        async with db.driver() as driver:
            found = await account_feed.full_list(driver, user_id_of(user))
        assert found is not None
        return [entry.unread for entry in found.threads]

    await ask(db, thread_id, caller=other)
    await thread_lists.mark_read(db, thread_id, user_id_of(user), 10**9)
    assert await unread() == [False]
    await ask(db, thread_id, caller=other)
    assert await unread() == [True]
    async with db.driver() as driver:
        now = await driver.fetchval("SELECT revision FROM threads WHERE id = $1", thread_id)
    await thread_lists.mark_read(db, thread_id, user_id_of(user), now - 1)
    assert await unread() == [True]
    await thread_lists.mark_read(db, thread_id, user_id_of(user), now)
    assert await unread() == [False]


async def test_a_list_is_served_from_its_floor_on(db: Database, user: Caller) -> None:
    thread_ids = [await own_thread(db, user) for _ in range(2)]
    floor = await revision_of(db, user_id_of(user))
    async with db.driver() as driver:
        await driver.execute("UPDATE users SET floor_revision = $2 WHERE id = $1", user_id_of(user), floor)
    await rename(db, thread_ids[0], "Aiur")
    async with db.snapshot() as driver:
        found = [
            (await account_feed.since(driver, {user_id_of(user): after}))[user_id_of(user)]
            for after in (floor - 1, floor)
        ]
    assert isinstance(found[0], SnapshotNeeded)
    assert isinstance(found[1], AccountDeltaFrame)
    assert [entry.thread.id for entry in found[1].threads] == [thread_ids[0]]


FILL_LISTS = """
    WITH made AS (
        INSERT INTO threads (id, owner_id) SELECT gen_random_uuid(), owner_id FROM unnest($1::uuid[], $2::int[])
          AS owner (owner_id, threads) CROSS JOIN LATERAL generate_series(1, threads) RETURNING id, owner_id
    )
    INSERT INTO listings (user_id, thread_id, revision)
    SELECT owner_id, id, row_number() OVER (PARTITION BY owner_id) FROM made ORDER BY id
"""
BEGIN_RUNS = """
    INSERT INTO runs (id, thread_id, message_id, user_message_id, position, fairness_key, status, options)
    SELECT gen_random_uuid(), id, gen_random_uuid(), gen_random_uuid(), 1, id, 'running', '{}'
    FROM threads WHERE owner_id <> ALL ($1::uuid[])
"""


async def test_the_first_frame_costs_the_same_for_a_list_ten_times_as_long_beside_many_active_runs(
    db: Database,
) -> None:
    """Most lists are short, so a plan for users in general expects a short one."""
    short, long = await new_user(db), await new_user(db)
    others = [ids.new() for _ in range(300)]
    async with db.driver() as driver:
        await driver.execute("INSERT INTO users (id) SELECT unnest($1::uuid[])", others)
        await driver.execute(FILL_LISTS, [short, long, *others], [300, 3000, *(2 for _ in others)])
        await driver.execute("VACUUM ANALYZE")
        await driver.execute(BEGIN_RUNS, [short, long])

    async def first_frame(user_id: UUID) -> Usage:
        async def read() -> None:
            async with meter.db.snapshot() as driver:
                frame = await account_feed.full_list(driver, user_id)
            assert frame is not None
            assert len(frame.threads) == account_feed.MAX_LISTED_THREADS

        async with metered(db.url, counted_calls=1) as meter:
            return await meter.repeated(read)

    expected = await first_frame(short)
    usage = await first_frame(long)
    assert usage.buffers <= 1.2 * expected.buffers
    assert usage.rows <= 1.2 * expected.rows
    active = 2 * len(others)
    assert usage.rows <= active * account_feed.MAX_LISTED_THREADS / 10, "it reads no active runs of other threads"
