"""Sharing: members and share links of a thread. Whatever takes access away gives the thread another `access_id`."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import ids
from app.domain.access import RANKS, Caller, Role, key_hash
from app.domain.accounts import Link, Member
from app.domain.errors import Conflict, Forbidden, NotFound, Unauthorized
from app.store import audit, listings, rows, threads
from app.store.db import Database, Driver, driver_of
from app.store.retries import retried
from app.store.tables import memberships, share_links

MOST_LINKS = 50
MOST_MEMBERS = 200

MEMBERS = """
    SELECT threads.owner_id AS user_id, 'owner' AS role, users.name, threads.created_at
    FROM threads JOIN users ON users.id = threads.owner_id WHERE threads.id = $1
    UNION ALL
    SELECT memberships.user_id, memberships.role, users.name, memberships.created_at
    FROM memberships JOIN users ON users.id = memberships.user_id WHERE memberships.thread_id = $1
    ORDER BY created_at, user_id
"""


async def members(driver: Driver, thread_id: UUID) -> list[Member]:
    """Who has a role in the thread, its first owner first."""
    return [_member(row) for row in await driver.fetch(MEMBERS, thread_id)]


def _member(row: rows.Record) -> Member:
    return Member(user_id=row["user_id"], name=row["name"], role=row["role"])


@retried
async def set_role(db: Database, thread_id: UUID, user_id: UUID, role: Role, caller: Caller) -> Member:
    """Give a user this role in the thread. Raises `NotFound` if there is no such user."""
    async with db.transaction() as connection:
        row = await threads.lock(connection, thread_id, caller)
        if row.owner_id == user_id:
            raise Conflict("The thread's first owner stays its owner.")
        try:
            await listings.hold(await driver_of(connection), user_id)
        except Unauthorized as error:
            raise NotFound("There is no such user.") from error
        member = await _set_role(connection, thread_id, user_id, role)
        await audit.record(connection, "role_given", caller, thread_id=thread_id, user=str(user_id), role=role)
        return member


async def _set_role(connection: AsyncConnection, thread_id: UUID, user_id: UUID, role: Role) -> Member:
    given = upsert(memberships).values(thread_id=thread_id, user_id=user_id, role=role)
    await connection.execute(given.on_conflict_do_update(index_elements=["thread_id", "user_id"], set_={"role": role}))
    driver = await driver_of(connection)
    found = await driver.fetch(MEMBERS, thread_id)
    if len(found) > MOST_MEMBERS:
        raise Conflict(f"A thread has at most {MOST_MEMBERS} members.")
    await reopen(connection, thread_id)
    await listings.add(driver, thread_id, user_id)
    return _member(next(row for row in found if row["user_id"] == user_id))


@retried
async def remove_member(db: Database, thread_id: UUID, user_id: UUID, caller: Caller) -> None:
    """Take a user's role away; anybody may give up their own."""
    async with db.transaction() as connection:
        row = await threads.lock(connection, thread_id, caller, "viewer" if caller.user_id == user_id else "owner")
        if row.owner_id == user_id:
            raise Conflict("The thread's first owner stays its owner.")
        where = (memberships.c.thread_id == thread_id) & (memberships.c.user_id == user_id)
        gone = await connection.execute(delete(memberships).where(where).returning(memberships.c.role))
        if gone.first() is None:
            raise NotFound("This user is no member of the thread.")
        await reopen(connection, thread_id)
        await listings.stamp(await driver_of(connection), [thread_id], only=user_id, gone=True)
        await audit.record(connection, "role_taken", caller, thread_id=thread_id, user=str(user_id))


@retried
async def join(db: Database, thread_id: UUID, user_id: UUID, caller: Caller) -> Member:
    """Keep by the account what the caller's share link grants; a role that is higher already stays."""
    async with db.transaction() as connection:
        row = await threads.lock(connection, thread_id, caller, "viewer")
        driver = await driver_of(connection)
        role = await _link_role(driver, thread_id, caller)
        known = [one for one in await members(driver, thread_id) if one.user_id == user_id]
        if known and (role is None or RANKS[known[0].role] >= RANKS[role]):
            return known[0]
        if role is None or row.owner_id is None:
            raise Forbidden("Only a share link of a thread that has an owner can be joined by.")
        await listings.hold(driver, user_id)
        await audit.record(connection, "joined", caller, thread_id=thread_id, role=role)
        return await _set_role(connection, thread_id, user_id, role)


async def _link_role(driver: Driver, thread_id: UUID, caller: Caller) -> Role | None:
    query = """
        SELECT role FROM share_links
        WHERE thread_id = $1 AND key_hash = $2 AND coalesce(expires_at > clock_timestamp(), true)
    """
    role: Role | None = await driver.fetchval(query, thread_id, caller.share_key_hash)
    return role


async def reopen(connection: AsyncConnection, thread_id: UUID) -> None:
    """Who may do what has changed: whoever is in is checked again."""
    await threads.bump(connection, thread_id, access_id=func.gen_random_uuid())


@retried
async def make_link(
    db: Database, thread_id: UUID, role: Role, expires_at: datetime | None, caller: Caller
) -> tuple[Link, str]:
    """A new share link to the live thread, and its key, which is told only now."""
    key = ids.new_secret()
    row = {"id": ids.new(), "thread_id": thread_id, "role": role, "expires_at": expires_at}
    async with db.transaction() as connection:
        thread = await threads.lock(connection, thread_id, caller)
        mine = share_links.c.thread_id == thread_id
        await connection.execute(delete(share_links).where(mine, share_links.c.expires_at < func.now()))
        if (await connection.execute(select(func.count()).where(mine))).scalar_one() >= MOST_LINKS:
            raise Conflict(f"A thread has at most {MOST_LINKS} links. Revoke one first.")
        made = insert(share_links).values(**row, key_hash=key_hash(key), created_by=caller.user_id)
        link = _link((await connection.execute(made.returning(share_links))).one()._mapping)
        if thread.visibility == "private":
            await threads.retell(connection, thread_id, visibility="link")
        await audit.record(connection, "link_made", caller, thread_id=thread_id, link=str(link.id), role=role)
    return link, key


def _link(row: rows.Record) -> Link:
    return Link(id=row["id"], role=row["role"], created_at=row["created_at"], expires_at=row["expires_at"])


async def links(driver: Driver, thread_id: UUID) -> list[Link]:
    """The thread's links that are good now, the newest first."""
    query = """
        SELECT * FROM share_links WHERE thread_id = $1 AND coalesce(expires_at > now(), true)
        ORDER BY created_at DESC, id DESC
    """
    return [_link(row) for row in await driver.fetch(query, thread_id)]


@retried
async def revoke_link(db: Database, thread_id: UUID, link_id: UUID, caller: Caller) -> None:
    """End a link, and with it whoever is in by it."""
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id, caller)
        where = (share_links.c.thread_id == thread_id) & (share_links.c.id == link_id)
        gone = await connection.execute(delete(share_links).where(where).returning(share_links.c.id))
        if gone.first() is None:
            raise NotFound("There is no such link.")
        await reopen(connection, thread_id)
        await audit.record(connection, "link_revoked", caller, thread_id=thread_id, link=str(link_id))
