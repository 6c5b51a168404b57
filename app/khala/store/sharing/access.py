"""Access: reads the facts about callers and threads in one query, and decides what each caller may do."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from khala.domain.access import AccessFacts, Action, Authorization, Caller, decide_access
from khala.domain.errors import ThreadNotFound
from khala.store.accounts.account_marks import IS_OWNER_PRESENT, IS_PRESENT
from khala.store.postgres.database import Driver

_FACTS = f"""
    SELECT request.place, threads.access_id, threads.owner_id, threads.anon_key_hash,
           threads.visibility = 'public' AS public, memberships.role AS member_role,
           share_links.role AS link_role, share_links.expires_at AS link_expires_at,
           invitations.user_id IS NOT NULL AS invited,
           EXISTS (SELECT FROM users WHERE users.id = request.user_id AND users.blocked_at IS NULL)
           AND {IS_PRESENT.format("request.user_id")} AND (
               request.credential IS NULL
               OR EXISTS (SELECT FROM sessions WHERE sessions.id = request.credential
                          AND sessions.expires_at > clock_timestamp())
               OR EXISTS (SELECT FROM api_tokens WHERE api_tokens.id = request.credential
                          AND coalesce(api_tokens.expires_at > clock_timestamp(), true))) AS credential_valid
    FROM {{requests}} AS request (place, thread_id, user_id, share_key_hash, credential)
    JOIN threads ON threads.id = request.thread_id AND (threads.deleted_at IS NULL) IS TRUE AND {IS_OWNER_PRESENT}
    LEFT JOIN memberships ON memberships.thread_id = threads.id AND memberships.user_id = request.user_id
    LEFT JOIN invitations ON invitations.thread_id = threads.id AND invitations.user_id = request.user_id
         AND invitations.declined_at IS NULL
    LEFT JOIN share_links ON share_links.thread_id = threads.id AND share_links.key_hash = request.share_key_hash
         AND coalesce(share_links.expires_at > clock_timestamp(), true)
"""
"""Without `IS TRUE`, Postgres reads all threads by a partial index where the table has no statistics yet: it assumes
that few rows have a null."""

FACTS = _FACTS.format(requests="unnest($1::int[], $2::uuid[], $3::uuid[], $4::bytea[], $5::uuid[])")
"""The facts about many callers and threads."""

FACTS_OF_ONE = _FACTS.format(requests="(SELECT 0, $1::uuid, $2::uuid, $3::bytea, $4::uuid OFFSET 0)")
"""The facts about one caller and one thread. The planner knows that there is one row, so it finds all others by their
keys. `OFFSET 0` hides the arguments from it: a plan for a caller without an account would be so much cheaper than one
for all callers that Postgres would plan the statement each time, which takes ten times as long as its execution.
"""


async def authorizations(driver: Driver, requests: Sequence[tuple[UUID, Caller]]) -> list[Authorization | None]:
    """The access of each caller to each thread, in order; None where the thread does not exist. One query."""
    results: list[Authorization | None] = [None] * len(requests)
    columns = zip(*(request_columns(thread_id, caller) for thread_id, caller in requests), strict=True)
    for row in await driver.fetch(FACTS, list(range(len(requests))), *columns) if requests else ():
        results[row["place"]] = authorization(row, requests[row["place"]][1])
    return results


def request_columns(thread_id: UUID, caller: Caller) -> tuple[object, ...]:
    """The arguments of `FACTS_OF_ONE`."""
    return thread_id, caller.user_id, caller.share_key_hash, caller.credential


def authorization(row: Any, caller: Caller) -> Authorization:
    """The caller's access by a row of `FACTS`."""
    return decide_access(AccessFacts(**{name: row[name] for name in AccessFacts.__struct_fields__}), caller)


async def authorize(driver: Driver, thread_id: UUID, caller: Caller, action: Action) -> Authorization:
    """The caller's access to the thread. Raises `ThreadNotFound`, and `Forbidden` if the action is not allowed."""
    row = await driver.fetchrow(FACTS_OF_ONE, *request_columns(thread_id, caller))
    return require(None if row is None else authorization(row, caller), action)


def require(authorization: Authorization | None, action: Action) -> Authorization:
    """The given authorization, if it allows the action. Raises the errors of `authorize`."""
    if authorization is None:
        raise ThreadNotFound("There is no such thread.")
    authorization.require(action)
    return authorization
