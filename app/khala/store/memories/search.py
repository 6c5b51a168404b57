"""Search among memories: by words, and by meaning where there is an embedding model."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain import search_terms
from khala.domain.memories import LEXICAL_WEIGHT, Memory, MemorySpace, fuse
from khala.domain.vectors import Vector
from khala.store.memories import vectors
from khala.store.memories.memories import IN_USE, IS_ERASED, memory
from khala.store.postgres.database import Driver

MAX_CANDIDATES = 50
"""Memories of one order, by words or by meaning, that are fused."""
MAX_MATCHES = 5_000
"""Memories with a common word that are ranked. Others with that word are left out."""
MIN_SHARE = 0.15
"""Of the worth of all words of a search, that a memory must have: less is a common word."""

BY_WORDS = f"""
    WITH matched AS MATERIALIZED (
        SELECT id, ARRAY(SELECT unnest(terms) INTERSECT SELECT unnest($2::int[])) AS hits
        FROM memories WHERE space_id = ANY ($1::uuid[]) AND terms && $2::int[] AND {IN_USE} LIMIT $5
    ), frequency AS (
        SELECT key, count(*)::float8 AS rows FROM matched CROSS JOIN unnest(hits) AS hit (key) GROUP BY key
    ), asked AS (
        SELECT key, weight * ln(1 + (SELECT count(*) + 1 FROM matched) / coalesce(rows, 0.5)) AS worth
        FROM unnest($2::int[], $3::float8[]) AS asked (key, weight) LEFT JOIN frequency USING (key)
    ), whole AS (
        SELECT sum(worth) / cardinality($1::uuid[]) AS worth FROM asked
    )
    SELECT id, sum(asked.worth) / (SELECT worth FROM whole) AS share
    FROM matched CROSS JOIN unnest(hits) AS hit (key) JOIN asked USING (key)
    GROUP BY id HAVING sum(asked.worth) >= $6::float8 * (SELECT worth FROM whole)
    ORDER BY share DESC, id DESC LIMIT $4
"""
"""A word counts more, the fewer memories have it. Each space has its own keys of the same words."""
ROWS = f"""
    SELECT * FROM memories WHERE id = ANY ($1::uuid[]) AND space_id = ANY ($2::uuid[]) AND {IN_USE}
      AND {IS_ERASED} IS NOT TRUE
"""
USED = "UPDATE memories SET used_at = now(), uses = uses + 1 WHERE id = ANY ($1::uuid[])"


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a search, and its vector and the vector's generation. Without a vector, only words count."""

    text: str
    vector: Vector | None = None
    generation: int = 0


async def search(driver: Driver, spaces: Sequence[MemorySpace], asked: MemoryQuery, *, limit: int) -> list[Memory]:
    """The memories of these spaces that fit the query, the best first, with their scores."""
    space_ids = list(dict.fromkeys(space.id for space in spaces))
    lexical = await _by_words(driver, space_ids, asked.text)
    rankings: list[tuple[Sequence[UUID], float]] = [(lexical, 1.0)]
    if asked.vector is not None:
        similar = await vectors.nearest(driver, space_ids, asked.vector, asked.generation, limit=MAX_CANDIDATES)
        rankings = [(similar, 1.0), (lexical, LEXICAL_WEIGHT)]
    scores = fuse(rankings)
    rows = {row["id"]: row for row in await driver.fetch(ROWS, list(scores), space_ids)}
    return [memory(rows[found], score) for found, score in scores.items() if found in rows][:limit]


async def _by_words(driver: Driver, space_ids: Sequence[UUID], text: str) -> list[UUID]:
    asked = search_terms.terms(text)
    if not asked:
        return []
    keys = [key for space_id in space_ids for key in search_terms.term_keys(space_id, asked)]
    weights = list(asked.values()) * len(space_ids)
    found = await driver.fetch(BY_WORDS, space_ids, keys, weights, MAX_CANDIDATES, MAX_MATCHES, MIN_SHARE)
    return [row["id"] for row in found]


async def mark_used(driver: Driver, memory_ids: Sequence[UUID]) -> None:
    """Count a use of these memories."""
    await driver.execute(USED, sorted(memory_ids))
