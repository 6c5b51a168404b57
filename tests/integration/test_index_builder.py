"""Missing and invalid indexes are created after the migrations, while all processes read and write."""

import asyncio

import asyncpg
import pytest
from sqlalchemy import Column, Index, MetaData, Table, Text
from structlog.testing import capture_logs

from khala.doctor import database_checks
from khala.store.postgres import index_builder, migrations
from khala.store.postgres.database import Database, driver_url
from tests.integration.test_partitions import BY_HASH, BY_MONTH, run_script
from tests.support.server import command
from tests.support.store import batch, lease_of, new_thread, write

NAME = "listings_gone_idx"
VALID = """
    SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE relname = $1 AND indisvalid
"""
BUILDING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
"""
SNAPSHOTS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
      AND query NOT LIKE 'CREATE INDEX CONCURRENTLY%' AND state <> 'idle in transaction'
"""


async def is_valid(db: Database, name: str = NAME) -> bool:
    async with db.driver() as driver:
        return bool(await driver.fetchval(VALID, name))


async def run(db: Database, *statements: str) -> None:
    async with db.driver() as driver:
        for statement in statements:
            await driver.execute(statement)


async def test_a_missing_index_is_created_as_it_is_declared(db: Database) -> None:
    definition = f"SELECT indexdef FROM pg_indexes WHERE indexname = '{NAME}'"
    async with db.driver() as driver:
        before = await driver.fetchval(definition)
    await run(db, f"DROP INDEX {NAME}", "INSERT INTO users (id) VALUES (gen_random_uuid())")
    assert await migrations.differences(db) != []
    with capture_logs() as quiet:
        await migrations.upgrade(db.url)
    assert {line["log_level"] for line in quiet} <= {"debug"}, "a table without rows is no news"
    await run(
        db,
        f"DROP INDEX {NAME}",
        "INSERT INTO listings (user_id, thread_id, revision) SELECT id, gen_random_uuid(), 1 FROM users",
    )
    with capture_logs() as logs:
        await migrations.upgrade(db.url)
    lines = [(line["event"], line.get("index")) for line in logs if line["log_level"] == "info"]
    assert lines == [("index_build_started", NAME), ("index_built", NAME)]
    async with db.driver() as driver:
        assert await driver.fetchval(definition) == before
    assert await migrations.differences(db) == []


async def test_an_index_that_a_crash_has_left_invalid_is_created_again(db: Database) -> None:
    await run(db, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{NAME}'::regclass")
    await migrations.upgrade(db.url)
    assert await is_valid(db)


@pytest.mark.parametrize(
    ("old", "on", "new"),
    [
        ("listings_user_id_revision_idx", "listings (user_id, revision)", "listings_user_id_revision_thread_id_idx"),
        ("memories_generation_idx", "memories (generation, id) WHERE superseded_by IS NULL", "memories_pending_idx"),
        ("runs_thread_id_idx", "runs (thread_id)", "runs_thread_id_id_idx"),
    ],
)
async def test_an_index_that_a_declared_one_replaces_is_dropped_once_that_exists(
    db: Database, old: str, on: str, new: str
) -> None:
    assert old in index_builder.REPLACED
    await run(db, f"DROP INDEX {new}", f"CREATE INDEX {old} ON {on}")
    await migrations.upgrade(db.url)
    assert await is_valid(db, new)
    assert not await is_valid(db, old)
    assert await migrations.differences(db) == []


async def test_a_program_older_than_the_schema_creates_no_index(db: Database) -> None:
    await run(db, f"DROP INDEX {NAME}", "UPDATE alembic_version SET version_num = '9999'")
    await migrations.upgrade(db.url)
    assert not await is_valid(db)


async def test_writes_continue_while_one_of_several_processes_creates_an_index(db: Database) -> None:
    await run(db, f"DROP INDEX {NAME}")
    insert = "INSERT INTO listings (user_id, thread_id, revision) SELECT id, gen_random_uuid(), 1 FROM users"
    await run(db, "INSERT INTO users (id) VALUES (gen_random_uuid())")
    long = await asyncpg.connect(driver_url(db.url))
    try:
        transaction = long.transaction()
        await transaction.start()
        await long.execute(insert)
        upgrades = [asyncio.create_task(migrations.upgrade(db.url)) for _ in range(4)]
        async with asyncio.timeout(30), db.driver() as driver:
            while not await driver.fetchval(BUILDING) or await driver.fetchval(SNAPSHOTS):
                await asyncio.sleep(0.02)
            async with driver.transaction():
                await driver.execute("SET LOCAL lock_timeout = '1s'")
                await driver.execute(insert)
        assert not any(upgrade.done() for upgrade in upgrades)
        await transaction.commit()
        async with asyncio.timeout(30):
            await asyncio.gather(*upgrades)
    finally:
        await long.close()
    assert await is_valid(db)


@pytest.mark.parametrize("script", [BY_HASH, BY_MONTH])
async def test_an_index_on_a_partitioned_table_is_created_in_each_partition_and_attached(
    db: Database, database_url: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await lease_of(db, await new_thread(db))
    await run_script(database_url, script)
    name = "message_parts_kind_idx"
    parts = Table("message_parts", MetaData(), Column("kind", Text), Index(name, "kind"))
    monkeypatch.setattr(index_builder, "DECLARED", {name: next(iter(parts.indexes))})
    await run(db, f"CREATE INDEX {name} ON ONLY message_parts (kind)")
    assert not await is_valid(db, name)
    assert [str(index.name) for index in await missing(db)] == [name]
    await migrations.upgrade(db.url)
    assert await is_valid(db, name)
    assert await missing(db) == []
    assert await write(db, batch(lease, 0, "Some text.")) == {lease.run_id: 1}


RETIRED = "message_parts_thread_id_revision_idx"


@pytest.mark.parametrize("script", [None, BY_HASH, BY_MONTH])
async def test_an_index_that_only_the_previous_version_reads_is_dropped_on_request_where_there_are_rows(
    db: Database, database_url: str, script: str | None
) -> None:
    assert not await exists(db, RETIRED), "a new deployment has no previous version"
    await write(db, batch(await lease_of(db, await new_thread(db)), 0, "Some text."))
    if script:
        await run_script(database_url, script)
    await run(db, f"CREATE INDEX {RETIRED} ON message_parts (thread_id, revision)")
    await migrations.upgrade(db.url)
    assert await exists(db, RETIRED), "processes of the previous version may still run"
    assert await migrations.differences(db) == []
    assert "--drop-retired" in (await database_checks.schema(db)).says
    done = await asyncio.to_thread(command, {"DATABASE_URL": database_url}, "migrate", "--drop-retired")
    assert f"Dropped the index {RETIRED}." in done.stdout, done.stderr
    assert not await exists(db, RETIRED)
    assert await migrations.drop_retired_indexes(db.url) == []


async def exists(db: Database, name: str) -> bool:
    async with db.driver() as driver:
        return bool(await driver.fetchval("SELECT to_regclass($1) IS NOT NULL", name))


async def missing(db: Database) -> list[Index]:
    async with db.driver() as driver:
        return await index_builder.find_missing(driver)
