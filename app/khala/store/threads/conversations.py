"""Threads as conversations that a client fills itself: messages without a run, and metadata."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller
from khala.domain.errors import Conflict
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.sharing import access
from khala.store.threads import conversation_imports, thread_lists, threads
from khala.store.threads.conversation_imports import ImportedMessage

CONVERSATION = "SELECT created_at, client_metadata, active_leaf FROM threads WHERE id = $1"

IS_BEING_WRITTEN = """
    SELECT EXISTS (SELECT FROM runs WHERE thread_id = $1 AND status IN ('queued', 'running', 'blocked'))
"""

PARENT = "SELECT parent_id FROM messages WHERE id = $2 AND thread_id = $1"


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A thread with the metadata that clients have attached to it. `leaf` is its last message."""

    id: UUID
    created_at: datetime
    metadata: dict[str, str]
    leaf: UUID | None


async def read(driver: Driver, thread_id: UUID, caller: Caller) -> Conversation:
    """The conversation. Raises `ThreadNotFound` and `Forbidden`."""
    await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    row = await driver.fetchrow(CONVERSATION, thread_id)
    assert row is not None
    metadata = (
        {} if row["client_metadata"] is None else msgspec.json.decode(row["client_metadata"], type=dict[str, str])
    )
    return Conversation(id=thread_id, created_at=row["created_at"], metadata=metadata, leaf=row["active_leaf"])


@retried
async def set_metadata(db: Database, thread_id: UUID, caller: Caller, metadata: Mapping[str, str]) -> None:
    """Replace the metadata."""
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.EDIT_THREAD)
        await threads.update_metadata(connection, thread_id, client_metadata=dict(metadata) or None)


@retried
async def append(db: Database, thread_id: UUID, caller: Caller, messages: Sequence[ImportedMessage]) -> None:
    """Add messages after the last one of the active branch, without an answer to them.

    Raises `Conflict` while an answer is being written.
    """
    async with db.transaction() as connection:
        thread = await threads.lock_authorized(connection, thread_id, caller, Action.IMPORT_MESSAGES)
        driver = await driver_of(connection)
        await _refuse_while_written(driver, thread_id)
        await conversation_imports.append(connection, thread_id, caller, messages, parent_id=thread.active_leaf)
        await thread_lists.mark_changed(driver, [thread_id], unread=True, author_id=caller.user_id)


@retried
async def remove_last(db: Database, thread_id: UUID, caller: Caller, message_id: UUID) -> None:
    """Let the active branch end before this message, which is its last one. The thread still has the message.

    Raises `Conflict` if it is not the last one, or if an answer is being written.
    """
    async with db.transaction() as connection:
        thread = await threads.lock_authorized(connection, thread_id, caller, Action.EDIT_THREAD)
        driver = await driver_of(connection)
        await _refuse_while_written(driver, thread_id)
        if thread.active_leaf != message_id:
            raise Conflict("Only the last item of a conversation can be deleted: others follow this one.")
        parent_id = await driver.fetchval(PARENT, thread_id, message_id)
        await threads.update_metadata(connection, thread_id, active_leaf=parent_id)


async def _refuse_while_written(driver: Driver, thread_id: UUID) -> None:
    if await driver.fetchval(IS_BEING_WRITTEN, thread_id):
        raise Conflict("An answer is being written in this conversation. Wait for it, or cancel it.")
