"""Searches past messages: first their signatures, then the texts of the few segments that may match best.

Both statements read a bounded number of rows, however much there is. The second reads the texts and the facts about
the caller's access in one snapshot, so that nobody finds what they may not read any more.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller
from khala.domain.search_matches import SearchText
from khala.domain.search_signatures import PROBES, probe
from khala.store.postgres.database import Driver
from khala.store.search.message_texts import IS_SEARCHED, TEXT
from khala.store.sharing import access
from khala.store.threads.thread_pages import LAST_POSITION, LISTED_THREADS

MAX_THREADS = 5_000
"""Threads of one search: the newest of the caller's list."""
MAX_SEGMENTS = 5_000
"""Segments of one search: those of the newest threads, and of one thread the newest."""
MAX_CANDIDATES = 32
"""Segments whose texts are read."""
MAX_MESSAGES = 400
"""Messages whose texts are read."""
MAX_TERMS = 96

HAS_TERM = " AND ".join(
    f"get_bit(signature, (low + {number} * step) % (8 * octet_length(signature))) = 1" for number in range(PROBES)
)
CANDIDATES = f"""
    WITH readable AS MATERIALIZED (
        {{readable}}
    ), scanned AS MATERIALIZED (
        SELECT ordered.place, segment.* FROM (
            SELECT id, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place FROM readable ORDER BY place
        ) AS ordered CROSS JOIN LATERAL (
            SELECT thread_id, first_position, piece, last_position, signature FROM search_segments
            WHERE search_segments.thread_id = ordered.id
            ORDER BY first_position DESC LIMIT {MAX_SEGMENTS}
        ) AS segment LIMIT {MAX_SEGMENTS}
    ), probes AS MATERIALIZED (
        SELECT * FROM unnest({{probes}})
            WITH ORDINALITY AS probe (low, step, weight, required, number)
    ), hits AS MATERIALIZED (
        SELECT place, thread_id, first_position, piece, last_position, number, weight, required
        FROM scanned CROSS JOIN probes WHERE {HAS_TERM}
    ), worths AS MATERIALIZED (
        SELECT number, count(*) AS frequency,
               ln(1 + (SELECT count(*) FROM scanned) / (count(*) + 0.5)) AS worth FROM hits GROUP BY number
    )
    SELECT thread_id, first_position, last_position,
           (SELECT array_agg(coalesce(frequency, 0) ORDER BY probes.number)
            FROM probes LEFT JOIN worths USING (number)) AS frequencies,
           (SELECT count(*) FROM scanned) AS scanned
    FROM hits JOIN worths USING (number)
    GROUP BY place, thread_id, first_position, piece, last_position
    ORDER BY count(*) FILTER (WHERE required) DESC, sum(weight * worth) DESC, place, first_position DESC
    LIMIT {MAX_CANDIDATES}
"""
IN_LIST = CANDIDATES.format(readable=LISTED_THREADS, probes="$7::bigint[], $8::bigint[], $9::float8[], $10::bool[]")
IN_THREAD = CANDIDATES.format(
    readable="SELECT id, created_at FROM threads WHERE id = $1 AND deleted_at IS NULL",
    probes="$2::bigint[], $3::bigint[], $4::float8[], $5::bool[]",
)
READ = f"""
    WITH facts AS MATERIALIZED ({access.FACTS})
    SELECT facts.*, messages.id, messages.thread_id, messages.position, messages.created_at, {TEXT} AS text
    FROM (
        SELECT DISTINCT facts.place, messages.thread_id, messages.id
        FROM unnest($6::int[], $7::uuid[], $8::int[], $9::int[])
            AS wanted (place, thread_id, first_position, last_position)
        JOIN facts ON facts.place = wanted.place
        JOIN messages ON messages.thread_id = wanted.thread_id
         AND messages.position BETWEEN wanted.first_position AND wanted.last_position
         AND messages.created_at <= $10 AND {IS_SEARCHED}
        LIMIT {MAX_MESSAGES}
    ) AS chosen JOIN facts USING (place) JOIN messages USING (thread_id, id)
"""


class FoundText(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the caller may read, and its text."""

    id: UUID
    thread_id: UUID
    position: int
    created_at: datetime
    text: str


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a thread, by their positions."""

    thread_id: UUID
    first_position: int
    last_position: int


def probes_of(asked: SearchText) -> tuple[list[str], list[list[object]]]:
    """The terms of a search that has words, and the columns of `probes`: low, step, weight, required."""
    terms: dict[str, tuple[float, bool]] = {}
    for word in asked.words:
        for term in (*word.terms, *word.stems):
            terms.setdefault(term, (word.weight, term in word.terms))
    names = list(terms)[:MAX_TERMS]
    return names, list(map(list, zip(*((*probe(term), *terms[term]) for term in names), strict=True)))


async def find(
    driver: Driver, caller: Caller, asked: SearchText, *, thread_id: UUID | None
) -> tuple[list[Candidate], Mapping[str, int], int]:
    """The messages that may match best.

    Also returns the number of segments with each word, and the number of segments that were looked at.
    """
    names, probes = probes_of(asked)
    if thread_id is not None:
        rows = await driver.fetch(IN_THREAD, thread_id, *probes)
    else:
        credentials = caller.user_id, caller.anon_key_hash, caller.share_key_hash
        rows = await driver.fetch(IN_LIST, *credentials, *LAST_POSITION, MAX_THREADS, *probes)
    if not rows:
        return [], {}, 0
    frequencies = dict(zip(names, rows[0]["frequencies"], strict=True))
    found = [
        Candidate(thread_id=row["thread_id"], first_position=row["first_position"], last_position=row["last_position"])
        for row in rows
    ]
    by_word = {word.text: min(frequencies.get(term, 0) for term in word.terms) for word in asked.words}
    return found, by_word, rows[0]["scanned"]


async def read(driver: Driver, caller: Caller, candidates: Sequence[Candidate], *, until: datetime) -> list[FoundText]:
    """The candidates' texts that the caller may read, of messages from before `until`."""
    thread_ids = list(dict.fromkeys(candidate.thread_id for candidate in candidates))
    places = {thread_id: place for place, thread_id in enumerate(thread_ids)}
    if not candidates:
        return []
    columns = zip(*(access.request_columns(thread_id, caller) for thread_id in thread_ids), strict=True)
    rows = await driver.fetch(
        READ,
        list(range(len(thread_ids))),
        *map(list, columns),
        [places[candidate.thread_id] for candidate in candidates],
        [candidate.thread_id for candidate in candidates],
        [candidate.first_position for candidate in candidates],
        [candidate.last_position for candidate in candidates],
        until,
    )
    return [
        FoundText(**{name: row[name] for name in FoundText.__struct_fields__})
        for row in rows
        if access.authorization(row, caller).allows(Action.READ_THREAD)
    ]
