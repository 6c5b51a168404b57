"""Owners of files and todos: a user, or the thread of a guest. Whatever one has is changed by one at a time.

Locks, after those of threads and users: first the owner's row is shared, so that what is theirs can't outlive them,
then their things are locked.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from app.domain.errors import NotFound
from app.store.db import Database, Driver

SHARED = (
    "SELECT id FROM users WHERE id = $1 FOR KEY SHARE",
    "SELECT id FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE",
)


@asynccontextmanager
async def changing(db: Database, owner_id: UUID) -> AsyncIterator[Driver]:
    """A transaction in which nobody else changes what they have. Raises `NotFound` if the owner is gone."""
    async with db.driver() as driver, driver.transaction():
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
