"""Threads: who may open one, and the row lock under which everything in it changes."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, delete, insert, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import ids
from app.domain.access import Caller, opens
from app.domain.chat import Thread
from app.domain.errors import Forbidden, ThreadNotFound
from app.domain.fold import TextBlock
from app.store import rows
from app.store.db import RUNS_CHANNEL, THREADS_CHANNEL, Database, Driver, notify
from app.store.tables import message_parts, messages, receipts, runs, threads


def check(row: Any | None, caller: Caller) -> None:
    """Raise unless the caller may open the thread that this row is of."""
    if row is None:
        raise ThreadNotFound("There is no such thread.")
    if not opens(row["anon_key_hash"], caller.anon_key_hash):
        raise Forbidden("This thread needs its key.")


async def authorize(driver: Driver, thread_id: UUID, caller: Caller) -> None:
    """Raise unless the caller may open this thread."""
    check(await driver.fetchrow("SELECT anon_key_hash FROM threads WHERE id = $1", thread_id), caller)


async def lock(connection: AsyncConnection, thread_id: UUID, caller: Caller | None = None) -> Row[Any]:
    """The thread's row, locked until the transaction ends; with a caller, only if they may open it."""
    row = (await connection.execute(select(threads).where(threads.c.id == thread_id).with_for_update())).first()
    if caller is not None:
        check(None if row is None else row._mapping, caller)
    if row is None:
        raise ThreadNotFound("There is no such thread.")
    return row


async def bump(connection: AsyncConnection, thread_id: UUID, **changes: Any) -> int:
    """The thread's next revision, and these columns with it; whoever is watching is told at commit."""
    command = (
        update(threads)
        .where(threads.c.id == thread_id)
        .values(revision=threads.c.revision + 1, updated_at=text("clock_timestamp()"), **changes)
        .returning(threads.c.revision)
    )
    revision: int = (await connection.execute(command)).scalar_one()
    await notify(connection, THREADS_CHANNEL, str(thread_id))
    return revision


async def create(
    db: Database, thread_id: UUID, caller: Caller, *, title: str | None, welcome: str
) -> tuple[Thread, bool]:
    """The thread with this id and key, and whether it is new; made with its welcome if it was not there."""
    async with db.transaction() as connection:
        made = await connection.execute(
            upsert(threads)
            .values(id=thread_id, anon_key_hash=caller.anon_key_hash, title=title)
            .on_conflict_do_nothing()
            .returning(threads.c.id)
        )
        new = made.first() is not None
        await lock(connection, thread_id, caller)
        if new:
            await _greet(connection, thread_id, welcome)
        return rows.thread((await lock(connection, thread_id))._mapping), new


async def _greet(connection: AsyncConnection, thread_id: UUID, welcome: str, **changes: Any) -> None:
    revision = threads.c.revision + 1
    row = await bump(connection, thread_id, meta_revision=revision, **changes)
    if not welcome:
        return
    message_id = ids.new()
    await connection.execute(
        insert(messages).values(
            id=message_id,
            thread_id=thread_id,
            position=1,
            role="assistant",
            status="final",
            content=(TextBlock(text=welcome),),
            revision=row,
        )
    )
    await connection.execute(update(threads).where(threads.c.id == thread_id).values(active_leaf=message_id))


async def get(driver: Driver, thread_id: UUID) -> Thread | None:
    """The thread, if there is one."""
    row = await driver.fetchrow("SELECT * FROM threads WHERE id = $1", thread_id)
    return None if row is None else rows.thread(row)


async def page(db: Database, caller: Caller, *, before: tuple[datetime, UUID] | None, limit: int) -> list[Thread]:
    """The threads that this caller's key opens, newest first; `before` names the last one of the page before."""
    query = select(threads).where(threads.c.anon_key_hash == caller.anon_key_hash)
    if before is not None:
        query = query.where(tuple_(threads.c.created_at, threads.c.id) < tuple_(*before))
    query = query.order_by(threads.c.created_at.desc(), threads.c.id.desc()).limit(limit)
    async with db.transaction() as connection:
        return [rows.thread(row._mapping) for row in await connection.execute(query)]


async def rename(db: Database, thread_id: UUID, caller: Caller, title: str | None) -> Thread:
    """Give the thread a title, or take it away."""
    async with db.transaction() as connection:
        row = await lock(connection, thread_id, caller)
        if row.title != title:
            await bump(connection, thread_id, title=title, meta_revision=threads.c.revision + 1)
        return rows.thread((await lock(connection, thread_id))._mapping)


async def remove(db: Database, thread_id: UUID, caller: Caller) -> None:
    """Delete the thread and all that is in it; runs under way lose their lease with it."""
    async with db.transaction() as connection:
        await lock(connection, thread_id, caller)
        await connection.execute(delete(message_parts).where(message_parts.c.thread_id == thread_id))
        await connection.execute(delete(threads).where(threads.c.id == thread_id))
        await notify(connection, THREADS_CHANNEL, str(thread_id))
        await notify(connection, RUNS_CHANNEL, "")


async def reset(db: Database, thread_id: UUID, caller: Caller, *, welcome: str) -> Thread:
    """Empty the thread, so that only its welcome is left; every observer starts over from a snapshot."""
    async with db.transaction() as connection:
        await lock(connection, thread_id, caller)
        for table in (message_parts, messages, receipts, runs):
            await connection.execute(delete(table).where(table.c.thread_id == thread_id))
        await _greet(connection, thread_id, welcome, reset_revision=threads.c.revision + 1, active_leaf=None)
        await notify(connection, RUNS_CHANNEL, "")
        return rows.thread((await lock(connection, thread_id))._mapping)
