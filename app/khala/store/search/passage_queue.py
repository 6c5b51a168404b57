"""The messages whose passages have no vectors yet: a queue, and a walk that fills it with older messages.

Batches of segments queue the messages that have ended. The walk goes through all threads, once a day, and after a
change of the model at once: it queues messages of the last days that have no vectors of the current generation. It
continues where it was, and only while nothing is due.
"""

from uuid import UUID

import msgspec

from khala.domain import ids
from khala.store.postgres.database import Database, Driver, affected
from khala.store.postgres.retries import retried
from khala.store.search import index_lock
from khala.store.search.message_texts import IS_SEARCHED, TEXT

MAX_ENTRIES = 16
"""Entries of the queue in one batch."""
WALKED_THREADS = 50
"""Threads that the walk looks at in one batch."""
MAX_WALKED_MESSAGES = 5_000
"""Messages of one thread that the walk looks at: the newest."""
WALK_INTERVAL = "1 day"

ADD = "INSERT INTO passage_queue (id, thread_id, first_position, last_position) VALUES ($1, $2, $3, $4)"
DUE = """
    SELECT queued.id, queued.thread_id, first_position, last_position, coalesce(owner_id, threads.id) AS owner_id
    FROM (SELECT * FROM passage_queue WHERE due_at <= now() ORDER BY due_at, id LIMIT $1) AS queued
    LEFT JOIN threads ON threads.id = queued.thread_id AND threads.deleted_at IS NULL
"""
WITHOUT_VECTORS = f"""
    {IS_SEARCHED} AND messages.created_at > now() - {{days}} * interval '1 day' AND NOT EXISTS (
        SELECT FROM passage_vectors AS known WHERE known.thread_id = messages.thread_id
          AND known.generation = {{generation}}::smallint AND known.position = messages.position)
"""
READ = f"""
    SELECT position, {TEXT} AS text FROM messages
    WHERE thread_id = $1 AND position BETWEEN $2 AND $3 AND {WITHOUT_VECTORS.format(generation="$4", days="$5")}
    ORDER BY position LIMIT $6
"""
WALK_STATE = f"""
    SELECT thread_id FROM passage_walks WHERE generation = $1
      AND (thread_id IS NOT NULL OR ended_at < now() - interval '{WALK_INTERVAL}')
    UNION ALL SELECT NULL WHERE NOT EXISTS (SELECT FROM passage_walks WHERE generation = $1)
"""
"""One row if a walk goes on or is due, and none else."""
NEXT_THREADS = "SELECT id FROM threads WHERE id > $1 AND deleted_at IS NULL ORDER BY id LIMIT $2"
WALK = f"""
    INSERT INTO passage_queue (id, thread_id, first_position, last_position)
    SELECT gen_random_uuid(), walked.id, missing.first_position, missing.last_position
    FROM unnest($1::uuid[]) AS walked (id) JOIN threads USING (id) CROSS JOIN LATERAL (
        SELECT min(position) AS first_position, max(position) AS last_position FROM (
            SELECT messages.* FROM messages WHERE thread_id = walked.id
            ORDER BY position DESC LIMIT {MAX_WALKED_MESSAGES}
        ) AS messages WHERE {WITHOUT_VECTORS.format(generation="$2", days="$3")}
    ) AS missing
    WHERE threads.updated_at > now() - $3 * interval '1 day' AND missing.first_position IS NOT NULL
      AND NOT EXISTS (SELECT FROM passage_queue AS queued WHERE queued.thread_id = walked.id)
"""
"""A thread whose messages wait for their owner's budget is left to the next walk."""
DELETE_OUTDATED = "DELETE FROM passage_vectors WHERE thread_id = ANY ($1::uuid[]) AND generation < $2::smallint"
"""Also of messages too old to be embedded again: a search does not read them any more."""
KEEP_WALK = """
    INSERT INTO passage_walks (generation, thread_id, ended_at)
    VALUES ($1, $2::uuid, CASE WHEN $2::uuid IS NULL THEN now() END)
    ON CONFLICT (generation) DO UPDATE SET thread_id = excluded.thread_id, ended_at = excluded.ended_at
"""


class PassageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of the queue, by their positions. `owner_id`: of the thread, None if it was deleted."""

    id: UUID
    thread_id: UUID
    first_position: int
    last_position: int
    owner_id: UUID | None


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message without vectors."""

    position: int
    text: str


async def add(driver: Driver, thread_id: UUID, first_position: int, last_position: int) -> None:
    """Queue the messages at these positions."""
    await driver.execute(ADD, ids.new(), thread_id, first_position, last_position)


async def due(driver: Driver) -> list[PassageEntry]:
    """The entries that have been due for longest."""
    return [PassageEntry(**row) for row in await driver.fetch(DUE, MAX_ENTRIES)]


async def pending(
    driver: Driver, entry: PassageEntry, generation: int, *, days: int, limit: int
) -> list[PendingMessage]:
    """The first messages of the entry, of the last `days`, that have no vectors of this generation."""
    arguments = entry.thread_id, entry.first_position, entry.last_position, generation, days, limit
    return [PendingMessage(**row) for row in await driver.fetch(READ, *arguments)]


@retried
async def walk(db: Database, generation: int, *, days: int) -> bool:
    """Queue messages of the next threads. Returns whether there may be more; False if no walk is due."""
    async with db.driver() as driver, driver.transaction():
        state = await driver.fetchrow(WALK_STATE, generation)
        if state is None:
            return False
        rows = await driver.fetch(NEXT_THREADS, state["thread_id"] or UUID(int=0), WALKED_THREADS)
        found = [row["id"] for row in rows]
        await index_lock.lock(driver)
        added = affected(await driver.execute(WALK, found, generation, days))
        await driver.execute(DELETE_OUTDATED, found, generation)
        await driver.execute(KEEP_WALK, generation, found[-1] if len(found) == WALKED_THREADS else None)
        return added > 0 or len(found) == WALKED_THREADS
