"""Accounts: users, with their passwords and identities."""

from uuid import UUID

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.accounts import Identity, LinkedIdentity, User
from khala.domain.errors import Conflict, Unauthorized
from khala.store.accounts import account_removal, audit, sessions
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.retries import retried
from khala.store.schema.tables import (
    identities,
    passwords,
    users,
)
from khala.store.threads import thread_lists

PROFILE = """
    SELECT users.*, passwords.email AS login, (
        SELECT coalesce(json_agg(json_build_object('issuer', issuer, 'email', email) ORDER BY created_at), '[]')
        FROM identities WHERE identities.user_id = users.id) AS linked
    FROM users LEFT JOIN passwords ON passwords.user_id = users.id WHERE users.id = $1
"""


class PasswordRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The hash of a stored password, and its user."""

    user_id: UUID
    hash: str


@retried
async def register(db: Database, email: str, password_hash: str, name: str | None, caller: Caller) -> UUID:
    """Create a user who signs in with this address and password. Raises `Conflict` if the address has an account."""
    try:
        async with db.transaction() as connection:
            user_id = await _insert_user(connection, name=name, email=email)
            await connection.execute(insert(passwords).values(user_id=user_id, email=email, hash=password_hash))
            await audit.record(connection, "registered", msgspec.structs.replace(caller, user_id=user_id))
            return user_id
    except IntegrityError as error:
        raise Conflict("This address has an account. Sign in instead.") from error


async def _insert_user(connection: AsyncConnection, **columns: str | None) -> UUID:
    user_id = ids.new()
    await connection.execute(insert(users).values(id=user_id, **columns))
    return user_id


async def password_record(driver: Driver, email: str) -> PasswordRecord | None:
    """The hash of the password of the account with this address. None if there is no such account."""
    row = await driver.fetchrow("SELECT user_id, hash FROM passwords WHERE email = $1", email)
    return None if row is None else PasswordRecord(user_id=row["user_id"], hash=row["hash"])


async def password_record_of_user(driver: Driver, user_id: UUID) -> PasswordRecord | None:
    """The hash of this user's password. None if they have no password."""
    row = await driver.fetchrow("SELECT user_id, hash FROM passwords WHERE user_id = $1", user_id)
    return None if row is None else PasswordRecord(user_id=row["user_id"], hash=row["hash"])


@retried
async def rehash(db: Database, user_id: UUID, before: str, after: str) -> None:
    """Replace the hash of an unchanged password, if the stored hash is still `before`."""
    known = (passwords.c.user_id == user_id) & (passwords.c.hash == before)
    async with db.transaction() as connection:
        await connection.execute(update(passwords).where(known).values(hash=after))


@retried
async def set_password(db: Database, caller: Caller, password_hash: str, *, email: str | None) -> None:
    """Change the password, or add one with this address. All sessions but the caller's end."""
    user_id = require_account(caller)
    try:
        async with db.transaction() as connection:
            await connection.execute(select(func.now()))
            await thread_lists.lock_user(await driver_of(connection), user_id)
            if email is not None:
                await connection.execute(insert(passwords).values(user_id=user_id, email=email, hash=password_hash))
                fresh = update(users).where(users.c.id == user_id, users.c.email.is_(None))
                await connection.execute(fresh.values(email=email))
            else:
                changed = update(passwords).where(passwords.c.user_id == user_id)
                await connection.execute(changed.values(hash=password_hash, changed_at=func.now()))
            await sessions.end_others(connection, user_id, caller.credential)
            await audit.record(connection, "password_changed", caller)
    except IntegrityError as error:
        raise Conflict("This address has an account, or the account has a password by now.") from error


@retried
async def of_identity(db: Database, identity: Identity, caller: Caller) -> UUID:
    """The user with this identity. The first sign-in creates the user, even if another user has the e-mail address."""
    where = (identities.c.issuer == identity.issuer) & (identities.c.subject == identity.subject)
    async with db.transaction() as connection:
        found = (await connection.execute(select(identities.c.user_id).where(where))).scalar_one_or_none()
        if found is not None:
            return UUID(str(found))
        user_id = await _insert_user(connection, name=identity.name, email=identity.email)
        if await _link(connection, identity, user_id):
            await audit.record(connection, "registered", msgspec.structs.replace(caller, user_id=user_id))
            return user_id
        # A concurrent sign-in has created the identity first: use its user.
        await connection.execute(delete(users).where(users.c.id == user_id))
        return UUID(str((await connection.execute(select(identities.c.user_id).where(where))).scalar_one()))


@retried
async def link(db: Database, identity: Identity, user_id: UUID, caller: Caller) -> None:
    """Add this identity to the account. Raises `Conflict` if another account has it."""
    where = (identities.c.issuer == identity.issuer) & (identities.c.subject == identity.subject)
    async with db.transaction() as connection:
        if not await _link(connection, identity, user_id):
            found = (await connection.execute(select(identities.c.user_id).where(where))).scalar_one()
            if found != user_id:
                raise Conflict("This identity belongs to another account here.")
        await audit.record(connection, "identity_linked", caller, issuer=identity.issuer)


async def _link(connection: AsyncConnection, identity: Identity, user_id: UUID) -> bool:
    row = {"issuer": identity.issuer, "subject": identity.subject, "email": identity.email, "user_id": user_id}
    made = await connection.execute(
        upsert(identities).values(**row).on_conflict_do_nothing().returning(identities.c.user_id)
    )
    return made.first() is not None


@retried
async def record_failure(db: Database, user_id: UUID, caller: Caller) -> None:
    """Record a sign-in with a wrong password in the audit trail."""
    async with db.transaction() as connection:
        await audit.record(connection, "sign_in_failed", Caller(user_id=user_id, network=caller.network))


async def get(driver: Driver, user_id: UUID) -> User:
    """The account as its user sees it."""
    row = await driver.fetchrow(PROFILE, user_id)
    if row is None:
        raise Unauthorized("This account was deleted.")
    return User(
        id=row["id"],
        name=row["name"],
        email=row["email"],
        password=row["login"] is not None,
        identities=msgspec.json.decode(row["linked"], type=tuple[LinkedIdentity, ...]),
        created_at=row["created_at"],
    )


@retried
async def rename(db: Database, user_id: UUID, name: str | None) -> None:
    """Change the user's name. Existing messages keep the old one."""
    async with db.transaction() as connection:
        await connection.execute(update(users).where(users.c.id == user_id).values(name=name))


async def remove(db: Database, caller: Caller) -> None:
    """Delete the account and everything that it owns. Its messages in other threads stay, without a name.

    Its rights end at once; a large account is deleted in the background (`account_removal`).
    """
    await account_removal.remove(db, caller, require_account(caller))


def require_account(caller: Caller) -> UUID:
    """The caller's user id. Raises `Unauthorized` if they have no account."""
    if caller.user_id is None:
        raise Unauthorized("Sign in first.")
    return caller.user_id


async def name_of(driver: Driver, user_id: UUID) -> str | None:
    """The user's name."""
    name: str | None = await driver.fetchval("SELECT name FROM users WHERE id = $1", user_id)
    return name
