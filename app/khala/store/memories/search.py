"""Search among memories, in one statement: by words, and by meaning where there is an embedding model."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain import search_terms
from khala.domain.memories import FUSION_RANK, LEXICAL_WEIGHT, Memory, MemorySpace
from khala.domain.vectors import Vector
from khala.store.memories.memories import IN_USE, IS_ERASED, memory
from khala.store.memories.vectors import MIN_SIMILARITY
from khala.store.postgres.array_arguments import any_of
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

MAX_CANDIDATES = 50
"""Memories of one order, by words or by meaning, that are fused."""
MAX_FREQUENCY = 100
"""Memories with a word from which the word counts as frequent: it ranks memories, and finds none by itself."""
MAX_TEXT_CHARACTERS = 8_000
"""Characters of a query that count. A longer one, such as a message, is known by its beginning."""
MAX_KEYS = 2_048
"""Terms of a query in all its spaces together: each may take a look into the index of words. In many spaces, only the
first terms of the query count."""
MAX_MATCHES = 400
"""Memories with one of the words that are ranked."""
MAX_SAMPLE = 128
"""Memories of a space that are read first, in the order of their fingerprints, which is random. If it has no more, the
index of words is not used."""
MIN_SEEN = 4
"""Memories of the sample with a word from which the word's frequency is estimated and not counted by the index."""
COLUMNS = ", ".join(f"memories.{name}" for name in Memory.__struct_fields__ if name != "score")

BY_WORDS = f"""
    asking AS MATERIALIZED (
        SELECT $1::uuid[] AS spaces, $2::int[] AS keys, $3::float8[] AS weights, $4::float8 AS min_share,
               $5::float8 AS unknown_weight, $6::int AS max_found
    ), sampled AS MATERIALIZED (
        SELECT nearby.* FROM unnest((SELECT spaces FROM asking)) AS space (id) CROSS JOIN LATERAL (
            SELECT id, space_id, terms, fingerprint FROM memories WHERE space_id = space.id AND {IN_USE}
            ORDER BY fingerprint LIMIT {MAX_SAMPLE}
        ) AS nearby
    ), sizes AS MATERIALIZED (
        SELECT space_id, count(*) AS sampled,
               CASE WHEN count(*) < {MAX_SAMPLE} THEN 1.0::float8 ELSE 65536.0::float8 / (1 + max(
                   256 * get_byte(fingerprint, 0) + get_byte(fingerprint, 1))) END AS each
        FROM sampled GROUP BY space_id
    ), stored AS MATERIALIZED (
        SELECT least(sum(sampled * each), {MAX_FREQUENCY}) AS memories,
               coalesce(max(sampled), 0) < {MAX_SAMPLE} AS all_sampled
        FROM sizes
    ), sampled_words AS MATERIALIZED (
        SELECT id, key, space_id FROM (SELECT id, space_id, unnest(terms) AS key FROM sampled) AS term
        JOIN unnest((SELECT keys FROM asking)) AS word (key) USING (key)
    ), seen AS (
        SELECT key, count(*) AS sampled, sum(each) AS estimate FROM sampled_words JOIN sizes USING (space_id)
        GROUP BY key
    ), asked AS MATERIALIZED (
        SELECT key, weight, estimate, CASE
            WHEN (SELECT all_sampled FROM stored) THEN least(coalesce(sampled, 0), {MAX_FREQUENCY})
            WHEN sampled >= {MIN_SEEN} AND estimate >= 2 * {MAX_FREQUENCY} THEN {MAX_FREQUENCY}
            ELSE (SELECT count(*) FROM (
                SELECT FROM memories WHERE terms @> ARRAY[word.key] AND {IN_USE} LIMIT {MAX_FREQUENCY}) AS having_it)
        END AS frequency
        FROM unnest((SELECT keys FROM asking), (SELECT weights FROM asking)) AS word (key, weight)
        LEFT JOIN seen USING (key)
    ), finding AS MATERIALIZED (
        SELECT coalesce(
            array_agg(key) FILTER (WHERE frequency < {MAX_FREQUENCY}),
            (array_agg(key ORDER BY coalesce(estimate, 0), key))[:1]
        ) AS keys FROM asked WHERE frequency > 0
    ), worths AS MATERIALIZED (
        SELECT key, weight * CASE WHEN frequency = 0 THEN (SELECT unknown_weight FROM asking) ELSE 1 END
                    * ln(1 + (SELECT memories FROM stored) / (greatest(frequency, 1) + 0.5)) AS worth
        FROM asked
    ), whole AS MATERIALIZED (
        SELECT sum(worth) / cardinality((SELECT spaces FROM asking)) AS worth FROM worths
    ), matched AS MATERIALIZED (
        SELECT id, key FROM sampled_words WHERE (SELECT all_sampled FROM stored)
        UNION ALL
        SELECT id, unnest(terms) AS key FROM (
            SELECT id, terms FROM memories
            WHERE NOT (SELECT all_sampled FROM stored)
              AND terms && (SELECT keys FROM finding) AND space_id = ANY ((SELECT spaces FROM asking)::uuid[])
              AND {IN_USE} LIMIT {MAX_MATCHES}
        ) AS found
    ), words AS (
        SELECT id, sum(worth) / (SELECT worth FROM whole) AS share FROM matched JOIN worths USING (key)
        GROUP BY id HAVING bool_or(key = ANY ((SELECT keys FROM finding)::int[]))
            AND sum(worth) >= (SELECT min_share FROM asking) * (SELECT worth FROM whole)
        ORDER BY share DESC, id DESC LIMIT {MAX_CANDIDATES}
    )
"""
"""A word counts more, the fewer memories have it. One that no memory has counts as if one had it. Each space has its
own keys of the same words. If all words are frequent, the rarest one finds.

`sizes` estimates how many memories each one of the sample stands for: fingerprints are evenly distributed, so the more
memories there are, the smaller is the largest of the first `MAX_SAMPLE`.

The arguments are in `asking`, which the planner does not look into: else plans for given arguments would seem cheaper
than one for all, and each search would be planned, which takes longer than it does."""
BY_MEANING = f"""
    vector AS MATERIALIZED (
        SELECT $7::real[]::halfvec AS vector, $8::smallint AS generation
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
USABLE = f"""
    space_id = ANY ((SELECT spaces FROM asking)::uuid[]) AND {IN_USE} AND {IS_ERASED} IS NOT TRUE
"""
ROWS = f"""
    SELECT {COLUMNS}, best.score FROM (
        SELECT id, score FROM scored ORDER BY score DESC, id LIMIT (SELECT max_found FROM asking)
    ) AS best JOIN memories USING (id) ORDER BY best.score DESC, id
"""
LEXICAL = f"""
    WITH {BY_WORDS}, scored AS (
        SELECT id, share AS score FROM words JOIN memories USING (id) WHERE {USABLE}
    ) {ROWS}
"""
"""Without a model, a score is the share of the query's words that the memory has, by their worth."""
HYBRID = f"""
    WITH {BY_WORDS}, {BY_MEANING}, ranked AS (
        SELECT id,
               CASE WHEN similarity IS NOT NULL THEN
                   row_number() OVER (ORDER BY similarity DESC NULLS LAST, id) END AS near,
               CASE WHEN share IS NOT NULL THEN
                   row_number() OVER (ORDER BY share DESC NULLS LAST, id) END AS worded
        FROM words FULL JOIN near USING (id) JOIN memories USING (id) WHERE {USABLE}
    ), scored AS (
        SELECT id, (coalesce(1.0::float8 / ({FUSION_RANK} + near), 0)
                    + {LEXICAL_WEIGHT} * coalesce(1.0::float8 / ({FUSION_RANK} + worded), 0))
                   * {FUSION_RANK + 1} / {1 + LEXICAL_WEIGHT} AS score FROM ranked
    ) {ROWS}
"""
"""Reciprocal rank fusion of the orders by meaning and by words. The first of both has the score 1."""
SCORE_DIGITS = 9
"""Of a score: the last digits of a sum depend on its order, which depends on the plan."""
MAX_VERSIONS = 10
"""Earlier versions of a memory that a search with history returns."""
EARLIER = f"""
    WITH RECURSIVE versions AS (
        SELECT id AS newest, supersedes AS id, 1 AS age FROM memories
        WHERE id = {any_of(1, "uuid")} AND supersedes IS NOT NULL
        UNION ALL
        SELECT versions.newest, older.supersedes, versions.age + 1
        FROM versions JOIN memories AS older ON older.id = versions.id
        WHERE older.supersedes IS NOT NULL AND versions.age < {MAX_VERSIONS}
    )
    SELECT memories.*, versions.newest FROM versions JOIN memories ON memories.id = versions.id
    WHERE space_id = {any_of(2, "uuid")} AND {IS_ERASED} IS NOT TRUE ORDER BY versions.newest, versions.age
"""
USED = f"UPDATE memories SET used_at = now(), uses = uses + 1 WHERE id = {any_of(1, 'uuid')}"


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
    most = min(search_terms.MAX_TERMS, MAX_KEYS // max(1, len(space_ids)))
    terms = search_terms.terms(asked.text[:MAX_TEXT_CHARACTERS], limit=most)
    keys = [key for space_id in space_ids for key in search_terms.term_keys(space_id, terms)]
    words = (space_ids, keys, list(terms.values()) * len(space_ids), match.min_share, match.unknown_weight, limit)
    by_meaning = () if asked.vector is None else (asked.vector, asked.generation)
    rows = await driver.fetch(HYBRID if by_meaning else LEXICAL, *words, *by_meaning)
    return [memory(row, min(1.0, round(row["score"], SCORE_DIGITS))) for row in rows]


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


async def mark_used(driver: Driver, memory_ids: Sequence[UUID]) -> None:
    """Count a use of these memories."""
    await driver.execute(USED, sorted(memory_ids))
