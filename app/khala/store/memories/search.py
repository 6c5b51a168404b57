"""Search among memories, in one statement: by words, and by meaning where there is an embedding model."""

from collections.abc import Mapping, Sequence
from itertools import islice
from uuid import UUID

import msgspec

from khala.domain import search_terms
from khala.domain.memories import LEXICAL_WEIGHT, Memory, MemorySpace, fuse
from khala.domain.vectors import Vector
from khala.store.memories import vectors
from khala.store.memories.memories import IN_USE, IS_ERASED, memory
from khala.store.memories.vectors import MIN_SIMILARITY
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

MAX_CANDIDATES = 50
"""Memories of one order, by words or by meaning, that are fused."""
MAX_FREQUENCY = 100
"""Memories with a word from which the word counts as frequent: it ranks memories, and finds none by itself."""
MAX_MATCHES = 400
"""Memories with one of the words that are ranked."""
MAX_SAMPLE = 256
"""Memories of a space that are read first. If it has no more, the index of words is not used; else it is used only for
words that fewer than `MAX_FREQUENCY` of them have."""
COLUMNS = ", ".join(f"memories.{name}" for name in Memory.__struct_fields__ if name != "score")

BY_WORDS = f"""
    asking AS MATERIALIZED (
        SELECT $1::uuid[] AS spaces, $2::int[] AS keys, $3::float8[] AS weights, $4::float8 AS min_share,
               $5::float8 AS unknown_weight
    ), sampled AS MATERIALIZED (
        SELECT nearby.id, nearby.terms FROM unnest((SELECT spaces FROM asking)) AS space (id) CROSS JOIN LATERAL (
            SELECT id, terms FROM memories WHERE space_id = space.id AND {IN_USE} LIMIT {MAX_SAMPLE}
        ) AS nearby
    ), stored AS MATERIALIZED (
        SELECT least(count(*), {MAX_FREQUENCY}) AS memories, count(*) < {MAX_SAMPLE} AS all_sampled FROM sampled
    ), sampled_words AS MATERIALIZED (
        SELECT id, key FROM sampled CROSS JOIN LATERAL unnest(terms) AS term (key)
        WHERE key = ANY ((SELECT keys FROM asking)::int[])
    ), asked AS MATERIALIZED (
        SELECT key, weight, CASE
            WHEN seen >= {MAX_FREQUENCY} THEN {MAX_FREQUENCY}
            WHEN (SELECT all_sampled FROM stored) THEN coalesce(seen, 0)
            ELSE (SELECT count(*) FROM (
                SELECT FROM memories WHERE terms @> ARRAY[word.key] AND {IN_USE} LIMIT {MAX_FREQUENCY}) AS having_it)
        END AS frequency
        FROM unnest((SELECT keys FROM asking), (SELECT weights FROM asking)) AS word (key, weight)
        LEFT JOIN (SELECT key, count(*) AS seen FROM sampled_words GROUP BY key) AS seen USING (key)
    ), finding AS MATERIALIZED (
        SELECT coalesce(array_agg(key) FILTER (WHERE frequency < {MAX_FREQUENCY}), array_agg(key)) AS keys
        FROM asked WHERE frequency > 0
    ), worths AS MATERIALIZED (
        SELECT key, weight * CASE WHEN frequency = 0 THEN (SELECT unknown_weight FROM asking) ELSE 1 END
                    * ln(1 + (SELECT memories FROM stored) / (greatest(frequency, 1) + 0.5)) AS worth
        FROM asked
    ), whole AS MATERIALIZED (
        SELECT sum(worth) / cardinality((SELECT spaces FROM asking)) AS worth FROM worths
    ), matched AS MATERIALIZED (
        SELECT id, key FROM sampled_words WHERE (SELECT all_sampled FROM stored)
        UNION ALL
        SELECT id, key FROM (
            SELECT id, terms FROM memories
            WHERE NOT (SELECT all_sampled FROM stored)
              AND terms && (SELECT keys FROM finding) AND space_id = ANY ((SELECT spaces FROM asking)::uuid[])
              AND {IN_USE} LIMIT {MAX_MATCHES}
        ) AS found CROSS JOIN LATERAL unnest(terms) AS term (key)
    ), words AS (
        SELECT id, sum(worth) / (SELECT worth FROM whole) AS share FROM matched JOIN worths USING (key)
        GROUP BY id HAVING bool_or(key = ANY ((SELECT keys FROM finding)::int[]))
            AND sum(worth) >= (SELECT min_share FROM asking) * (SELECT worth FROM whole)
        ORDER BY share DESC, id DESC LIMIT {MAX_CANDIDATES}
    )
"""
"""A word counts more, the fewer memories have it. One that no memory has counts as if one had it. Each space has its
own keys of the same words. The arguments are in `asking`, which the planner does not look into: else plans for given
arguments would seem cheaper than one for all, and each search would be planned, which takes longer than it does."""
BY_MEANING = f"""
    vector AS MATERIALIZED (
        SELECT $6::text::halfvec AS vector, $7::smallint AS generation
    ), near AS (
        SELECT nearest.id, nearest.similarity FROM vector_spaces CROSS JOIN LATERAL (
            SELECT memory_id AS id, inner_product(vector, (SELECT vector FROM vector)) AS similarity FROM memory_vectors
            WHERE memory_vectors.space_id = vector_spaces.space_id AND generation = (SELECT generation FROM vector)
            ORDER BY similarity DESC LIMIT {MAX_CANDIDATES}
        ) AS nearest
        WHERE vector_spaces.space_id = ANY ((SELECT spaces FROM asking)::uuid[])
          AND vector_spaces.generation = (SELECT generation FROM vector)
          AND similarity >= {MIN_SIMILARITY}
        ORDER BY similarity DESC, id LIMIT {MAX_CANDIDATES}
    )
"""
"""The vector of the search is a scalar subquery: a parameter that is cast for each row is also parsed for each row.

A space without all vectors of the generation is searched by words only.
"""
ROWS = f"""
    FROM found JOIN memories USING (id)
    WHERE space_id = ANY ((SELECT spaces FROM asking)::uuid[]) AND {IN_USE} AND {IS_ERASED} IS NOT TRUE
"""
LEXICAL = f"""
    WITH {BY_WORDS}, found AS (SELECT id, share, NULL::float8 AS similarity FROM words)
    SELECT {COLUMNS}, share, similarity {ROWS}
"""
HYBRID = f"""
    WITH {BY_WORDS}, {BY_MEANING}, found AS (SELECT id, share, similarity FROM words FULL JOIN near USING (id))
    SELECT {COLUMNS}, share, similarity {ROWS}
"""
SHARE_DIGITS = 9
"""Of a share that is a score: the last digits of a sum depend on its order, which depends on the plan."""
MAX_VERSIONS = 10
"""Earlier versions of a memory that a search with history returns."""
EARLIER = f"""
    WITH RECURSIVE versions AS (
        SELECT id AS newest, supersedes AS id, 1 AS age FROM memories
        WHERE id = ANY ($1::uuid[]) AND supersedes IS NOT NULL
        UNION ALL
        SELECT versions.newest, older.supersedes, versions.age + 1
        FROM versions JOIN memories AS older ON older.id = versions.id
        WHERE older.supersedes IS NOT NULL AND versions.age < {MAX_VERSIONS}
    )
    SELECT memories.*, versions.newest FROM versions JOIN memories ON memories.id = versions.id
    WHERE space_id = ANY ($2::uuid[]) AND {IS_ERASED} IS NOT TRUE ORDER BY versions.newest, versions.age
"""
USED = "UPDATE memories SET used_at = now(), uses = uses + 1 WHERE id = ANY ($1::uuid[])"


class WordMatch(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the query's words a memory needs that is found by its words.

    `min_share`: of the worth of all words, that a memory must have. `unknown_weight`: from 0 to 1, of words that no
    memory has.
    """

    min_share: float
    unknown_weight: float


LENIENT = WordMatch(min_share=0.1, unknown_weight=0.3)
"""For a list that somebody reads. Fitted on the evaluation's half for tuning."""
STRICT = WordMatch(min_share=0.3, unknown_weight=1.0)
"""For what a model is told without being asked."""


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a search, and its vector and the vector's generation. Without a vector, only words count."""

    text: str
    vector: Vector | None = None
    generation: int = 0


async def search(
    driver: Driver,
    spaces: Sequence[MemorySpace],
    asked: MemoryQuery,
    *,
    limit: int,
    match: WordMatch = LENIENT,
) -> list[Memory]:
    """The memories of these spaces that fit the query, the best first, with their scores."""
    space_ids = list(dict.fromkeys(space.id for space in spaces))
    terms = search_terms.terms(asked.text)
    keys = [key for space_id in space_ids for key in search_terms.term_keys(space_id, terms)]
    words = (space_ids, keys, list(terms.values()) * len(space_ids), match.min_share, match.unknown_weight)
    by_meaning = () if asked.vector is None else (vectors.as_text(asked.vector), asked.generation)
    rows = await driver.fetch(HYBRID if by_meaning else LEXICAL, *words, *by_meaning)
    by_id = {row["id"]: row for row in rows}
    scores = _shares(rows) if asked.vector is None else fuse(_rankings(rows))
    return [memory(by_id[found], score) for found, score in islice(scores.items(), limit)]


async def with_history(
    driver: Driver, spaces: Sequence[MemorySpace], found: Sequence[Memory], *, limit: int
) -> list[Memory]:
    """Each found memory, followed by those that it has superseded, the latest first, with its score.

    What was true before is found by what is true now: both have the same subject.
    """
    newest = [memory.id for memory in found]
    earlier: dict[UUID, list[Record]] = {}
    for row in await driver.fetch(EARLIER, newest, [space.id for space in spaces]):
        earlier.setdefault(row["newest"], []).append(row)
    listed = [
        version
        for current in found
        for version in (current, *(memory(row, current.score) for row in earlier.get(current.id, ())))
    ]
    return listed[:limit]


def _shares(rows: Sequence[Record]) -> Mapping[UUID, float]:
    """Without a model, a score is the share of the query's words that the memory has, by their worth."""
    return {found: min(1.0, round(share, SHARE_DIGITS)) for found, share in _ranked(rows, "share")}


def _rankings(rows: Sequence[Record]) -> list[tuple[Sequence[UUID], float]]:
    """The found memories by meaning and by words, with the weight of each order."""
    measures = (("similarity", 1.0), ("share", LEXICAL_WEIGHT))
    return [([found for found, _ in _ranked(rows, measure)], weight) for measure, weight in measures]


def _ranked(rows: Sequence[Record], measure: str) -> list[tuple[UUID, float]]:
    """The ids of the rows that have this measure, the highest first."""
    found = [(row["id"], row[measure]) for row in rows if row[measure] is not None]
    return sorted(found, key=lambda item: (-item[1], item[0]))


async def mark_used(driver: Driver, memory_ids: Sequence[UUID]) -> None:
    """Count a use of these memories."""
    await driver.execute(USED, sorted(memory_ids))
