"""Upgrades: a new schema lets the previous version continue, by rule; and processes that start at once migrate once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from khala.domain import ids
from khala.domain.errors import Unavailable
from khala.store.postgres import migrations
from khala.store.postgres.database import Database
from tests.support import postgres
from tests.support.observed_run import observed_run
from tests.support.schema_rules import RULES, breaches, history, separate_locks, statements
from tests.support.server import Process, Server, Worker, ended

ALLOWED: dict[tuple[str, str, str], str] = {
    ("0002", "locks while it indexes", "messages_author_id_idx.messages"): "before the first release",
    ("0002", "locks while it indexes", "threads_deleted_at_idx.threads"): "before the first release",
    ("0002", "locks while it indexes", "threads_owner_id_idx.threads"): "before the first release",
    ("0002", "locks while it indexes", "threads_unclaimed_idx.threads"): "before the first release",
    ("0002", "rewrites the table", "threads.access_id"): "before the first release",
    ("0004", "changes rows", "runs"): "before the first release; once, and a run's row is small",
    ("0004", "drops an index", "runs_user_message_id_key"): "before the first release; the version before names it"
    " nowhere, and of several runs of one message finds the first",
    ("0004", "locks while it indexes", "runs_user_message_id_idx.runs"): "before the first release",
    ("0020", "adds a constraint", "memories"): "validated with a weaker lock; the version before stores both rows of a"
    " correction in one transaction",
    ("0033", "adds a constraint", "usage_receipts"): "it allows one purpose more; once, and a receipt's row is small",
    ("0034", "is no plain statement", ""): "it creates a function, which the version before does not call",
    ("0041", "is no plain statement", ""): "it creates a function, which the version before does not call",
    ("0020", "changes rows", "memories"): "memories are new in this version; once, and only those that nobody can see",
}
"""What past migrations do against the rules, and why it was no harm. A new one has to say so here, too."""

SEPARATE_LOCKS = {"0002", "0003", "0006", "0009", "0013"}
"""Past migrations that lock tables one after another. No new ones: `migrations.upgrade` would have to try again."""

BREAKING = {
    "drops a table": "DROP TABLE runs",
    "drops a column": "ALTER TABLE runs DROP COLUMN epoch",
    "renames": 'ALTER TABLE "runs" RENAME COLUMN epoch TO age',
    "changes a type": "ALTER TABLE runs ALTER COLUMN epoch TYPE SMALLINT",
    "takes a default away": "ALTER TABLE runs ALTER COLUMN epoch DROP DEFAULT",
    "forbids nulls": "ALTER TABLE runs ALTER COLUMN finish SET NOT NULL",
    "adds what must be given": "ALTER TABLE runs ADD COLUMN note TEXT NOT NULL",
    "rewrites the table": "ALTER TABLE runs ADD COLUMN note UUID DEFAULT gen_random_uuid() NOT NULL",
    "adds a constraint": "ALTER TABLE runs ADD CONSTRAINT runs_note_check CHECK (epoch > 0)",
    "drops an index": "DROP INDEX runs_waiting_idx",
    "locks while it indexes": "CREATE INDEX runs_note_idx ON runs (note)",
    "indexes in a transaction": "CREATE INDEX CONCURRENTLY runs_note_idx ON runs (note)",
    "forbids doubles": "CREATE UNIQUE INDEX CONCURRENTLY runs_note_key ON runs (note)",
    "changes rows": "UPDATE runs SET epoch = 0",
    "is no plain statement": "DO $$ BEGIN PERFORM 1",
}
HARMLESS = (
    "ALTER TABLE runs ADD COLUMN note TEXT",
    "ALTER TABLE runs ADD COLUMN note TEXT DEFAULT '' NOT NULL",
    "ALTER TABLE runs ALTER COLUMN finish DROP NOT NULL",
    "UPDATE alembic_version SET version_num='0002' WHERE alembic_version.version_num = '0001'",
)


def test_every_migration_keeps_the_previous_version_working() -> None:
    found = [breach for revision, before in history() for breach in breaches(revision, statements(revision, before))]
    assert [breach for breach in found if breach.name not in ALLOWED] == []
    assert set(ALLOWED) == {breach.name for breach in found}, "each exception is needed"


def test_a_migration_locks_the_tables_in_use_by_one_statement() -> None:
    found = {revision for revision, before in history() if separate_locks(statements(revision, before))}
    assert found == SEPARATE_LOCKS


def test_tables_that_are_locked_one_after_another_are_found() -> None:
    lock = "LOCK TABLE runs, messages IN ACCESS EXCLUSIVE MODE"
    runs, messages = "ALTER TABLE runs ADD COLUMN note TEXT", "ALTER TABLE messages ADD COLUMN note TEXT"
    refers = "CREATE TABLE notes (run_id UUID REFERENCES runs (id))"
    assert separate_locks([runs, messages]) == ["runs", "messages"]
    assert separate_locks([refers, messages]) == ["runs", "messages"]
    assert separate_locks([lock, runs, messages, "ALTER TABLE threads ADD COLUMN note TEXT"]) == ["threads"]
    assert separate_locks([lock, runs, messages, refers]) == separate_locks([runs, refers]) == []


def test_the_history_is_read_to_its_end() -> None:
    assert [revision for revision, _ in history()][-1] == migrations.head()
    assert all(statements(revision, before) for revision, before in history())


@pytest.mark.parametrize("rule", RULES)
def test_a_migration_that_breaks_the_rule_is_found(rule: str) -> None:
    assert [breach.rule for breach in breaches("9999", [BREAKING[rule]])] == [rule]


def test_a_compatible_change_is_allowed() -> None:
    assert breaches("9999", HARMLESS) == []


def test_a_new_table_may_have_any_definition() -> None:
    made = ["CREATE TABLE notes (id UUID)", BREAKING["adds a constraint"].replace("runs", "notes")]
    assert breaches("9999", [*made, "CREATE UNIQUE INDEX notes_key ON notes (id)"]) == []


@asynccontextmanager
async def empty(postgres_url: str) -> AsyncIterator[str]:
    """The URL of a database without a schema."""
    name = f"khala_test_{ids.new().hex}"
    await postgres.execute(postgres_url, f'CREATE DATABASE "{name}"')
    try:
        yield postgres.named(postgres_url, name)
    finally:
        await postgres.execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def test_a_new_column_under_a_prepared_statement_causes_a_retry_and_no_failure(
    db: Database,
) -> None:
    async def by_driver() -> None:
        async with db.driver() as driver, driver.transaction():
            await driver.fetch("SELECT * FROM todos")

    async def by_command() -> None:
        async with db.transaction() as connection:
            await connection.execute(text("SELECT * FROM todos"))

    for number, read in enumerate((by_driver, by_command)):
        await read()
        await postgres.execute(db.url, f"ALTER TABLE todos ADD COLUMN new_{number} text")
        with pytest.raises(Unavailable):
            await read()
        await read()


async def test_a_migration_that_cannot_lock_a_table_fails_without_blocking_others(postgres_url: str) -> None:
    async with empty(postgres_url) as url:
        await migrations.upgrade(url, "0003")
        db = Database(url)
        try:
            async with db.driver() as somebody, somebody.transaction():
                await somebody.execute("LOCK TABLE runs IN ACCESS SHARE MODE")
                with pytest.raises(Unavailable):
                    await migrations.upgrade(url, lock_timeout=0.1)
                assert await migrations.current(db) == "0003"
            await migrations.upgrade(url)
            assert await migrations.current(db) == migrations.head()
        finally:
            await db.close()


WAITING = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def test_processes_that_start_during_a_migration_wait_and_then_serve(postgres_url: str, tmp_path: Path) -> None:
    async with empty(postgres_url) as url:
        env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_GRACE_SECONDS": "0"}
        server = Server(tmp_path / "server.log", env, "--no-executor")
        worker, migrating = Worker(tmp_path / "worker.log", env), Process(tmp_path / "migrate.log", env, "migrate")
        somebody = await asyncpg.connect(url)
        try:
            with ended(server, worker, migrating):
                async with somebody.transaction():
                    await somebody.execute("SELECT pg_advisory_xact_lock($1)", migrations.MIGRATION_LOCK_KEY)
                    for process in (server, worker, migrating):
                        Process.start(process)
                    async with asyncio.timeout(60):
                        while await somebody.fetchval(WAITING) < 3:
                            await asyncio.sleep(0.05)
                    assert await somebody.fetchval("SELECT to_regclass('threads')") is None
                await asyncio.to_thread(server.wait_until_ready)
                async with observed_run(server, words=20) as answer:
                    await answer.check_end()
                async with asyncio.timeout(30):
                    while migrating.ended_with() is None:
                        await asyncio.sleep(0.05)
                assert migrating.ended_with() == 0
                assert not [line for process in (server, worker, migrating) for line in process.crashes()]
        finally:
            await somebody.close()
        db = Database(url)
        try:
            assert await migrations.current(db) == migrations.head()
        finally:
            await db.close()
