"""Vectors of the texts of users' agents, by which tasks are routed. The tables: `khala.store.memories.vectors`.

One account has few agents, so all vectors are read, without an index of their values. They are computed when a task is
routed for the first time, and deleted with their version of the agent.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from khala.domain.vectors import Vector
from khala.store.memories.vectors import CREATE_LOCK, as_text
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried

EXISTS = "SELECT to_regclass('agent_vectors') IS NOT NULL"
CREATE = """
    CREATE TABLE agent_vectors (
        agent_id uuid NOT NULL REFERENCES agents ON DELETE CASCADE,
        generation smallint NOT NULL,
        position smallint NOT NULL,
        vector halfvec NOT NULL,
        PRIMARY KEY (agent_id, generation, position)
    );
    -- A vector stays in its row, up to the size of a page.
    ALTER TABLE agent_vectors ALTER COLUMN vector SET STORAGE MAIN;
"""
SIMILARITIES = """
    SELECT agent_id, array_agg(inner_product(vector, (SELECT $2::text::halfvec))) AS similarities FROM agent_vectors
    WHERE agent_id = ANY ($1::uuid[]) AND generation = $3 GROUP BY agent_id
"""
"""The vector of the task is a scalar subquery: a parameter that is cast for each row is also parsed for each row."""
HAS_VECTORS = "SELECT EXISTS (SELECT FROM agent_vectors WHERE agent_id = $1 AND generation = $2)"
STORE = """
    WITH held AS MATERIALIZED (SELECT id FROM agents WHERE id = $1 FOR NO KEY UPDATE), old AS (
        DELETE FROM agent_vectors USING held WHERE agent_id = held.id AND generation <> $2
    )
    INSERT INTO agent_vectors (agent_id, generation, position, vector)
    SELECT held.id, $2, made.position, made.vector::halfvec
    FROM held, unnest($3::text[]) WITH ORDINALITY AS made (vector, position) WHERE true
    ON CONFLICT (agent_id, generation, position) DO NOTHING
"""
"""A version that was deleted meanwhile gets no vectors."""


@retried
async def create_table(db: Database) -> None:
    """Create the table unless it exists, where those of memories exist already."""
    async with db.driver() as driver, driver.transaction():
        if await driver.fetchval(EXISTS):
            return
        await driver.execute(CREATE_LOCK)
        if not await driver.fetchval(EXISTS):
            await driver.execute(CREATE)


async def similarities(
    driver: Driver, agent_ids: Sequence[UUID], vector: Vector, generation: int
) -> Mapping[UUID, Sequence[float]]:
    """The similarities of each agent's texts, by its version's id. Agents without vectors are missing."""
    rows = await driver.fetch(SIMILARITIES, agent_ids, as_text(vector), generation)
    return {row["agent_id"]: row["similarities"] for row in rows}


async def exist(driver: Driver, agent_id: UUID, generation: int) -> bool:
    """Whether this version of an agent has vectors of this generation."""
    return bool(await driver.fetchval(HAS_VECTORS, agent_id, generation))


@retried
async def store(db: Database, agent_id: UUID, generation: int, vectors: Sequence[Vector]) -> None:
    """Store the vectors of a version of an agent, in place of those of other generations."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(STORE, agent_id, generation, [as_text(vector) for vector in vectors])
