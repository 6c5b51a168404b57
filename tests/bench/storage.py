"""Storage costs of parts: the difference of counters at two times while all runs are active.

Both Khala and the naive server keep their parts in a table `message_parts` with a `created_at`. The WAL is that of
the whole cluster, including heartbeats, and full images of index pages after a checkpoint.
"""

from datetime import datetime

import msgspec

from khala.store.postgres.database import Driver

COUNTERS = """
    SELECT clock_timestamp() AS at, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal,
           pg_relation_size('message_parts') + pg_indexes_size('message_parts') AS size,
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS writes
"""
COMMITTED = """
    SELECT {topic}::text AS topic,
           array_agg((extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint ORDER BY seq) AS times
    FROM message_parts WHERE current_setting('track_commit_timestamp')::boolean GROUP BY {topic}
"""
BETWEEN = """
    SELECT count(*) AS parts, count(DISTINCT xmin::text) AS appends
    FROM message_parts WHERE created_at >= $1 AND created_at < $2
"""


class StorageCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters at one time by Postgres' clock: bytes of WAL, bytes of parts and of indexes, next transaction id."""

    at: datetime
    wal: int
    size: int
    writes: int


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Storage figures of the time while all runs were active.

    `appends_per_second` are the executor's commits of parts; `writes_per_second` are all writing transactions of the
    cluster, including heartbeats, claims and presence. Bytes are per 1,000 parts; heap and indexes grow by 8 KiB pages.
    """

    parts: int
    seconds: float
    appends_per_second: float
    writes_per_second: float
    wal_bytes_per_1000_parts: float | None
    size_bytes_per_1000_parts: float | None


async def read_counters(connection: Driver) -> StorageCounters:
    """The current counters."""
    row = await connection.fetchrow(COUNTERS)
    assert row is not None
    return StorageCounters(**dict(row))


async def committed(connection: Driver, topic: str) -> dict[str, list[int]]:
    """Commit times of parts by this column, ordered by seq, in microseconds since 1970; empty if unknown."""
    rows = await connection.fetch(COMMITTED.format(topic=topic))
    return {row["topic"]: row["times"] for row in rows}


async def between(connection: Driver, before: StorageCounters, after: StorageCounters) -> Storage:
    """The figures between two readings."""
    row = await connection.fetchrow(BETWEEN, before.at, after.at)
    assert row is not None
    parts, seconds = row["parts"], (after.at - before.at).total_seconds()
    return Storage(
        parts=parts,
        seconds=seconds,
        appends_per_second=row["appends"] / seconds,
        writes_per_second=(after.writes - before.writes) / seconds,
        wal_bytes_per_1000_parts=(after.wal - before.wal) * 1000 / parts if parts else None,
        size_bytes_per_1000_parts=(after.size - before.size) * 1000 / parts if parts else None,
    )
