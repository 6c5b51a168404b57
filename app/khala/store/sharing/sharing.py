"""Sharing: members, invitations and links of a thread. Each change of access changes the thread's `access_id`."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import Row, delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import RANKS, Action, Caller, Role, key_hash
from khala.domain.accounts import Member, ShareLink
from khala.domain.errors import Conflict, Forbidden, NotFound, Unauthorized
from khala.domain.invitations import MAX_MEMBERS
from khala.store.accounts import audit
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.runs import requesters
from khala.store.schema.tables import memberships, share_links
from khala.store.sharing import invitations
from khala.store.threads import thread_lists, threads

MAX_LINKS = 50

MEMBERS = f"""
    SELECT threads.owner_id AS user_id, 'owner' AS role, 'member' AS status, users.name, threads.created_at
    FROM threads JOIN users ON users.id = threads.owner_id WHERE threads.id = $1
    UNION ALL
    SELECT memberships.user_id, memberships.role, 'member', users.name, memberships.created_at
    FROM memberships JOIN users ON users.id = memberships.user_id WHERE memberships.thread_id = $1
    UNION ALL
    SELECT invitations.user_id, invitations.role, 'invited', users.name, invitations.created_at
    FROM invitations JOIN users ON users.id = invitations.user_id
    WHERE invitations.thread_id = $1 AND {invitations.IS_OPEN}
    ORDER BY created_at, user_id
"""


async def members(driver: Driver, thread_id: UUID) -> list[Member]:
    """The members of the thread, its first owner first, and the invited users."""
    return [_member(row) for row in await driver.fetch(MEMBERS, thread_id)]


def _member(row: rows.Record) -> Member:
    return Member(user_id=row["user_id"], name=row["name"], role=row["role"], status=row["status"])


@retried
async def set_role(db: Database, thread_id: UUID, user_id: UUID, role: Role, caller: Caller) -> Member:
    """Give a member this role, or invite another user to it.

    Raises `NotFound` if there is no such user, and `Conflict` or `RateLimited` if they may not be invited.
    """
    async with db.transaction() as connection:
        row = await threads.lock_authorized(connection, thread_id, caller, Action.MANAGE_MEMBERS)
        if row.owner_id == user_id:
            raise Conflict("The thread's first owner stays its owner.")
        driver = await driver_of(connection)
        before = await _role(driver, thread_id, user_id)
        if before is None:
            return await _invite(connection, thread_id, user_id, role, caller)
        if role == "viewer" != before:
            await requesters.cancel_runs_of_user(driver, [thread_id], user_id)
        await _lock_user(driver, user_id)
        member = await _set_role(connection, thread_id, user_id, role)
        await audit.record(connection, "role_given", caller, thread_id=thread_id, user=str(user_id), role=role)
        return member


async def _role(driver: Driver, thread_id: UUID, user_id: UUID) -> Role | None:
    query = "SELECT role FROM memberships WHERE thread_id = $1 AND user_id = $2"
    role: Role | None = await driver.fetchval(query, thread_id, user_id)
    return role


async def _lock_user(driver: Driver, user_id: UUID) -> None:
    try:
        await thread_lists.lock_user(driver, user_id)
    except Unauthorized as error:
        raise NotFound("There is no such user.") from error


async def _invite(connection: AsyncConnection, thread_id: UUID, user_id: UUID, role: Role, caller: Caller) -> Member:
    driver = await driver_of(connection)
    before = await invitations.find(driver, thread_id, user_id)
    if before is None:
        await invitations.count_sent(driver, user_id, caller)
    await _lock_user(driver, user_id)
    if before is None:
        await invitations.put(driver, thread_id, user_id, role, caller)
    elif before != role:
        await invitations.change(driver, thread_id, user_id, role)
    if before != role:
        await audit.record(connection, "invited", caller, thread_id=thread_id, user=str(user_id), role=role)
    return await _member_of(driver, thread_id, user_id)


async def _member_of(driver: Driver, thread_id: UUID, user_id: UUID) -> Member:
    """The member or invited user. Raises `Conflict` if the thread has too many."""
    all_members = await members(driver, thread_id)
    if len(all_members) > MAX_MEMBERS:
        raise Conflict(f"A thread has at most {MAX_MEMBERS} members, including invited users. Remove one first.")
    return next(member for member in all_members if member.user_id == user_id)


async def _set_role(connection: AsyncConnection, thread_id: UUID, user_id: UUID, role: Role) -> Member:
    command = upsert(memberships).values(thread_id=thread_id, user_id=user_id, role=role)
    await connection.execute(
        command.on_conflict_do_update(index_elements=["thread_id", "user_id"], set_={"role": role})
    )
    driver = await driver_of(connection)
    member = await _member_of(driver, thread_id, user_id)
    await change_access(connection, thread_id)
    await thread_lists.add_entry(driver, thread_id, user_id)
    return member


@retried
async def remove_member(db: Database, thread_id: UUID, user_id: UUID, caller: Caller) -> None:
    """Remove a user's role or invitation. Every user may give up their own role, or decline their invitation."""
    own = caller.user_id == user_id
    async with db.transaction() as connection:
        allowed = Action.LEAVE_THREAD if own else Action.MANAGE_MEMBERS
        row = await threads.lock_authorized(connection, thread_id, caller, allowed)
        if row.owner_id == user_id:
            raise Conflict("The thread's first owner stays its owner.")
        driver = await driver_of(connection)
        if await _role(driver, thread_id, user_id) is not None:
            await _remove_role(connection, thread_id, user_id)
            action = "role_taken"
        elif await invitations.find(driver, thread_id, user_id) is not None:
            action = await _close_invitation(driver, thread_id, user_id, declines=own)
        else:
            raise NotFound("This user is not a member of the thread.")
        await change_access(connection, thread_id)
        await audit.record(connection, action, caller, thread_id=thread_id, user=str(user_id))


async def _remove_role(connection: AsyncConnection, thread_id: UUID, user_id: UUID) -> None:
    driver = await driver_of(connection)
    await requesters.cancel_runs_of_user(driver, [thread_id], user_id)
    where = (memberships.c.thread_id == thread_id) & (memberships.c.user_id == user_id)
    await connection.execute(delete(memberships).where(where))
    await thread_lists.mark_changed(driver, [thread_id], user_ids=[user_id], gone=True)
    await invitations.remove(driver, thread_id, user_id)


async def _close_invitation(driver: Driver, thread_id: UUID, user_id: UUID, *, declines: bool) -> str:
    """Close the invitation. Returns the action for the audit trail."""
    await thread_lists.lock_user(driver, user_id)
    if declines:
        await invitations.decline(driver, thread_id, user_id)
        return "invitation_declined"
    await invitations.remove(driver, thread_id, user_id)
    return "invitation_withdrawn"


@retried
async def join(db: Database, thread_id: UUID, user_id: UUID, caller: Caller) -> Member:
    """Accept the caller's invitation, or become a member by their share link, with the higher role of the two.

    A member whose role is at least as high keeps it.
    """
    async with db.transaction() as connection:
        row = await threads.lock_authorized(connection, thread_id, caller, Action.JOIN_THREAD)
        driver = await driver_of(connection)
        role, by = await _offered(driver, row, user_id, caller)
        own = [each for each in await members(driver, thread_id) if (each.user_id, each.status) == (user_id, "member")]
        if own and (role is None or RANKS[own[0].role] >= RANKS[role]):
            return own[0]
        if role is None:
            raise Forbidden("To join, you need an invitation, or a share link of a thread that has an owner.")
        await thread_lists.lock_user(driver, user_id)
        await invitations.remove(driver, thread_id, user_id)
        await audit.record(connection, "joined", caller, thread_id=thread_id, role=role, by=by)
        return await _set_role(connection, thread_id, user_id, role)


async def _offered(
    driver: Driver, thread: Row[tuple[object, ...]], user_id: UUID, caller: Caller
) -> tuple[Role | None, Literal["invitation", "link"]]:
    """The highest role that the caller may take, and its source. A thread without an owner can't be joined by links."""
    invited = await invitations.find(driver, thread.id, user_id)
    linked = None if thread.owner_id is None else await _link_role(driver, thread.id, caller)
    if linked is not None and (invited is None or RANKS[linked] > RANKS[invited]):
        return linked, "link"
    return invited, "invitation"


async def _link_role(driver: Driver, thread_id: UUID, caller: Caller) -> Role | None:
    query = """
        SELECT role FROM share_links
        WHERE thread_id = $1 AND key_hash = $2 AND kind = 'link' AND coalesce(expires_at > clock_timestamp(), true)
    """
    role: Role | None = await driver.fetchval(query, thread_id, caller.share_key_hash)
    return role


async def change_access(connection: AsyncConnection, thread_id: UUID) -> None:
    """Change the thread's `access_id`, so that the access of all its subscriptions is rechecked."""
    await threads.bump(connection, thread_id, access_id=func.gen_random_uuid())


@retried
async def create_link(
    db: Database, thread_id: UUID, role: Role, expires_at: datetime | None, caller: Caller
) -> tuple[ShareLink, str]:
    """A new share link to the thread, and its key, which can't be read again."""
    key = ids.new_secret()
    row = {"id": ids.new(), "thread_id": thread_id, "role": role, "expires_at": expires_at}
    async with db.transaction() as connection:
        thread = await threads.lock_authorized(connection, thread_id, caller, Action.MANAGE_LINKS)
        mine = (share_links.c.thread_id == thread_id) & (share_links.c.kind == "link")
        await connection.execute(delete(share_links).where(mine, share_links.c.expires_at < func.now()))
        if (await connection.execute(select(func.count()).where(mine))).scalar_one() >= MAX_LINKS:
            raise Conflict(f"A thread has at most {MAX_LINKS} links. Revoke one first.")
        made = insert(share_links).values(**row, key_hash=key_hash(key), created_by=caller.user_id)
        link = _link((await connection.execute(made.returning(share_links))).one()._mapping)
        if thread.visibility == "private":
            await threads.update_metadata(connection, thread_id, visibility="link")
        await audit.record(connection, "link_made", caller, thread_id=thread_id, link=str(link.id), role=role)
    return link, key


def _link(row: rows.Record) -> ShareLink:
    return ShareLink(id=row["id"], role=row["role"], created_at=row["created_at"], expires_at=row["expires_at"])


async def links(driver: Driver, thread_id: UUID) -> list[ShareLink]:
    """The thread's valid links, the newest first."""
    query = """
        SELECT * FROM share_links WHERE thread_id = $1 AND kind = 'link' AND coalesce(expires_at > now(), true)
        ORDER BY created_at DESC, id DESC
    """
    return [_link(row) for row in await driver.fetch(query, thread_id)]


@retried
async def revoke_link(db: Database, thread_id: UUID, link_id: UUID, caller: Caller) -> None:
    """Revoke a link. Subscriptions through the link end."""
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.MANAGE_LINKS)
        where = (share_links.c.thread_id == thread_id) & (share_links.c.id == link_id) & (share_links.c.kind == "link")
        revoked = (await connection.execute(delete(share_links).where(where).returning(share_links.c.key_hash))).first()
        if revoked is None:
            raise NotFound("There is no such link.")
        await requesters.cancel_runs_of_links(await driver_of(connection), thread_id, [revoked.key_hash])
        await change_access(connection, thread_id)
        await audit.record(connection, "link_revoked", caller, thread_id=thread_id, link=str(link_id))
