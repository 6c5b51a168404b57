"""Vectors of memories, in tables that exist where Postgres has pgvector 0.7 or newer.

The tables are not part of the migrations, because Khala also runs on a Postgres without pgvector, where memories are
found by their words only. Nothing is lost with them: vectors can be computed again.

A generation is a model, by its name, its number of dimensions and the vector of one known text, the canary. The vectors
of two generations cannot be compared. After a change of the model, a space is searched by words only until all its
memories have a vector of the new generation.

Memories change to generations with higher numbers only, so two processes with different models do not embed them in
turn. A model that is used again after another one therefore gets a new number: see `renew`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.vectors import Vector
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried

MIN_SIMILARITY = 0.2
"""The cosine below which a memory does not fit. Fitted on the evaluation's half for tuning, with all-MiniLM-L6-v2: nine
of ten unrelated English texts have less than 0.17, and nine of ten that answer a question have more."""
LEASE_SECONDS = 120.0
"""Longer than a batch takes, with the retries of its call."""
MIN_CANARY_SIMILARITY = 0.99
"""The cosine of two vectors of the canary below which they are of different models. The same model on other hardware,
or with its numbers rounded, gives more."""
MIN_VERSION = (0, 7)
"""The first version of pgvector with vectors of 16-bit floats."""
SIGNIFICANT_DIGITS = 4
"""Of a value: a 16-bit float has 3.3."""

MIN_USE_SECONDS = 600.0
"""Time for which the newest generation is used, before an earlier model that is used again gets a new number. It bounds
how often all memories are embedded while a server answers with two models in turn."""

CHANGE_MARK = "@@"
"""Separates the configured name of a model from the number of a generation that began because the model answered
differently under the same name. No configured name contains it."""

VERSION = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"
CREATE_LOCK = "SELECT pg_advisory_xact_lock(x'6b68616c63'::bigint)"
CREATE = """
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE TABLE vector_generations (
        id smallint PRIMARY KEY,
        model text NOT NULL,
        dimensions integer NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        -- The process that computes its vectors, and the end of its lease.
        worker_id uuid,
        leased_until timestamptz,
        UNIQUE (model, dimensions)
    );
    ALTER TABLE vector_generations ADD COLUMN canary halfvec;
    -- The newest generation of which all memories of the space have vectors.
    CREATE TABLE vector_spaces (space_id uuid PRIMARY KEY, generation smallint NOT NULL);
    CREATE TABLE memory_vectors (
        space_id uuid NOT NULL,
        generation smallint NOT NULL,
        memory_id uuid NOT NULL REFERENCES memories ON DELETE CASCADE,
        vector halfvec NOT NULL,
        PRIMARY KEY (space_id, generation, memory_id)
    );
    -- A vector stays in its row, up to the size of a page.
    ALTER TABLE memory_vectors ALTER COLUMN vector SET STORAGE MAIN;
    CREATE INDEX memory_vectors_memory_id_idx ON memory_vectors (memory_id);
"""
EXISTS = "SELECT to_regclass('memory_vectors') IS NOT NULL"
HAS_CANARY = """
    SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'vector_generations'::regclass AND attname = 'canary')
"""
ADD_CANARY = "ALTER TABLE vector_generations ADD COLUMN IF NOT EXISTS canary halfvec"
"""For tables that an earlier version has created."""
FIND_GENERATION = f"""
    SELECT id FROM vector_generations
    WHERE (model = $1 OR starts_with(model, $1 || '{CHANGE_MARK}')) AND dimensions = $2
    ORDER BY id DESC LIMIT 1
"""
ADD_GENERATION = """
    INSERT INTO vector_generations (id, model, dimensions)
    SELECT coalesce(max(id), 0) + 1, $1, $2 FROM vector_generations RETURNING id
"""
READ_CANARY = "SELECT inner_product(canary, $2::text::halfvec) FROM vector_generations WHERE id = $1"
STORE_CANARY = "UPDATE vector_generations SET canary = $2::text::halfvec WHERE id = $1 AND canary IS NULL"
SUCCEED = """
    INSERT INTO vector_generations (id, model, dimensions, canary)
    SELECT newest.id + 1, $2 || $3 || (newest.id + 1), dimensions, $4::text::halfvec
    FROM vector_generations CROSS JOIN (SELECT max(id) AS id FROM vector_generations) AS newest
    WHERE vector_generations.id = $1 RETURNING id
"""
RENEW = """
    UPDATE vector_generations SET id = newest.id + 1, created_at = now(), worker_id = NULL, leased_until = NULL
    FROM (SELECT id, created_at FROM vector_generations ORDER BY id DESC LIMIT 1) AS newest
    WHERE vector_generations.id = $1 AND newest.created_at <= now() - $3 * interval '1 second' AND NOT EXISTS (
        SELECT FROM vector_generations AS newer
        WHERE newer.id > $1 AND newer.worker_id <> $2 AND newer.leased_until > now())
    RETURNING vector_generations.id
"""
IS_NEWEST = "SELECT NOT EXISTS (SELECT FROM vector_generations WHERE id > $1)"
CHANGED = f"""
    SELECT created_at FROM vector_generations WHERE starts_with(model, $1 || '{CHANGE_MARK}')
    ORDER BY id DESC LIMIT 1
"""
LEASE = """
    UPDATE vector_generations SET worker_id = $2, leased_until = now() + $3 * interval '1 second'
    WHERE id = $1 AND (worker_id = $2 OR leased_until IS NULL OR leased_until < now()) RETURNING true
"""
PENDING = """
    SELECT id, owner_id, text FROM memories
    WHERE generation < $1 AND superseded_by IS NULL AND owner_id <> ALL ($3::uuid[])
    ORDER BY generation LIMIT $2
"""
STORE = """
    WITH made AS (
        SELECT * FROM unnest($1::uuid[], $2::text[]) AS made (id, vector)
    ), held AS MATERIALIZED (
        SELECT id, space_id FROM memories WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
    ), kept AS (
        INSERT INTO memory_vectors (space_id, generation, memory_id, vector)
        SELECT held.space_id, $3, held.id, made.vector::halfvec FROM held JOIN made USING (id)
        WHERE made.vector IS NOT NULL
        ON CONFLICT (space_id, generation, memory_id) DO UPDATE SET vector = excluded.vector
    )
    UPDATE memories SET generation = $3 FROM held WHERE memories.id = held.id RETURNING memories.space_id
"""
"""A memory that was deleted meanwhile gets no vector."""
MARK_COMPLETE = """
    INSERT INTO vector_spaces (space_id, generation)
    SELECT space_id, $2 FROM unnest($1::uuid[]) AS touched (space_id)
    WHERE NOT EXISTS (
        SELECT FROM memories WHERE memories.space_id = touched.space_id AND superseded_by IS NULL
          AND generation > 0 AND generation < $2)
    ORDER BY space_id
    ON CONFLICT (space_id) DO UPDATE SET generation = excluded.generation
    WHERE vector_spaces.generation < excluded.generation
    RETURNING space_id
"""
DELETE_OLD = """
    DELETE FROM memory_vectors WHERE space_id = ANY ($1::uuid[]) AND generation < $2
"""


class PendingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory without a vector of the current generation."""

    id: UUID
    owner_id: UUID
    text: str


async def is_supported(driver: Driver) -> bool:
    """Whether this Postgres has pgvector in a version that can be used."""
    version: str | None = await driver.fetchval(VERSION)
    return version is not None and tuple(int(number) for number in version.split(".")[:2]) >= MIN_VERSION


@retried
async def create_tables(db: Database) -> bool:
    """Create the tables unless they exist. Returns False, and creates nothing, without a usable pgvector."""
    async with db.driver() as driver, driver.transaction():
        if await driver.fetchval(EXISTS):
            if not await driver.fetchval(HAS_CANARY):
                await driver.execute(CREATE_LOCK)
                await driver.execute(ADD_CANARY)
            return True
        if not await is_supported(driver):
            return False
        await driver.execute(CREATE_LOCK)
        if not await driver.fetchval(EXISTS):
            await driver.execute(CREATE)
        return True


@retried
async def generation_of(db: Database, model: str, dimensions: int) -> int:
    """The number of the generation, which is added if it is new."""
    async with db.driver() as driver, driver.transaction():
        found = await driver.fetchval(FIND_GENERATION, model, dimensions)
        if found is None:
            await driver.execute(CREATE_LOCK)
            found = await driver.fetchval(FIND_GENERATION, model, dimensions)
            found = found or await driver.fetchval(ADD_GENERATION, model, dimensions)
        return int(found)


@retried
async def check_canary(db: Database, model: str, canary: Vector) -> int:
    """The generation of the model's vectors, by its vector of the canary.

    That is the newest one of the model, unless its canary has another vector: then a new generation begins.
    """
    async with db.driver() as driver, driver.transaction():
        await driver.execute(CREATE_LOCK)
        dimensions = len(canary)
        newest: int = await driver.fetchval(FIND_GENERATION, model, dimensions)
        similarity: float | None = await driver.fetchval(READ_CANARY, newest, as_text(canary))
        if similarity is None:
            await driver.execute(STORE_CANARY, newest, as_text(canary))
        elif similarity < MIN_CANARY_SIMILARITY:
            return int(await driver.fetchval(SUCCEED, newest, model, CHANGE_MARK, as_text(canary)))
        return newest


@retried
async def renew(db: Database, generation: int, worker_id: UUID) -> tuple[int, bool]:
    """The generation, with a new number if its model is used again after another one; and whether it is the newest.

    It keeps its number while another process computes vectors of a newer one, and until that is `MIN_USE_SECONDS` old.
    All memories are embedded again, because their vectors of this generation may be deleted.
    """
    async with db.driver() as driver, driver.transaction():
        if await driver.fetchval(IS_NEWEST, generation):
            return generation, True
        await driver.execute(CREATE_LOCK)
        renewed: int | None = await driver.fetchval(RENEW, generation, worker_id, MIN_USE_SECONDS)
        return (generation, False) if renewed is None else (renewed, True)


async def changed_at(driver: Driver, model: str) -> datetime | None:
    """The last time at which the model was found to answer differently under the same name; None if never."""
    if not await driver.fetchval(EXISTS):
        return None
    changed: datetime | None = await driver.fetchval(CHANGED, model)
    return changed


async def lease(driver: Driver, generation: int, worker_id: UUID) -> bool:
    """Take or renew the lease of the generation. Returns False while another process has it."""
    return bool(await driver.fetchval(LEASE, generation, worker_id, LEASE_SECONDS))


async def pending(driver: Driver, generation: int, limit: int, *, without: Sequence[UUID] = ()) -> list[PendingMemory]:
    """Memories without a vector of this generation; those that have none at all come first.

    `without`: owners whose memories are left out.
    """
    return [PendingMemory(**row) for row in await driver.fetch(PENDING, generation, limit, without)]


@retried
async def store(db: Database, generation: int, vectors: Mapping[UUID, Vector | None]) -> None:
    """Store vectors of memories, and delete those of older generations once a space is complete.

    None stands for a text that the model refuses: the memory is found by its words only.
    """
    memory_ids = sorted(vectors)
    texts = [None if (vector := vectors[memory_id]) is None else as_text(vector) for memory_id in memory_ids]
    async with db.driver() as driver, driver.transaction():
        rows = await driver.fetch(STORE, memory_ids, texts, generation)
        touched = sorted({row["space_id"] for row in rows})
        complete = [row["space_id"] for row in await driver.fetch(MARK_COMPLETE, touched, generation)]
        await driver.execute(DELETE_OLD, complete, generation)


async def delete(driver: Driver, memory_ids: Sequence[UUID]) -> None:
    """Delete the vectors of these memories, where there are vectors at all."""
    if memory_ids and await driver.fetchval(EXISTS):
        await driver.execute("DELETE FROM memory_vectors WHERE memory_id = ANY ($1::uuid[])", memory_ids)


def as_text(vector: Vector) -> str:
    """The vector as pgvector reads it."""
    return f"[{','.join(f'{value:.{SIGNIFICANT_DIGITS}g}' for value in vector)}]"
