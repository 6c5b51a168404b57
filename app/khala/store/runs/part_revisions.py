"""Finds the revision of a thread at a place in one of its runs."""

from uuid import UUID

from khala.store.postgres.database import Driver

REVISION_AT = """
    SELECT coalesce(
        (SELECT before.revision - EXISTS (
             SELECT FROM message_parts AS following
             WHERE following.run_id = $2 AND following.seq = $3 AND following.thread_id IS NOT DISTINCT FROM $1
               AND following.revision = before.revision
         )::int
         FROM message_parts AS before
         WHERE before.run_id = $2 AND before.seq = $3 - 1 AND before.thread_id IS NOT DISTINCT FROM $1),
        (SELECT revision - 1 FROM runs WHERE id = $2 AND thread_id = $1)
    )
"""


async def revision_at(driver: Driver, thread_id: UUID, run_id: UUID, position: int) -> int:
    """The last revision that has no part of the run from this position on.

    It is the revision before the run was queued if the position is 0, or if the parts have been packed: then the feed
    answers it with a snapshot.
    """
    revision: int = await driver.fetchval(REVISION_AT, thread_id, run_id, position)
    return max(revision, 0)
