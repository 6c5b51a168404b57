"""Forks: a new thread of an administrator's own, with the messages that another one had at a revision."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import insert

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import Conflict, InvalidInput
from khala.domain.fold import Content, FileBlock, TextBlock, ToolBlock
from khala.store.accounts import audit
from khala.store.console import thread_list
from khala.store.console.pages import ConsoleStruct
from khala.store.console.thread_history import HistoryGap, HistoryMessage, end_position, gap, restore
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import threads as threads_table
from khala.store.threads import conversation_imports, threads
from khala.store.threads.conversation_imports import ImportedMessage
from khala.store.threads.reset_marks import first_position
from khala.store.webhooks import outbox

MAX_MESSAGES = 2_000
MAX_BYTES = 32 << 20
OPEN_STATES = ("queued", "running", "blocked")

PATH = f"""
    WITH RECURSIVE path AS (
        (SELECT messages.*, 1 AS depth FROM messages
         WHERE thread_id = $1 AND position < $2 AND position >= {first_position("$1")} AND step IS NULL
         ORDER BY position DESC LIMIT 1)
        UNION ALL
        SELECT messages.*, path.depth + 1 FROM messages JOIN path ON messages.id = path.parent_id
        WHERE path.depth <= $3 AND messages.thread_id IS NOT DISTINCT FROM $1
    )
    SELECT * FROM path ORDER BY depth DESC
"""
"""The branch of the newest message before a position, from its first message on."""


class ThreadFork(ConsoleStruct, frozen=True, kw_only=True):
    """A new thread with so many messages, and what could not be copied."""

    thread_id: UUID
    messages: int
    gaps: list[HistoryGap]


@retried
async def fork(
    db: Database, thread_id: UUID, revision: int, grant: UUID, admin: Caller, reason: str | None
) -> ThreadFork:
    """Copy the branch that was the newest at the revision into a private thread of the administrator's.

    Files are left out, and calls that had not ended are cancelled. Raises `Forbidden` without a grant, `InvalidInput`
    for a revision that is yet to come, and `Conflict` for a branch that is too long or has nothing.
    """
    async with db.snapshot() as driver:
        await thread_list.require_grant(driver, thread_id, grant, admin)
        messages, gaps = await _branch(driver, thread_id, revision)
    new_id = ids.new()
    history = [ImportedMessage(role=one.role, content=_copied(one.content)) for one in messages]
    async with db.transaction() as connection:
        await connection.execute(insert(threads_table).values(id=new_id, owner_id=admin.user_id))
        await outbox.record_one(await driver_of(connection), "thread.created", new_id)
        await conversation_imports.append(connection, new_id, admin, history)
        about = {"revision": revision, "fork": str(new_id)}
        await audit.record(connection, "console_thread_forked", admin, thread_id=thread_id, reason=reason, **about)
        # The user's row is locked last.
        await threads.add_to_list(connection, new_id, admin, None)
    return ThreadFork(thread_id=new_id, messages=len(history), gaps=gaps)


async def _branch(driver: Driver, thread_id: UUID, revision: int) -> tuple[Sequence[HistoryMessage], list[HistoryGap]]:
    thread = await thread_list.read(driver, thread_id)
    if revision > thread.revision:
        raise InvalidInput(f"The thread is at revision {thread.revision}.", path="revision")
    if revision < thread.oldest_revision:
        raise Conflict(gap("reset").text)
    end = await end_position(driver, thread_id, revision)
    found = await driver.fetch(PATH, thread_id, end, MAX_MESSAGES)
    if len(found) > MAX_MESSAGES:
        raise Conflict(f"A fork has at most {MAX_MESSAGES:,} messages.")
    if sum(len(row["content"] or "") for row in found) > MAX_BYTES:
        raise Conflict(f"A fork has at most {MAX_BYTES >> 20} MiB of text.")
    messages, gaps = await restore(driver, thread_id, revision, [rows.message(row) for row in found], found)
    copied = [message for message in messages if message.content]
    if not copied:
        raise Conflict("The thread had no messages at this revision.")
    return copied, gaps


def _copied(content: Content | None) -> Content:
    """The content without files, which belong to the other thread. Nothing of it goes on."""
    blocks = [_ended(block) if isinstance(block, ToolBlock) else block for block in content or ()]
    return tuple(block for block in blocks if not isinstance(block, FileBlock)) or (TextBlock(text=""),)


def _ended(block: ToolBlock) -> ToolBlock:
    state = "cancelled" if block.state in OPEN_STATES else block.state
    return msgspec.structs.replace(block, state=state, blob=None, args_blob=None, digest=None, expires_at=None)
