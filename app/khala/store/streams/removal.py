"""Removes streams: at once for clients, and their contents in batches. A source of forks stays until they are gone."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from khala.store.postgres.database import Database, Driver, affected, driver_of
from khala.store.postgres.notifications import notify_streams
from khala.store.postgres.retries import retried
from khala.store.streams import stream_rows
from khala.store.streams.stream_rows import StreamSpace, stored_stream, usable

MAX_REMOVED_CHUNKS = 2_000
"""Chunks that one transaction deletes."""
MAX_REMOVED_STREAMS = 50
"""Streams that one transaction removes."""

HAS_FORKS = "SELECT EXISTS (SELECT FROM streams WHERE source_id = $1)"
SOFT_DELETE = "UPDATE streams SET deleted_at = clock_timestamp(), expires_at = NULL WHERE id = $1"
REMOVE = "UPDATE streams SET name = NULL, source_id = NULL, expires_at = NULL, ttl_seconds = NULL WHERE id = $1"
DELETE_CHUNKS = """
    DELETE FROM stream_chunks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM stream_chunks WHERE stream_id = ANY ($1::uuid[]) LIMIT $2))
"""
DELETE_EMPTY = """
    DELETE FROM streams WHERE id = ANY ($1::uuid[])
      AND NOT EXISTS (SELECT FROM stream_chunks WHERE stream_id = streams.id)
"""
SOURCES = """
    WITH RECURSIVE chain AS (
        SELECT id, source_id FROM streams WHERE id = ANY ($1::uuid[])
        UNION SELECT streams.id, streams.source_id FROM chain JOIN streams ON streams.id = chain.source_id
    ) SELECT id FROM chain
"""
LOCK_OWN = "SELECT id FROM streams WHERE user_id = $1 ORDER BY id LIMIT $2 FOR UPDATE"
LOCK_SUBSCRIPTIONS = "SELECT id FROM stream_subscriptions WHERE user_id = $1 ORDER BY id LIMIT $2 FOR UPDATE"
DELETE_SUBSCRIPTIONS = "DELETE FROM stream_subscriptions WHERE id = ANY ($1::uuid[])"
EXPIRED = """
    expires_at < now() AND name IS NOT NULL
    AND NOT EXISTS (SELECT FROM streams AS forks WHERE forks.source_id = streams.id)
"""
FIND_EXPIRED = f"SELECT id FROM streams WHERE {EXPIRED} ORDER BY expires_at LIMIT $1"
FIND_REMOVED = "SELECT id FROM streams WHERE name IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
DUE = f"(SELECT id FROM streams WHERE name IS NULL UNION ALL SELECT id FROM streams WHERE {EXPIRED})"
COUNT_DUE = {
    "streams": f"SELECT count(*) FROM {DUE} AS due",
    "stream_chunks": f"SELECT count(*) FROM {DUE} AS due JOIN stream_chunks ON stream_chunks.stream_id = due.id",
}
KINDS = tuple(COUNT_DUE)
"""What a purge counts."""
ANY_DUE = (
    "SELECT true FROM streams WHERE name IS NULL ORDER BY id",
    f"SELECT true FROM streams WHERE {EXPIRED} ORDER BY expires_at",
)
"""Each finds a stream that the purge has to remove."""


async def count_due(driver: Driver) -> dict[str, int]:
    """Return the number of rows that the purge has to delete, by table."""
    return {table: await driver.fetchval(query) for table, query in COUNT_DUE.items()}


@retried
async def delete(db: Database, space: StreamSpace, name: str) -> None:
    """Delete the stream; its name is free at once. The source of a fork keeps its contents and its name until then.

    Raises `NotFound`, and `StreamGone` if it was deleted before.
    """
    async with db.driver() as driver, driver.transaction():
        found = usable(await stream_rows.find(driver, space, name))
        if found.id in await _lock(driver, [found.id]):
            await remove_locked(driver, found.id)
        await notify_streams(driver, [found.id])


async def remove_locked(driver: Driver, stream_id: UUID) -> bool:
    """Remove a stream that is locked, with its sources, and sources that wait for that. False: forks inherit from it.

    Sources that are not locked yet are locked now: see `_lock`.
    """
    if await driver.fetchval(HAS_FORKS, stream_id):
        await driver.execute(SOFT_DELETE, stream_id)
        return False
    current: UUID | None = stream_id
    while current is not None:
        current = await _remove(driver, current)
    return True


async def _remove(driver: Driver, stream_id: UUID) -> UUID | None:
    """Remove one stream. Returns its source, if that was deleted before and has no other fork."""
    source_id: UUID | None = await driver.fetchval("SELECT source_id FROM streams WHERE id = $1", stream_id)
    await driver.execute(REMOVE, stream_id)
    await driver.execute(DELETE_CHUNKS, [stream_id], MAX_REMOVED_CHUNKS)
    await driver.execute(DELETE_EMPTY, [stream_id])
    if source_id is None or await driver.fetchval(HAS_FORKS, source_id):
        return None
    deleted = await driver.fetchval("SELECT deleted_at IS NOT NULL FROM streams WHERE id = $1", source_id)
    return source_id if deleted else None


async def _lock(driver: Driver, stream_ids: list[UUID]) -> set[UUID]:
    """Lock these streams and their sources in the order of their ids. Returns those of them that have a name still."""
    chain = [row["id"] for row in await driver.fetch(SOURCES, stream_ids)]
    rows = await driver.fetch(stream_rows.LOCK_IDS, chain)
    return {row["id"] for row in rows if row["name"] is not None}


async def purge_next(connection: AsyncConnection) -> Mapping[str, int]:
    """Remove some expired streams, and delete contents of removed ones. Returns the number of rows by table."""
    driver = await driver_of(connection)
    removed = await _remove_expired(driver)
    stream_ids = [row["id"] for row in await driver.fetch(FIND_REMOVED, MAX_REMOVED_STREAMS)]
    if not stream_ids:
        return {"streams": removed} if removed else {}
    deleted = affected(await driver.execute(DELETE_CHUNKS, stream_ids, MAX_REMOVED_CHUNKS))
    removed += affected(await driver.execute(DELETE_EMPTY, stream_ids))
    return {"streams": removed, "stream_chunks": deleted}


async def _remove_expired(driver: Driver) -> int:
    """Remove some expired streams that nothing was forked from. Returns their number."""
    due = [row["id"] for row in await driver.fetch(FIND_EXPIRED, MAX_REMOVED_STREAMS)]
    if not due:
        return 0
    held = await _lock(driver, due)
    rows = await driver.fetch(stream_rows.LOCK_IDS, [stream_id for stream_id in due if stream_id in held])
    expired = [stream.id for stream in map(stored_stream, rows) if stream.expired and not stream.deleted]
    return sum([await remove_locked(driver, stream_id) for stream_id in expired])


async def delete_some(driver: Driver, user_id: UUID, max_rows: int) -> int:
    """Delete rows of this account's streams and subscriptions, some at a time. Returns their number; 0 for none."""
    subscription_ids = [row["id"] for row in await driver.fetch(LOCK_SUBSCRIPTIONS, user_id, MAX_REMOVED_STREAMS)]
    if subscription_ids:
        return affected(await driver.execute(DELETE_SUBSCRIPTIONS, subscription_ids))
    stream_ids = [row["id"] for row in await driver.fetch(LOCK_OWN, user_id, MAX_REMOVED_STREAMS)]
    if not stream_ids:
        return 0
    deleted = affected(await driver.execute(DELETE_CHUNKS, stream_ids, max_rows))
    return deleted + affected(await driver.execute(DELETE_EMPTY, stream_ids))
