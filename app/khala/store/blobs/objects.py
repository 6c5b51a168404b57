"""Finds, releases and deletes unreferenced objects, each under its row lock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from sqlalchemy import text

from khala.store.postgres.database import Database, Driver, affected, driver_of

GRACE_PERIOD = "1 hour"
"""The time since the last touch of an object, after which it may be garbage-collected."""
MAX_DELETE_SECONDS = 180
"""Seconds for deleting the bytes while the row is locked."""

UNREFERENCED = f"""
    touched_at < clock_timestamp() - interval '{GRACE_PERIOD}'
    AND (SELECT true FROM blobs WHERE blobs.sha256 = objects.sha256 LIMIT 1) IS NULL
    AND (SELECT true FROM folder_files WHERE folder_files.sha256 = objects.sha256 LIMIT 1) IS NULL
"""
"""Subqueries, which read the index once for each object: for NOT EXISTS the planner might read all blobs."""
RELEASE = f"""
    WITH page AS MATERIALIZED (
        SELECT sha256, {UNREFERENCED} AS unreferenced FROM objects WHERE sha256 > $1 ORDER BY sha256 LIMIT $2
    ), due AS MATERIALIZED (
        SELECT sha256 FROM objects
        WHERE sha256 = ANY (ARRAY(SELECT sha256 FROM page WHERE unreferenced)) AND {UNREFERENCED}
        FOR UPDATE SKIP LOCKED
    ), released AS (
        UPDATE objects SET stored = false WHERE sha256 IN (SELECT sha256 FROM due) RETURNING sha256
    )
    SELECT (SELECT count(*) FROM page) AS examined, ARRAY(SELECT sha256 FROM released) AS released,
           (SELECT sha256 FROM page ORDER BY sha256 DESC LIMIT 1) AS last
"""
FIND_RELEASED = "SELECT sha256 FROM objects WHERE sha256 = $1 AND NOT stored"
ADD_UNTRACKED = f"""
    INSERT INTO objects (sha256, size, touched_at)
    SELECT sha256, size, clock_timestamp() - 2 * interval '{GRACE_PERIOD}'
    FROM unnest($1::bytea[], $2::bigint[]) AS found (sha256, size) ORDER BY sha256
    ON CONFLICT DO NOTHING
"""


async def count_unreferenced(driver: Driver) -> int:
    """The number of unreferenced objects."""
    return int(await driver.fetchval(f"SELECT count(*) FROM objects WHERE {UNREFERENCED}"))


class ObjectPage(msgspec.Struct, frozen=True):
    """A page of objects: their number, the hash of the last one (None for an empty page), and the released hashes."""

    examined: int
    last: bytes | None
    released: Sequence[bytes]


async def release_unreferenced(db: Database, after: bytes, limit: int) -> ObjectPage:
    """Mark the unreferenced ones of the `limit` objects after this hash as not stored.

    After that, an upload of the same bytes stores them again, even after a crash between both deletions.
    """
    async with db.driver() as driver:
        row = await driver.fetchrow(RELEASE, after, limit)
    return ObjectPage(row["examined"], row["last"], row["released"])


@asynccontextmanager
async def deleting(db: Database, sha256: bytes) -> AsyncIterator[bool]:
    """Yield whether this object is still unreferenced. If so, the block deletes the bytes, and its end the row.

    Meanwhile, new references to the object wait.
    """
    async with db.transaction() as connection:
        # The usual timeout is for contended rows.
        await connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_DELETE_SECONDS}s'"))
        driver = await driver_of(connection)
        locked = await driver.fetchval(f"{FIND_RELEASED} FOR UPDATE SKIP LOCKED", sha256)
        # A second statement, because it sees all transactions that were committed before the lock was acquired.
        left = locked is not None and await driver.fetchval(f"{FIND_RELEASED} AND {UNREFERENCED}", sha256) is not None
        yield left
        if left:
            await driver.execute("DELETE FROM objects WHERE sha256 = $1", sha256)


async def add_untracked(db: Database, found: Sequence[tuple[bytes, int]]) -> int:
    """Add rows for stored objects that have none, so that they are collected. Returns how many."""
    async with db.driver() as driver:
        hashes, sizes = [sha256 for sha256, _ in found], [size for _, size in found]
        status = await driver.execute(ADD_UNTRACKED, hashes, sizes)
        return affected(status)


async def database_name(driver: Driver) -> str:
    """A name for this database. Only a copy of its files has the same name."""
    query = "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()) AS number"
    row = await driver.fetchrow(f"{query} FROM pg_control_system()")
    return f"{row['system_identifier']}-{row['number']}" if row else ""
