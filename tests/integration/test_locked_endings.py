"""Ends of runs while other transactions have locked rows that change with them."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator

import asyncpg

from khala.domain.flush_policy import FlushPolicy
from khala.store.postgres.database import Database, driver_url
from khala.store.runs.leases import Lease
from tests.integration.test_budgets import limit, limited
from tests.integration.test_writer import finish, stored
from tests.support.callers import Person, owned_thread, person
from tests.support.store import ask, claim, writing

LOCKED_ROWS = {
    "user": "SELECT FROM users WHERE id = $1 FOR UPDATE",
    "budget": "SELECT FROM budgets WHERE key = uuid_send($1) FOR UPDATE",
    "ledger": "SELECT FROM usage_ledger WHERE key = uuid_send($1) FOR UPDATE",
    "run": "SELECT FROM runs WHERE user_id = $1 FOR UPDATE",
}
LOCK_SECONDS = 6.0
MAX_GAP_SECONDS = 0.5


async def test_locked_rows_that_change_with_the_end_of_a_run_delay_neither_text_nor_ends_of_others(
    db: Database,
) -> None:
    """Other runs get text and end while one user, their budget, their reservations and their runs are locked."""
    owners = [await person(db) for _ in range(len(LOCKED_ROWS) + 3)]
    leases = [await _lease_of_user(db, owner) for owner in owners]
    talking, ending_last, ending_first = leases[len(LOCKED_ROWS) :]
    db_of_writer = Database(db.url)
    commits: list[float] = []
    async with writing(db_of_writer, FlushPolicy(milliseconds=50)) as writer, contextlib.AsyncExitStack() as locks:
        stuck = [writer.open(lease) for lease in leases[: len(LOCKED_ROWS)]]
        talker, last, first = (writer.open(lease) for lease in (talking, ending_last, ending_first))
        for owner, lock in zip(owners, LOCKED_ROWS.values(), strict=False):
            other = await locks.enter_async_context(_connection(db))
            await locks.enter_async_context(other.transaction())
            await other.execute(lock, owner.id)
        endings = [asyncio.create_task(buffer.end("final", finish())) for buffer in stuck]
        watching = asyncio.create_task(_watch_commits(db, talking, commits))
        until, number = time.monotonic() + LOCK_SECONDS, 0
        while time.monotonic() < until:
            talker.append_text("word ")
            if number == 20:
                await asyncio.wait_for(first.end("final", finish()), 2 * MAX_GAP_SECONDS)
            number += 1
            await asyncio.sleep(0.05)
        await asyncio.wait_for(last.end("final", finish()), 2 * MAX_GAP_SECONDS)
        watching.cancel()
        assert not any(task.done() for task in endings), "their rows are locked"
        await locks.aclose()
        await asyncio.wait_for(asyncio.gather(*endings), 5)
    await db_of_writer.close()
    gaps = [after - before for before, after in itertools.pairwise(commits)]
    assert len(gaps) > LOCK_SECONDS / MAX_GAP_SECONDS
    assert max(gaps) <= MAX_GAP_SECONDS
    for lease in leases[: len(LOCKED_ROWS)]:
        assert (await stored(db, lease))[-1] == "Finish"


async def _lease_of_user(db: Database, owner: Person) -> Lease:
    limits = limited(limit("user", "usd", 10), limit("accounts", "usd", 100))
    sent = await ask(db, await owned_thread(db, owner), caller=owner.caller, limits=limits)
    return next(one.lease for one in await claim(db) if one.lease.run_id == sent.run_id)


@contextlib.asynccontextmanager
async def _connection(db: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(driver_url(db.url))
    try:
        yield connection
    finally:
        await connection.close()


async def _watch_commits(db: Database, lease: Lease, commits: list[float]) -> None:
    """Note the times at which the thread's revision changes."""
    seen = None
    async with db.driver() as driver:
        while True:
            revision = await driver.fetchval("SELECT revision FROM threads WHERE id = $1", lease.thread_id)
            if revision != seen:
                commits.append(time.monotonic())
                seen = revision
            await asyncio.sleep(0.01)
