"""Searches the signatures of blobs for the few whose texts may match best.

Access is that of the message that a blob belongs to: `read` reads the facts about it and the message in one snapshot.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller
from khala.domain.search_matches import SearchText
from khala.domain.search_signatures import PROBES
from khala.store.blobs.blobs import COLUMNS, NOT_EXPIRED, Blob
from khala.store.postgres.database import Driver
from khala.store.search.message_texts import IS_SEARCHED
from khala.store.search.messages import MAX_THREADS, probes_of
from khala.store.sharing import access
from khala.store.threads.reset_marks import IS_BLOB
from khala.store.threads.thread_pages import LAST_POSITION, LISTED_THREADS

MAX_BLOBS = 1_000
"""Blobs of one search: those of the newest threads, and of one thread the newest."""
MAX_CANDIDATES = 8
"""Blobs whose texts are read."""
MIN_WEIGHT = 0.2
"""The weight of the terms of a candidate, of all terms of the search."""

HAS_TERM = " AND ".join(
    f"""get_bit(
        substring(signature FROM (((low + {number} * step) % (8 * octet_length(signature))) / 8)::int + 1 FOR 1),
        (low + {number} * step) % 8
    ) = 1"""
    for number in range(PROBES)
)
"""Reads single bytes: `get_bit` of a long signature reads all of it."""
CANDIDATES = f"""
    WITH readable AS MATERIALIZED (
        {{readable}}
    ), scanned AS MATERIALIZED (
        SELECT ordered.place, blob.* FROM (
            SELECT id, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place FROM readable ORDER BY place
        ) AS ordered CROSS JOIN LATERAL (
            SELECT thread_id, id, signature FROM blobs
            WHERE blobs.thread_id = ordered.id AND message_id IS NOT NULL
            ORDER BY blobs.id DESC LIMIT {MAX_BLOBS}
        ) AS blob LIMIT {MAX_BLOBS}
    ), probes AS MATERIALIZED (
        SELECT * FROM unnest({{probes}}) AS probe (low, step, weight, required)
    )
    SELECT thread_id, id FROM scanned CROSS JOIN probes WHERE {HAS_TERM}
    GROUP BY place, thread_id, id
    HAVING sum(weight) >= {MIN_WEIGHT} * (SELECT sum(weight) FROM probes)
    ORDER BY count(*) FILTER (WHERE required) DESC, sum(weight) DESC, place, id DESC
    LIMIT {MAX_CANDIDATES}
"""
IN_LIST = CANDIDATES.format(readable=LISTED_THREADS, probes="$7::bigint[], $8::bigint[], $9::float8[], $10::bool[]")
IN_THREAD = CANDIDATES.format(
    readable="SELECT id, created_at FROM threads WHERE id = $1 AND deleted_at IS NULL",
    probes="$2::bigint[], $3::bigint[], $4::float8[], $5::bool[]",
)
READ = f"""
    WITH facts AS MATERIALIZED ({access.FACTS})
    SELECT facts.*, messages.created_at AS said_at, messages.id AS message_id, {{columns}}
    FROM unnest($6::int[], $7::uuid[], $8::uuid[]) AS wanted (place, thread_id, blob_id)
    JOIN facts ON facts.place = wanted.place
    JOIN blobs ON blobs.id = wanted.blob_id AND blobs.thread_id = wanted.thread_id AND {IS_BLOB}
     AND {NOT_EXPIRED.replace("expires_at", "blobs.expires_at")}
    JOIN messages ON messages.id = blobs.message_id AND messages.thread_id = blobs.thread_id
     AND messages.created_at <= $9 AND {IS_SEARCHED}
""".format(columns=", ".join(f"blobs.{name} AS blob_{name}" for name in COLUMNS.split(", ")))


class BlobCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that the caller may read, and the message that it belongs to."""

    blob: Blob
    message_id: UUID
    created_at: datetime
    """The time of the message."""


async def find(
    driver: Driver, caller: Caller, asked: SearchText, *, thread_id: UUID | None, until: datetime
) -> list[BlobCandidate]:
    """The blobs whose texts may match best, of messages from before `until`. The search has words."""
    _, probes = probes_of(asked)
    if thread_id is not None:
        rows = await driver.fetch(IN_THREAD, thread_id, *probes)
    else:
        credentials = caller.user_id, caller.anon_key_hash, caller.share_key_hash
        rows = await driver.fetch(IN_LIST, *credentials, *LAST_POSITION, MAX_THREADS, *probes)
    return await _read(driver, caller, [(row["thread_id"], row["id"]) for row in rows], until) if rows else []


async def _read(
    driver: Driver, caller: Caller, found: Sequence[tuple[UUID, UUID]], until: datetime
) -> list[BlobCandidate]:
    thread_ids = list(dict.fromkeys(thread_id for thread_id, _ in found))
    columns = zip(*(access.request_columns(thread_id, caller) for thread_id in thread_ids), strict=True)
    rows = await driver.fetch(
        READ,
        list(range(len(thread_ids))),
        *map(list, columns),
        [thread_ids.index(thread_id) for thread_id, _ in found],
        [thread_id for thread_id, _ in found],
        [blob_id for _, blob_id in found],
        until,
    )
    return [
        BlobCandidate(
            blob=Blob(**{name: row[f"blob_{name}"] for name in Blob.__struct_fields__}),
            message_id=row["message_id"],
            created_at=row["said_at"],
        )
        for row in rows
        if access.authorization(row, caller).allows(Action.READ_THREAD)
    ]
