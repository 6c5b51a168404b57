"""What parts cost the database: read off at two moments while all runs speak, for the parts written in between.

Both Khala and the naive server keep their parts in a table `message_parts` with a `created_at`. The WAL is the whole
cluster's: also that of heartbeats, and of index pages whole after a checkpoint.
"""

from datetime import datetime

import msgspec

from khala.store.postgres.database import Driver

MOMENT = """
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


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """By Postgres' clock: bytes of WAL since ever, bytes of the parts' pages and indexes, and the next transaction."""

    at: datetime
    wal: int
    size: int
    writes: int


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Of the time while all runs spoke.

    `appends_per_second` are the executor's commits of parts; `writes_per_second` all transactions of the cluster that
    wrote, so also heartbeats, claims and presence. Bytes are of 1,000 parts; pages come in steps of 8 KiB.
    """

    parts: int
    seconds: float
    appends_per_second: float
    writes_per_second: float
    wal_bytes_per_1000_parts: float | None
    size_bytes_per_1000_parts: float | None


async def moment(connection: Driver) -> Moment:
    """Now."""
    row = await connection.fetchrow(MOMENT)
    assert row is not None
    return Moment(**dict(row))


async def committed(connection: Driver, topic: str) -> dict[str, list[int]]:
    """When each part was committed, by this column and seq, in microseconds since 1970; empty if that is not known."""
    found = await connection.fetch(COMMITTED.format(topic=topic))
    return {row["topic"]: row["times"] for row in found}


async def between(connection: Driver, before: Moment, after: Moment) -> Storage:
    """What was stored between two moments."""
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
