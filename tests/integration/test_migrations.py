"""Migrations: they create exactly the schema of the metadata, run once, and can be reverted."""

import asyncio
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url, text

from khala.domain import ids
from khala.domain.chat import RunOptions
from khala.store.postgres import migrations
from khala.store.postgres.database import Database
from khala.store.schema.tables import metadata
from khala.store.threads import sends
from khala.store.threads.sends import SendRequest
from tests.support import postgres
from tests.support.store import CALLER, HIGH_LIMITS, ask, new_thread

CATALOG = """
    SELECT 'constraint', conrelid::regclass::text, conname::text, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
    UNION ALL
    SELECT 'index', tablename::text, indexname::text, indexdef FROM pg_indexes
    WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    UNION ALL
    SELECT 'column', table_name::text, column_name::text, concat_ws(' ', data_type, column_default, is_nullable)
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
    UNION ALL
    SELECT 'options', relname::text, relname::text, reloptions::text FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
    ORDER BY 1, 2, 3
"""


async def catalog(db: Database) -> list[tuple[Any, ...]]:
    async with db.driver() as driver:
        return [tuple(row) for row in await driver.fetch(CATALOG)]


async def empty(postgres_url: str) -> Database:
    name = f"khala_test_{ids.new().hex}"
    await postgres.execute(postgres_url, f'CREATE DATABASE "{name}"')
    return Database(postgres.named(postgres_url, name))


async def drop(postgres_url: str, db: Database) -> None:
    await db.close()
    await postgres.execute(postgres_url, f'DROP DATABASE "{db.url.rsplit("/", 1)[-1].split("?")[0]}" WITH (FORCE)')


async def test_the_metadata_equals_the_migrations(db: Database) -> None:
    assert await migrations.differences(db) == []
    assert await migrations.current(db) == migrations.head()


async def test_migrations_create_exactly_the_constraints_indexes_and_options_of_the_metadata(
    db: Database, postgres_url: str
) -> None:
    other = await empty(postgres_url)
    async with other.engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    assert await catalog(db) == await catalog(other)
    await drop(postgres_url, other)


async def test_many_processes_may_migrate_at_once(postgres_url: str) -> None:
    db = await empty(postgres_url)
    await asyncio.gather(*(migrations.upgrade(db.url) for _ in range(6)))
    assert await migrations.current(db) == migrations.head()
    await drop(postgres_url, db)


async def test_a_migration_may_idle_longer_than_a_request_and_waits_for_locks_for_a_limited_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_idle: list[object] = []
    may_wait: list[object] = []

    def look(connection: Connection, revision: str) -> None:
        may_idle.append(connection.scalar(text("SHOW idle_in_transaction_session_timeout")))
        may_wait.append(connection.scalar(text("SHOW lock_timeout")))

    monkeypatch.setattr(migrations, "_upgrade", look)
    await migrations.upgrade(database_url)
    assert (may_idle, may_wait) == (["1min"], ["200ms"])


WAITING = """
    SELECT count(*) FROM pg_locks WHERE relation = 'messages'::regclass AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def test_a_migration_and_a_transaction_that_wait_for_each_other_both_succeed(
    database_url: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration gives its locks back, without the help of Postgres, which would notice the deadlock only later."""
    late = "deadlock_timeout = '60s'"
    await postgres.execute(database_url, f'ALTER DATABASE "{make_url(database_url).database}" SET {late}')
    tries: list[str] = []

    def lock_two(connection: Connection, revision: str) -> None:
        tries.append(revision)
        connection.execute(text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))
        connection.execute(text("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE"))

    monkeypatch.setattr(migrations, "_upgrade", lock_two)
    async with db.driver() as reader, reader.transaction():
        await reader.execute(f"SET LOCAL {late}; LOCK TABLE messages IN ACCESS SHARE MODE")
        async with asyncio.TaskGroup() as group:
            migrated = group.create_task(migrations.upgrade(database_url))
            async with asyncio.timeout(10):
                while not await reader.fetchval(WAITING):
                    await asyncio.sleep(0.01)
            await reader.execute("LOCK TABLE runs IN ACCESS SHARE MODE")
            await reader.execute("ROLLBACK; BEGIN")
            await migrated
    assert len(tries) > 1


def test_the_waits_of_a_migration_add_up_to_its_limit() -> None:
    assert migrations._lock_waits(10) == [0.2, 0.4, 0.8, 1.6, 3.2, 3.8]
    assert migrations._lock_waits(0.1) == [0.1]


async def test_migrations_can_be_undone(postgres_url: str) -> None:
    db = await empty(postgres_url)
    await migrations.upgrade(db.url)
    await migrations.downgrade(db.url, "base")
    assert await catalog(db) == []
    await migrations.upgrade(db.url)
    assert await migrations.differences(db) == []
    await drop(postgres_url, db)


async def test_of_several_answers_to_one_message_an_older_version_keeps_the_run_of_the_first(db: Database) -> None:
    thread_id = await new_thread(db)
    sent = await ask(db, thread_id)
    question = SendRequest(
        thread_id=thread_id, message_id=sent.user_message_id, text="", options=RunOptions(if_busy="queue")
    )
    other, _ = await sends.regenerate(db, question, ids.new(), CALLER, HIGH_LIMITS)
    await migrations.downgrade(db.url, "0003")
    assert await _column(db, "SELECT id FROM runs") == [sent.run_id]
    await migrations.upgrade(db.url)
    assert await _column(db, "SELECT revision FROM runs") == [sent.revision]
    answers = "SELECT status FROM messages WHERE role = 'assistant' ORDER BY position"
    assert await _column(db, answers) == ["streaming", "canceled"], "an answer without a run does not stay `streaming`"
    assert await _column(db, "SELECT active_leaf FROM threads") == [other.assistant_message_id]


async def _column(db: Database, query: str) -> list[Any]:
    async with db.driver() as driver:
        return [row[0] for row in await driver.fetch(query)]


def test_migration_file_names_match_their_alembic_revisions() -> None:
    found = [script.revision for script in ScriptDirectory.from_config(migrations.alembic_config()).walk_revisions()]
    assert migrations.revisions() == found[::-1]
