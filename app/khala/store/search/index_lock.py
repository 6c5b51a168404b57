"""The lock of everything that is prepared for searches: the row of `search_walk`.

A batch stores what it made of messages under this lock, and checks under it that the messages are there. The purge
deletes that under the same lock, after the messages. So no batch adds anything for a message that is gone.
"""

from khala.store.postgres.database import Driver

LOCK = "SELECT id, thread_id, ended_at FROM search_walk WHERE id = 1 ORDER BY id FOR UPDATE"
TRY_LOCK = f"{LOCK} SKIP LOCKED"


async def lock(driver: Driver) -> None:
    """Wait until no batch is active, and let none begin before the transaction ends."""
    await driver.fetchrow(LOCK)
