"""The cost of a run in statements, from its claim to its first model call."""

import asyncio

import pytest

from khala.runs.run_execution import RunExecution
from khala.store.memories import memory_settings
from khala.store.memories.memory_settings import MemorySettingChanges
from khala.store.postgres.database import Database
from khala.store.runs.parts import STORE_PARTS
from tests.integration.test_budgets import limit, limited
from tests.integration.test_database_lost import idle_executor
from tests.support.callers import owned_thread, person
from tests.support.statements import logged, on_one_line
from tests.support.store import ask, batch, claim, lease_of, new_thread, write

CLAIM_STATEMENTS = 5
"""Of a claim, however many runs it claims: with BEGIN and COMMIT, their reservations and their requesters' settings."""
START_STATEMENTS = 3
"""Of a run until it calls the model: the prompt's messages, whether there are memories, and rules for tools."""
FIRST_COMMIT = on_one_line(STORE_PARTS)
"""The group commit of the first text."""
ABOUT_TYPES = ("WITH RECURSIVE typeinfo_tree", "SELECT current_setting('jit')")
"""Statements of the driver on a new connection, about types of arguments that it does not know."""
LIMITS = limited(limit("user", "usd", 10))


async def test_a_claim_reads_what_all_its_runs_begin_with(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as statements:
        db = Database(database_url)
        people = [await person(db) for _ in range(3)]
        await memory_settings.change(db, people[0].caller, MemorySettingChanges(recall=False, extraction="ask"))
        sent = [await ask(db, await owned_thread(db, one), limits=LIMITS, caller=one.caller) for one in people]
        await asyncio.sleep(0)  # The driver logs a statement in the next iteration of the event loop.
        statements.clear()
        claimed = {one.lease.run_id: one for one in await claim(db)}
        await asyncio.sleep(0)
        assert len(statements) == CLAIM_STATEMENTS, statements
        await db.close()
    runs = [claimed[one.run_id] for one in sent]
    assert [one.requester.user_id for one in runs] == [one.caller.user_id for one in people]
    assert [(one.requester.recall, one.requester.extraction) for one in runs] == [
        (False, "ask"), (True, None), (True, None),
    ]  # fmt: skip
    for one in runs:
        assert one.first_account is not None
        assert [(entry.scope, entry.key) for entry in one.first_account.entries] == [
            ("user", one.requester.user_id and one.requester.user_id.bytes)
        ]


async def test_a_run_takes_three_statements_until_it_calls_the_model(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logged(monkeypatch) as statements:
        db = Database(database_url)
        user = await person(db)
        await ask(db, await owned_thread(db, user), "/words=3 /pace=0", limits=LIMITS, caller=user.caller)
        (claimed,) = await claim(db)
        await asyncio.sleep(0)  # The driver logs a statement in the next iteration of the event loop.
        statements.clear()
        async with idle_executor(db) as executor:
            writing = asyncio.create_task(executor._run_executor._writer.run())
            await executor._execute(RunExecution(claimed))
            writing.cancel()
        await db.close()
    assert FIRST_COMMIT in statements, statements
    start = [one for one in statements[: statements.index(FIRST_COMMIT)] if not one.startswith(ABOUT_TYPES)]
    assert len(start) == START_STATEMENTS, statements


async def test_an_append_of_few_parts_takes_one_statement(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as statements:
        db = Database(database_url)
        lease = await lease_of(db, await new_thread(db))
        await write(db, batch(lease, 0, "a"))  # A new connection asks for the types of the arguments.
        await asyncio.sleep(0)  # The driver logs a statement in the next iteration of the event loop.
        statements.clear()
        assert await write(db, batch(lease, 1, "b", "c")) == {lease.run_id: 2}
        await asyncio.sleep(0)
        await db.close()
    assert len(statements) == 1, statements
