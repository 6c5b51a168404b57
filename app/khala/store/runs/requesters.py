"""Requesters: a run acts with its requester's rights, so it ends when they may no longer write in its thread.

The caller holds the rows of the threads. Each run gets a request to cancel; a run that waits for an approval is queued,
so that the next executor ends it. Only rows of runs are locked, so this comes right after the threads.
"""

from collections.abc import Sequence
from uuid import UUID

from khala.domain.access import author_id_of_key
from khala.store.postgres.database import (
    Driver,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
)

REQUEST_CANCEL = """
    WITH due AS (
        SELECT id, thread_id FROM runs
        WHERE thread_id = ANY($1::uuid[]) AND status IN ('queued', 'running', 'blocked') AND {condition}
        ORDER BY id FOR NO KEY UPDATE
    ), canceled AS (
        UPDATE runs SET cancel_requested_at = coalesce(runs.cancel_requested_at, clock_timestamp()),
               status = CASE WHEN runs.status = 'blocked' THEN 'queued' ELSE runs.status END
        FROM due WHERE runs.id = due.id AND runs.thread_id = due.thread_id RETURNING runs.id
    )
    SELECT pg_notify($3, '') FROM canceled LIMIT 1
"""

BY_USER = REQUEST_CANCEL.format(condition="user_id = $2")

BY_KEYS = REQUEST_CANCEL.format(
    condition="""asker_key_id = ANY($2::uuid[]) AND (user_id IS NULL OR (
            NOT EXISTS (SELECT FROM threads WHERE threads.id = runs.thread_id AND threads.owner_id = runs.user_id)
            AND NOT EXISTS (SELECT FROM memberships WHERE memberships.thread_id = runs.thread_id
                            AND memberships.user_id = runs.user_id AND memberships.role IN ('editor', 'owner'))))"""
)
"""A user who has a role of their own needs no key."""


async def cancel_runs_of_user(driver: Driver, thread_ids: Sequence[UUID], user_id: UUID) -> None:
    """Cancel the runs of this user in these threads, where they may no longer write."""
    if thread_ids:
        await driver.execute(BY_USER, thread_ids, user_id, RUNS_CHANNEL)


async def cancel_runs_of_links(driver: Driver, thread_id: UUID, key_hashes: Sequence[bytes]) -> None:
    """Cancel the runs that were requested by these share keys, which no longer open the thread."""
    await driver.execute(BY_KEYS, [thread_id], [author_id_of_key(one) for one in key_hashes], RUNS_CHANNEL)
