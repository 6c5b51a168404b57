"""Makes segments of messages that have ended, in bounded batches: one transaction and one process at a time.

The endings of runs and imports queue their messages. A walk through all threads, once a day, queues what has no
segment: messages from before the search was switched on, and those that an earlier version of Khala has written.

Each batch holds the lock of `khala.store.search.index_lock`.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain.search_segments import MessageText, Segment, cut
from khala.store.postgres.database import Database, Driver, affected
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.search import passage_queue
from khala.store.search.index_lock import TRY_LOCK
from khala.store.search.message_texts import IS_SEARCHED, TEXT

MAX_ENTRIES = 16
"""Entries of the queue in one batch."""
MAX_MESSAGES = 64
"""Messages of one entry in one batch. The entry keeps the others."""
MAX_INLINE_CHARACTERS = 4_000
"""Characters of one entry that are cut into segments at once, in about a millisecond. More are cut in a thread."""
MAX_SMALL_SEGMENTS = 8
"""Small segments at the end of a thread, which are then made again as larger ones."""
SMALL_MESSAGES = 8
SMALL_BYTES = 700
"""A segment with fewer messages, whose signature has fewer bytes, is small."""
WALKED_THREADS = 200
"""Threads that the walk looks at in one batch."""
WALK_INTERVAL = "1 day"
MAX_DELETED_ROWS = 2_000
"""Rows of each table that one batch deletes after the search was switched off."""

IS_ANYTHING_DUE = f"""
    SELECT EXISTS (SELECT FROM search_queue) OR EXISTS (
        SELECT FROM search_walk
        WHERE thread_id IS NOT NULL OR coalesce(ended_at < now() - interval '{WALK_INTERVAL}', true))
"""
IS_ANYTHING_LEFT = "SELECT EXISTS (SELECT FROM search_queue) OR EXISTS (SELECT FROM search_segments)"
TAKE = """
    SELECT id, thread_id, first_position, last_position FROM search_queue
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
"""
REMOVE = "DELETE FROM search_queue WHERE id = ANY ($1::uuid[])"
SHORTEN = "UPDATE search_queue SET first_position = $2, last_position = $3 WHERE id = $1"
OVERLAPPING = """
    SELECT min(first_position) AS first_position, max(last_position) AS last_position FROM search_segments
    WHERE thread_id = $1 AND first_position <= $3 AND last_position >= $2
"""
BEFORE = """
    SELECT first_position, last_position, octet_length(signature) AS bytes FROM search_segments
    WHERE thread_id = $1 AND first_position < $2 ORDER BY first_position DESC, piece DESC LIMIT $3
"""
READ = f"""
    SELECT position, {TEXT} AS text FROM messages
    WHERE thread_id = $1 AND position BETWEEN $2 AND $3 AND {IS_SEARCHED} ORDER BY position LIMIT $4
"""
DELETE = "DELETE FROM search_segments WHERE thread_id = $1 AND first_position BETWEEN $2 AND $3"
INSERT = """
    INSERT INTO search_segments (thread_id, first_position, piece, last_position, signature)
    SELECT $1, * FROM unnest($2::int[], $3::smallint[], $4::int[], $5::bytea[])
"""
WALK = """
    INSERT INTO search_queue (id, thread_id, first_position, last_position)
    SELECT gen_random_uuid(), walked.id, coalesce(indexed.position, 0) + 1, last.position
    FROM unnest($1::uuid[]) AS walked (id)
    CROSS JOIN LATERAL (SELECT max(position) AS position FROM messages WHERE thread_id = walked.id) AS last
    LEFT JOIN LATERAL (
        SELECT last_position AS position FROM search_segments WHERE thread_id = walked.id
        ORDER BY first_position DESC LIMIT 1
    ) AS indexed ON true
    WHERE last.position > coalesce(indexed.position, 0)
"""
NEXT_THREADS = """
    SELECT id FROM threads WHERE id > $1 AND deleted_at IS NULL ORDER BY id LIMIT $2
"""
CONTINUE_WALK = "UPDATE search_walk SET thread_id = $1 WHERE id = 1"
END_WALK = "UPDATE search_walk SET thread_id = NULL, ended_at = now() WHERE id = 1"
FORGET_WALK = "UPDATE search_walk SET thread_id = NULL, ended_at = NULL WHERE id = 1"
DELETE_SOME = "DELETE FROM {0} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {0} LIMIT $1))"


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a batch. `more`: another batch may have something to do."""

    messages: int = 0
    segments: int = 0
    more: bool = False


class EntryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one entry. `last_position`: up to which its messages are in segments. `whole`: all of them are."""

    messages: int
    segments: int
    last_position: int
    whole: bool


async def index_next(db: Database, *, with_passages: bool = False) -> BatchResult:
    """Make segments of the messages that were queued first, or else continue the walk.

    `with_passages`: queue the messages for vectors of their passages, too.
    """
    async with db.driver() as driver:
        if not await driver.fetchval(IS_ANYTHING_DUE):
            return BatchResult()
    return await _index_next(db, with_passages=with_passages)


@retried
async def _index_next(db: Database, *, with_passages: bool) -> BatchResult:
    async with db.driver() as driver, driver.transaction():
        walk = await driver.fetchrow(TRY_LOCK)
        if walk is None:
            return BatchResult()
        entries = await driver.fetch(TAKE, MAX_ENTRIES)
        if not entries:
            return BatchResult(more=await _walk(driver, walk["thread_id"]))
        done = [await _index_entry(driver, entry) for entry in entries]
        if with_passages:
            for entry, one in zip(entries, done, strict=True):
                await passage_queue.add(driver, entry["thread_id"], entry["first_position"], one.last_position)
        await driver.execute(REMOVE, [entry["id"] for entry, one in zip(entries, done, strict=True) if one.whole])
        return BatchResult(
            messages=sum(one.messages for one in done), segments=sum(one.segments for one in done), more=True
        )


async def _walk(driver: Driver, last: UUID | None) -> bool:
    """Queue messages without a segment of the next threads. Returns whether there may be more."""
    found = [row["id"] for row in await driver.fetch(NEXT_THREADS, last or UUID(int=0), WALKED_THREADS)]
    if len(found) < WALKED_THREADS:
        await driver.execute(END_WALK)
    else:
        await driver.execute(CONTINUE_WALK, found[-1])
    added = affected(await driver.execute(WALK, found))
    return added > 0 or len(found) == WALKED_THREADS


async def _index_entry(driver: Driver, entry: Record) -> EntryResult:
    """Make segments of the messages of one entry. An entry with too many messages keeps the others."""
    thread_id = entry["thread_id"]
    first, end, replaces = await _range(driver, entry)
    read = await driver.fetch(READ, thread_id, first, end, MAX_MESSAGES)
    messages = [MessageText(row["position"], row["text"]) for row in read]
    last = messages[-1].position if len(messages) == MAX_MESSAGES else end
    if last < end:
        await driver.execute(SHORTEN, entry["id"], last + 1, end)
    segments = await _cut(messages)
    if replaces:
        await driver.execute(DELETE, thread_id, first, last)
    await _insert(driver, thread_id, segments)
    return EntryResult(messages=len(messages), segments=len(segments), last_position=last, whole=last == end)


async def _cut(messages: Sequence[MessageText]) -> list[Segment]:
    if sum(len(message.text) for message in messages) <= MAX_INLINE_CHARACTERS:
        return list(cut(messages))
    return await asyncio.to_thread(lambda: list(cut(messages)))


async def _range(driver: Driver, entry: Record) -> tuple[int, int, bool]:
    """The positions of which segments are made: those of the entry, of segments there, and of small ones before.

    Also returns whether there are segments that the new ones replace.
    """
    thread_id, first, last = entry["thread_id"], entry["first_position"], entry["last_position"]
    there = await driver.fetchrow(OVERLAPPING, thread_id, first, last)
    if there is not None and there["first_position"] is not None:
        return min(first, there["first_position"]), max(last, there["last_position"]), True
    before = await driver.fetch(BEFORE, thread_id, first, MAX_SMALL_SEGMENTS)
    if len(before) == MAX_SMALL_SEGMENTS and all(map(_is_small, before)):
        return before[-1]["first_position"], last, True
    return first, last, False


def _is_small(segment: Record) -> bool:
    messages: int = segment["last_position"] - segment["first_position"] + 1
    size: int = segment["bytes"]
    return messages < SMALL_MESSAGES and size < SMALL_BYTES


async def _insert(driver: Driver, thread_id: UUID, segments: Sequence[Segment]) -> None:
    if segments:
        columns = zip(
            *((one.first_position, one.piece, one.last_position, one.signature) for one in segments), strict=True
        )
        await driver.execute(INSERT, thread_id, *map(list, columns))


async def delete_next(db: Database) -> BatchResult:
    """Delete segments and the queue, after the search was switched off. The next walk begins from the start."""
    async with db.driver() as driver:
        if not await driver.fetchval(IS_ANYTHING_LEFT):
            return BatchResult()
    return await _delete_next(db)


@retried
async def _delete_next(db: Database) -> BatchResult:
    async with db.driver() as driver, driver.transaction():
        if await driver.fetchrow(TRY_LOCK) is None:
            return BatchResult()
        await driver.execute(FORGET_WALK)
        deleted = 0
        for table in ("search_queue", "search_segments"):
            deleted += affected(await driver.execute(DELETE_SOME.format(table), MAX_DELETED_ROWS))
        return BatchResult(more=deleted > 0)
