"""Reads of threads: a snapshot of one thread, or the changes since a revision, of many threads at once.

A read must see a revision together with all its rows, so it runs in one repeatable-read transaction. The exception is
`read_changes_in_one_query`: a single query always sees one state.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from khala.domain.chat import Message, Thread
from khala.domain.errors import InvalidInput, ThreadNotFound
from khala.domain.fold import fold
from khala.domain.parts import Part
from khala.domain.plans.views import PlanChanges
from khala.domain.thread_changes import Delta, Snapshot
from khala.store.plans import plan_feed
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.threads.reset_marks import IS_MESSAGE, first_position

MAX_DELTA_PARTS = 2000
"""Parts in one delta; a reader that is further behind restarts from a snapshot."""
MAX_PAGE_BYTES = 2 << 20
"""Bytes of content, as JSON, in a page of more than one message. A single message may be larger."""
MAX_DELTA_MESSAGES = 100
"""Messages in one delta, each possibly with its whole text; as many as in a snapshot."""

SNAPSHOT_PARTS = MAX_DELTA_PARTS + 1
SNAPSHOT_MESSAGES = MAX_DELTA_MESSAGES + 1
"""So many parts or messages are too many for a delta, and more need not be read."""

MAX_POSITION = 2**31 - 1
"""Above the position of every message."""

WATCHED = "unnest((SELECT $1::uuid[]), (SELECT $2::bigint[])) AS watched (thread_id, after)"
"""The queries hide the arrays from the planner. By their length, a plan for few threads would seem so much cheaper than
one for any number that Postgres would plan the query each time, which takes six times as long as its execution."""

NEW_PARTS = f"""
    SELECT * FROM message_parts
    WHERE message_parts.run_id = run.id AND message_parts.thread_id IS NOT DISTINCT FROM watched.thread_id
      AND message_parts.seq > coalesce((
          SELECT seq FROM (
              SELECT seq, revision FROM message_parts
              WHERE run_id = run.id AND thread_id IS NOT DISTINCT FROM watched.thread_id
              ORDER BY run_id DESC, seq DESC LIMIT {SNAPSHOT_PARTS}
          ) AS newest WHERE revision <= watched.after LIMIT 1), -1)
    ORDER BY run_id, seq LIMIT {SNAPSHOT_PARTS}
"""
"""The parts of a run that the reader does not know. The revisions of a run's parts grow with their seqs, so it reads
backwards until the first part that the reader knows, and then the parts after that one."""

CHANGES = f"""
    SELECT watched.thread_id AS id, threads.revision AS now, threads.reset_revision, threads.meta_revision,
           threads.plans_revision,
           threads.access_id, greatest(threads.reset_revision, threads.packed_revision) AS oldest_revision, part.*,
           changed.messages > 0 AS messages_changed
    FROM {WATCHED}
    CROSS JOIN LATERAL (
        SELECT * FROM threads WHERE threads.id = watched.thread_id AND (threads.deleted_at IS NULL) IS TRUE LIMIT 1
    ) AS threads
    CROSS JOIN LATERAL (
        SELECT count(*) AS messages, array_agg(run_id) FILTER (WHERE run_id IS NOT NULL) AS run_ids FROM (
            SELECT run_id FROM messages WHERE messages.thread_id = watched.thread_id AND revision > watched.after
            ORDER BY revision LIMIT {SNAPSHOT_MESSAGES}
        ) AS newer
    ) AS changed
    LEFT JOIN LATERAL (
        SELECT new.* FROM (
            SELECT id FROM runs
            WHERE runs.thread_id = watched.thread_id AND status IN ('queued', 'running', 'blocked') AND epoch > 0
            UNION SELECT unnest(changed.run_ids)
        ) AS run CROSS JOIN LATERAL ({NEW_PARTS}) AS new
        WHERE watched.after >= greatest(threads.reset_revision, threads.packed_revision)
          AND watched.after < threads.revision AND changed.messages <= {MAX_DELTA_MESSAGES}
        ORDER BY new.revision, new.run_id, new.seq LIMIT {MAX_DELTA_PARTS + 1}
    ) AS part ON true
    ORDER BY part.revision, part.run_id, part.seq
"""
"""One row for each part of a thread, or one row without a part. `messages_changed` is rarely true. From
`oldest_revision` on, no change is missing: `greatest` ignores nulls.

New parts are those of active runs, and of runs that have ended since, which has changed their answers. No index has the
parts of a thread by their revision, because its entries would be a fifth of the WAL of a part.

Each thread is found by its key, also by a plan that Postgres keeps from a time when the tables were small: it can't
join a subquery with LIMIT to a scan of all threads. `IS TRUE` as in `khala.store.sharing.access`.
"""

THREAD = f"SELECT {rows.THREAD_COLUMNS} FROM threads WHERE id = $1 AND deleted_at IS NULL"
THREADS = f"SELECT {rows.THREAD_COLUMNS} FROM threads WHERE id = ANY($1::uuid[])"

MESSAGES = f"""
    SELECT found.* FROM {WATCHED} CROSS JOIN LATERAL (
        SELECT id, thread_id, parent_id, role, status, run_id, seq, author_id, author_name, finish,
               created_at, updated_at, position, step,
               CASE WHEN role <> 'assistant' OR run_id IS NULL THEN content END AS content
        FROM messages WHERE messages.thread_id = watched.thread_id AND revision > watched.after
        ORDER BY revision, position LIMIT {MAX_DELTA_MESSAGES + 1}
    ) AS found ORDER BY position
"""

IS_LISTED = "(step IS NULL OR status IN ('draft', 'streaming'))"
"""A condition on a row of `messages`: pages of the thread have it. Of the steps of plans, these are the active answers.
"""

PAGE = f"""
    WITH RECURSIVE newest AS (
        (
            SELECT messages.*, 1 AS place, coalesce(octet_length(content::text), 0)::bigint AS bytes FROM messages
            WHERE thread_id = $1 AND position < coalesce($2::int, {MAX_POSITION})
              AND position >= {first_position("$1")} AND {IS_LISTED} ORDER BY position DESC LIMIT 1
        )
        UNION ALL
        SELECT older.*, newest.place + 1, newest.bytes + coalesce(octet_length(older.content::text), 0)
        FROM newest CROSS JOIN LATERAL (
            SELECT * FROM messages WHERE thread_id = $1 AND position < newest.position
              AND position >= {first_position("$1")} AND {IS_LISTED} ORDER BY position DESC LIMIT 1
        ) AS older
        WHERE newest.place < $3 AND (newest.place = 1 OR newest.bytes <= $4)
    )
    SELECT * FROM (SELECT *, count(*) OVER () AS total FROM newest) AS counted
    WHERE place = 1 OR bytes <= $4 ORDER BY position DESC
"""
"""Reads message by message until a limit is reached, so that hardly more rows are read than returned. The size of a
message is known only when it is read, because it is stored compressed.

`coalesce` gives the position an upper bound that an index can use; `$2 IS NULL OR …` gives none.
"""


class SnapshotNeeded(msgspec.Struct, frozen=True):
    """The reader's revision can't be served with a delta.

    The thread was reset since, later parts were packed, or too much has changed.
    """

    revision: int
    reset: bool


class TopicGone(msgspec.Struct, frozen=True):
    """The thread was deleted."""


class Unchanged(msgspec.Struct, frozen=True):
    """The thread has not changed since the reader's revision."""


ThreadChange = Delta | SnapshotNeeded | TopicGone | Unchanged


class ThreadRead(msgspec.Struct, frozen=True):
    """The result of one read of a thread, with the thread's `access_id` at that moment."""

    change: ThreadChange
    access_id: UUID | None


async def read_changes(driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, ThreadRead]:
    """For each thread, the changes after the given revision. One query if there are only parts, else up to three."""
    parts_by_thread = await _fetch_changes(driver, cursors)
    first_rows = {thread_id: changes[0] for thread_id, changes in parts_by_thread.items()}
    changed_threads = [key for key, row in first_rows.items() if _metadata_changed(row, cursors[key])]
    changed_messages = [key for key, row in first_rows.items() if _messages_changed(row, cursors[key])]
    threads = {row["id"]: row for row in await driver.fetch(THREADS, changed_threads)} if changed_threads else {}
    messages = (
        await driver.fetch(MESSAGES, changed_messages, [cursors[key] for key in changed_messages])
        if changed_messages
        else []
    )
    messages_by_thread = _grouped(messages, "thread_id")
    changed_plans = {key: cursors[key] for key, row in first_rows.items() if _plans_changed(row, cursors[key])}
    plans = await plan_feed.read_changes(driver, changed_plans) if changed_plans else {}
    return {
        key: _thread_read(
            after, parts_by_thread.get(key), threads.get(key), messages_by_thread.get(key, ()), plans.get(key)
        )
        for key, after in cursors.items()
    }


async def read_changes_in_one_query(driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, ThreadRead]:
    """As `read_changes`, by one query and without a transaction. Leaves out the threads that need more queries."""
    parts_by_thread = await _fetch_changes(driver, cursors)
    return {
        key: _thread_read(after, parts_by_thread.get(key), None, ())
        for key, after in cursors.items()
        if key not in parts_by_thread or not _needs_more_queries(parts_by_thread[key][0], after)
    }


async def _fetch_changes(driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, list[rows.Record]]:
    return _grouped(await driver.fetch(CHANGES, list(cursors), list(cursors.values())), "id")


def _can_serve_delta(row: rows.Record, after: int) -> bool:
    return bool(row["oldest_revision"] <= after < row["now"])


def _metadata_changed(row: rows.Record, after: int) -> bool:
    return _can_serve_delta(row, after) and bool(row["meta_revision"] > after)


def _messages_changed(row: rows.Record, after: int) -> bool:
    return _can_serve_delta(row, after) and bool(row["messages_changed"])


def _plans_changed(row: rows.Record, after: int) -> bool:
    return _can_serve_delta(row, after) and (row["plans_revision"] or 0) > after


def _needs_more_queries(row: rows.Record, after: int) -> bool:
    """Whether more has changed than the thread's parts."""
    return _metadata_changed(row, after) or _messages_changed(row, after) or _plans_changed(row, after)


RecordT = TypeVar("RecordT", bound=rows.Record)


def _grouped(records: Iterable[RecordT], name: str) -> dict[UUID, list[RecordT]]:
    groups: dict[UUID, list[RecordT]] = defaultdict(list)
    for row in records:
        groups[row[name]].append(row)
    return groups


def _thread_read(
    after: int,
    records: Sequence[rows.Record] | None,
    thread: rows.Record | None,
    messages: Sequence[rows.Record],
    plans: PlanChanges | None = None,
) -> ThreadRead:
    if records is None:
        return ThreadRead(TopicGone(), None)
    return ThreadRead(_change(after, records, thread, messages, plans or PlanChanges()), records[0]["access_id"])


def _change(
    after: int,
    records: Sequence[rows.Record],
    thread: rows.Record | None,
    messages: Sequence[rows.Record],
    plans: PlanChanges,
) -> ThreadChange:
    first = records[0]
    if first["now"] == after:
        return Unchanged()
    if not _can_serve_delta(first, after) or len(messages) > MAX_DELTA_MESSAGES or len(records) > MAX_DELTA_PARTS:
        return SnapshotNeeded(revision=first["now"], reset=first["reset_revision"] > after)
    return Delta(
        since=after,
        revision=first["now"],
        thread=None if thread is None else rows.thread(thread),
        messages=tuple(map(rows.message, messages)),
        parts=tuple(rows.part(row) for row in records if row["kind"] is not None),
        plans=plans.plans,
        plan_steps=plans.steps,
        plan_events=plans.events,
    )


async def read_snapshot(driver: Driver, thread_id: UUID, *, limit: int, reset: bool = False) -> Snapshot:
    """The thread with its newest `limit` messages. The content of an active answer is the fold of its parts so far."""
    row = await driver.fetchrow(THREAD, thread_id)
    if row is None:
        raise ThreadNotFound("There is no such thread.")
    thread: Thread = rows.thread(row)
    messages, has_more = await _page(driver, thread_id, before=None, limit=limit)
    plans = () if row["plans_revision"] is None else tuple(await plan_feed.of_thread(driver, thread_id))
    return Snapshot(
        revision=thread.revision, thread=thread, messages=messages, has_more=has_more, reset=reset, plans=plans
    )


async def read_revision(driver: Driver, thread_id: UUID) -> int:
    """The thread's revision. Raises `ThreadNotFound`."""
    revision: int | None = await driver.fetchval(
        "SELECT revision FROM threads WHERE id = $1 AND deleted_at IS NULL", thread_id
    )
    if revision is None:
        raise ThreadNotFound("There is no such thread.")
    return revision


async def read_older(driver: Driver, thread_id: UUID, *, before: UUID, limit: int) -> tuple[tuple[Message, ...], bool]:
    """The `limit` messages before this one, in order, and whether there are more."""
    query = f"SELECT position FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"
    position = await driver.fetchval(query, before, thread_id)
    if position is None:
        raise InvalidInput("This is not a message of the thread.", path="before")
    return await _page(driver, thread_id, before=position, limit=limit)


async def _page(driver: Driver, thread_id: UUID, *, before: int | None, limit: int) -> tuple[tuple[Message, ...], bool]:
    page = (await driver.fetch(PAGE, thread_id, before, limit + 1, MAX_PAGE_BYTES))[:limit]
    has_more = bool(page) and page[0]["total"] > len(page)
    return await with_live_parts(driver, thread_id, [rows.message(row) for row in reversed(page)]), has_more


async def with_live_parts(driver: Driver, thread_id: UUID, messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages; the content of an active answer is the fold of its parts so far."""
    live = await _live_parts(driver, thread_id, [m.run_id for m in messages if m.status == "streaming" and m.run_id])
    return tuple(_with_parts(m, live[m.run_id]) if m.run_id in live else m for m in messages)


async def _live_parts(driver: Driver, thread_id: UUID, run_ids: list[UUID]) -> dict[UUID, list[Part]]:
    if not run_ids:
        return {}
    query = """
        SELECT * FROM message_parts WHERE run_id = ANY($1::uuid[]) AND thread_id IS NOT DISTINCT FROM $2
        ORDER BY run_id, seq
    """
    live: dict[UUID, list[Part]] = {run_id: [] for run_id in run_ids}
    for row in await driver.fetch(query, run_ids, thread_id):
        live[row["run_id"]].append(rows.part(row))
    return live


def _with_parts(message: Message, parts: list[Part]) -> Message:
    content = fold((), (part.read() for part in parts))
    return msgspec.structs.replace(message, content=content, seq=len(parts))
