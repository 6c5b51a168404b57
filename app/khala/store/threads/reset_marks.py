"""Reset marks: what a reset has deleted from a thread, until the purge deletes the rows.

A reset stores one row in `thread_resets`, however large the thread is. From its commit on, no reader sees the marked
rows:

- messages and runs with a position below `first_position`. Positions never change, and the thread continues with
  higher ones.
- parts with a revision below that of the reset. A delta needs no condition for them, because it begins at the reset or
  later.
- receipts, approvals and detail tokens of marked runs.
- blobs that were added before `reset_at`. Uploads and resets wait for each other, so no blob is added meanwhile.
- plans with a revision below that of the reset, with their steps and events. Nothing changes them any more.

The purge deletes the rows in this order, so that no message lacks its parts and no part lacks its run.
"""

from uuid import UUID

from khala.store.postgres.database import Driver

MARK = """
    INSERT INTO thread_resets (thread_id, first_position, revision, reset_at)
    VALUES ($1, (SELECT coalesce(max(position), 0) + 1 FROM messages WHERE thread_id = $1), $2, clock_timestamp())
    ON CONFLICT (thread_id) DO UPDATE
    SET first_position = greatest(thread_resets.first_position, excluded.first_position),
        revision = excluded.revision, reset_at = excluded.reset_at
    RETURNING first_position
"""


def first_position(thread_id: str) -> str:
    """SQL: the lowest position of the messages and runs of this thread that no reset has deleted."""
    return f"coalesce((SELECT first_position FROM thread_resets WHERE thread_resets.thread_id = {thread_id}), 0)"


def last_position(thread_id: str) -> str:
    """SQL: the position of the thread's last message. A new message gets a higher one."""
    query = f"SELECT coalesce(max(position), 0) FROM messages WHERE messages.thread_id = {thread_id}"
    return f"greatest(({query}), {first_position(thread_id)} - 1)"


IS_MESSAGE = f"messages.position >= {first_position('messages.thread_id')}"
"""A condition on a row of `messages`: no reset has deleted it."""
IS_RUN = f"""(
    runs.position >= {first_position("runs.thread_id")}
    AND EXISTS (SELECT FROM threads WHERE threads.id = runs.thread_id AND threads.deleted_at IS NULL)
)"""
"""A condition on a row of `runs`: neither a reset nor the deletion of its thread has deleted it."""
IS_BLOB = """NOT EXISTS (
    SELECT FROM thread_resets WHERE thread_resets.thread_id = blobs.thread_id AND blobs.created_at < reset_at
)"""
"""A condition on a row of `blobs`: no reset has deleted it."""
IS_PLAN = """(
    EXISTS (SELECT FROM threads WHERE threads.id = plans.thread_id AND threads.deleted_at IS NULL)
    AND NOT EXISTS (
        SELECT FROM thread_resets AS reset WHERE reset.thread_id = plans.thread_id AND plans.revision < reset.revision
    )
)"""
"""A condition on a row of `plans`: neither a reset nor the deletion of its thread has deleted it."""


async def mark(driver: Driver, thread_id: UUID, revision: int) -> int:
    """Mark everything that the thread contains as deleted, in the revision that its reset is about to create.

    The caller holds the thread's lock. Returns the position of the next message.
    """
    position: int = await driver.fetchval(MARK, thread_id, revision)
    return position
