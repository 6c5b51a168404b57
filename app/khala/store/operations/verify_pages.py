"""Pages of what `khala verify` checks, in order of id. A statement reads a bounded number of rows at any size."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.store.postgres import rows
from khala.store.postgres.database import Driver

MAX_PAGE_ROWS = 1000
"""Rows of `messages`, `threads` or `plans`, or runs, that one statement reads."""
MAX_CHUNK_ANSWERS = 100
"""Answers that one statement reads with their parts and receipts."""
MAX_CHUNK_PARTS = 5000
"""Their parts. An answer with more is read by a statement of its own."""
MAX_CHUNK_BYTES = 4_000_000
"""The compressed size of their contents. An answer with more is read by a statement of its own."""
SAMPLE_STEPS = 1 << 16
"""The values of the hash by which a sample is chosen."""

IS_SELECTED = f"(uuid_hash_extended(id, 0) & {SAMPLE_STEPS - 1}) < $3"
CANDIDATES = f"""
    SELECT id, seq, coalesce(pg_column_size(content), 0) AS size,
           role = 'assistant' AND run_id IS NOT NULL AND {IS_SELECTED}
           AND ($4::timestamptz IS NULL OR created_at >= $4) AS selected
    FROM {{messages}} WHERE id > $1 ORDER BY id LIMIT $2
"""
"""Messages in order of id. All are returned, so that no statement reads more, however few are selected."""
REVISIONS = f"""
    SELECT id, revision, selected, CASE WHEN selected THEN greatest(packed_revision,
        (SELECT max(revision) FROM messages WHERE thread_id = page.id),
        (SELECT max(revision) FROM plans WHERE thread_id = page.id),
        (SELECT max(part.revision) FROM runs CROSS JOIN LATERAL (
            SELECT revision FROM message_parts WHERE run_id = runs.id ORDER BY run_id DESC, seq DESC LIMIT 1
        ) AS part WHERE runs.thread_id = page.id)) END AS newest
    FROM (
        SELECT id, revision, packed_revision,
               {IS_SELECTED} AND ($4::timestamptz IS NULL OR updated_at >= $4) AS selected
        FROM {{threads}} WHERE id > $1 ORDER BY id LIMIT $2
    ) AS page ORDER BY id
"""
RUNS = """
    WITH RECURSIVE run AS (
        (SELECT run_id AS id, 1 AS number FROM message_parts WHERE run_id > $1 ORDER BY run_id LIMIT 1)
        UNION ALL
        SELECT next.run_id, run.number + 1 FROM run CROSS JOIN LATERAL (
            SELECT run_id FROM message_parts WHERE run_id > run.id ORDER BY run_id LIMIT 1
        ) AS next WHERE run.number < $2
    )
"""
"""The runs that have parts. Each step is one search in the index, so it does not matter how many parts they have."""
RUNS_OF_THREAD = """
    WITH run AS (
        SELECT run_id AS id FROM messages
        WHERE thread_id = $4 AND run_id > $1 AND EXISTS (SELECT FROM message_parts WHERE run_id = messages.run_id)
        ORDER BY run_id LIMIT $2
    )
"""
"""The runs that have parts and wrote a message of the thread. No index finds parts by their thread."""
STRAYS = f"""
    SELECT page.id, stray.thread_id FROM (
        SELECT id, {IS_SELECTED} AND NOT EXISTS (SELECT FROM runs WHERE runs.id = run.id) AS missing FROM run
    ) AS page LEFT JOIN LATERAL (
        SELECT thread_id FROM message_parts WHERE page.missing AND run_id = page.id ORDER BY run_id, seq LIMIT 1
    ) AS stray ON NOT EXISTS (SELECT FROM threads WHERE threads.id = stray.thread_id AND deleted_at IS NOT NULL)
    ORDER BY page.id
"""
"""Runs that have parts, with the thread of those that are not in `runs`, although their thread was not deleted."""

PLANS = f"""
    SELECT id, {IS_SELECTED} AND ($4::timestamptz IS NULL OR updated_at >= $4) AS selected
    FROM {{plans}} WHERE id > $1 ORDER BY id LIMIT $2
"""

VerifyStage: TypeAlias = Literal["answers", "threads", "runs", "plans"]
STAGES: tuple[VerifyStage, ...] = get_args(VerifyStage)


class VerifyPosition(msgspec.Struct, frozen=True):
    """How far a verification has come: everything before is checked. Written as `answers:<id>`."""

    stage: VerifyStage = STAGES[0]
    id: UUID = UUID(int=0)

    def __str__(self) -> str:
        return f"{self.stage}:{self.id}"

    @classmethod
    def parse(cls, written: str) -> "VerifyPosition":
        """The position that was written so. Raises `ValueError` for anything else."""
        stage, _, position = written.partition(":")
        for known in STAGES:
            if stage == known:
                return cls(known, UUID(position))
        raise ValueError(f"no stage of a verification: {stage!r}")


class VerifySelection(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the database to check; everything by default.

    `since`: only answers that began at that time or later, by their id and time, and threads and plans that changed
    since. `sample_percent`: a part of the answers, threads, runs and plans, chosen by a hash of their id, so that it is
    always the same part. `thread_id`: one thread.
    """

    since: datetime | None = None
    sample_percent: float = 100
    thread_id: UUID | None = None

    @property
    def is_everything(self) -> bool:
        """Whether the whole database is selected."""
        return self == VerifySelection()

    def start(self, stage: VerifyStage) -> UUID:
        """The id after which the stage begins. Ids of messages and runs begin with their time."""
        return UUID(int=0) if self.since is None or stage in ("threads", "plans") else ids.before(self.since)


class AnswerCandidate(msgspec.Struct, frozen=True):
    """A message of a page: whether it is a selected answer, and its size."""

    id: UUID
    seq: int
    size: int
    selected: bool


async def read_candidates(driver: Driver, selection: VerifySelection, after: UUID) -> list[AnswerCandidate]:
    """The next messages; fewer than `MAX_PAGE_ROWS` at the end."""
    query = CANDIDATES.format(messages=_source("messages", "thread_id", selection))
    found = await _read(driver, query, after, selection, selection.since)
    return [AnswerCandidate(row["id"], row["seq"], row["size"], row["selected"]) for row in found]


async def read_revisions(driver: Driver, selection: VerifySelection, after: UUID) -> Sequence[rows.Record]:
    """The next threads with their revision and their newest row's; fewer than `MAX_PAGE_ROWS` at the end."""
    query = REVISIONS.format(threads=_source("threads", "id", selection))
    return await _read(driver, query, after, selection, selection.since)


async def read_strays(driver: Driver, selection: VerifySelection, after: UUID) -> Sequence[rows.Record]:
    """The next runs that have parts, with a thread if the run is missing; fewer than `MAX_PAGE_ROWS` at the end."""
    page = RUNS if selection.thread_id is None else RUNS_OF_THREAD
    return await _read(driver, page + STRAYS, after, selection)


async def read_plans(driver: Driver, selection: VerifySelection, after: UUID) -> Sequence[rows.Record]:
    """The next plans, and whether each is selected; fewer than `MAX_PAGE_ROWS` at the end."""
    query = PLANS.format(plans=_source("plans", "thread_id", selection))
    return await _read(driver, query, after, selection, selection.since)


def chunks(candidates: Iterable[AnswerCandidate]) -> Iterator[list[UUID]]:
    """The selected answers in groups that one statement reads."""
    chunk: list[UUID] = []
    parts = size = 0
    for candidate in candidates:
        if not candidate.selected:
            continue
        parts, size = parts + candidate.seq, size + candidate.size
        if chunk and (len(chunk) >= MAX_CHUNK_ANSWERS or parts > MAX_CHUNK_PARTS or size > MAX_CHUNK_BYTES):
            yield chunk
            chunk, parts, size = [], candidate.seq, candidate.size
        chunk.append(candidate.id)
    if chunk:
        yield chunk


async def _read(
    driver: Driver, query: str, after: UUID, selection: VerifySelection, *conditions: datetime | None
) -> Sequence[rows.Record]:
    threshold = round(selection.sample_percent / 100 * SAMPLE_STEPS)
    thread = () if selection.thread_id is None else (selection.thread_id,)
    found: Sequence[rows.Record] = await driver.fetch(query, after, MAX_PAGE_ROWS, threshold, *conditions, *thread)
    return found


def _source(table: str, column: str, selection: VerifySelection) -> str:
    """The table, or its rows of one thread. OFFSET has the planner find these by their index, and sort them."""
    if selection.thread_id is None:
        return table
    return f"(SELECT * FROM {table} WHERE {column} = $5 OFFSET 0) AS {table}"
