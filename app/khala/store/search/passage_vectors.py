"""Vectors of the passages of past messages, by which searches find them by their meaning.

The tables are created beside those of memories (`khala.store.memories.vectors`), which has the generations, and are no
part of the migrations either. A message of a generation has a row for each of its passages (`khala.domain.passages`),
or one row without a vector if nothing of it can be embedded: so no walk finds it again.

A batch that stores vectors holds the row of `search_walk`, as batches of segments do, and checks that the messages are
still there. The purge deletes vectors under the same lock, after the messages.
"""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import asyncpg
import msgspec
import structlog

from khala.domain.access import Caller
from khala.domain.vectors import Vector
from khala.store.memories.vectors import CREATE_LOCK, MIN_SIMILARITY, as_text
from khala.store.postgres.database import Database, Driver, affected
from khala.store.postgres.retries import retried
from khala.store.search import index_lock
from khala.store.search.message_texts import IS_SEARCHED
from khala.store.threads.thread_pages import LAST_POSITION, LISTED_THREADS

MAX_THREADS = 5_000
"""Threads of one search: the newest of the caller's list."""
MAX_PASSAGES = 20_000
"""Passages of one search: those of the newest threads, and of one thread the newest."""
MAX_CANDIDATES = 64
"""Passages that one search finds."""
MAX_MESSAGES = 32
"""Messages that one search finds."""
MAX_SECONDS = 1.0
"""Time of one search. A search that takes longer finds words only."""
MAX_DELETED_ROWS = 2_000
"""Rows of each table that one batch deletes."""

TABLES = ("passage_queue", "passage_walks", "passage_vectors")
EXISTS = "SELECT to_regclass('passage_vectors') IS NOT NULL"
CREATE = """
    CREATE TABLE passage_vectors (
        thread_id uuid NOT NULL,
        generation smallint NOT NULL,
        position integer NOT NULL,
        piece smallint NOT NULL,
        vector halfvec,
        PRIMARY KEY (thread_id, generation, position, piece)
    );
    -- A vector stays in its row, up to the size of a page.
    ALTER TABLE passage_vectors ALTER COLUMN vector SET STORAGE MAIN;
    -- Messages that have no vectors yet, and the time from which they are due.
    CREATE TABLE passage_queue (
        id uuid PRIMARY KEY,
        thread_id uuid NOT NULL,
        first_position integer NOT NULL,
        last_position integer NOT NULL,
        due_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX passage_queue_due_at_idx ON passage_queue (due_at);
    CREATE INDEX passage_queue_thread_id_idx ON passage_queue (thread_id);
    -- The walk that finds messages without vectors: the last thread that it has seen, null between two walks.
    CREATE TABLE passage_walks (generation smallint PRIMARY KEY, thread_id uuid, ended_at timestamptz);
"""
NEAREST = f"""
    WITH readable AS MATERIALIZED (
        {{readable}}
    ), asked AS MATERIALIZED (
        SELECT {{vector}}::text::halfvec AS vector
    ), scanned AS (
        SELECT passage.* FROM (
            SELECT id, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place FROM readable ORDER BY place
        ) AS ordered CROSS JOIN LATERAL (
            SELECT thread_id, position, piece, vector FROM passage_vectors
            WHERE passage_vectors.thread_id = ordered.id AND generation = {{generation}}
            ORDER BY position DESC, piece DESC LIMIT {MAX_PASSAGES}
        ) AS passage LIMIT {MAX_PASSAGES}
    )
    SELECT thread_id, position, piece, similarity FROM (
        SELECT thread_id, position, piece, inner_product(vector, (SELECT vector FROM asked)) AS similarity
        FROM scanned WHERE vector IS NOT NULL
    ) AS compared
    WHERE similarity >= {MIN_SIMILARITY} ORDER BY similarity DESC, thread_id, position, piece LIMIT {MAX_CANDIDATES}
"""
"""Reads every vector of the threads. An index of all vectors under a condition on the thread would lose results. The
vector of the search is a scalar subquery: a parameter that is cast for each row is also parsed for each row."""
NEAREST_IN_LIST = NEAREST.format(readable=LISTED_THREADS, vector="$7", generation="$8::smallint")
NEAREST_IN_THREAD = NEAREST.format(
    readable="SELECT id, created_at FROM threads WHERE id = $1 AND deleted_at IS NULL",
    vector="$2",
    generation="$3::smallint",
)
LIMIT_TIME = f"SET LOCAL statement_timeout = {int(MAX_SECONDS * 1000)}"
INSERT = f"""
    INSERT INTO passage_vectors (thread_id, generation, position, piece, vector)
    SELECT messages.thread_id, $1, messages.position, made.piece, made.vector::halfvec
    FROM unnest($2::uuid[], $3::int[], $4::smallint[], $5::text[]) AS made (thread_id, position, piece, vector)
    JOIN threads ON threads.id = made.thread_id AND threads.deleted_at IS NULL
    JOIN messages ON messages.thread_id = made.thread_id AND messages.position = made.position AND {IS_SEARCHED}
    ON CONFLICT (thread_id, generation, position, piece) DO UPDATE SET vector = excluded.vector
"""
MAX_COUNTED = 100_000
WAITING = f"SELECT count(*) FROM (SELECT FROM passage_queue LIMIT {MAX_COUNTED}) AS queued"
REMOVE = "DELETE FROM passage_queue WHERE id = ANY ($1::uuid[])"
SHORTEN = "UPDATE passage_queue SET first_position = $2, due_at = now() + $3 * interval '1 second' WHERE id = $1"
DELETE_SOME = "DELETE FROM {0} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {0} LIMIT $1))"

log = structlog.get_logger()


class PassageVector(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one passage of a message; None if there is nothing to embed, or the model refuses the text."""

    thread_id: UUID
    position: int
    piece: int
    vector: Vector | None


class NearMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is near to a search, and its nearest passage."""

    thread_id: UUID
    position: int
    piece: int
    similarity: float


class RestOfEntry(msgspec.Struct, frozen=True):
    """The messages of an entry of the queue that have no vectors yet, and when they are due."""

    first_position: int
    wait_seconds: float = 0.0


@retried
async def create_tables(db: Database) -> None:
    """Create the tables unless they exist, where those of memories exist already."""
    async with db.driver() as driver, driver.transaction():
        if await driver.fetchval(EXISTS):
            return
        await driver.execute(CREATE_LOCK)
        if not await driver.fetchval(EXISTS):
            await driver.execute(CREATE)


async def exist(driver: Driver) -> bool:
    """Whether there are tables of passages."""
    return bool(await driver.fetchval(EXISTS))


async def existing(driver: Driver, tables: Iterable[str]) -> list[str]:
    """These tables, without that of vectors if it does not exist."""
    known = await exist(driver)
    return [table for table in tables if known or table != "passage_vectors"]


async def count_waiting(driver: Driver) -> int | None:
    """The entries of the queue, at most `MAX_COUNTED`; None without tables."""
    waiting: int | None = await driver.fetchval(WAITING) if await exist(driver) else None
    return waiting


async def nearest(
    driver: Driver, caller: Caller, vector: Vector, generation: int, *, thread_id: UUID | None
) -> list[NearMessage]:
    """The messages nearest to the vector, in the threads of the caller's list or in one thread, the nearest first.

    Empty if the search takes too long. Access to their texts is for `messages.read` to decide.
    """
    asked = as_text(vector), generation
    credentials = caller.user_id, caller.anon_key_hash, caller.share_key_hash
    try:
        async with driver.transaction():
            await driver.execute(LIMIT_TIME)
            if thread_id is not None:
                rows = await driver.fetch(NEAREST_IN_THREAD, thread_id, *asked)
            else:
                rows = await driver.fetch(NEAREST_IN_LIST, *credentials, *LAST_POSITION, MAX_THREADS, *asked)
    except asyncpg.QueryCanceledError:
        log.warning("search_by_meaning_took_too_long", seconds=MAX_SECONDS)
        return []
    found: dict[tuple[UUID, int], NearMessage] = {}
    for row in rows:
        found.setdefault((row["thread_id"], row["position"]), NearMessage(**row))
    return list(found.values())[:MAX_MESSAGES]


@retried
async def store(
    db: Database,
    generation: int,
    vectors: Sequence[PassageVector],
    *,
    done: Sequence[UUID],
    rest: Mapping[UUID, RestOfEntry],
) -> None:
    """Store the vectors of whole messages. The walk has deleted those of older generations.

    `done`: entries of the queue whose messages all have vectors now. `rest`: what is left of others.
    """
    columns = zip(*((one.thread_id, one.position, one.piece, _as_text(one.vector)) for one in vectors), strict=True)
    async with db.driver() as driver, driver.transaction():
        await index_lock.lock(driver)
        if vectors:
            thread_ids, positions, pieces, texts = map(list, columns)
            await driver.execute(INSERT, generation, thread_ids, positions, pieces, texts)
        for entry_id, left in rest.items():
            await driver.execute(SHORTEN, entry_id, left.first_position, left.wait_seconds)
        await driver.execute(REMOVE, done)


def _as_text(vector: Vector | None) -> str | None:
    return None if vector is None else as_text(vector)


@retried
async def delete_next(db: Database) -> bool:
    """Delete some vectors, and what waits for them. Returns whether there may be more."""
    async with db.driver() as driver, driver.transaction():
        if not await exist(driver):
            return False
        await index_lock.lock(driver)
        deleted = [affected(await driver.execute(DELETE_SOME.format(table), MAX_DELETED_ROWS)) for table in TABLES]
        return any(deleted)
