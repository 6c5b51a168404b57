"""Appends: messages of people, bots and programs that are added to a thread without an answer to them.

The ids of the messages make an append idempotent.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.chat import AppendedMessages, IfBusy, MessageRole
from khala.domain.errors import Conflict, InvalidInput, RunActive
from khala.domain.fold import Content, DataBlock, FileBlock, TextBlock
from khala.store.blobs import blobs
from khala.store.budgets import ledger
from khala.store.budgets.stripes import refilled
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.runs import runs
from khala.store.threads import conversation_imports, thread_lists, threads
from khala.store.threads.conversation_imports import ImportedMessage
from khala.store.threads.reset_marks import IS_MESSAGE

TAKEN = "This message id is taken."

STORED = f"""
    SELECT id, role, content, author_name, revision, thread_id = $2 AS is_here, {IS_MESSAGE} AS present
    FROM messages WHERE id = ANY($1::uuid[])
"""
DELETE_FREED = "DELETE FROM messages WHERE id = ANY($1::uuid[]) AND thread_id = $2"
PARENT = f"SELECT true FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"


class FileToAttach(msgspec.Struct, frozen=True):
    """An upload of the thread that belongs to no message yet."""

    blob_id: UUID


NewBlock = TextBlock | DataBlock | FileToAttach


class MessageToAppend(msgspec.Struct, frozen=True, kw_only=True):
    """A message to append. `author` is the name that clients show instead of the caller's own."""

    id: UUID | None = None
    role: MessageRole
    blocks: tuple[NewBlock, ...]
    author: str | None = None


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to append, in order. The first follows `parent_id`: by default the active leaf, None for no message."""

    messages: Sequence[MessageToAppend]
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    if_busy: IfBusy = "queue"


@retried
@refilled
async def append(db: Database, thread_id: UUID, new: Append, caller: Caller) -> tuple[AppendedMessages, bool]:
    """Store the messages as one revision of the thread. Returns whether they are new: the same again changes nothing.

    Raises `Forbidden`, `Conflict` for an id that is taken, `RunActive` while an answer is being written if the messages
    may not follow or interrupt it, and `InvalidInput` for a parent or a file that is not one of the thread.
    """
    action = Action.APPEND_MESSAGE
    if any(message.role == "system" for message in new.messages):
        action = Action.APPEND_INSTRUCTIONS
    try:
        async with db.transaction() as connection:
            # Opens the transaction: its driver is used below.
            await connection.execute(select(1))
            thread = await threads.lock_authorized(connection, thread_id, caller, action)
            driver = await driver_of(connection)
            before = await _stored_before(driver, thread_id, new.messages)
            if before is not None:
                return before, False
            return await _append(connection, thread_id, thread.active_leaf, new, caller), True
    except IntegrityError as error:
        raise Conflict(TAKEN) from error


async def _append(
    connection: AsyncConnection, thread_id: UUID, active_leaf: UUID | None, new: Append, caller: Caller
) -> AppendedMessages:
    driver = await driver_of(connection)
    to_cancel = await _busy_runs(driver, thread_id, new.if_busy)
    parent_id = await _parent_id(driver, thread_id, active_leaf, new)
    messages = await _with_files(driver, thread_id, new.messages, caller)
    _, revision = await conversation_imports.store(connection, thread_id, caller, messages, parent_id=parent_id)
    if to_cancel:
        # Budgets are locked before users' rows, and after the messages are stored: as in a send that interrupts.
        await ledger.lock(driver, [], run_ids=[run["id"] for run in to_cancel])
        await runs.cancel_runs(driver, to_cancel, revision=revision)
    await thread_lists.mark_changed(driver, [thread_id], unread=True, author_id=caller.user_id)
    return AppendedMessages(
        thread_id=thread_id,
        message_ids=tuple(message.id for message in messages if message.id is not None),
        revision=revision,
    )


async def _busy_runs(driver: Driver, thread_id: UUID, if_busy: IfBusy) -> list[rows.Record]:
    """The locked runs to cancel. The steps of plans go on, as they do when a send interrupts."""
    if if_busy == "queue":
        return []
    active = [run for run in await runs.lock_active(driver, thread_id) if run["plan_id"] is None]
    if active and if_busy == "reject":
        raise RunActive("An answer is being written. Wait for it, cancel it, or append with ifBusy.")
    return active


async def _parent_id(driver: Driver, thread_id: UUID, active_leaf: UUID | None, new: Append) -> UUID | None:
    if new.parent_id is msgspec.UNSET:
        return active_leaf
    if new.parent_id is not None and await driver.fetchval(PARENT, new.parent_id, thread_id) is None:
        raise InvalidInput("The parent is not a message of this thread.", path="parentId")
    return new.parent_id


async def _with_files(
    driver: Driver, thread_id: UUID, messages: Sequence[MessageToAppend], caller: Caller
) -> list[ImportedMessage]:
    """The messages as they are stored, with the references to their files."""
    wanted = [block.blob_id for message in messages for block in message.blocks if isinstance(block, FileToAttach)]
    attached = await blobs.attach(driver, thread_id, wanted) if wanted else []
    files = {blob.blob_id: FileBlock(blob=blob) for blob in attached}
    return [
        ImportedMessage(
            id=message.id or ids.new(),
            role=message.role,
            content=tuple(
                files[block.blob_id] if isinstance(block, FileToAttach) else block for block in message.blocks
            ),
            author_name=_author_name(message, caller),
        )
        for message in messages
    ]


def _author_name(message: MessageToAppend, caller: Caller) -> str | None:
    return message.author or (caller.name if message.role == "user" else None)


async def _stored_before(
    driver: Driver, thread_id: UUID, messages: Sequence[MessageToAppend]
) -> AppendedMessages | None:
    """The earlier result of the same append; None if its messages are new. Raises `Conflict` for anything else."""
    wanted = {message.id: message for message in messages if message.id is not None}
    found = await driver.fetch(STORED, list(wanted), thread_id) if wanted else []
    if any(not row["is_here"] for row in found):
        raise Conflict(TAKEN)
    deleted = [row["id"] for row in found if not row["present"]]
    if deleted:
        # A reset has deleted them, so that other messages can have their ids.
        await driver.execute(DELETE_FREED, deleted, thread_id)
    stored = {row["id"]: row for row in found if row["present"]}
    if not stored:
        return None
    if len(stored) < len(messages) or not all(_is_same(wanted[key], row) for key, row in stored.items()):
        raise Conflict("One of these messages was added before, with another content or beside other messages.")
    return AppendedMessages(
        thread_id=thread_id, message_ids=tuple(wanted), revision=max(row["revision"] for row in stored.values())
    )


def _is_same(message: MessageToAppend, row: rows.Record) -> bool:
    is_by_author = message.author is None or row["author_name"] == message.author
    return bool(message.role == row["role"] and is_by_author and _blocks(row["content"]) == message.blocks)


def _blocks(stored: str | None) -> tuple[object, ...]:
    content: Content = rows.content(stored) or ()
    return tuple(FileToAttach(block.blob.blob_id) if isinstance(block, FileBlock) else block for block in content)
