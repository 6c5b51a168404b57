"""Stores conversations of other products as threads.

The ids follow from those of the source, so a repetition adds nothing, and a later export of the same conversation adds
only its new messages.
"""

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert
from sqlalchemy.dialects.postgresql import insert as upsert

from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.errors import ThreadNotFound
from khala.domain.fold import Content, FileBlock, TextBlock
from khala.domain.imports.chats import SourceChat, SourceMessage
from khala.store.blobs import blobs
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import messages
from khala.store.schema.tables import threads as threads_table
from khala.store.search import search_queue
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_MESSAGE, last_position
from khala.store.webhooks import outbox

KNOWN = f"SELECT id, NOT ({IS_MESSAGE}) AS is_reset FROM messages WHERE id = ANY($1::uuid[]) AND thread_id = $2"
"""The stored messages with these ids. A reset has deleted those with `is_reset`, whose rows are still there."""


class SkippedImport(enum.StrEnum):
    """Why a conversation is not imported, as its kind in the report."""

    DELETED = "conversations that were deleted here"
    BEING_RESET = "conversations that are being reset: import them again in a minute"


class OpenedImport(msgspec.Struct, frozen=True, kw_only=True):
    """The thread of a conversation, and the messages that it does not have yet."""

    thread_id: UUID
    is_new: bool
    missing: Sequence[SourceMessage]


def thread_id_of(user_id: UUID, chat: SourceChat) -> UUID:
    """The id of the account's thread of this conversation. No client can take it."""
    return ids.derived(user_id, f"import {chat.source} {chat.id}", version=ids.RESERVED_VERSION)


def message_id_of(thread_id: UUID, source_id: str) -> UUID:
    """The id of the message with this id in the export."""
    return ids.derived(thread_id, f"message {source_id}")


@retried
async def open_import(db: Database, chat: SourceChat, caller: Caller) -> OpenedImport | SkippedImport:
    """Create the thread unless it exists.

    A conversation is skipped if its owner has deleted the thread since an earlier import. It is also skipped while the
    rows that a reset has deleted from the thread are still there, since they have the ids of the messages.
    """
    assert caller.user_id is not None
    thread_id = thread_id_of(caller.user_id, chat)
    async with db.transaction() as connection:
        created = {} if chat.created_at is None else {"created_at": chat.created_at}
        row = await connection.execute(
            upsert(threads_table)
            .values(id=thread_id, title=chat.title, owner_id=caller.user_id, **created)
            .on_conflict_do_nothing()
            .returning(threads_table.c.id)
        )
        is_new = row.first() is not None
        try:
            await threads.lock_authorized(connection, thread_id, caller, Action.IMPORT_MESSAGES)
        except ThreadNotFound:
            return SkippedImport.DELETED
        driver = await driver_of(connection)
        by_id = {message_id_of(thread_id, message.id): message for message in chat.messages}
        stored = await driver.fetch(KNOWN, list(by_id), thread_id)
        if any(row["is_reset"] for row in stored):
            return SkippedImport.BEING_RESET
        if is_new:
            await threads.add_to_list(connection, thread_id, caller, None)
    known = {row["id"] for row in stored}
    missing = [message for key, message in by_id.items() if key not in known]
    return OpenedImport(thread_id=thread_id, is_new=is_new, missing=missing)


@retried
async def store(
    db: Database, chat: SourceChat, opened: OpenedImport, files: Mapping[str, Sequence[UUID]], caller: Caller
) -> int:
    """Store the missing messages, as one revision. `files` are uploads of the thread, by the id of the message.

    Returns the number of messages that are new: another import may have stored them meanwhile.
    """
    thread_id = opened.thread_id
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.IMPORT_MESSAGES)
        driver = await driver_of(connection)
        by_id = {message_id_of(thread_id, message.id): message for message in opened.missing}
        known = {found["id"] for found in await driver.fetch(KNOWN, list(by_id), thread_id)}
        new = {key: message for key, message in by_id.items() if key not in known}
        if not new:
            return 0
        last: int = await driver.fetchval(f"SELECT {last_position('$1')}", thread_id)
        leaf = message_id_of(thread_id, chat.leaf or chat.messages[-1].id)
        revision = await threads.continue_from(connection, thread_id, leaf)
        rows: list[dict[str, Any]] = []
        for position, (key, message) in enumerate(new.items(), start=last + 1):
            is_users = message.role == "user"
            rows.append(
                {
                    "id": key,
                    "thread_id": thread_id,
                    "parent_id": None if message.parent is None else message_id_of(thread_id, message.parent),
                    "position": position,
                    "role": message.role,
                    "status": "final",
                    "content": await _content(driver, thread_id, message, files.get(message.id, ())),
                    "revision": revision,
                    "author_id": caller.user_id if is_users else None,
                    "author_name": caller.name if is_users else None,
                    "created_at": message.created_at or chat.created_at or _now(),
                    "updated_at": message.created_at or chat.created_at or _now(),
                }
            )
        await connection.execute(insert(messages), rows)
        if last == 0:
            # An event for each past message would make bots answer them.
            await outbox.record_one(driver, "thread.created", thread_id, imported=True)
        await search_queue.add(driver, thread_id, last + 1, last + len(rows))
        await thread_lists.mark_changed(driver, [thread_id])
        return len(rows)


def _now() -> datetime:
    return ids.created_at(ids.new())


async def _content(driver: Driver, thread_id: UUID, message: SourceMessage, files: Sequence[UUID]) -> Content:
    text = (TextBlock(text=message.text),) if message.text else ()
    if not files:
        return text
    return (*text, *(FileBlock(blob=blob) for blob in await blobs.attach(driver, thread_id, files)))
