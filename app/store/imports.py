"""Imports: a conversation that was held elsewhere becomes a thread, as if it had been held here."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import ids
from app.domain.access import Caller
from app.domain.chat import Role, Sent
from app.domain.errors import Conflict
from app.domain.fold import Block, Content, FileBlock, ToolBlock
from app.store import access, blobs, completion_requests, rows, sends, threads
from app.store.db import Database, Driver
from app.store.sends import Limits, Question
from app.store.tables import messages
from app.store.tables import threads as threads_table


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be stored; `attachments` are blobs that were uploaded to the thread and belong to no message yet."""

    role: Role
    content: tuple[Block, ...]
    attachments: tuple[UUID, ...] = ()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be a thread of the user's. Without `asks`, its last message is what is answered, not the question.

    A thread with `lasts` ends by itself after that time, and is on no list.
    """

    title: str | None
    history: Sequence[Imported]
    question: Question
    asks: bool = True
    lasts: timedelta | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that has handed calls to its caller, and the message that it answers."""

    leaf: UUID
    content: Content
    parent_id: UUID | None


async def begin(db: Database, conversation: Conversation, caller: Caller, limits: Limits) -> Sent:
    """Store the thread, and queue its answer, all at once.

    The thread may have been made before, as long as nothing was said in it; else `Conflict` is raised.
    """
    question = conversation.question
    async with db.transaction() as connection:
        if question.request is not None:
            await completion_requests.begin(connection, question.request)
        await _make(connection, caller, conversation)
        leaf = await _append(connection, question.thread_id, caller, conversation.history)
        if not conversation.asks and leaf is not None:
            question = msgspec.structs.replace(question, message_id=leaf)
        thread = await threads.lock(connection, question.thread_id, caller)
        return await sends.ask(connection, thread, question, caller, limits, stored=not conversation.asks)


async def waiting(driver: Driver, thread_id: UUID, caller: Caller, call_ids: Sequence[str]) -> Waiting | None:
    """The answer that the thread goes on from, if it has made all these calls."""
    await access.admit(driver, thread_id, caller, "editor")
    query = """
        SELECT messages.id, messages.content, messages.parent_id
        FROM threads JOIN messages ON messages.id = threads.active_leaf
        WHERE threads.id = $1 AND messages.thread_id = $1 AND messages.role = 'assistant'
    """
    row = await driver.fetchrow(query, thread_id)
    content = None if row is None else rows.content(row["content"])
    if row is None or content is None:
        return None
    made = {block.tool_call_id for block in content if isinstance(block, ToolBlock)}
    if not made >= set(call_ids):
        return None
    return Waiting(leaf=row["id"], content=content, parent_id=row["parent_id"])


async def go_on(
    db: Database, waiting: Waiting, settled: Imported, question: Question, caller: Caller, limits: Limits
) -> Sent:
    """Store the answer with what its calls came to, in place of the one that waits, and queue how it goes on.

    Raises `Conflict` if the thread has gone on meanwhile.
    """
    thread_id = question.thread_id
    async with db.transaction() as connection:
        if question.request is not None:
            await completion_requests.begin(connection, question.request)
        thread = await threads.lock(connection, thread_id, caller, "editor")
        if thread.active_leaf != waiting.leaf:
            raise Conflict("The thread has gone on meanwhile.")
        leaf = await _append(connection, thread_id, caller, [settled], parent_id=waiting.parent_id)
        assert leaf is not None
        asked = msgspec.structs.replace(question, message_id=leaf)
        return await sends.ask(connection, thread, asked, caller, limits, stored=True)


async def _make(connection: AsyncConnection, caller: Caller, conversation: Conversation) -> None:
    thread_id = conversation.question.thread_id
    made = await connection.execute(
        upsert(threads_table)
        .values(id=thread_id, title=conversation.title, owner_id=caller.user_id)
        .on_conflict_do_nothing()
        .returning(threads_table.c.id)
    )
    new = made.first() is not None
    await threads.lock(connection, thread_id, caller)
    if new:
        await threads.enlist(connection, thread_id, caller, conversation.lasts)
    elif await _position(connection, thread_id):
        raise Conflict("Something was said in this thread before.")


async def _append(
    connection: AsyncConnection,
    thread_id: UUID,
    caller: Caller,
    history: Sequence[Imported],
    *,
    parent_id: UUID | None = None,
) -> UUID | None:
    """Store these messages, each after the one before it; the id of the last one, if there is one."""
    if not history:
        return None
    made = [ids.new() for _ in history]
    before = await _position(connection, thread_id)
    revision = await threads.go_on_from(connection, thread_id, made[-1])
    stored: list[dict[str, Any]] = []
    for place, message in enumerate(history):
        by = {"author_id": caller.author_id, "author_name": caller.name} if message.role == "user" else {}
        stored.append(
            {
                "id": made[place],
                "thread_id": thread_id,
                "parent_id": made[place - 1] if place else parent_id,
                "position": before + place + 1,
                "role": message.role,
                "status": "final",
                "content": await _content(connection, thread_id, message),
                "revision": revision,
                "author_id": by.get("author_id"),
                "author_name": by.get("author_name"),
            }
        )
    await connection.execute(insert(messages), stored)
    return made[-1]


async def _position(connection: AsyncConnection, thread_id: UUID) -> int:
    query = select(func.coalesce(func.max(messages.c.position), 0)).where(messages.c.thread_id == thread_id)
    position: int = (await connection.execute(query)).scalar_one()
    return position


async def _content(connection: AsyncConnection, thread_id: UUID, message: Imported) -> Content:
    if not message.attachments:
        return message.content
    kept = await blobs.attach(connection, thread_id, message.attachments)
    return (*message.content, *(FileBlock(blob=blob) for blob in kept))
