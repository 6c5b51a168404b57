"""A thread as it was at a revision: the fold of its log up to there.

Each part has the revision in which it was stored, and each run that in which it was queued. A message has the revision
of its last change, which for all but active answers is that of its creation or of its run's end. Positions of messages
grow with revisions. So what existed at a revision follows from the rows, and an answer that was being written is the
fold of its parts up to the revision. What is lost is named in `gaps`: contents before a reset, the revisions of packed
parts, and the former state of messages that were changed in place.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from khala.domain.chat import Message, MessageRole, MessageStatus
from khala.domain.errors import InvalidInput, ThreadNotFound
from khala.domain.fold import Content, fold
from khala.domain.parts import Finish
from khala.store.console.pages import ConsoleStruct
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.threads.reset_marks import IS_MESSAGE, first_position

MAX_POSITION = 2**31 - 1
MAX_CHANGES = 5_000
"""Changes of answers in one page of revisions."""

THREAD = "SELECT title, revision, reset_revision, meta_revision FROM threads WHERE id = $1 AND deleted_at IS NULL"
LAST_CHANGED = f"""
    SELECT position FROM messages WHERE thread_id = $1 AND revision <= $2 AND {IS_MESSAGE}
    ORDER BY revision DESC, position DESC LIMIT 1
"""
"""A message that existed at the revision, so that all before it did."""
EXISTED = """(
    messages.revision <= $2
    OR coalesce((SELECT revision FROM runs WHERE runs.id = messages.run_id) <= $2, false)
    OR coalesce((SELECT min(revision) FROM runs WHERE runs.user_message_id = messages.id) <= $2, false)
)"""
"""Scalar subqueries, which read one run each by its key: for EXISTS the planner might hash all runs."""
FIRST_LATER = f"""
    SELECT position FROM messages WHERE thread_id = $1 AND position > $3 AND NOT {EXISTED} ORDER BY position LIMIT 1
"""
PAGE = f"""
    SELECT * FROM messages WHERE thread_id = $1 AND position < $2 AND position >= {first_position("$1")}
      AND step IS NULL ORDER BY position DESC LIMIT $3
"""
POSITION_OF = f"SELECT position FROM messages WHERE id = $2 AND thread_id = $1 AND {IS_MESSAGE}"
RUNS = "SELECT id, revision, parts_layout IS NOT NULL AS packed FROM runs WHERE id = ANY($2::uuid[]) AND thread_id = $1"
PARTS = """
    SELECT * FROM message_parts WHERE run_id = ANY($2::uuid[]) AND thread_id IS NOT DISTINCT FROM $1 AND revision <= $3
    ORDER BY run_id, seq
"""
QUEUED_AT = """
    SELECT user_message_id, min(revision) AS revision FROM runs WHERE user_message_id = ANY($1::uuid[])
    GROUP BY user_message_id
"""
CHANGES = f"""
    SELECT run_id, revision, min(created_at) AS at, count(*) AS parts, array_agg(DISTINCT kind) AS kinds
    FROM message_parts WHERE run_id = ANY($2::uuid[]) AND thread_id IS NOT DISTINCT FROM $1
    GROUP BY run_id, revision ORDER BY run_id, revision LIMIT {MAX_CHANGES + 1}
"""
GAPS: dict[str, str] = {
    "reset": "The thread was reset after this revision, and what it had before is gone.",
    "packed": "This answer was being written. Its parts are stored without revisions, so its text is not known.",
    "changed": "This message was changed later, and is shown as it is now.",
}


class HistoryGap(ConsoleStruct, frozen=True, kw_only=True):
    """Something that the log does not have any more."""

    kind: Literal["reset", "packed", "changed"]
    message_id: UUID | None
    run_id: UUID | None
    text: str


class HistoryMessage(ConsoleStruct, frozen=True, kw_only=True):
    """A message as it was. `content` is null if it is not known, or was empty yet."""

    id: UUID
    parent_id: UUID | None
    role: MessageRole
    status: MessageStatus
    run_id: UUID | None
    seq: int
    author_id: UUID | None
    author_name: str | None
    content: Content | None
    finish: Finish | None
    created_at: datetime


class ThreadHistory(ConsoleStruct, frozen=True, kw_only=True):
    """A thread at a revision. Without `gaps` it is exact."""

    thread_id: UUID
    revision: int
    current_revision: int
    oldest_revision: int
    title: str | None
    title_exact: bool
    messages: list[HistoryMessage]
    has_more: bool
    gaps: list[HistoryGap]


class HistoryChange(ConsoleStruct, frozen=True, kw_only=True):
    """A revision in which a run has stored parts."""

    revision: int
    at: datetime
    parts: int
    kinds: list[str]


class HistoryEntry(ConsoleStruct, frozen=True, kw_only=True):
    """A message as a scrubber shows it: when it was created, and what changed it, without text."""

    message_id: UUID
    parent_id: UUID | None
    role: MessageRole
    run_id: UUID | None
    state: MessageStatus
    created_revision: int
    revision: int
    created_at: datetime
    packed: bool
    changes: list[HistoryChange]
    changes_truncated: bool


async def read_at(
    driver: Driver, thread_id: UUID, revision: int | None, *, before: UUID | None, limit: int
) -> ThreadHistory:
    """Return the newest `limit` messages at this revision, before the message `before`.

    Raises `ThreadNotFound`, and `InvalidInput` for a revision that is yet to come and a message of another thread.
    """
    thread = await driver.fetchrow(THREAD, thread_id)
    if thread is None:
        raise ThreadNotFound("There is no such thread.")
    wanted = thread["revision"] if revision is None else revision
    if wanted > thread["revision"]:
        raise InvalidInput(f"The thread is at revision {thread['revision']}.", path="revision")
    lost = wanted < thread["reset_revision"]
    end = 0 if lost else await end_position(driver, thread_id, wanted)
    if before is not None:
        end = min(end, await _position(driver, thread_id, before))
    found = await driver.fetch(PAGE, thread_id, end, limit + 1)
    messages, gaps = await restore(driver, thread_id, wanted, [rows.message(row) for row in found[:limit][::-1]], found)
    return ThreadHistory(
        thread_id=thread_id,
        revision=wanted,
        current_revision=thread["revision"],
        oldest_revision=thread["reset_revision"],
        title=thread["title"],
        title_exact=thread["meta_revision"] <= wanted,
        messages=messages,
        has_more=len(found) > limit,
        gaps=[gap("reset"), *gaps] if lost else gaps,
    )


async def end_position(driver: Driver, thread_id: UUID, revision: int) -> int:
    """The position after the last message that existed at the revision."""
    known = await driver.fetchval(LAST_CHANGED, thread_id, revision)
    later = await driver.fetchval(FIRST_LATER, thread_id, revision, known or 0)
    return MAX_POSITION if later is None else int(later)


async def _position(driver: Driver, thread_id: UUID, message_id: UUID) -> int:
    position: int | None = await driver.fetchval(POSITION_OF, thread_id, message_id)
    if position is None:
        raise InvalidInput("This is not a message of the thread.", path="before")
    return position


async def restore(
    driver: Driver, thread_id: UUID, revision: int, messages: Sequence[Message], found: Sequence[Record]
) -> tuple[list[HistoryMessage], list[HistoryGap]]:
    """Return the messages as they were at the revision, and what is lost. `found` are their rows, in any order."""
    changed = {row["id"] for row in found if row["revision"] > revision}
    run_ids = [message.run_id for message in messages if message.run_id is not None and message.id in changed]
    packed = {row["id"]: row["packed"] for row in await driver.fetch(RUNS, thread_id, run_ids)} if run_ids else {}
    parts: dict[UUID, list[Any]] = {run_id: [] for run_id in run_ids}
    for row in await driver.fetch(PARTS, thread_id, run_ids, revision) if run_ids else ():
        parts[row["run_id"]].append(rows.part(row).read())
    restored: list[HistoryMessage] = []
    gaps: list[HistoryGap] = []
    for message in messages:
        if message.id not in changed:
            restored.append(_as_stored(message))
        elif message.run_id is None or message.run_id not in packed:
            restored.append(_as_stored(message))
            gaps.append(gap("changed", message))
        else:
            is_packed = packed[message.run_id]
            restored.append(_as_written(message, parts[message.run_id], is_packed=is_packed))
            gaps += [gap("packed", message)] if is_packed else []
    return restored, gaps


def gap(kind: Literal["reset", "packed", "changed"], message: Message | None = None) -> HistoryGap:
    """Something that the log does not have, and about which message."""
    message_id, run_id = (None, None) if message is None else (message.id, message.run_id)
    return HistoryGap(kind=kind, message_id=message_id, run_id=run_id, text=GAPS[kind])


def _as_stored(message: Message) -> HistoryMessage:
    return HistoryMessage(**{name: getattr(message, name) for name in HistoryMessage.__struct_fields__})


def _as_written(message: Message, parts: Sequence[Any], *, is_packed: bool) -> HistoryMessage:
    """An answer while it was written. One that had ended was changed in place later."""
    if any(isinstance(part, Finish) for part in parts):
        return _as_stored(message)
    content = None if is_packed else fold((), parts)
    return msgspec.structs.replace(
        _as_stored(message), status="streaming", finish=None, content=content, seq=len(parts)
    )


async def read_revisions(
    driver: Driver, thread_id: UUID, before: UUID | None, limit: int
) -> tuple[list[HistoryEntry], UUID | None]:
    """Return the newest `limit` messages before this one, the newest first, and the last one if there are more."""
    if await driver.fetchrow(THREAD, thread_id) is None:
        raise ThreadNotFound("There is no such thread.")
    end = MAX_POSITION if before is None else await _position(driver, thread_id, before)
    found = await driver.fetch(PAGE, thread_id, end, limit + 1)
    page = found[:limit]
    run_ids = [row["run_id"] for row in page if row["run_id"] is not None]
    of_runs = {row["id"]: row for row in await driver.fetch(RUNS, thread_id, run_ids)}
    questions = await driver.fetch(QUEUED_AT, [row["id"] for row in page if row["role"] == "user"])
    queued = {row["user_message_id"]: row["revision"] for row in questions}
    changes = await driver.fetch(CHANGES, thread_id, run_ids)
    entries = [_entry(row, of_runs.get(row["run_id"]), queued, changes) for row in page]
    return entries, page[-1]["id"] if len(found) > limit else None


def _entry(row: Record, run: Record | None, queued: Mapping[UUID, int], changes: Sequence[Record]) -> HistoryEntry:
    mine = [each for each in changes[:MAX_CHANGES] if each["run_id"] == row["run_id"]]
    cut = len(changes) > MAX_CHANGES and row["run_id"] is not None and row["run_id"] >= changes[-1]["run_id"]
    created = queued.get(row["id"], row["revision"]) if run is None else run["revision"]
    return HistoryEntry(
        message_id=row["id"],
        state=row["status"],
        created_revision=min(created, row["revision"]),
        packed=run is not None and run["packed"],
        changes=[
            HistoryChange(revision=each["revision"], at=each["at"], parts=each["parts"], kinds=sorted(each["kinds"]))
            for each in mine
        ],
        changes_truncated=cut,
        **{name: row[name] for name in ("parent_id", "role", "run_id", "revision", "created_at")},
    )
