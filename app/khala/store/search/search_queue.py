"""The queue of messages that have ended and that no segment has yet."""

from collections.abc import Sequence
from uuid import UUID

from khala.domain import ids
from khala.store.postgres.database import Driver

ADD = "INSERT INTO search_queue (id, thread_id, first_position, last_position) VALUES ($1, $2, $3, $4)"
ADD_THREADS = """
    INSERT INTO search_queue (id, thread_id, first_position, last_position)
    SELECT gen_random_uuid(), thread_id, min(position), max(position) FROM messages
    WHERE thread_id = ANY ($1::uuid[]) GROUP BY thread_id
"""


async def add(driver: Driver, thread_id: UUID, first_position: int, last_position: int) -> None:
    """Queue the messages at these positions. The caller holds the thread's lock."""
    await driver.execute(ADD, ids.new(), thread_id, first_position, last_position)


async def add_threads(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Queue all messages of these threads. The caller holds the threads' locks."""
    await driver.execute(ADD_THREADS, thread_ids)
