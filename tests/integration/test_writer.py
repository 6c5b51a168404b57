"""The writer and its appends: few commits, exact text, and every write fenced by the lease."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from functools import partial
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text

from khala.domain import ids
from khala.domain.errors import Unavailable
from khala.domain.flush_policy import FlushPolicy
from khala.domain.fold import text_of
from khala.domain.parts import Finish, Notice, Step, TextDelta, TokenUsage, ToolCall
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database, Driver, driver_url
from khala.store.postgres.session_settings import SESSION_SETTINGS
from khala.store.runs import parts, runs
from khala.store.runs.group_commit import MAX_EARLY_RUNS, Writer
from khala.store.runs.leases import Lease
from khala.store.runs.run_buffer import MAX_PARTS_PER_BATCH, LeaseLost, RunBuffer
from khala.store.threads import thread_feed
from tests.support import postgres
from tests.support.store import CALLER, batch, claim, ending, lease_of, new_thread, write, writing

SLOW = FlushPolicy(milliseconds=60_000, chars=1200, parts=32)
"""A policy under which time makes nothing due."""


@pytest.fixture(autouse=True, params=["one-call", "transaction"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store few parts by one call of the database's function, and by a transaction as many parts are."""
    if request.param == "transaction":
        monkeypatch.setattr(parts, "MAX_CALLED_PARTS", 0)


async def stored(db: Database, lease: Lease) -> list[str]:
    """The texts of a run's parts, in order; the type name for a part of another kind."""
    async with db.driver() as driver:
        found = [part.read() for part in await parts.of_run(driver, lease.thread_id, lease.run_id)]
    return [part.text if isinstance(part, TextDelta) else type(part).__name__ for part in found]


async def until_stored(db: Database, lease: Lease, expected: str, *, within: float = 5.0) -> float:
    """Wait until the run's text equals this one; returns the wait in seconds."""
    began = time.monotonic()
    async with asyncio.timeout(within):
        while "".join(await stored(db, lease)) != expected:
            await asyncio.sleep(0.005)
    return time.monotonic() - began


def unstored_lease() -> Lease:
    """A lease of a run that is not stored."""
    return Lease(run_id=ids.new(), thread_id=ids.new(), message_id=ids.new(), epoch=1)


def finish(reason: str = "stop") -> Finish:
    return Finish(reason=reason, usage=TokenUsage())


async def test_a_hundred_one_character_deltas_take_fewer_than_ten_appends(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    expected = "".join(chr(ord("a") + n % 26) for n in range(100))
    async with writing(db) as writer:
        buffer = writer.open(lease)
        for char in expected:
            buffer.append_text(char)
            await asyncio.sleep(0.001)
        await buffer.end("final", finish())
    async with db.driver() as driver:
        found = await parts.of_run(driver, lease.thread_id, lease.run_id)
    assert [part.seq for part in found] == list(range(len(found)))
    texts = [part for part in found if part.kind == "text-delta"]
    assert len(texts) < 10
    assert "".join(await stored(db, lease)) == expected + "Finish"


async def test_the_first_text_is_written_at_once_and_later_text_when_it_is_due(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with writing(db, FlushPolicy(milliseconds=400)) as writer:
        buffer = writer.open(lease)
        buffer.append_text("one ")
        await until_stored(db, lease, "one ")
        began = time.monotonic()
        buffer.append_text("two ")
        # No further text is added: only the timer makes it due.
        await until_stored(db, lease, "one two ")
        assert time.monotonic() - began >= 0.35


async def test_a_commit_includes_buffers_that_are_due_soon_and_no_others(db: Database) -> None:
    first, soon, later = leases = [await lease_of(db, await new_thread(db)) for _ in range(3)]
    async with writing(db, FlushPolicy(milliseconds=2000)) as writer:
        buffers = [writer.open(lease) for lease in leases]
        for buffer, lease in zip(buffers, leases, strict=True):
            buffer.append_text("at once")
            await until_stored(db, lease, "at once")
        for buffer, pause in zip(buffers, (0.25, 0.95, 0.0), strict=True):
            buffer.append_text(", and then")
            await asyncio.sleep(pause)
        await until_stored(db, first, "at once, and then")
        assert await stored(db, later) == ["at once"]
    async with db.driver() as driver:
        first_part, other = [await parts.of_run(driver, lease.thread_id, lease.run_id) for lease in (first, soon)]
    assert first_part[1].created_at == other[1].created_at, "both were written in one transaction"


async def test_runs_that_began_at_different_times_share_their_later_flushes(db: Database) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(3)]
    async with writing(db, FlushPolicy(milliseconds=600, parts=1000)) as writer:
        buffers = [writer.open(lease) for lease in leases]
        for step in range(100):
            for place, buffer in enumerate(buffers):
                if step >= 8 * place:
                    buffer.append_text("more ")
            await asyncio.sleep(0.025)
    async with db.driver() as driver:
        newest = [(await parts.of_run(driver, lease.thread_id, lease.run_id))[-1] for lease in leases]
    assert len({part.created_at for part in newest}) == 1
    assert all(part.seq >= 2 for part in newest)


async def test_a_locked_thread_delays_no_text_of_other_threads(db: Database) -> None:
    locked, other = leases = [await lease_of(db, await new_thread(db)) for _ in range(2)]
    lost: list[Lease] = []
    async with writing(db, FlushPolicy(milliseconds=50)) as writer:
        first, second = [writer.open(lease, on_lost=partial(lost.append, lease)) for lease in leases]
        async with db.driver() as driver, driver.transaction():
            await driver.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", locked.thread_id)
            for word in ("one ", "two ", "three "):
                first.append_text(word)
                second.append_text(word)
                await asyncio.sleep(0.1)
            await until_stored(db, other, "one two three ")
            await second.end("final", finish())
            assert await stored(db, locked) == []
        await first.end("final", finish())
    assert "".join(await stored(db, locked)) == "one two three Finish"
    assert lost == []
    assert [found async for found in find_differences(db, VerifyProgress())] == []


async def test_an_append_to_a_locked_thread_stores_nothing_and_tells_it_from_a_lost_lease(db: Database) -> None:
    locked, other, stale = leases = [await lease_of(db, await new_thread(db)) for _ in range(3)]
    gone = Lease(run_id=stale.run_id, thread_id=stale.thread_id, message_id=stale.message_id, epoch=stale.epoch - 1)
    batches = [batch(lease, 0, "text") for lease in (locked, other, gone)]
    async with db.driver() as holder, holder.transaction():
        await holder.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", locked.thread_id)
        async with db.driver() as driver:
            result = await parts.append(driver, batches)
    assert (result.stored, result.busy) == ({other.run_id: 1}, {locked.run_id})
    assert [await stored(db, lease) for lease in leases] == [[], ["text"], []]


async def test_a_commit_includes_all_due_runs_and_a_bounded_number_of_others(db: Database) -> None:
    writer = Writer(db, FlushPolicy(milliseconds=2000))
    buffers = [writer.open(unstored_lease()) for _ in range(MAX_EARLY_RUNS + 5)]
    for place, buffer in enumerate(buffers):
        buffer.append_text("…")
        buffer.pending.urgent = False
        buffer.pending.since = 100 + place / 1000
    assert writer._due(102, 102.5) == buffers[:MAX_EARLY_RUNS]
    assert writer._due(102.5, 103) == buffers


@pytest.mark.parametrize("deltas", [["x" * 1200], ["y"] * 32])
async def test_much_text_or_many_deltas_are_written_before_their_time(db: Database, deltas: list[str]) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with writing(db, SLOW) as writer:
        buffer = writer.open(lease)
        buffer.append_text("first ")
        await until_stored(db, lease, "first ")
        for delta in deltas[:-1]:
            buffer.append_text(delta)
        buffer.append_text(deltas[-1])
        await until_stored(db, lease, "first " + "".join(deltas))


async def test_all_runs_that_are_due_share_one_transaction_and_one_notification(db: Database) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(20)]
    payloads: list[str] = []
    async with db.driver() as driver:

        def hear(*notification: object) -> None:
            payloads.append(str(notification[-1]))

        await driver.add_listener("khala_threads", hear)
        async with writing(db, SLOW) as writer:
            for lease in leases:
                writer.open(lease).append_text("hello")
            for lease in leases:
                await until_stored(db, lease, "hello")
        await driver.execute("SELECT 1")
        await driver.remove_listener("khala_threads", hear)
    async with db.transaction() as connection:
        found = await connection.execute(text("SELECT count(DISTINCT xmin::text) FROM message_parts"))
        assert found.scalar_one() == 1
    assert len(payloads) == 1
    assert {UUID(result) for result in payloads[0].split(",")} == {lease.thread_id for lease in leases}


async def test_an_append_says_how_many_parts_were_new(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    assert await write(db, batch(lease, 0, "a", "b")) == {lease.run_id: 2}
    assert await write(db, batch(lease, 0, "a", "b")) == {lease.run_id: 0}
    assert await stored(db, lease) == ["a", "b"]


async def test_a_writer_for_one_thread_cannot_touch_a_run_of_another(db: Database) -> None:
    mine, theirs = await lease_of(db, await new_thread(db)), await lease_of(db, await new_thread(db))
    forged = Lease(run_id=theirs.run_id, thread_id=mine.thread_id, message_id=theirs.message_id, epoch=theirs.epoch)
    assert await write(db, batch(forged, 0, "mine now")) == {}
    assert await stored(db, theirs) == []


async def test_a_writer_whose_lease_was_taken_over_is_fenced_off(db: Database) -> None:
    zombie = await lease_of(db, await new_thread(db))
    await write(db, batch(zombie, 0, "before "))
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE runs SET lease_expires_at = now() - interval '1 second'"))
    (taken,) = await claim(db, owner="another")
    assert (taken.lease.epoch, taken.next_seq) == (zombie.epoch + 1, 1)
    lost = asyncio.Event()
    async with writing(db) as writer:
        buffer = writer.open(zombie, next_seq=1, on_lost=lost.set)
        buffer.append_text("after")
        await asyncio.wait_for(lost.wait(), 5)
        with pytest.raises(LeaseLost):
            await buffer.wait_written()
        with pytest.raises(LeaseLost):
            buffer.append_text("more")
    assert await stored(db, zombie) == ["before "]


WAIT_AFTER_SNAPSHOT = """
    CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(1);
        RETURN NULL;
    END $$;
    CREATE TRIGGER wait_here BEFORE UPDATE ON threads FOR EACH STATEMENT EXECUTE FUNCTION wait_here();
"""
"""An append has its snapshot there, and has locked no row."""


async def test_a_takeover_between_the_snapshot_and_the_lock_fences_the_writer_off(db: Database) -> None:
    zombie = await lease_of(db, await new_thread(db))
    await write(db, batch(zombie, 0, "before "))
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    async with postgres.connected(driver_url(db.url)) as other:
        await other.execute(WAIT_AFTER_SNAPSHOT)
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(1)")
            appending = asyncio.create_task(write(db, batch(zombie, 1, "after")))
            async with asyncio.timeout(10):
                while not await other.fetchval(blocked):
                    await asyncio.sleep(0.01)
            await other.execute("SELECT FROM threads WHERE id = $1 FOR NO KEY UPDATE", zombie.thread_id)
            await other.execute("UPDATE runs SET epoch = epoch + 1 WHERE id = $1", zombie.run_id)
        assert await appending == {}
    assert await stored(db, zombie) == ["before "]


async def test_a_lost_lease_in_a_batch_writes_nothing_and_valid_ones_are_written(db: Database) -> None:
    dead = await lease_of(db, await new_thread(db))
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE runs SET lease_expires_at = now() - interval '1 second'"))
    (live,) = await claim(db, owner="the same process")
    lost = asyncio.Event()
    async with writing(db) as writer:
        old, new = writer.open(dead, on_lost=lost.set), writer.open(live.lease)
        old.append_text("DEAD")
        new.append_text("alive")
        await new.end("final", finish())
        await asyncio.wait_for(lost.wait(), 5)
    assert await stored(db, dead) == ["alive", "Finish"]
    with pytest.raises(ValueError, match="two batches"):
        await write(db, batch(dead, 0, "a"), batch(live.lease, 0, "b"))


async def test_after_the_finish_nothing_changes(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with writing(db) as writer:
        buffer = writer.open(lease)
        buffer.append_text("all of it")
        await buffer.end("final", finish())
        assert await write(db, batch(lease, 2, "too late")) == {}
        with pytest.raises(LeaseLost):
            await writer.open(lease, next_seq=2).end("error", finish("error"))
    run, changed = await runs.cancel(db, lease.run_id, CALLER)
    assert (run.status, changed) == ("final", False)
    assert await stored(db, lease) == ["all of it", "Finish"]
    async with db.snapshot() as driver:
        snapshot = await thread_feed.read_snapshot(driver, lease.thread_id, limit=10)
    assert (snapshot.messages[-1].status, text_of(snapshot.messages[-1].content or ())) == ("final", "all of it")


class FlakyDatabase(Database):
    """A database that is unavailable for the next few uses, before or after the commit."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.before = 0
        self.after = 0

    @contextlib.asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        if self.before:
            self.before -= 1
            raise Unavailable("Away.") from OSError("cut before")
        async with super().driver() as driver:
            yield driver
        if self.after:
            self.after -= 1
            raise Unavailable("Away.") from OSError("cut after the commit")


@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 3), (2, 2)])
async def test_an_outage_during_a_flush_loses_no_text_and_leaves_no_gap(
    database_url: str, before: int, after: int
) -> None:
    db = FlakyDatabase(database_url)
    lease = await lease_of(db, await new_thread(db))
    async with writing(db, FlushPolicy(milliseconds=20)) as writer:
        buffer = writer.open(lease)
        db.before, db.after = before, after
        words = [f"word{n} " for n in range(200)]
        for word in words:
            buffer.append_text(word)
            await asyncio.sleep(0.003)
        buffer.append(Notice(code="resumed", message="x"))
        await buffer.end("final", finish())
    assert (db.before, db.after) == (0, 0)
    found = await stored(db, lease)
    assert "".join(found) == "".join(words) + "NoticeFinish"
    assert [found async for found in find_differences(db, VerifyProgress())] == []
    await db.close()


async def test_a_failed_write_is_retried_before_newer_text_is_due(database_url: str) -> None:
    db = FlakyDatabase(database_url)
    lease = await lease_of(db, await new_thread(db))
    async with writing(db, SLOW) as writer:
        buffer = writer.open(lease)
        db.before = 1
        buffer.append_text("first ")
        while db.before:
            await asyncio.sleep(0.001)
        buffer.append_text("second ")
        await until_stored(db, lease, "first ")
    await db.close()


async def test_text_that_postgres_cannot_store_is_replaced_and_affects_no_other_run(db: Database) -> None:
    bad, good = await lease_of(db, await new_thread(db)), await lease_of(db, await new_thread(db))
    async with writing(db) as writer:
        buffers = [writer.open(bad), writer.open(good)]
        buffers[0].append_text("a\0b\ud800c")
        buffers[1].append_text("fine")
        for buffer in buffers:
            await buffer.end("final", finish())
    assert await stored(db, bad) == ["a\ufffdb\ufffdc", "Finish"]
    assert await stored(db, good) == ["fine", "Finish"]


async def test_reasoning_that_cannot_be_stored_is_sanitised_bounded_and_affects_no_other_run(db: Database) -> None:
    bad, good = await lease_of(db, await new_thread(db)), await lease_of(db, await new_thread(db))
    async with writing(db) as writer:
        buffers = [writer.open(bad), writer.open(good)]
        buffers[0].append_reasoning("\ud800\0" + "x" * 20_000)
        buffers[1].append_text("fine")
        for buffer in buffers:
            await buffer.end("final", finish())
    async with db.driver() as driver:
        found = await parts.of_run(driver, bad.thread_id, bad.run_id)
    assert max(len(bytes(part.data)) for part in found) <= 4096
    assert [part.kind for part in found][-2:] == ["reasoning-delta", "finish"]
    assert await stored(db, good) == ["fine", "Finish"]


async def test_a_part_that_cannot_be_encoded_fails_only_its_own_run(db: Database) -> None:
    bad, good = await lease_of(db, await new_thread(db)), await lease_of(db, await new_thread(db))
    async with writing(db) as writer:
        buffer, other = writer.open(bad), writer.open(good)
        with pytest.raises(UnicodeEncodeError):
            buffer.append(Notice(code="odd", message="\ud800"))
        other.append_text("fine")
        await other.end("final", finish())
        await buffer.end("error", finish("error"))
    assert await stored(db, bad) == ["Finish"]
    assert await stored(db, good) == ["fine", "Finish"]


async def test_a_temporarily_read_only_database_loses_no_text(postgres_url: str, db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    name = db.url.rsplit("/", 1)[-1].split("?")[0]

    async def read_only(switch: str) -> None:
        await postgres.execute(
            postgres_url,
            f"""ALTER DATABASE "{name}" SET default_transaction_read_only = {switch};
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = '{name}'""",
        )

    async with writing(db, FlushPolicy(milliseconds=20)) as writer:
        buffer = writer.open(lease)
        buffer.append_text("before ")
        await until_stored(db, lease, "before ")
        await read_only("on")
        buffer.append_text("meanwhile ")
        await asyncio.sleep(0.3)
        assert not buffer._lost
        await read_only("off")
        buffer.append_text("after")
        await buffer.end("final", finish())
    assert "".join(await stored(db, lease)) == "before meanwhile afterFinish"


async def test_the_transaction_of_a_frozen_process_is_aborted_before_its_lease_ends(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    frozen = await asyncpg.connect(driver_url(db.url), server_settings=SESSION_SETTINGS)
    await frozen.execute("BEGIN; UPDATE threads SET revision = revision + 1")
    began = time.monotonic()
    assert await write(db, batch(lease, 0, "goes on")) == {lease.run_id: 1}
    assert time.monotonic() - began < 10
    frozen.terminate()


async def test_text_queued_in_an_outage_is_written_completely_in_bounded_transactions(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    whole = "".join(f"{n:07d} " for n in range(60_000))
    async with writing(db) as writer:
        buffer = writer.open(lease)
        buffer.append_text(whole)
        await buffer.end("final", finish())
    found = await stored(db, lease)
    assert "".join(found) == whole + "Finish"
    assert max(len(result) for result in found) <= 4096
    assert [found async for found in find_differences(db, VerifyProgress())] == []


async def test_the_end_of_a_run_commits_with_its_last_text(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    assert await write(db, batch(lease, 0, "text")) == {lease.run_id: 1}
    await write(db, ending(lease, 1, ()))
    async with db.transaction() as connection:
        row = (
            await connection.execute(
                text("""SELECT messages.status, runs.status, messages.revision = threads.revision,
                               messages.revision = (SELECT max(revision) FROM message_parts)
                        FROM messages JOIN runs ON runs.message_id = messages.id
                        JOIN threads ON threads.id = runs.thread_id""")
            )
        ).one()
    assert tuple(row) == ("final", "final", True, True)


async def test_parts_of_a_batch_that_are_stored_already_are_not_inserted_again(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    assert await write(db, batch(lease, 0, "a", "b")) == {lease.run_id: 2}
    assert await write(db, batch(lease, 0, "a", "b", "c")) == {lease.run_id: 1}
    assert await write(db, batch(lease, 2, "c", "d")) == {lease.run_id: 1}
    assert await stored(db, lease) == ["a", "b", "c", "d"]


async def test_calls_that_are_not_written_yet_are_cancelled_with_their_run(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with writing(db) as writer:
        buffer = writer.open(lease)
        buffer.append(Step(step=1, max_steps=20, tool_count=1))
        buffer.append(ToolCall(tool_call_id="call_1", step=1, tool="todo_list", args={}))
        await buffer.end("canceled", finish("canceled"))
    assert await stored(db, lease) == ["Step", "ToolCall", "ToolStatus", "Finish"]
    async with db.snapshot() as driver:
        (block,) = (await thread_feed.read_snapshot(driver, lease.thread_id, limit=10)).messages[-1].content or ()
    assert getattr(block, "state", None) == "cancelled"


async def test_a_run_whose_rows_postgres_refuses_affects_no_other_run(db: Database) -> None:
    bad, *good = [await lease_of(db, await new_thread(db)) for _ in range(3)]
    lost: list[Lease] = []
    async with writing(db, SLOW) as writer:
        buffers = [writer.open(lease, on_lost=partial(lost.append, lease)) for lease in (bad, *good)]
        buffers[0].append_receipt("model", {}, Decimal("1e15"))  # more than the column holds
        for buffer in buffers:
            buffer.append_text("said")
        for buffer in buffers[1:]:
            await buffer.end("final", finish())
        with pytest.raises(LeaseLost):
            await buffers[0].wait_written()
    assert lost == [bad]
    assert await stored(db, bad) == []
    assert [await stored(db, lease) for lease in good] == [["said", "Finish"]] * 2


async def test_repeating_a_batch_after_a_take_over_reports_a_lost_lease(db: Database) -> None:
    zombie = await lease_of(db, await new_thread(db))
    repeated = batch(zombie, 0, "before ")
    assert await write(db, repeated) == {zombie.run_id: 1}
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE runs SET lease_expires_at = now() - interval '1 second'"))
    (taken,) = await claim(db, owner="another")
    assert await write(db, repeated) == {}
    assert await write(db, batch(taken.lease, 1, "after")) == {zombie.run_id: 1}


async def test_a_run_ends_with_its_last_parts_however_many_transactions_they_take(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with writing(db) as writer:
        buffer = writer.open(lease)
        for _ in range(MAX_PARTS_PER_BATCH + 50):
            buffer.append(Notice(code="resumed", message="Goes on."))
        await buffer.end("final", finish())
    async with db.snapshot() as driver:
        answer = (await thread_feed.read_snapshot(driver, lease.thread_id, limit=10)).messages[-1]
    assert await stored(db, lease) == ["Notice"] * (MAX_PARTS_PER_BATCH + 50) + ["Finish"]
    assert (answer.status, answer.seq, len(answer.content or ())) == (
        "final",
        MAX_PARTS_PER_BATCH + 51,
        MAX_PARTS_PER_BATCH + 50,
    )


async def test_held_text_is_asked_for_when_it_is_due_and_written_in_that_commit(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    asked: list[float] = []
    async with writing(db, FlushPolicy(milliseconds=400)) as writer:
        buffer = writer.open(lease)

        def deliver() -> bool:
            asked.append(time.monotonic())
            asyncio.get_running_loop().call_soon(buffer.append_text, "two ")
            return True

        buffer.append_text("one ")
        await until_stored(db, lease, "one ")
        began = time.monotonic()
        buffer.hold_text(deliver, 60.0, 300.0)
        await until_stored(db, lease, "one two ")
    assert 0.35 <= asked[0] - began <= 0.4 + 0.1
    assert len(asked) == 1
    assert await stored(db, lease) == ["one ", "two "]


async def test_a_commit_includes_the_held_text_of_runs_that_are_due_soon(db: Database) -> None:
    first, soon, later = leases = [await lease_of(db, await new_thread(db)) for _ in range(3)]
    asked: list[Lease] = []
    async with writing(db, FlushPolicy(milliseconds=2000)) as writer:
        buffers = [writer.open(lease) for lease in leases]
        for buffer, lease in zip(buffers, leases, strict=True):
            buffer.append_text("at once")
            await until_stored(db, lease, "at once")

        def deliver(buffer: RunBuffer) -> bool:
            asked.append(buffer.lease)
            asyncio.get_running_loop().call_later(0.005, buffer.append_text, ", and then")
            return True

        for buffer, pause in zip(buffers, (0.25, 0.95, 0.0), strict=True):
            buffer.hold_text(partial(deliver, buffer), 1.0, 1.0)
            await asyncio.sleep(pause)
        await until_stored(db, first, "at once, and then")
        assert asked == [first, soon]
    async with db.driver() as driver:
        first_part, other = [await parts.of_run(driver, lease.thread_id, lease.run_id) for lease in (first, soon)]
    assert first_part[1].created_at == other[1].created_at, "both were written in one transaction"
    assert await stored(db, later) == ["at once"]


async def test_a_run_without_held_text_delays_no_commit_and_is_asked_once(db: Database) -> None:
    silent, other = leases = [await lease_of(db, await new_thread(db)) for _ in range(2)]
    asked = 0

    def deliver() -> bool:
        nonlocal asked
        asked += 1
        return False

    async with writing(db, FlushPolicy(milliseconds=100)) as writer:
        first, second = [writer.open(lease) for lease in leases]
        first.append_text("one ")
        await until_stored(db, silent, "one ")
        first.hold_text(deliver, 60.0, 300.0)
        second.append_text("one ")
        await until_stored(db, other, "one ")
        second.append_text("two ")
        await until_stored(db, other, "one two ")
        first.append_text("two ")
        assert await until_stored(db, silent, "one two ") > 0.05, "it is due by its arrival"
    assert asked == 1


async def test_text_that_is_late_after_it_was_asked_for_is_written_when_it_comes(db: Database) -> None:
    late, other = leases = [await lease_of(db, await new_thread(db)) for _ in range(2)]
    async with writing(db, FlushPolicy(milliseconds=300)) as writer:
        first, second = [writer.open(lease) for lease in leases]
        for buffer, lease in ((first, late), (second, other)):
            buffer.append_text("one ")
            await until_stored(db, lease, "one ")
        asked = asyncio.Event()

        def deliver() -> bool:
            asked.set()
            return True

        first.hold_text(deliver, 60.0, 300.0)
        second.append_text("two ")
        await asyncio.wait_for(asked.wait(), 5)
        await until_stored(db, other, "one two ")
        first.append_text("two ")
        assert await until_stored(db, late, "one two ") < 0.15, "it counts from the beginning of the pause"
