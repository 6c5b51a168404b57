"""Listings: what each user's list of threads says, by a revision of the user's own.

Whoever changes something of a thread that its members' lists show stamps their listings in the same transaction. Users'
rows are locked last of all and in the order of their ids, so that no two transactions wait for each other.
"""

from collections.abc import Sequence
from uuid import UUID

from khala.domain.errors import Unauthorized
from khala.store.postgres.database import ACCOUNTS_CHANNEL, EVERYTHING, MAX_IDS_PER_PAYLOAD, Database, Driver
from khala.store.postgres.retries import retried

LOCK = """
    SELECT id FROM users
    WHERE id IN (SELECT user_id FROM listings WHERE thread_id = ANY($1::uuid[]) AND NOT gone)
    ORDER BY id FOR NO KEY UPDATE
"""
"""A statement of its own. One that locks a row and updates it, too, sees the row as it was before it waited for the
lock; while foreign keys hold locks of that old version, the update may wait for a transaction that waits for the lock.
"""

STAMP = f"""
    WITH bumped AS (
        UPDATE users SET revision = revision + 1 WHERE id = ANY($2::uuid[]) RETURNING id, revision
    ), stamped AS (
        UPDATE listings SET revision = bumped.revision, changed_at = clock_timestamp(), gone = $3,
               said_revision = CASE WHEN $4 AND listings.user_id IS DISTINCT FROM $5
                                    THEN threads.revision ELSE listings.said_revision END
        FROM bumped, threads
        WHERE listings.user_id = bumped.id AND threads.id = listings.thread_id
          AND listings.thread_id = ANY($1::uuid[]) AND NOT listings.gone
        RETURNING listings.user_id
    )
    SELECT pg_notify($6, CASE WHEN count(DISTINCT user_id) > {MAX_IDS_PER_PAYLOAD} THEN '{EVERYTHING}'
                              ELSE string_agg(DISTINCT user_id::text, ',') END)
    FROM stamped HAVING count(*) > 0
"""

HOLD_ALL = """
    SELECT id FROM users WHERE id IN (
        SELECT user_id FROM listings WHERE thread_id = ANY($1::uuid[]) AND NOT gone
        UNION SELECT user_id FROM invitations WHERE thread_id = ANY($1::uuid[]))
    ORDER BY id FOR NO KEY UPDATE
"""

ADD = """
    INSERT INTO listings (user_id, thread_id, revision, read_revision)
    SELECT $1, id, 0, revision FROM threads WHERE id = $2
    ON CONFLICT (user_id, thread_id) DO UPDATE SET gone = false
"""


async def mark_changed(
    driver: Driver,
    thread_ids: Sequence[UUID],
    *,
    said: bool = False,
    by: UUID | None = None,
    only: UUID | None = None,
    gone: bool = False,
) -> None:
    """These threads' entries have changed in the lists of all who have them, or of one user only.

    `said`: something was said in them, by this user if known, which leaves them unread for the others. `gone`: they
    leave the lists.
    """
    user_ids = [only] if only else [row["id"] for row in await driver.fetch(LOCK, thread_ids)]
    if user_ids:
        await driver.execute(STAMP, thread_ids, user_ids, gone, said, by, ACCOUNTS_CHANNEL)


async def lock_user(driver: Driver, user_id: UUID) -> None:
    """Lock the user's row, before anything that refers to it is written. Raises `Unauthorized` if it is gone."""
    if await driver.fetchval("SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE", user_id) is None:
        raise Unauthorized("This account is gone.")


async def lock_users_of(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Lock all whose lists these threads are on, and all who are invited to them, in one order."""
    await driver.fetch(HOLD_ALL, thread_ids)


async def add_entry(driver: Driver, thread_id: UUID, user_id: UUID) -> None:
    """Put the thread on the user's list."""
    await lock_user(driver, user_id)
    await driver.execute(ADD, user_id, thread_id)
    await mark_changed(driver, [thread_id], only=user_id)


READ = """
    UPDATE listings SET read_revision = least($3, threads.revision) FROM threads
    WHERE threads.id = listings.thread_id AND listings.user_id = $1 AND listings.thread_id = $2 AND NOT gone
      AND read_revision < least($3, threads.revision)
    RETURNING listings.thread_id
"""


@retried
async def mark_read(db: Database, thread_id: UUID, user_id: UUID, revision: int) -> None:
    """The user has read the thread up to this revision; it never goes back. No entry, no change."""
    async with db.driver() as driver, driver.transaction():
        # As everywhere, the user's row is locked before the entry's.
        await driver.execute("SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE", user_id)
        if await driver.fetchrow(READ, user_id, thread_id, revision) is not None:
            await mark_changed(driver, [thread_id], only=user_id)
