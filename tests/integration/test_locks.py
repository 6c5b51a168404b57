"""Concurrent commands on the same rows never deadlock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import RunOptions
from khala.domain.errors import KhalaError
from khala.domain.fold import TextBlock
from khala.domain.parts import Step
from khala.signals.metrics import REGISTRY
from khala.store.accounts import accounts, sessions
from khala.store.postgres.database import Database, Driver, driver_url
from khala.store.runs import run_queue
from khala.store.runs.parts import append
from khala.store.threads import conversation_imports, sends, thread_lists
from khala.store.threads.conversation_imports import ConversationImport, ImportedMessage
from khala.store.threads.sends import SendRequest
from tests.support.callers import Person, owned_thread, person
from tests.support.commands import LIMITS, Crowd
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture
from tests.support.store import batch, claim, ending, write

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = 32
WITHIN = 60.0
"""Seconds for all of it on a machine that does much else; it takes about a tenth."""
REFUSED = {
    *("forbidden", "conflict", "not_found", "run_not_found", "already_decided", "unauthorized", "thread_not_found"),
    "rate_limited",
}
"""What a command may be answered where another one came first, or where somebody was invited often enough."""
OPENAI_CALL = {"model": "demo", "messages": [{"role": "user", "content": "/say Hello."}]}

server = server_fixture(KHALA_USER_RUNS_PER_HOUR="10000")


@pytest_asyncio.fixture(loop_scope="function")
async def store(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=64)
    yield database
    await database.close()


def _deadlocks() -> float:
    """The number of transactions of this process that ended in a deadlock."""
    return REGISTRY.get_sample_value("khala_database_deadlocks_total", {"cause": "deadlock"}) or 0.0


async def test_sixteen_openai_calls_of_one_account_at_once_all_succeed(server: InProcessServer) -> None:
    db, before = Database(server.database_url), _deadlocks()
    account = await person(db)
    await db.close()
    for _ in range(3):
        calls = [
            server.http.post("/v1/chat/completions", json=OPENAI_CALL, headers=account.headers, timeout=60)
            for _ in range(16)
        ]
        answers = await asyncio.gather(*calls)
        assert [answer.status_code for answer in answers] == [200] * 16
    assert _deadlocks() == before


@pytest.mark.asyncio(loop_scope="function")
async def test_thirty_two_callers_with_every_kind_of_command_end_without_a_deadlock(store: Database) -> None:
    crowd, before = Crowd(store, seed=14), _deadlocks()
    await crowd.create_users()
    refused: set[str] = set()

    async def call() -> None:
        for command in crowd.shuffled():
            try:
                await command()
            except KhalaError as error:
                refused.add(error.code)

    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(call() for _ in range(CALLERS)))
    assert refused <= REFUSED
    assert _deadlocks() == before
    async with store.driver() as driver:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await driver.fetchval(query) == 0


async def _open_transaction(url: str) -> Driver:
    """A connection in an open transaction, like another process in the middle of a command."""
    connection: Driver = await asyncpg.connect(driver_url(url))
    await connection.execute("BEGIN")
    return connection


async def _run_against(db: Database, first: str, second: str, command: Any, *values: Any) -> Any:
    """The command's result, while another transaction locks `first`, and then `second` once the command waits.

    A command that locks in another order than `first`, `second` deadlocks with that transaction.
    """
    other = await _open_transaction(db.url)
    try:
        await other.execute(first)
        working = asyncio.ensure_future(command(*values))
        pid = await other.fetchval("SELECT pg_backend_pid()")
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND $1 = ANY(pg_blocking_pids(pid))"
        async with asyncio.timeout(10):
            while not await other.fetchval(waits, pid) and not working.done():
                await asyncio.sleep(0.01)
        assert not working.done(), "the command does not wait for the rows of `first`"
        await other.execute(second)
        await other.execute("ROLLBACK")
        return await working
    finally:
        await other.close()


def _question(thread_id: UUID, **options: Any) -> SendRequest:
    return SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions(**options))


async def _with_budget(db: Database) -> Person:
    """A user whose budget windows exist already."""
    user = await person(db)
    await sends.send(db, _question(await owned_thread(db, user)), user.caller, LIMITS)
    return user


def _user_row(user_id: UUID) -> str:
    return f"SELECT FROM users WHERE id = '{user_id}' FOR UPDATE"


def _windows(user_id: UUID) -> str:
    return f"SELECT FROM budgets WHERE key = '\\x{user_id.hex}' ORDER BY scope, key, measure, starts_at FOR UPDATE"


@pytest.mark.asyncio(loop_scope="function")
async def test_an_import_locks_budgets_before_the_user(db: Database) -> None:
    user, before = await _with_budget(db), _deadlocks()
    message = ImportedMessage(role="user", content=(TextBlock(text="before"),))
    conversation = ConversationImport(title=None, history=[message], question=_question(ids.new()))
    begin = (db, conversation, user.caller, LIMITS)
    sent = await _run_against(db, _windows(user.id), _user_row(user.id), conversation_imports.start, *begin)
    assert sent.thread_id == conversation.question.thread_id
    assert _deadlocks() == before
    async with db.driver() as driver:
        query = "SELECT (said_revision > read_revision, gone)::text FROM listings WHERE thread_id = $1"
        assert await driver.fetchval(query, sent.thread_id) == "(f,f)"


@pytest.mark.asyncio(loop_scope="function")
async def test_deleting_an_account_locks_budgets_before_users(db: Database) -> None:
    user, before = await _with_budget(db), _deadlocks()
    await _run_against(db, _windows(user.id), _user_row(user.id), accounts.remove, db, user.caller)
    assert _deadlocks() == before


@pytest.mark.asyncio(loop_scope="function")
async def test_a_sign_in_locks_the_user_before_the_password(db: Database) -> None:
    user_id, before = await accounts.register(db, "a@example.com", "hash", None, Caller()), _deadlocks()

    async def begin() -> str:
        return await sessions.begin(db, user_id, Caller(), user_agent=None, proof="hash")

    cascade = f"UPDATE passwords SET hash = hash WHERE user_id = '{user_id}'"
    assert await _run_against(db, _user_row(user_id), cascade, begin)
    assert _deadlocks() == before


@pytest.mark.asyncio(loop_scope="function")
async def test_a_send_that_interrupts_stores_its_message_before_it_locks_budgets(db: Database) -> None:
    user = await _with_budget(db)
    thread_id = await owned_thread(db, user)
    await sends.send(db, _question(thread_id), user.caller, LIMITS)
    other = await owned_thread(db, user)
    question, before = _question(thread_id, if_busy="interrupt"), _deadlocks()
    # Another send with the same message id, in another thread, which will reserve from the same budgets.
    taken = f"""INSERT INTO messages (id, thread_id, position, role, status, revision)
                VALUES ('{question.message_id}', '{other}', 1, 'user', 'final', 1)"""
    sent, new = await _run_against(db, taken, _windows(user.id), sends.send, db, question, user.caller, LIMITS)
    assert (sent.user_message_id, new) == (question.message_id, True)
    assert _deadlocks() == before


@pytest.mark.asyncio(loop_scope="function")
async def test_a_flush_waits_for_no_run_that_ends_or_begins_a_step(db: Database) -> None:
    user, before = await person(db), _deadlocks()
    for _ in range(2):
        await sends.send(db, _question(await owned_thread(db, user)), user.caller, LIMITS)
    low, high = sorted((claimed.lease for claimed in await claim(db)), key=lambda lease: lease.run_id)
    step = batch(high, 0, Step(step=1, max_steps=20, tool_count=1))
    begun = type(step)(lease=high, parts=step.parts, steps=1)
    for locked in ((low,), (high,), (low, high)):
        # As a heartbeat does, in the order of the ids.
        other = await _open_transaction(db.url)
        for lease in locked:
            await other.execute("SELECT FROM runs WHERE id = $1 FOR NO KEY UPDATE", lease.run_id)
        try:
            async with asyncio.timeout(5), db.driver() as driver:
                result = await append(driver, [ending(low, 0, ()), begun])
            assert result.busy >= {lease.run_id for lease in locked} - result.stored.keys()
            assert not {lease.run_id for lease in locked} & {key for key, new in result.stored.items() if new}
        finally:
            await other.close()
    written = await write(db, ending(low, 0, ()), begun)
    assert set(written) == {low.run_id, high.run_id}
    assert _deadlocks() == before
    async with db.driver() as driver:
        assert await run_queue.renew_leases(driver, [low, high], lease_seconds=30) == {high.run_id}


async def _blocks(driver: Driver, blocker: int, count: int) -> None:
    """Wait until this backend blocks so many others."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
    async with asyncio.timeout(10):
        while await driver.fetchval(query, blocker) < count:
            await asyncio.sleep(0.01)


@pytest.mark.asyncio(loop_scope="function")
async def test_list_entries_are_updated_while_foreign_keys_lock_an_older_version_of_a_user(db: Database) -> None:
    members, before = sorted([await person(db), await person(db)], key=lambda row: row.id), _deadlocks()
    low, high = (member.id for member in members)
    thread_id = await owned_thread(db, members[0])
    async with db.driver() as driver, driver.transaction():
        await thread_lists.add_entry(driver, thread_id, high)
    referring, changing, holding = [await _open_transaction(db.url) for _ in range(3)]
    bump = "UPDATE users SET revision = revision + 1 WHERE id = $1"
    await referring.execute("SELECT FROM users WHERE id = $1 FOR KEY SHARE", low)
    await changing.execute(bump, low)
    await holding.execute(bump, high)

    async def stamp() -> None:
        async with db.driver() as driver, driver.transaction():
            await thread_lists.mark_changed(driver, [thread_id])

    async def hold() -> None:
        async with db.driver() as driver, driver.transaction():
            await thread_lists.lock_user(driver, low)

    changed_by, held_by = changing.get_server_pid(), holding.get_server_pid()
    stamping = asyncio.ensure_future(stamp())
    await _blocks(referring, changed_by, 1)
    waiting = asyncio.ensure_future(hold())
    await asyncio.sleep(0.2)  # it waits for `stamp` and for the older row version
    await changing.execute("COMMIT")
    await _blocks(referring, held_by, 1)
    await holding.execute("COMMIT")
    async with asyncio.timeout(10):
        await asyncio.gather(stamping, waiting)
    await referring.execute("COMMIT")
    for connection in (referring, changing, holding):
        await connection.close()
    assert _deadlocks() == before
