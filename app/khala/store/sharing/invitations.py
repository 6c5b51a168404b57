"""Invitations: memberships that their users have not accepted yet, in the database.

Each change of an invitation is made under its thread's row lock. Counting invitations, and publishing them on the
account feed, also takes the user's row lock, which comes after all other locks.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from khala.domain import invitations
from khala.domain.access import Caller, Role
from khala.domain.accounts import Invitation
from khala.domain.errors import RateLimited, ReachedLimit
from khala.domain.invitations import MAX_SENT_PER_DAY, MAX_SENT_TO_ONE_PER_DAY, InvitationCounts
from khala.store.accounts.account_marks import IS_OWNER_PRESENT
from khala.store.budgets import counters
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Driver,
)
from khala.store.postgres.notifications import (
    ACCOUNTS_CHANNEL,
    EVERYTHING,
    MAX_IDS_PER_PAYLOAD,
)

SENT_SCOPE = "invitations"
"""The budget scope in which the invitations of a day are counted."""

IS_OPEN = """
    invitations.declined_at IS NULL AND NOT EXISTS (
        SELECT FROM memberships
        WHERE memberships.thread_id = invitations.thread_id AND memberships.user_id = invitations.user_id)
"""
"""A condition on a row of `invitations`. The invitation of a user who is already a member is not open."""

FIND = f"SELECT role FROM invitations WHERE thread_id = $1 AND user_id = $2 AND {IS_OPEN}"

COUNTS = f"""
    SELECT count(*) FILTER (WHERE {IS_OPEN}) AS received,
           count(*) FILTER (WHERE {IS_OPEN} AND invited_by IS NOT DISTINCT FROM $3) AS from_sender,
           max(declined_at) FILTER (WHERE thread_id = $2 OR invited_by IS NOT DISTINCT FROM $3) AS declined_at
    FROM invitations WHERE user_id = $1
"""

PUT = """
    INSERT INTO invitations (thread_id, user_id, role, invited_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (thread_id, user_id) DO UPDATE
    SET role = EXCLUDED.role, invited_by = EXCLUDED.invited_by, created_at = now(), declined_at = NULL
"""

OF_USERS = f"""
    SELECT invitations.user_id, invitations.thread_id, threads.title, invitations.role, invitations.created_at,
           invitations.invited_by AS inviter_id, users.name AS invited_by
    FROM invitations JOIN threads ON threads.id = invitations.thread_id AND threads.deleted_at IS NULL
     AND {IS_OWNER_PRESENT}
    LEFT JOIN users ON users.id = invitations.invited_by
    WHERE invitations.user_id = ANY($1::uuid[]) AND {IS_OPEN}
    ORDER BY invitations.created_at DESC, invitations.thread_id DESC
"""

CLOSE = "DELETE FROM invitations WHERE thread_id = ANY($1::uuid[]) RETURNING user_id"

NOTIFY = f"""
    WITH bumped AS (
        UPDATE users SET revision = revision + 1, invited_revision = revision + 1 WHERE id = ANY($1::uuid[])
        RETURNING id
    )
    SELECT pg_notify($2, CASE WHEN count(*) > {MAX_IDS_PER_PAYLOAD} THEN '{EVERYTHING}'
                              ELSE string_agg(id::text, ',') END)
    FROM bumped HAVING count(*) > 0
"""


async def of_users(driver: Driver, user_ids: Sequence[UUID]) -> dict[UUID, list[Invitation]]:
    """The open invitations of these users, the newest first. One query."""
    by_user: dict[UUID, list[Invitation]] = defaultdict(list)
    for row in await driver.fetch(OF_USERS, list(user_ids)):
        by_user[row["user_id"]].append(_invitation(row))
    return by_user


async def of_user(driver: Driver, user_id: UUID) -> list[Invitation]:
    """The user's open invitations, the newest first."""
    return (await of_users(driver, [user_id]))[user_id]


def _invitation(row: rows.Record) -> Invitation:
    return Invitation(**{name: row[name] for name in Invitation.__struct_fields__})


async def find(driver: Driver, thread_id: UUID, user_id: UUID) -> Role | None:
    """The role that the user's open invitation to the thread offers; None without one."""
    role: Role | None = await driver.fetchval(FIND, thread_id, user_id)
    return role


async def count_sent(driver: Driver, user_id: UUID, sender: Caller) -> None:
    """Count an invitation from this sender to this user. Raises `RateLimited` over a daily limit.

    Call it before users are locked, because it locks rows of `budgets`.
    """
    to_all = ((sender.author_id or UUID(int=0)).bytes, MAX_SENT_PER_DAY)
    to_this_user = (_sender_key(sender) + user_id.bytes, MAX_SENT_TO_ONE_PER_DAY)
    for key, most in sorted((to_all, to_this_user)):
        retry_after = await counters.count_amount(driver, SENT_SCOPE, key, "sent", Decimal(1), most=most)
        if retry_after is not None:
            limit = ReachedLimit("invitations_per_day", "account", most)
            message = "You have sent too many invitations today. Try again tomorrow."
            raise RateLimited(message, limit=limit, retry_after=retry_after)


def _sender_key(sender: Caller) -> bytes:
    """The sender's key. All senders without an account count as one, because they can create any number of keys."""
    return (sender.user_id or UUID(int=0)).bytes


async def put(driver: Driver, thread_id: UUID, user_id: UUID, role: Role, sender: Caller) -> None:
    """Invite the user. The caller holds the user's lock. Raises `Conflict` if they may not receive an invitation."""
    row = await driver.fetchrow(COUNTS, user_id, thread_id, sender.user_id)
    assert row is not None
    invitations.require_invitable(InvitationCounts(**row), datetime.now(UTC))
    await driver.execute(PUT, thread_id, user_id, role, sender.user_id)
    await notify(driver, [user_id])


async def change(driver: Driver, thread_id: UUID, user_id: UUID, role: Role) -> None:
    """Change the role that the open invitation offers."""
    query = "UPDATE invitations SET role = $3 WHERE thread_id = $1 AND user_id = $2"
    await driver.execute(query, thread_id, user_id, role)
    await notify(driver, [user_id])


async def decline(driver: Driver, thread_id: UUID, user_id: UUID) -> None:
    """Decline the invitation, and record the time."""
    query = "UPDATE invitations SET declined_at = now() WHERE thread_id = $1 AND user_id = $2"
    await driver.execute(query, thread_id, user_id)
    await notify(driver, [user_id])


async def remove(driver: Driver, thread_id: UUID, user_id: UUID) -> None:
    """Delete the invitation, open or declined, if there is one."""
    query = "DELETE FROM invitations WHERE thread_id = $1 AND user_id = $2"
    if await driver.execute(query, thread_id, user_id) != "DELETE 0":
        await notify(driver, [user_id])


async def close(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Delete all invitations to these threads. The caller holds the locks of the invited users."""
    user_ids = {row["user_id"] for row in await driver.fetch(CLOSE, thread_ids)}
    if user_ids:
        await notify(driver, list(user_ids))


async def notify(driver: Driver, user_ids: Sequence[UUID]) -> None:
    """Publish that these users' invitations have changed. For several users, the caller holds their locks."""
    await driver.execute(NOTIFY, user_ids, ACCOUNTS_CHANNEL)
