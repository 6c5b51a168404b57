"""Transactions that Postgres aborts because of locks are retried; a final failure names the reason."""

import asyncio
import inspect
import pkgutil
import re
from collections.abc import AsyncIterator
from importlib import import_module
from types import ModuleType
from uuid import UUID

import pytest
import pytest_asyncio
from sqlalchemy import text
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from khala import store
from khala.domain.errors import Unavailable
from khala.signals.metrics import REGISTRY
from khala.store.postgres import retries
from khala.store.postgres.database import CONFLICT_MESSAGE, Database, TransactionConflict
from khala.store.postgres.retries import MAX_TRIES, retried
from khala.store.threads import sends
from tests.support.in_process import InProcessServer, khala
from tests.support.store import ask, new_thread

CAUSES = {"40P01": "deadlock", "40001": "serialization"}
FAIL = """
    CREATE SEQUENCE tried;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            -- A sequence is not rolled back.
            IF nextval('tried') <= {times} THEN RAISE EXCEPTION 'collided' USING ERRCODE = '{code}'; END IF;
            RETURN NEW;
        END $$;
    CREATE TRIGGER fail BEFORE INSERT ON messages FOR EACH ROW WHEN (NEW.role = 'user') EXECUTE FUNCTION fail();
"""
OPENS = re.compile(r"db\.transaction\(|driver\.transaction\(|owners\.changing\(")
SINGLE = {"changing", "forgetting"}
"""Context managers: what goes on inside belongs to the caller, who is retried or tries again by itself."""


@pytest_asyncio.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url, with_executor=False) as inside:
        yield inside


def _counted(code: str) -> float:
    return REGISTRY.get_sample_value("khala_database_deadlocks_total", {"cause": CAUSES[code]}) or 0.0


async def _fail(db: Database, times: int, code: str) -> None:
    """Let the next so many queries fail with this SQLSTATE, as after a collision with another transaction."""
    async with db.driver() as driver:
        await driver.execute(FAIL.format(times=times, code=code))


@pytest.mark.parametrize("code", CAUSES)
async def test_a_command_that_collides_is_retried_and_takes_effect_once(db: Database, code: str) -> None:
    thread_id, before = await new_thread(db), _counted(code)
    await _fail(db, MAX_TRIES - 1, code)
    sent = await ask(db, thread_id)
    assert _counted(code) == before + MAX_TRIES - 1
    async with db.driver() as driver:
        found = await driver.fetch("SELECT id FROM runs WHERE thread_id = $1", thread_id)
        assert [row["id"] for row in found] == [sent.run_id]
        assert await driver.fetchval("SELECT count(*) FROM messages WHERE thread_id = $1", thread_id) == 2


@pytest.mark.parametrize("code", CAUSES)
async def test_a_command_that_keeps_colliding_is_unavailable_with_its_own_message(
    server: InProcessServer, code: str
) -> None:
    thread, before = await server.thread(), _counted(code)
    db = Database(server.database_url)
    await _fail(db, 1000, code)
    path = f"/api/threads/{thread.id}/send"
    answer = await server.http.post(path, json={"text": "?"}, headers=thread.headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.json()["detail"] == CONFLICT_MESSAGE
    assert int(answer.headers["Retry-After"]) >= 1
    assert _counted(code) == before + MAX_TRIES
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM runs WHERE thread_id = $1", UUID(thread.id)) == 0
    await db.close()


async def test_two_commands_that_lock_against_each_other_both_succeed(db: Database) -> None:
    first, second = await new_thread(db), await new_thread(db)
    met, before = asyncio.Barrier(2), _counted("40P01")
    waited: set[UUID] = set()

    @retried
    async def both(one: UUID, other: UUID) -> None:
        query = "UPDATE threads SET title = coalesce(title, '') || 'x' WHERE id = $1"
        async with db.driver() as driver, driver.transaction():
            await driver.execute(query, one)
            if one not in waited:
                waited.add(one)
                await met.wait()
            await driver.execute(query, other)

    await asyncio.gather(both(first, second), both(second, first))
    assert _counted("40P01") == before + 1
    async with db.driver() as driver:
        titles = await driver.fetch("SELECT title FROM threads WHERE id = ANY($1::uuid[])", [first, second])
    assert [row["title"] for row in titles] == ["xx", "xx"]


async def test_an_outage_is_not_retried_as_a_collision(db: Database) -> None:
    tries = 0

    @retried
    async def cut() -> None:
        nonlocal tries
        tries += 1
        async with db.driver() as driver:
            await driver.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(Unavailable, match="out of reach") as raised:
        await cut()
    assert not isinstance(raised.value, TransactionConflict)
    assert tries == 1


async def test_a_statement_that_waits_too_long_for_a_lock_does_not_say_that_the_database_is_out_of_reach(
    db: Database, database_url: str
) -> None:
    thread_id = await new_thread(db)
    lock = "SELECT FROM threads WHERE id = $1 FOR UPDATE"
    impatient = Database(database_url, timeout=0.2)
    try:
        async with db.driver() as holder, holder.transaction():
            await holder.execute(lock, thread_id)
            with pytest.raises(Unavailable, match="did not answer in time"):
                async with impatient.driver() as driver:
                    await driver.execute(lock, thread_id)
            with pytest.raises(Unavailable, match="did not answer in time"):
                async with impatient.transaction() as connection:
                    await connection.execute(text("SELECT FROM threads WHERE id = :id FOR UPDATE"), {"id": thread_id})
    finally:
        await impatient.close()


async def test_a_database_that_is_read_only_says_that_it_takes_no_writes(db: Database) -> None:
    with pytest.raises(Unavailable, match="takes no writes"):
        async with db.snapshot() as driver:
            await driver.execute("CREATE TABLE written ()")


async def test_the_log_line_of_a_request_says_why_the_database_was_unavailable(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("The database did not answer in time.", retry_after=1) from TimeoutError("behind a lock")

    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        monkeypatch.setattr(sends, "send", fail)
        with capture_logs(processors=[merge_contextvars]) as logs:
            response = await thread.post("send", {"text": "Hello"})
    assert (response.status_code, "behind a lock" in response.text) == (503, False)
    (line,) = [each for each in logs if each["event"] == "request"]
    assert line["cause"] == "TimeoutError: behind a lock"


def test_every_command_of_the_store_with_one_transaction_is_retried() -> None:
    found = {
        f"{module.__name__}.{name}": command
        for module in _modules()
        for name, command in inspect.getmembers(module, inspect.iscoroutinefunction)
        if command.__module__ == module.__name__ and name not in SINGLE
    }
    commands = {name for name, command in found.items() if _is_command(command)}
    assert f"{sends.__name__}.send" in commands
    plain = {name for name in commands if found[name].__code__.co_filename != retries.__file__}
    assert plain == {"khala.store.postgres.write_check.find_write_problem"}, "only commands that read have no @retried"


def _is_command(command: object) -> bool:
    whole = inspect.unwrap(command)  # type: ignore[arg-type]
    takes = next(iter(inspect.signature(whole).parameters), None) == "db"
    return takes and OPENS.search(inspect.getsource(whole)) is not None


def _modules() -> list[ModuleType]:
    return [import_module(package.name) for package in pkgutil.walk_packages(store.__path__, "khala.store.")]
