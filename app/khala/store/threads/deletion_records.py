"""Records what a deletion takes from its thread, for as long as the deletion can be undone."""

from datetime import timedelta
from uuid import UUID

from khala.store.postgres.database import Driver

NO_UNDO = timedelta(0)
RECORD = """
    INSERT INTO thread_deletions
        (thread_id, owner_id, anon_key_hash, title, visibility, client_metadata, members, expires_at)
    SELECT id, owner_id, anon_key_hash, title, visibility, client_metadata, (
        SELECT coalesce(jsonb_agg(jsonb_build_object('user_id', user_id, 'role', role)), '[]'::jsonb)
        FROM memberships WHERE memberships.thread_id = threads.id
    ), clock_timestamp() + $2::interval
    FROM threads WHERE id = $1 AND NOT EXISTS (SELECT FROM ephemeral_threads WHERE thread_id = threads.id)
    ON CONFLICT (thread_id) DO UPDATE SET owner_id = excluded.owner_id, anon_key_hash = excluded.anon_key_hash,
        title = excluded.title, visibility = excluded.visibility, client_metadata = excluded.client_metadata,
        members = excluded.members, expires_at = excluded.expires_at
"""


async def record(driver: Driver, thread_id: UUID, period: timedelta) -> None:
    """Record what the deletion takes from the thread, which the caller has locked and is about to close.

    That of an ephemeral thread is final: restored, the thread would have no end.
    """
    if period:
        await driver.execute(RECORD, thread_id, period)
