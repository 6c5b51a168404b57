"""The cost of a send in statements, and the state that it decides by."""

import asyncio
from uuid import UUID

import pytest

from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.budgets import HOUR_SECONDS
from khala.domain.chat import RunOptions
from khala.domain.errors import Forbidden, RateLimited, RunActive
from khala.store.postgres.database import Database
from khala.store.sharing import access
from khala.store.threads import messages, sends, thread_feed, threads
from khala.store.threads.sends import SendLimits, SendRequest
from khala.store.tools import tool_rules
from tests.integration.test_budgets import limit, limited
from tests.support.callers import owned_thread, person
from tests.support.statements import logged, nodes, plan

MAX_STATEMENTS = 8
"""Statements of a send, with BEGIN and COMMIT."""
SENDS_UNTIL_PLANNED = 10
"""Postgres plans the first five executions anew, and then compares the costs."""
STATEMENTS_PER_ROUND = 8
THREADS = 1000
"""Enough that a scan of all of them is not the cheapest plan."""
DEFAULT_LIMITS = limited(
    limit("accounts", "usd", 100),
    limit("user", "runs", 300, HOUR_SECONDS),
    limit("user", "usd", 10),
    limit("run", "usd", 1, None),
    limit("run", "seconds", 900, None),
)
"""The limits that are set by default for the send of a user."""


async def test_a_send_takes_at_most_eight_statements(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as statements:
        db = Database(database_url)
        user = await person(db)
        for _ in range(3):  # the first ones prepare statements, and grant shares of the budget
            thread_id = await owned_thread(db, user)
            statements.clear()
            question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
            _, new = await sends.send(db, question, user.caller, DEFAULT_LIMITS)
            assert new
        await db.close()
    assert len(statements) <= MAX_STATEMENTS, statements
    assert sum(statement.startswith(("BEGIN", "COMMIT")) for statement in statements) == 2
    assert any("usage_ledger" in statement for statement in statements), "the log has the statements of the send"


@pytest.mark.parametrize("signed_in", [True, False])
async def test_postgres_plans_the_statements_of_sends_prompts_and_feeds_only_once(
    database_url: str, *, signed_in: bool
) -> None:
    db = Database(database_url, pool_size=2)  # one connection of the driver, which prepares each statement once
    user = await person(db)
    caller = user.caller if signed_in else Caller(anon_key_hash=b"key")
    limits = DEFAULT_LIMITS if signed_in else limited(limit("anonymous", "usd", 100), limit("key", "usd", 10))
    for _ in range(SENDS_UNTIL_PLANNED):
        thread, _ = await threads.create(db, ids.new(), caller, title=None, welcome="")
        question = SendRequest(thread_id=thread.id, message_id=ids.new(), text="?", options=RunOptions())
        await sends.send(db, question, caller, limits)
        async with db.driver() as driver:
            await access.authorize(driver, thread.id, caller, Action.SEND_MESSAGE)
            await messages.read_path(driver, thread.id, question.message_id, max_messages=1000, max_bytes=1 << 20)
            await tool_rules.read(driver, thread_id=thread.id, user_id=caller.user_id)
            await thread_feed.read_changes_in_one_query(driver, {thread.id: 0})
    async with db.driver() as driver:
        plans = await driver.fetch("SELECT statement, custom_plans FROM pg_prepared_statements WHERE generic_plans > 0")
        anew = await driver.fetch(
            "SELECT statement FROM pg_prepared_statements WHERE custom_plans >= $1", SENDS_UNTIL_PLANNED
        )
    await db.close()
    assert [row["statement"] for row in anew] == []
    assert len(plans) >= STATEMENTS_PER_ROUND, "the statements were prepared on this connection"


@pytest.mark.parametrize("statement", [access.FACTS_OF_ONE, thread_feed.CHANGES])
async def test_a_thread_is_found_by_its_key_before_the_table_has_statistics(db: Database, statement: str) -> None:
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO threads (id, anon_key_hash) SELECT gen_random_uuid(), 'k' FROM generate_series(1, $1)", THREADS
        )
        found = [node for node in nodes(await plan(driver, statement)) if node.get("Relation Name") == "threads"]
    assert [node.get("Index Name") for node in found] == ["threads_pkey"], found


@pytest.mark.parametrize("change", ["answer", "access"])
async def test_a_send_that_waited_for_the_thread_sees_what_has_changed_meanwhile(db: Database, change: str) -> None:
    user = await person(db)
    thread_id = await owned_thread(db, user)
    limits = SendLimits()
    question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions(if_busy="reject"))
    async with db.driver() as other, other.transaction():
        await other.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", thread_id)
        sending = asyncio.create_task(sends.send(db, question, user.caller, limits))
        await _until_waiting(db)
        if change == "access":
            await other.execute(
                "UPDATE threads SET owner_id = NULL, access_id = gen_random_uuid() WHERE id = $1", thread_id
            )
        else:
            first = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
            thread = await sends.open_thread(other, first, user.caller, Action.SEND_MESSAGE, limits)
            await sends.queue_answer(other, thread, first, user.caller, limits)
    with pytest.raises(Forbidden if change == "access" else RunActive):
        await sending


async def test_the_same_message_at_once_is_stored_once(db: Database) -> None:
    user = await person(db)
    thread_id = await owned_thread(db, user)
    question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
    results = await asyncio.gather(*(sends.send(db, question, user.caller, DEFAULT_LIMITS) for _ in range(8)))
    assert sorted(new for _, new in results) == [False] * 7 + [True]
    assert len({sent.run_id for sent, _ in results}) == 1


async def _until_waiting(db: Database) -> None:
    async with asyncio.timeout(5), db.driver() as driver:
        while not await driver.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)


async def test_of_many_sends_at_once_to_an_owners_threads_exactly_the_allowed_number_is_queued(db: Database) -> None:
    user = await person(db)
    thread_ids = [await owned_thread(db, user) for _ in range(12)]
    limits = SendLimits(per_owner=5)

    async def send(thread_id: UUID) -> None:
        question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
        await sends.send(db, question, user.caller, limits)

    outcomes = await asyncio.gather(*map(send, thread_ids), return_exceptions=True)
    refused = [error for error in outcomes if error is not None]
    assert [type(error) for error in refused] == [RateLimited] * 7
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM runs") == 5
