"""Owners of files and todos: a user, or the thread of a guest. Whatever one has is changed by one at a time.

Locks: first a gate is passed, before all locks of rows; whoever is to be deleted closes theirs, and so waits for those
who are in, but not for those who come. Then, after locks of threads and users, the owner's row is shared, so that what
is theirs can't outlive them, and last their things are locked.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.errors import NotFound
from khala.store.postgres.database import Database, Driver

SHARED = (
    "SELECT id FROM users WHERE id = $1 FOR KEY SHARE",
    "SELECT id FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE",
)


@asynccontextmanager
async def changing(db: Database, owner_id: UUID) -> AsyncIterator[Driver]:
    """A transaction in which nobody else changes what they have. Raises `NotFound` if the owner is gone."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))", _gate(owner_id))
        for query in SHARED:
            if await driver.fetchval(query, owner_id) is not None:
                break
        else:
            raise NotFound("Whoever this belonged to is gone.")
        await lock(driver, owner_id)
        yield driver


async def lock(driver: Driver, owner_id: UUID) -> None:
    """Keep others from what they have until the transaction ends."""
    await driver.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"owner {owner_id}")


async def close_gate(connection: AsyncConnection, owner_id: UUID) -> None:
    """Let nobody begin to change what they have until the transaction ends; its first lock."""
    closed = text("SELECT pg_advisory_xact_lock(hashtextextended(:gate, 0))")
    await connection.execute(closed, {"gate": _gate(owner_id)})


def _gate(owner_id: UUID) -> str:
    return f"gate {owner_id}"
