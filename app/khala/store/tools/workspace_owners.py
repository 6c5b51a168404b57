"""Owners of files and todos: a user, or a guest's thread. One transaction at a time changes an owner's workspace.

Lock order: first a shared lock on the owner's gate, before all row locks. A deletion closes the gate (an exclusive
lock): it waits for current changes, but not for later ones. Then, after the locks of threads and users, a key-share
lock on the owner's row, so that the workspace can't outlive its owner. Last, a lock on the workspace.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.errors import NotFound
from khala.store.accounts.account_marks import USER_IS_PRESENT
from khala.store.postgres.database import Database, Driver

LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR KEY SHARE"
LOCK_THREAD = "SELECT id FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE"


@asynccontextmanager
async def changing(db: Database, owner_id: UUID, *, thread_id: UUID | None = None) -> AsyncIterator[Driver]:
    """A transaction with exclusive access to the owner's workspace. Raises `NotFound` if the owner was deleted.

    With `thread_id`, the access to this thread cannot change meanwhile, and it can be neither reset nor deleted.
    """
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))", _gate(owner_id))
        if thread_id is not None and await driver.fetchval(LOCK_THREAD, thread_id) is None:
            raise NotFound("The thread was deleted.")
        is_locked = await driver.fetchval(LOCK_USER, owner_id) or await driver.fetchval(LOCK_THREAD, owner_id)
        if not is_locked or not await driver.fetchval(USER_IS_PRESENT, owner_id):
            raise NotFound("The owner of this workspace was deleted.")
        await lock(driver, owner_id)
        yield driver


async def lock(driver: Driver, owner_id: UUID) -> None:
    """Lock the owner's workspace until the transaction ends."""
    await driver.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"owner {owner_id}")


async def close_gate(connection: AsyncConnection, owner_id: UUID) -> None:
    """Block new changes of the owner's workspace until the transaction ends. It must be its first lock."""
    closed = text("SELECT pg_advisory_xact_lock(hashtextextended(:gate, 0))")
    await connection.execute(closed, {"gate": _gate(owner_id)})


def _gate(owner_id: UUID) -> str:
    return f"gate {owner_id}"
