"""Claims: a thread that somebody began without an account becomes theirs, in place and in one transaction."""

from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.access import Caller, author_of, opens
from app.domain.chat import ACTIVE, Thread
from app.domain.errors import Forbidden
from app.store import accounts, audit, files, ledger, listings, rows, threads, todos
from app.store.db import Database, driver_of
from app.store.retries import retried
from app.store.tables import memberships, messages, runs
from app.store.tables import threads as threads_table


@retried
async def claim(db: Database, thread_id: UUID, key_hash: bytes, caller: Caller) -> Thread:
    """The thread, owned by the caller from now on; the key opens nothing any more.

    Runs go on, links and members stay. Whoever is in by the key alone is let go. The owner's second claim changes
    nothing.
    """
    user_id = accounts.known(caller)
    async with db.transaction() as connection:
        row = await threads.lock(connection, thread_id)
        if row.owner_id != user_id:
            if not opens(row.anon_key_hash, key_hash):
                raise Forbidden("This thread needs its key to be claimed, or has an owner.")
            await _move(connection, thread_id, key_hash, user_id)
            await audit.record(connection, "claimed", caller, thread_id=thread_id)
        return rows.thread((await threads.lock(connection, thread_id))._mapping)


async def _move(connection: AsyncConnection, thread_id: UUID, key_hash: bytes, user_id: UUID) -> None:
    driver = await driver_of(connection)
    active = select(runs.c.id).where(runs.c.thread_id == thread_id, runs.c.status.in_(ACTIVE))
    # Locked in the order in which heartbeats lock them.
    ordered = active.order_by(runs.c.id).with_for_update(key_share=True)
    active_ids = [row.id for row in await connection.execute(ordered)]
    if active_ids:
        await connection.execute(update(runs).where(runs.c.id.in_(active_ids)).values(fairness_key=user_id))
        # What the guest asked for is the user's from here on: tools act for them.
        asked = (runs.c.id.in_(active_ids)) & runs.c.user_id.is_(None)
        await connection.execute(update(runs).where(asked).values(user_id=user_id))
    revision = await threads.bump(
        connection,
        thread_id,
        owner_id=user_id,
        anon_key_hash=None,
        access_id=func.gen_random_uuid(),
        meta_revision=threads_table.c.revision + 1,
    )
    written = (messages.c.thread_id == thread_id) & (messages.c.author_id == author_of(key_hash))
    name = await accounts.name_of(driver, user_id)
    mine = {"author_id": user_id, "author_name": name, "revision": revision}
    await connection.execute(update(messages).where(written).values(**mine))
    await ledger.move(connection, thread_id, user_id)
    member = (memberships.c.thread_id == thread_id) & (memberships.c.user_id == user_id)
    await connection.execute(delete(memberships).where(member))
    await listings.add(driver, thread_id, user_id)
    # The user is locked by now: owners come after threads and users.
    await files.move_all(driver, thread_id, user_id, f"claimed/{str(thread_id)[:8]}")
    await todos.move_all(driver, thread_id, user_id)
