"""Thread lists: the entries of each user's list (table `listings`). Each user's list has a revision of its own.

A transaction that changes something that the lists show of a thread marks its entries as changed. Users' rows are
locked last of all rows, in the order of their ids, so that no two transactions wait for each other.
"""

from collections.abc import Sequence
from uuid import UUID

from khala.domain.errors import Unauthorized
from khala.store.accounts.account_marks import USER_IS_PRESENT
from khala.store.postgres.database import (
    Database,
    Driver,
)
from khala.store.postgres.notifications import (
    ACCOUNTS_CHANNEL,
    EVERYTHING,
    MAX_IDS_PER_PAYLOAD,
)
from khala.store.postgres.retries import retried

IS_FORGOTTEN = "gone AND changed_at < now() - interval '7 days'"
"""The entries of threads that left a list, once no client needs to hear of that any more."""
DELETE_GONE_ENTRIES = f"""
    WITH chosen AS MATERIALIZED (
        SELECT ctid AS place, user_id FROM listings WHERE {IS_FORGOTTEN}
        ORDER BY changed_at LIMIT $1
    ), held AS MATERIALIZED (
        SELECT id FROM users WHERE id IN (SELECT user_id FROM chosen) ORDER BY id FOR NO KEY UPDATE
    ), forgotten AS (
        DELETE FROM listings WHERE ctid IN (SELECT place FROM chosen) AND user_id IN (SELECT id FROM held)
        RETURNING user_id, revision
    ), floors AS (
        SELECT user_id, max(revision) AS floor FROM forgotten GROUP BY user_id
    ), raised AS (
        UPDATE users SET floor_revision = greatest(floor_revision, floor) FROM floors WHERE users.id = floors.user_id
    )
    SELECT count(*) FROM forgotten
"""
"""Deletes some of them, and says to their users' feeds how far back these go now."""
LOCK_LISTED_USERS = """
    SELECT id FROM users
    WHERE id IN (SELECT user_id FROM listings WHERE thread_id = ANY($1::uuid[]) AND NOT gone)
    ORDER BY id FOR NO KEY UPDATE
"""
"""A statement of its own, to prevent deadlocks. A statement that both locks and updates a row sees the row's version
from before it waited for the lock. If foreign keys lock that old version, its update may wait for a transaction that
in turn waits for it.
"""

MARK_CHANGED = f"""
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
                              ELSE string_agg(DISTINCT user_id::text, ',') END),
           (SELECT count(*) FROM runs WHERE fairness_key = $7 AND status IN ('queued', 'running', 'blocked')) AS active
    FROM stamped HAVING count(*) > 0
"""

LOCK_USERS_OF = """
    SELECT id FROM users WHERE id IN (
        SELECT user_id FROM listings WHERE thread_id = ANY($1::uuid[]) AND NOT gone
        UNION SELECT user_id FROM invitations WHERE thread_id = ANY($1::uuid[]))
    ORDER BY id FOR NO KEY UPDATE
"""

LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"

ADD_ENTRY = """
    INSERT INTO listings (user_id, thread_id, revision, read_revision)
    SELECT $1, id, 0, revision FROM threads WHERE id = $2
    ON CONFLICT (user_id, thread_id) DO UPDATE SET gone = false
"""


async def mark_changed(
    driver: Driver,
    thread_ids: Sequence[UUID],
    *,
    unread: bool = False,
    author_id: UUID | None = None,
    user_ids: Sequence[UUID] | None = None,
    gone: bool = False,
    owner_id: UUID | None = None,
) -> int:
    """Mark the entries of these threads as changed in all lists that have them.

    With `user_ids`, whose rows the caller has locked, only in the lists of these users.

    With `unread`, because of a new message or answer, the threads become unread for all users but `author_id`. With
    `gone`, the threads are removed from the lists.

    Returns the number of runs of `owner_id` that are queued or active. If the threads are on the owner's list, no other
    transaction that marks the owner's threads can add one before this transaction ends. 0 without an `owner_id`.
    """
    if user_ids is None:
        user_ids = [row["id"] for row in await driver.fetch(LOCK_LISTED_USERS, thread_ids)]
    if not user_ids:
        return 0
    arguments = thread_ids, user_ids, gone, unread, author_id, ACCOUNTS_CHANNEL, owner_id
    row = await driver.fetchrow(MARK_CHANGED, *arguments)
    return 0 if row is None else int(row["active"])


async def lock_user(driver: Driver, user_id: UUID) -> None:
    """Lock the user's row before rows that refer to it are written. Raises `Unauthorized` if the user was deleted."""
    if await driver.fetchval(LOCK_USER, user_id) is None or not await driver.fetchval(USER_IS_PRESENT, user_id):
        raise Unauthorized("This account was deleted.")


async def lock_users_of(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Lock all users whose lists have these threads, and all who are invited to them, in the order of their ids."""
    await driver.fetch(LOCK_USERS_OF, thread_ids)


async def add_entry(driver: Driver, thread_id: UUID, user_id: UUID) -> None:
    """Add the thread to the user's list."""
    await lock_user(driver, user_id)
    await driver.execute(ADD_ENTRY, user_id, thread_id)
    await mark_changed(driver, [thread_id], user_ids=[user_id])


MARK_READ = """
    UPDATE listings SET read_revision = least($3, threads.revision) FROM threads
    WHERE threads.id = listings.thread_id AND listings.user_id = $1 AND listings.thread_id = $2 AND NOT gone
      AND read_revision < least($3, threads.revision)
    RETURNING listings.thread_id
"""


@retried
async def mark_read(db: Database, thread_id: UUID, user_id: UUID, revision: int) -> None:
    """Mark the thread as read by the user up to this revision. The mark never goes back.

    Does nothing if the thread is not on the user's list.
    """
    async with db.driver() as driver, driver.transaction():
        # The user's row is locked before the entry's, as in all transactions.
        await driver.execute("SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE", user_id)
        if await driver.fetchrow(MARK_READ, user_id, thread_id, revision) is not None:
            await mark_changed(driver, [thread_id], user_ids=[user_id])
