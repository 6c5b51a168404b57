"""Creates and changes accounts, memberships and links as rows, without the commands of the store."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from khala.domain import ids
from khala.domain.access import Caller, Role, key_hash
from khala.store.postgres.database import (
    Database,
    driver_of,
)
from khala.store.postgres.notifications import (
    CREDENTIALS_CHANNEL,
    THREADS_CHANNEL,
    notify,
)
from khala.store.sharing import sharing
from khala.store.threads import thread_lists


def soon(seconds: float) -> datetime:
    """The time so many seconds from now."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def new_user(db: Database, name: str = "Tassadar") -> UUID:
    """A new user without sessions or threads."""
    user_id = ids.new()
    async with db.driver() as driver:
        await driver.execute("INSERT INTO users (id, name) VALUES ($1, $2)", user_id, name)
    return user_id


async def signed_in(db: Database, user_id: UUID, *, name: str = "Tassadar", lasts: float = 3600) -> Caller:
    """The user with a new session."""
    session_id, ends = ids.new(), soon(lasts)
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO sessions (id, user_id, secret_hash, expires_at) VALUES ($1, $2, $3, $4)",
            session_id,
            user_id,
            session_id.bytes,
            ends,
        )
    return Caller(user_id=user_id, name=name, credential=session_id, expires_at=ends)


async def sign_out(db: Database, caller: Caller, *, notified: bool = True) -> None:
    """End the session, and notify listeners unless `notified` is false."""
    async with db.transaction() as connection:
        await connection.execute(text("DELETE FROM sessions WHERE id = :id"), {"id": caller.credential})
        if notified:
            await notify(connection, CREDENTIALS_CHANNEL, str(caller.user_id))


async def add_member(db: Database, thread_id: UUID, user_id: UUID, role: str = "viewer") -> None:
    """Make the user a member, with the thread on their list."""
    async with db.transaction() as connection:
        await connection.execute(
            text("INSERT INTO memberships (thread_id, user_id, role) VALUES (:thread, :user, :role)"),
            {"thread": thread_id, "user": user_id, "role": role},
        )
        await thread_lists.add_entry(await driver_of(connection), thread_id, user_id)


async def make_member(db: Database, thread_id: UUID, user_id: UUID, role: Role, owner: Caller) -> None:
    """Make the user a member by the usual steps: an owner invites them, and they accept."""
    await sharing.set_role(db, thread_id, user_id, role, owner)
    member = await sharing.join(db, thread_id, user_id, Caller(user_id=user_id))
    assert (member.role, member.status) == (role, "member")


async def add_link(db: Database, thread_id: UUID, *, lasts: float | None = None) -> Caller:
    """Create a share link to the thread; returns a caller with its key."""
    key = ids.new_secret()
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO share_links (id, thread_id, key_hash, role, expires_at) VALUES ($1, $2, $3, 'viewer', $4)",
            ids.new(),
            thread_id,
            key_hash(key),
            None if lasts is None else soon(lasts),
        )
    return Caller(share_key_hash=key_hash(key))


async def change_access(db: Database, thread_id: UUID, command: str = "SELECT", *, notified: bool = True) -> int:
    """Run a command that changes access, and change `access_id` with it; returns the new revision of the thread."""
    async with db.transaction() as connection:
        bump = "UPDATE threads SET revision = revision + 1, access_id = gen_random_uuid() WHERE id = :id"
        revision = await connection.execute(text(f"{bump} RETURNING revision"), {"id": thread_id})
        await connection.execute(text(command), {"id": thread_id} if ":id" in command else {})
        if notified:
            await notify(connection, THREADS_CHANNEL, str(thread_id))
        return int(revision.scalar_one())


REMOVE_LINKS = "DELETE FROM share_links WHERE thread_id = :id"
CHANGE_KEY = "UPDATE threads SET anon_key_hash = NULL WHERE id = :id"
