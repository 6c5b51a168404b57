"""Creates the indexes that the metadata has and the database lacks, while all processes read and write.

A migration locks a table against writes while it creates an index on it. So no migration creates an index on an
existing table: the index is declared in `khala.store.schema`, and created here with CONCURRENTLY, after the migrations
have committed. An index that a crash has left invalid is dropped and created again.

One process at a time creates indexes. The others poll for its lock: a connection that waits for the lock in a statement
has a snapshot, and CREATE INDEX CONCURRENTLY waits for all snapshots.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from sqlalchemy import Index
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from khala.store.postgres.database import Database, Driver
from khala.store.schema.tables import metadata

log = structlog.get_logger()

INDEX_LOCK_KEY = 0x6B68616C64
"""The key of the advisory lock that the process holds that creates indexes."""
POLL_INTERVAL_SECONDS = 0.5
"""The time after which a process looks again whether another one has created the indexes."""

DECLARED: Mapping[str, Index] = {
    str(index.name): index for table in metadata.sorted_tables for index in table.indexes if not index.unique
}
"""By name, the indexes that may be created here. A unique index belongs to the migration that creates its table."""

VALID = """
    SELECT class.relname FROM pg_class AS class JOIN pg_index ON pg_index.indexrelid = class.oid
    WHERE class.relname = ANY ($1::text[]) AND class.relnamespace = current_schema()::regnamespace AND indisvalid
"""
PARTITIONS = """
    SELECT leaf.relid::regclass::text AS name FROM pg_partition_tree($1::text::regclass) AS leaf
    WHERE isleaf AND leaf.level > 0 AND NOT EXISTS (
        SELECT FROM pg_inherits JOIN pg_index ON pg_index.indexrelid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = to_regclass($2) AND pg_index.indrelid = leaf.relid)
    ORDER BY 1
"""
"""The partitions of a table in which a partitioned index has no index yet."""
IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = $1::text::regclass"
TABLE_OF = "SELECT indrelid::regclass::text FROM pg_index WHERE indexrelid = to_regclass($1)"
MAX_NAME_BYTES = 63
DROP_TIMEOUT_SECONDS = 10
"""The time that the drop of a partitioned index may wait for the table, while all others wait behind it."""

REPLACED = ("listings_user_id_revision_idx", "memories_generation_idx", "runs_thread_id_idx")
"""Indexes that a declared index of the same first columns replaces, for the previous version, too."""
RETIRED = {"message_parts_thread_id_revision_idx": "message_parts"}
"""Indexes that only the previous version reads, with their table."""
EXISTING = """
    SELECT relname FROM pg_class WHERE relname = ANY ($1::text[]) AND relnamespace = current_schema()::regnamespace
"""


async def build_missing(db: Database) -> None:
    """Create all missing indexes, and drop those that they replace, and retired ones of tables without rows.

    Returns when that is done, also if another process does it.
    """
    async with db.driver() as driver:
        while await find_missing(driver) or await _find_unused(driver):
            if not await driver.fetchval("SELECT pg_try_advisory_lock($1)", INDEX_LOCK_KEY):
                await asyncio.sleep(POLL_INTERVAL_SECONDS)
                continue
            try:
                for index in await find_missing(driver):
                    await _build(driver, index)
                for name in await _find_unused(driver):
                    report = await _reporter(driver, await driver.fetchval(TABLE_OF, name))
                    await driver.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
                    report("index_dropped", index=name)
            finally:
                await driver.execute("SELECT pg_advisory_unlock($1)", INDEX_LOCK_KEY)


async def find_retired(driver: Driver) -> list[str]:
    """The existing indexes that only the previous version reads."""
    return [row["relname"] for row in await driver.fetch(EXISTING, list(RETIRED))]


async def drop_retired(db: Database) -> list[str]:
    """Drop the indexes that only the previous version reads, which is slow from now on. Returns their names.

    Raises `Unavailable` if a partitioned table can't be locked in time: its indexes can't be dropped while it is used.
    """
    dropped = []
    async with db.driver() as driver:
        for name in await find_retired(driver):
            if await driver.fetchval(IS_PARTITIONED, RETIRED[name]):
                await _drop_partitioned(driver, name)
            else:
                await driver.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            dropped.append(name)
    return dropped


async def _drop_partitioned(driver: Driver, name: str) -> None:
    async with driver.transaction():
        await driver.execute(f"SET LOCAL lock_timeout = '{DROP_TIMEOUT_SECONDS}s'")
        await driver.execute(f"DROP INDEX {name}")


async def find_missing(driver: Driver) -> list[Index]:
    """The declared indexes that do not exist, or are invalid."""
    valid = {row["relname"] for row in await driver.fetch(VALID, list(DECLARED))}
    return [index for name, index in DECLARED.items() if name not in valid]


async def _find_unused(driver: Driver) -> list[str]:
    """The existing indexes that are not needed any more: a new deployment never had a previous version."""
    existing = [row["relname"] for row in await driver.fetch(EXISTING, [*REPLACED, *RETIRED])]
    return [name for name in existing if name in REPLACED or await _is_empty(driver, RETIRED[name])]


async def _reporter(driver: Driver, table: str) -> Callable[..., Any]:
    """The function that logs work on this table: `debug` while it has no rows, as in a new database, else `info`."""
    report: Callable[..., Any] = log.debug if await _is_empty(driver, table) else log.info
    return report


async def _is_empty(driver: Driver, table: str) -> bool:
    if await driver.fetchval(IS_PARTITIONED, table):
        return False
    return not await driver.fetchval(f"SELECT EXISTS (SELECT FROM {table})")


async def _build(driver: Driver, index: Index) -> None:
    table = str(index.table)
    if await driver.fetchval(IS_PARTITIONED, table):
        await _build_partitioned(driver, index)
    else:
        await _build_in(driver, index, table, str(index.name))


async def _build_partitioned(driver: Driver, index: Index) -> None:
    """Create the index in each partition, and attach it. The partitioned index is valid once it has them all."""
    name, table = str(index.name), str(index.table)
    if await driver.fetchval("SELECT to_regclass($1)", name) is None:
        await driver.execute(_statement(index, f"INDEX {name} ON ONLY {table}"))
    for row in await driver.fetch(PARTITIONS, table, name):
        partition = row["name"]
        part = f"{partition}{name.removeprefix(table)}"[-MAX_NAME_BYTES:]
        await _build_in(driver, index, partition, part)
        await driver.execute(f"ALTER INDEX {name} ATTACH PARTITION {part}")


async def _build_in(driver: Driver, index: Index, table: str, name: str) -> None:
    """Create the index under this name in this table, which is not partitioned."""
    report = await _reporter(driver, table)
    report("index_build_started", index=name, table=table)
    await driver.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    await driver.execute(_statement(index, f"INDEX CONCURRENTLY {name} ON {table}"))
    report("index_built", index=name, table=table)


def _statement(index: Index, head: str) -> str:
    """The statement that creates the index. `head` is its beginning, with the index's name and the table's."""
    # SQLAlchemy's dialects have no types.
    whole = str(CreateIndex(index).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    return f"CREATE {head}{whole.removeprefix(f'CREATE INDEX {index.name} ON {index.table}')}"
