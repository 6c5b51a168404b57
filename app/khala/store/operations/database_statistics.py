"""Statistics of the database for monitoring: waits for locks, the purge's backlog, and the sizes of tables.

All come from catalogs, counters and one partial index. No query reads a whole table, or waits for a table's lock.
"""

import msgspec

from khala.store.operations.retention import UNPURGED
from khala.store.postgres.database import Driver
from khala.store.schema.tables import metadata

MAX_BACKLOG = 10_000
"""Rows of a backlog that are counted."""


class DatabaseActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Waits at this moment. Times are seconds.

    `longest_lock_wait` is the time since the oldest statement that waits for a lock began. `oldest_transaction` is the
    age of the oldest transaction: vacuum removes no row that was deleted since.
    """

    lock_waiters: int
    longest_lock_wait: float
    oldest_transaction: float


class TableStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its partitions. Sizes are those of its last vacuum or analysis.

    `transaction_age` is the number of transactions since its oldest row that is not frozen.
    """

    name: str
    table_bytes: int
    index_bytes: int
    live_rows: int
    dead_rows: int
    transaction_age: int


class StorageStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the database and its tables, and the purge's backlog.

    `backlog` is the number of deleted threads to purge, and `search_waiting` that of entries in the queue of the
    search, each at most `MAX_BACKLOG`.
    """

    database_bytes: int
    backlog: int
    oldest_backlog_seconds: float
    search_waiting: int
    tables: list[TableStatistics]


ACTIVITY = """
    SELECT count(*) FILTER (WHERE wait_event_type = 'Lock') AS lock_waiters,
           coalesce(extract(epoch FROM clock_timestamp() - min(query_start) FILTER (
               WHERE wait_event_type = 'Lock'
           )), 0)::float AS longest_lock_wait,
           coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::float AS oldest_transaction
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
"""`pg_locks` has the exact time at which a wait began, but a read of it stops all changes of locks."""

BACKLOG = f"""
    SELECT pg_database_size(current_database()) AS database_bytes, count(*) AS backlog,
           (SELECT count(*) FROM (SELECT FROM search_queue LIMIT {MAX_BACKLOG}) AS queued) AS search_waiting,
           coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)::float AS oldest_backlog_seconds
    FROM (
        (SELECT deleted_at AS since FROM threads WHERE {UNPURGED} ORDER BY deleted_at LIMIT {MAX_BACKLOG})
        UNION ALL (SELECT reset_at FROM thread_resets ORDER BY reset_at LIMIT {MAX_BACKLOG})
        UNION ALL (SELECT deleted_at FROM deleted_accounts ORDER BY deleted_at LIMIT {MAX_BACKLOG})
    ) AS unpurged
"""

TABLES = """
    SELECT coalesce(root.relname, stored.relname)::text AS name,
           (sum(stored.relpages + coalesce(toast.relpages, 0)) * page.bytes)::bigint AS table_bytes,
           (sum(coalesce(indexes.pages, 0)) * page.bytes)::bigint AS index_bytes,
           sum(pg_stat_get_live_tuples(stored.oid))::bigint AS live_rows,
           sum(pg_stat_get_dead_tuples(stored.oid))::bigint AS dead_rows,
           max(greatest(age(stored.relfrozenxid), age(toast.relfrozenxid))) AS transaction_age
    FROM pg_class AS stored
    CROSS JOIN (SELECT current_setting('block_size')::bigint AS bytes) AS page
    LEFT JOIN pg_class AS root ON root.oid = pg_partition_root(stored.oid)
    LEFT JOIN pg_class AS toast ON toast.oid = stored.reltoastrelid
    LEFT JOIN LATERAL (
        SELECT sum(index.relpages) AS pages FROM pg_index JOIN pg_class AS index ON index.oid = pg_index.indexrelid
        WHERE pg_index.indrelid = stored.oid
    ) AS indexes ON true
    WHERE stored.relkind = 'r' AND stored.relnamespace = current_schema()::regnamespace
      AND coalesce(root.relname, stored.relname) = ANY ($1::text[])
    GROUP BY 1, page.bytes ORDER BY 1
"""
"""`pg_relation_size` would be exact, but waits for a table that is locked."""


async def read_activity(driver: Driver) -> DatabaseActivity:
    """The waits of all sessions of the database at this moment, without this one."""
    row = await driver.fetchrow(ACTIVITY)
    assert row is not None
    return DatabaseActivity(**row)


async def read_storage(driver: Driver) -> StorageStatistics:
    """Sizes, dead rows and the purge's backlog. Only Khala's own tables are included."""
    row = await driver.fetchrow(BACKLOG)
    assert row is not None
    tables = await driver.fetch(TABLES, sorted(metadata.tables))
    return StorageStatistics(**row, tables=[TableStatistics(**table) for table in tables])
