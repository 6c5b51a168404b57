"""Objects that nothing refers to: found, taken back, and forgotten, each under its row's lock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import text

from khala.store.postgres.database import Database, Driver, driver_of

GRACE_PERIOD = "1 hour"
"""How long ago somebody must have meant to refer to an object before it is taken for forgotten."""
MAX_DELETE_SECONDS = 180
"""Seconds that the bytes may take to be deleted while the row is locked."""

UNREFERENCED = f"""
    touched_at < clock_timestamp() - interval '{GRACE_PERIOD}'
    AND NOT EXISTS (SELECT FROM blobs WHERE blobs.sha256 = objects.sha256)
"""
RELEASE = f"""
    UPDATE objects SET stored = false WHERE sha256 IN (
        SELECT sha256 FROM objects WHERE {UNREFERENCED} ORDER BY touched_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ) RETURNING sha256
"""
FIND_RELEASED = "SELECT sha256 FROM objects WHERE sha256 = $1 AND NOT stored"
ADD_UNTRACKED = f"""
    INSERT INTO objects (sha256, size, touched_at)
    SELECT sha256, size, clock_timestamp() - 2 * interval '{GRACE_PERIOD}'
    FROM unnest($1::bytea[], $2::bigint[]) AS found (sha256, size) ORDER BY sha256
    ON CONFLICT DO NOTHING
"""


async def count_unreferenced(driver: Driver) -> int:
    """How many objects nothing refers to."""
    return int(await driver.fetchval(f"SELECT count(*) FROM objects WHERE {UNREFERENCED}"))


async def release_unreferenced(db: Database, most: int) -> list[bytes]:
    """Hashes of objects that nothing refers to. They count as not stored from here on.

    So whoever wants one of them stores it again, even if we die between deleting the bytes and the row.
    """
    async with db.driver() as driver:
        return [row["sha256"] for row in await driver.fetch(RELEASE, most)]


@asynccontextmanager
async def deleting(db: Database, sha256: bytes) -> AsyncIterator[bool]:
    """Whether nothing refers to this object still; if so its row is gone when this ends well.

    Until then whoever wants to refer to it waits, so delete the bytes here.
    """
    async with db.transaction() as connection:
        # The usual limit is for rows that many wait for.
        await connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_DELETE_SECONDS}s'"))
        driver = await driver_of(connection)
        locked = await driver.fetchval(f"{FIND_RELEASED} FOR UPDATE SKIP LOCKED", sha256)
        # A statement of its own, which sees what was committed before the lock was had.
        left = locked is not None and await driver.fetchval(f"{FIND_RELEASED} AND {UNREFERENCED}", sha256) is not None
        yield left
        if left:
            await driver.execute("DELETE FROM objects WHERE sha256 = $1", sha256)


async def add_untracked(db: Database, found: Sequence[tuple[bytes, int]]) -> int:
    """Make rows for what is in the store without one, so that it is collected. Returns for how many."""
    async with db.driver() as driver:
        hashes, sizes = [sha256 for sha256, _ in found], [size for _, size in found]
        status = await driver.execute(ADD_UNTRACKED, hashes, sizes)
        return int(status.rpartition(" ")[2])


async def database_name(driver: Driver) -> str:
    """What this database is known by: no other one has it, unless it is a copy of the files."""
    query = "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()) AS number"
    row = await driver.fetchrow(f"{query} FROM pg_control_system()")
    return f"{row['system_identifier']}-{row['number']}" if row else ""
