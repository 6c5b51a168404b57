"""Packed parts of ended runs: reads them, and packs the parts of runs that ended long ago.

A run is packed in one transaction, under the lock of its thread: a reader sees its parts as rows, or packed.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from khala.domain.fold import Content
from khala.domain.packed_parts import PackedParts, pack, unpack
from khala.domain.parts import Part
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.threads.reset_marks import IS_RUN

MAX_SCANNED_RUNS = 200
"""Runs that one search for due runs examines."""

PACKED = """
    SELECT runs.id AS run_id, runs.parts_layout, runs.parts_digest,
           messages.id AS message_id, messages.content, messages.finish
    FROM runs
    JOIN messages ON messages.id = runs.message_id AND messages.thread_id IS NOT DISTINCT FROM runs.thread_id
    WHERE runs.id = $1 AND runs.thread_id IS NOT DISTINCT FROM $2 AND runs.parts_layout IS NOT NULL
"""

CANDIDATES = f"""
    WITH RECURSIVE run AS (
        (SELECT run_id AS id, 1 AS number FROM message_parts WHERE run_id > $1 AND run_id < $2 ORDER BY run_id LIMIT 1)
        UNION ALL
        SELECT next.run_id, run.number + 1 FROM run CROSS JOIN LATERAL (
            SELECT run_id FROM message_parts WHERE run_id > run.id AND run_id < $2 ORDER BY run_id LIMIT 1
        ) AS next WHERE run.number < $3
    )
    SELECT run.id, runs.thread_id, messages.seq,
           runs.status IN ('final', 'error', 'canceled') AND runs.finished_at < clock_timestamp() - $4::interval
             AND runs.parts_layout IS NULL AND messages.status = runs.status AND {IS_RUN} AS due
    FROM run
    LEFT JOIN runs ON runs.id = run.id
    LEFT JOIN messages ON messages.id = runs.message_id AND messages.thread_id = runs.thread_id
    ORDER BY run.id
"""
"""The next runs that have parts as rows, by one search in the index each, and whether they are due.

A run that is packed and has rows nevertheless is never due: `khala verify` reports it.
"""

COUNT_DUE = f"""
    SELECT count(*) FROM runs
    JOIN messages ON messages.id = runs.message_id AND messages.thread_id = runs.thread_id
    WHERE runs.status IN ('final', 'error', 'canceled') AND runs.finished_at < clock_timestamp() - $1::interval
      AND runs.parts_layout IS NULL AND messages.status = runs.status AND {IS_RUN}
      AND EXISTS (SELECT FROM message_parts WHERE run_id = runs.id)
"""

LOCK_THREADS = """
    SELECT id FROM threads WHERE id = ANY($1::uuid[]) AND deleted_at IS NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
"""Never waits: a thread that another transaction has locked is left for the next time."""

CONTENTS = f"""
    SELECT runs.id, messages.content, messages.finish FROM runs
    JOIN messages ON messages.id = runs.message_id AND messages.thread_id = runs.thread_id
    WHERE runs.id = ANY($1::uuid[]) AND runs.thread_id = ANY($2::uuid[]) AND {IS_RUN}
"""
"""Read after the locks: a run that was deleted meanwhile is left out."""

PARTS = """
    SELECT part.* FROM message_parts AS part JOIN runs ON runs.id = part.run_id AND runs.thread_id = part.thread_id
    WHERE part.run_id = ANY($1::uuid[]) ORDER BY part.run_id, part.seq
"""
STORE = """
    UPDATE runs SET parts_layout = packed.layout, parts_digest = packed.digest, finish = packed.finish
    FROM (
        SELECT run.id, run.thread_id, given.layout, given.digest,
               CASE WHEN run.finish IS DISTINCT FROM messages.finish THEN run.finish END AS finish
        FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[]) AS given (run_id, thread_id, layout, digest)
        JOIN runs AS run ON run.id = given.run_id AND run.thread_id = given.thread_id
        JOIN messages ON messages.id = run.message_id AND messages.thread_id = run.thread_id
        ORDER BY run.id FOR NO KEY UPDATE OF run
    ) AS packed WHERE runs.id = packed.id AND runs.thread_id = packed.thread_id
"""
"""The message has the same finish. A different one stays: `khala verify` reports it."""
DELETE_PARTS = """
    DELETE FROM message_parts AS part USING runs
    WHERE part.run_id = ANY($1::uuid[]) AND runs.id = part.run_id AND runs.thread_id = part.thread_id
"""
SET_REVISIONS = """
    UPDATE threads SET packed_revision = greatest(packed_revision, packed.revision)
    FROM unnest($1::uuid[], $2::bigint[]) AS packed (thread_id, revision)
    WHERE threads.id = packed.thread_id
"""


class PackCandidate(msgspec.Struct, frozen=True):
    """A run that has parts as rows: its thread and number of parts, if it is due."""

    id: UUID
    thread_id: UUID | None
    seq: int | None
    due: bool | None


async def of_run(driver: Driver, thread_id: UUID, run_id: UUID) -> list[Part]:
    """The parts of a run of this thread, if they are packed."""
    row = await driver.fetchrow(PACKED, run_id, thread_id)
    return [] if row is None else unpacked(row)


def unpacked(row: rows.Record) -> list[Part]:
    """The parts of a row with the columns of `PACKED`. Raises `msgspec.DecodeError`."""
    packed = PackedParts(digest=row["parts_digest"], layout=row["parts_layout"])
    content = _readable_content(row["content"])
    return unpack(packed, run_id=row["run_id"], message_id=row["message_id"], content=content, finish=row["finish"])


async def candidates(driver: Driver, after: UUID, before: UUID, age: timedelta) -> list[PackCandidate]:
    """The next runs between these ids that have parts as rows, in order of id; none at the end.

    They are due if they ended longer than `age` ago.
    """
    found = await driver.fetch(CANDIDATES, after, before, MAX_SCANNED_RUNS, age)
    return [PackCandidate(row["id"], row["thread_id"], row["seq"], row["due"]) for row in found]


async def count_due(driver: Driver, age: timedelta) -> int:
    """The number of runs that ended longer than `age` ago and are not packed. It reads all runs."""
    return int(await driver.fetchval(COUNT_DUE, age))


async def pack_runs(driver: Driver, due: Sequence[PackCandidate]) -> tuple[int, int]:
    """Pack these runs, except those whose thread is locked or gone. Returns the numbers of runs and of parts.

    The caller has an open transaction.
    """
    thread_ids = list({candidate.thread_id for candidate in due})
    locked = [row["id"] for row in await driver.fetch(LOCK_THREADS, thread_ids)]
    contents = {row["id"]: row for row in await driver.fetch(CONTENTS, [candidate.id for candidate in due], locked)}
    stored: dict[UUID, list[rows.Record]] = defaultdict(list)
    for row in await driver.fetch(PARTS, list(contents)):
        stored[row["run_id"]].append(row)
    if not stored:
        return 0, 0
    records = [(run_id, parts[0]["thread_id"], *_packed(parts, contents[run_id])) for run_id, parts in stored.items()]
    await driver.execute(STORE, *zip(*records, strict=True))
    await driver.execute(DELETE_PARTS, list(stored))
    newest: dict[UUID, int] = defaultdict(int)
    for parts in stored.values():
        newest[parts[0]["thread_id"]] = max(newest[parts[0]["thread_id"]], *(part["revision"] for part in parts))
    await driver.execute(SET_REVISIONS, list(newest), list(newest.values()))
    return len(stored), sum(map(len, stored.values()))


def _packed(parts: Sequence[rows.Record], message: rows.Record) -> tuple[bytes, bytes]:
    packed = pack([rows.part(row) for row in parts], _readable_content(message["content"]), message["finish"])
    return packed.layout, packed.digest


def _readable_content(value: str | None) -> Content:
    """The content; none if it is not readable, which `khala verify` reports. The parts then keep their text."""
    try:
        return rows.content(value) or ()
    except msgspec.DecodeError:
        return ()
