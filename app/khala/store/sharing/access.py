"""Access: what a caller may do in a thread, as stored now."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.access import Caller, Doors, Grant, Role, grant
from khala.domain.errors import Forbidden, ThreadNotFound
from khala.store.postgres.database import Driver

DOORS = """
    SELECT asked.place, threads.access_id, threads.owner_id, threads.anon_key_hash,
           threads.visibility = 'public' AS public, memberships.role AS member_role,
           share_links.role AS link_role, share_links.expires_at AS link_expires_at,
           invitations.user_id IS NOT NULL AS invited,
           EXISTS (SELECT FROM users WHERE users.id = asked.user_id) AND (
               asked.credential IS NULL
               OR EXISTS (SELECT FROM sessions WHERE sessions.id = asked.credential
                          AND sessions.expires_at > clock_timestamp())
               OR EXISTS (SELECT FROM api_tokens WHERE api_tokens.id = asked.credential
                          AND coalesce(api_tokens.expires_at > clock_timestamp(), true))) AS credential_stands
    FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::bytea[], $5::uuid[])
        AS asked (place, thread_id, user_id, share_key_hash, credential)
    JOIN threads ON threads.id = asked.thread_id AND threads.deleted_at IS NULL
    LEFT JOIN memberships ON memberships.thread_id = threads.id AND memberships.user_id = asked.user_id
    LEFT JOIN invitations ON invitations.thread_id = threads.id AND invitations.user_id = asked.user_id
         AND invitations.declined_at IS NULL
    LEFT JOIN share_links ON share_links.thread_id = threads.id AND share_links.key_hash = asked.share_key_hash
         AND coalesce(share_links.expires_at > clock_timestamp(), true)
"""


class Admission(msgspec.Struct, frozen=True):
    """What a caller may do in a thread, None for nothing, under the thread's `access_id` at that moment."""

    access_id: UUID
    grant: Grant | None


async def admissions(driver: Driver, asked: Sequence[tuple[UUID, Caller]]) -> list[Admission | None]:
    """For each thread and caller what they may do, in order; None where there is no such thread. One query."""
    found: list[Admission | None] = [None] * len(asked)
    columns = (
        list(range(len(asked))),
        [thread_id for thread_id, _ in asked],
        [caller.user_id for _, caller in asked],
        [caller.share_key_hash for _, caller in asked],
        [caller.credential for _, caller in asked],
    )
    for row in await driver.fetch(DOORS, *columns):
        found[row["place"]] = Admission(row["access_id"], grant(_doors(row), asked[row["place"]][1]))
    return found


def _doors(row: Any) -> Doors:
    return Doors(
        owner_id=row["owner_id"],
        anon_key_hash=row["anon_key_hash"],
        public=row["public"],
        member_role=row["member_role"],
        link_role=row["link_role"],
        link_expires_at=row["link_expires_at"],
        credential_stands=row["credential_stands"],
        invited=row["invited"],
    )


async def admit(driver: Driver, thread_id: UUID, caller: Caller, needed: Role = "viewer") -> Grant:
    """What the caller may do in the thread. Raises `ThreadNotFound`, and `Forbidden` if it is less than needed."""
    (admission,) = await admissions(driver, [(thread_id, caller)])
    return granted(admission, needed)


def granted(admission: Admission | None, needed: Role = "viewer") -> Grant:
    """The grant that was found. Raises as `admit` does."""
    if admission is None:
        raise ThreadNotFound("There is no such thread.")
    if admission.grant is None:
        raise Forbidden("This thread is not open to you: it needs its key, a share link, or an account with access.")
    if not admission.grant.allows(needed):
        raise Forbidden(f"This takes the role {needed}; you are {admission.grant.role} here.")
    return admission.grant
