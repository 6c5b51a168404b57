"""The account feed: the changes of users' thread lists and invitations since a revision, for many users at once.

All queries run inside one repeatable-read transaction, as in `khala.store.threads.thread_feed`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.accounts import Invitation
from khala.domain.chat import ThreadListEntry
from khala.domain.frames import AccountDeltaFrame, AccountFrame
from khala.store.accounts.account_marks import IS_OWNER_PRESENT, IS_PRESENT
from khala.store.plans.plan_statistics import WAITS
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.sharing import invitations
from khala.store.threads.reset_marks import IS_PLAN
from khala.store.threads.thread_feed import SnapshotNeeded, TopicGone, Unchanged

MAX_LISTED_THREADS = 200
"""Threads in one frame. A reader that is further behind gets a snapshot instead."""

WATCHED = "unnest($1::uuid[], $2::bigint[]) AS watched (user_id, after)"

REVISIONS = f"""
    SELECT users.id, users.revision, users.floor_revision, users.invited_revision
    FROM {WATCHED} JOIN users ON users.id = watched.user_id AND {IS_PRESENT.format("users.id")}
"""

LISTED = f"""
    entry.user_id, entry.thread_id, entry.gone, entry.changed_at, entry.pinned, entry.archived, entry.folder,
    entry.said_revision > entry.read_revision AS unread,
    CASE WHEN threads.owner_id = entry.user_id THEN 'owner' ELSE memberships.role END AS role,
    coalesce(active.running, false) AS running, coalesce(active.blocked, false) AS blocked,
    EXISTS (SELECT FROM plans WHERE plans.thread_id = threads.id AND {WAITS} AND {IS_PLAN}) AS plan_waits,
    {rows.THREAD_COLUMNS}
"""

AROUND = f"""
    LEFT JOIN threads ON threads.id = entry.thread_id AND threads.deleted_at IS NULL AND NOT entry.gone
     AND {IS_OWNER_PRESENT}
    LEFT JOIN memberships ON memberships.thread_id = threads.id AND memberships.user_id = entry.user_id
    LEFT JOIN LATERAL (
        SELECT true AS running, bool_or(status = 'blocked') AS blocked FROM (
            SELECT status FROM runs WHERE thread_id = threads.id AND status IN ('queued', 'running', 'blocked')
            ORDER BY position
        ) AS run HAVING count(*) > 0
    ) AS active ON true
"""
"""The order by position has the planner use the index that begins with the thread. Without it, after many runs have
begun since the last ANALYZE, the index of all active runs seems as cheap.
"""

ENTRIES = f"""
    SELECT {LISTED} FROM {WATCHED} CROSS JOIN LATERAL (
        SELECT * FROM listings WHERE listings.user_id = watched.user_id AND listings.revision > watched.after
        ORDER BY listings.revision, listings.thread_id LIMIT {MAX_LISTED_THREADS + 1}
    ) AS entry {AROUND} ORDER BY entry.revision, entry.thread_id
"""

NEWEST = f"""
    WITH RECURSIVE newest AS (
        (
            SELECT listings.*, 1 AS place FROM listings WHERE user_id = $1 AND NOT gone
            ORDER BY revision DESC, thread_id DESC LIMIT 1
        )
        UNION ALL
        SELECT older.*, newest.place + 1 FROM newest CROSS JOIN LATERAL (
            SELECT * FROM listings
            WHERE user_id = $1 AND NOT gone AND (revision, thread_id) < (newest.revision, newest.thread_id)
            ORDER BY revision DESC, thread_id DESC LIMIT 1
        ) AS older
        WHERE newest.place <= {MAX_LISTED_THREADS}
    )
    SELECT {LISTED} FROM newest AS entry {AROUND} ORDER BY entry.revision DESC, entry.thread_id DESC
"""
"""An entry's revision and `changed_at` are set together, so this is the order of `changed_at`, with an index.

Reads entry by entry, each by one search in the index. With one LIMIT for all, a plan for users in general expects a
short list, and sorts the whole list of a user who has a long one.
"""

VALID_CREDENTIALS = f"""
    SELECT asked.place FROM unnest($1::int[], $2::uuid[], $3::uuid[]) AS asked (place, user_id, credential)
    JOIN users ON users.id = asked.user_id AND users.blocked_at IS NULL AND {IS_PRESENT.format("users.id")}
    WHERE asked.credential IS NULL
       OR EXISTS (SELECT FROM sessions WHERE sessions.id = asked.credential
                  AND sessions.expires_at > clock_timestamp())
       OR EXISTS (SELECT FROM api_tokens WHERE api_tokens.id = asked.credential
                  AND coalesce(api_tokens.expires_at > clock_timestamp(), true))
"""

AccountChange = AccountDeltaFrame | SnapshotNeeded | TopicGone | Unchanged


async def since(driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, AccountChange]:
    """For each user, the changes of their list after the given revision. At most three queries."""
    users = {row["id"]: row for row in await driver.fetch(REVISIONS, list(cursors), list(cursors.values()))}
    changed = {key: after for key, after in cursors.items() if key in users and _can_serve(users[key], after)}
    entries: dict[UUID, list[rows.Record]] = defaultdict(list)
    for row in await driver.fetch(ENTRIES, list(changed), list(changed.values())) if changed else ():
        entries[row["user_id"]].append(row)
    changed_invitations = await _changed_invitations(driver, users, changed)
    return {
        key: _change(users.get(key), after, entries.get(key, ()), changed_invitations.get(key))
        for key, after in cursors.items()
    }


async def _changed_invitations(
    driver: Driver, users: Mapping[UUID, rows.Record], changed: Mapping[UUID, int]
) -> dict[UUID, tuple[Invitation, ...]]:
    """The open invitations of the users whose invitations have changed."""
    user_ids = [key for key, after in changed.items() if users[key]["invited_revision"] > after]
    by_user = await invitations.of_users(driver, user_ids) if user_ids else {}
    return {key: tuple(by_user.get(key, ())) for key in user_ids}


def _can_serve(user: rows.Record, after: int) -> bool:
    return bool(user["floor_revision"] <= after < user["revision"])


def _change(
    user: rows.Record | None,
    after: int,
    entries: Sequence[rows.Record],
    open_invitations: tuple[Invitation, ...] | None,
) -> AccountChange:
    if user is None:
        return TopicGone()
    if user["revision"] == after:
        return Unchanged()
    if not _can_serve(user, after) or len(entries) > MAX_LISTED_THREADS:
        return SnapshotNeeded(revision=user["revision"], reset=False)
    listed, removed = _split(entries)
    return AccountDeltaFrame(
        since=after,
        revision=user["revision"],
        threads=listed,
        removed=removed,
        invitations=msgspec.UNSET if open_invitations is None else open_invitations,
    )


def _split(entries: Sequence[rows.Record]) -> tuple[tuple[ThreadListEntry, ...], tuple[UUID, ...]]:
    """The threads on the list, and the removed ones."""
    listed = tuple(_listed(row) for row in entries if row["role"] is not None)
    return listed, tuple(row["thread_id"] for row in entries if row["role"] is None)


def _listed(row: rows.Record) -> ThreadListEntry:
    return ThreadListEntry(
        thread=rows.thread(row),
        role=row["role"],
        unread=row["unread"],
        running=row["running"],
        needs_approval=row["blocked"],
        plan_waits=row["plan_waits"],
        pinned=row["pinned"],
        archived=row["archived"],
        folder=row["folder"],
        changed_at=row["changed_at"],
    )


async def full_list(driver: Driver, user_id: UUID) -> AccountFrame | None:
    """The newest entries of the user's list; None if there is no such user."""
    query = f"SELECT revision FROM users WHERE id = $1 AND {IS_PRESENT.format('users.id')}"
    revision = await driver.fetchval(query, user_id)
    if revision is None:
        return None
    entries = await driver.fetch(NEWEST, user_id)
    listed, _ = _split(entries[:MAX_LISTED_THREADS])
    return AccountFrame(
        revision=revision,
        whole=True,
        threads=listed,
        has_more=len(entries) > MAX_LISTED_THREADS,
        invitations=tuple(await invitations.of_user(driver, user_id)),
    )


async def valid_credentials(driver: Driver, callers: Sequence[Caller]) -> list[bool]:
    """Whether each caller's account exists, and its session or token is valid. One query."""
    users, credentials = [caller.user_id for caller in callers], [caller.credential for caller in callers]
    records = await driver.fetch(VALID_CREDENTIALS, list(range(len(callers))), users, credentials)
    valid = {row["place"] for row in records}
    return [index in valid for index in range(len(callers))]
