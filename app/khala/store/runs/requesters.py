"""Requesters: a run acts with its requester's rights, so it is canceled when they may no longer write in its thread.

These functions request the cancellation of the runs. A run that waits for an approval is queued, so that the next
executor ends it. The caller holds the locks of the threads, and has locked no other rows since: runs come next.
"""

from collections.abc import Sequence
from uuid import UUID

from khala.domain.access import Action, author_id_of_key, roles_allowing
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
                            AND memberships.user_id = runs.user_id AND memberships.role = ANY($4::text[]))))"""
)
"""The run of a user with a role of their own is not canceled: they need no key."""


async def cancel_runs_of_user(driver: Driver, thread_ids: Sequence[UUID], user_id: UUID) -> None:
    """Cancel the runs of this user in these threads, in which they may no longer write."""
    if thread_ids:
        await driver.execute(BY_USER, thread_ids, user_id, RUNS_CHANNEL)


async def cancel_runs_of_links(driver: Driver, thread_id: UUID, key_hashes: Sequence[bytes]) -> None:
    """Cancel the runs that were requested with these share keys, which no longer give access to the thread."""
    key_ids = [author_id_of_key(key_hash) for key_hash in key_hashes]
    await driver.execute(BY_KEYS, [thread_id], key_ids, RUNS_CHANNEL, roles_allowing(Action.SEND_MESSAGE))
