"""Claims of runs that are executed in child processes, and these child processes."""

import asyncio
import os
import signal
from typing import Any
from uuid import UUID

import msgspec
import psutil
import pytest
from sqlalchemy import text

from khala.domain.chat import StoredRunOptions
from khala.runs.isolation import COMMAND, IsolatedExecutor, environment
from khala.runs.run_execution import RunExecution
from khala.store.postgres.database import Database
from khala.store.runs import run_queue
from khala.store.runs.leases import Lease
from khala.store.runs.run_queue import ClaimedRun
from tests.support.in_process import khala
from tests.support.poison import POISONED
from tests.support.store import ask, batch, claim, new_thread, write

LEASE = 30.0
UUID_ONE = UUID(int=1)


async def set_lost(db: Database, *run_ids: Any, times: int = 2) -> None:
    """Set the count of lost executors of these runs, or of all runs."""
    which = "id = ANY(:ids)" if run_ids else "true"
    async with db.transaction() as connection:
        await connection.execute(
            text(f"UPDATE runs SET lost = {times} WHERE {which}"), {"ids": list(run_ids)} if run_ids else {}
        )


async def test_isolated_runs_are_claimed_up_to_their_limit_and_other_runs_are_not_limited(db: Database) -> None:
    run_ids = [(await ask(db, await new_thread(db))).run_id for _ in range(6)]
    await set_lost(db, *run_ids[:4])
    async with db.driver() as driver:
        first = await run_queue.claim(driver, most=10, owner="a", lease_seconds=LEASE, max_isolated=1)
        again = await run_queue.claim(driver, most=10, owner="a", lease_seconds=LEASE, max_isolated=0)
        rest = await run_queue.claim(driver, most=10, owner="a", lease_seconds=LEASE, max_isolated=9)
    assert {claimed.lease.run_id for claimed in first} == {run_ids[0], *run_ids[4:]}
    assert again == []
    assert {claimed_run.lease.run_id for claimed_run in rest} == set(run_ids[1:4])


async def test_a_run_is_isolated_after_its_second_lapsed_lease(db: Database) -> None:
    await ask(db, await new_thread(db))
    await claim(db)
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE runs SET lost = 1, lease_expires_at = now() - interval '1 second'"))
    async with db.driver() as driver:
        assert await run_queue.claim(driver, most=1, owner="b", lease_seconds=LEASE, max_isolated=0) == []
        (found,) = await run_queue.claim(driver, most=1, owner="b", lease_seconds=LEASE, max_isolated=1)
    assert (found.lost, found.taken_over) == (2, True)


async def test_isolated_runs_of_guests_use_no_slots_of_other_guests(db: Database) -> None:
    run_ids = [(await ask(db, await new_thread(db))).run_id for _ in range(4)]
    await set_lost(db, *run_ids[:3])
    async with db.driver() as driver:
        found = await run_queue.claim(driver, most=9, owner="a", lease_seconds=LEASE, max_guests=1, max_isolated=0)
    assert [result.lease.run_id for result in found] == [run_ids[3]]


async def test_a_renewed_claim_sees_all_written_parts_and_fences_their_writer_off(db: Database) -> None:
    thread_id = await new_thread(db)
    await ask(db, thread_id)
    (claimed,) = await claim(db)
    assert await write(db, batch(claimed.lease, 0, "one ", "two ")) == {claimed.lease.run_id: 2}
    async with db.driver() as driver:
        renewed = await run_queue.reclaim(driver, claimed, lease_seconds=LEASE)
        assert renewed is not None
        assert await run_queue.reclaim(driver, claimed, lease_seconds=LEASE) is None
        assert await run_queue.read_status(driver, claimed.lease) == "running"
    assert (renewed.lease.epoch, renewed.next_seq) == (claimed.lease.epoch + 1, 2)
    assert (renewed.lost, renewed.taken_over) == (claimed.lost, True)
    assert await write(db, batch(claimed.lease, 2, "three")) == {}
    assert await write(db, batch(renewed.lease, 2, "three")) == {renewed.lease.run_id: 1}


async def test_a_claim_is_renewed_only_after_the_pending_commit_of_its_process(db: Database) -> None:
    thread_id = await new_thread(db)
    await ask(db, thread_id)
    (claimed,) = await claim(db)
    async with db.driver() as driver:
        async with db.transaction() as connection:
            # as an append that Postgres still executes for a killed process
            await connection.execute(text("SELECT FROM threads WHERE id = :id FOR NO KEY UPDATE"), {"id": thread_id})
            renewing = asyncio.create_task(run_queue.reclaim(driver, claimed, lease_seconds=LEASE))
            await until_blocked_by_a_lock(db)
            await connection.execute(
                text("""INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
                        VALUES (:run, 0, :message, :thread, 'text-delta', '{"text": "late"}', 2)"""),
                {"run": claimed.lease.run_id, "message": claimed.lease.message_id, "thread": thread_id},
            )
            assert not renewing.done()
        renewed = await renewing
    assert renewed is not None
    assert renewed.next_seq == 1


async def until_blocked_by_a_lock(db: Database) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while True:
            async with db.driver() as driver:
                if await driver.fetchval(query):
                    return
            await asyncio.sleep(0.02)


def test_a_claim_is_passed_to_a_child_process_unchanged() -> None:
    options = StoredRunOptions(autopilot=True, max_steps=7, instructions="Wer da?\n", agent_id=UUID_ONE)
    lease = Lease(run_id=UUID_ONE, thread_id=UUID_ONE, message_id=UUID_ONE, epoch=3)
    claimed = ClaimedRun(
        lease=lease, user_message_id=UUID_ONE, options=options, next_seq=4, next_receipt=2, last_receipt_hash=b"\0\xff",
        queued_seconds=1.5, canceled=False, guest=True, lost=2, taken_over=True, traceparent="00-1-1-01",
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(claimed), type=ClaimedRun) == claimed


async def harmful_run(db: Database, database_url: str, word: str, **env: str) -> tuple[IsolatedExecutor, RunExecution]:
    """A claimed run whose message harms the process that executes it."""
    await ask(db, await new_thread(db), word)
    await set_lost(db)
    (claimed,) = await claim(db)
    given = {**os.environ, **POISONED, "KHALA_MODEL": "demo", "KHALA_WATCHDOG_SECONDS": "0", "KHALA_LOG": "json", **env}
    return IsolatedExecutor(environment(database_url, database_url, given)), RunExecution(claimed)


async def test_a_child_process_is_killed_when_its_run_exceeds_the_time_limit(db: Database, database_url: str) -> None:
    isolation, work = await harmful_run(db, database_url, "/hold")
    child = await isolation.execute(work, 0.5)
    assert (child.began, child.code) == (True, -signal.SIGKILL)


async def test_a_child_process_that_cannot_be_configured_has_not_started_the_run(
    db: Database, database_url: str
) -> None:
    isolation, work = await harmful_run(db, database_url, "?", KHALA_MODEL="delphi:oracle")
    child = await isolation.execute(work, None)
    assert (child.began, child.code) == (False, 1)


async def test_a_child_process_ends_when_its_parent_does_not_wait_any_more(db: Database, database_url: str) -> None:
    isolation, work = await harmful_run(db, database_url, "/sleep")
    executing = asyncio.create_task(isolation.execute(work, None))
    async with asyncio.timeout(30):
        while not (children := [process for process in psutil.Process().children() if COMMAND in process.cmdline()]):
            await asyncio.sleep(0.02)
    executing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await executing
    assert not [child for child in children if child.is_running()]


async def test_a_server_executes_an_isolated_run_in_a_child_process_with_its_own_settings(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        sent = await thread.send("/words=5")
        await set_lost(db)
        async with khala(database_url, KHALA_MODEL="demo"):
            run = await thread.ended(sent["runId"], within=60)
    await db.close()
    assert (run["status"], run["attempt"]) == ("final", 1)
