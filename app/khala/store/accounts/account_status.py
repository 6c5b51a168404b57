"""The operator's decisions about an account: whether it is an administrator's or blocked, and its password."""

from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Caller
from khala.domain.errors import Conflict
from khala.store.accounts import audit
from khala.store.accounts.account_names import find_account
from khala.store.postgres.database import Database, driver_of
from khala.store.postgres.notifications import CREDENTIALS_CHANNEL, notify
from khala.store.postgres.retries import retried
from khala.store.schema.tables import passwords, sessions, users
from khala.store.threads import thread_lists

DISABLE_WEBHOOKS = """
    UPDATE webhook_endpoints SET is_enabled = false, disabled_reason = 'The account was blocked.'
    WHERE id IN (
        SELECT id FROM webhook_endpoints WHERE scope_id = $1 AND is_enabled ORDER BY id FOR NO KEY UPDATE)
"""


@retried
async def set_admin(db: Database, account: str, *, admin: bool) -> UUID:
    """Make the account an administrator's, or undo that. Returns its id."""
    async with db.transaction() as connection:
        user_id = await _lock(connection, account)
        await connection.execute(update(users).where(users.c.id == user_id).values(admin=admin))
        await audit.record(connection, "admin_given" if admin else "admin_taken", Caller(user_id=user_id))
        return user_id


@retried
async def set_blocked(
    db: Database, account: str, *, blocked: bool, admin: Caller | None = None, reason: str | None = None
) -> UUID:
    """Block the account, or unblock it. Returns its id. Blocking ends its sessions, subscriptions and webhooks.

    An `admin` who does it in the console has an entry of the audit trail, too, unless nothing changes.
    """
    async with db.transaction() as connection:
        user_id = await _lock(connection, account)
        if admin is not None:
            if await _is_blocked(connection, user_id) == blocked:
                return user_id
            action = "console_account_blocked" if blocked else "console_account_unblocked"
            await audit.record(connection, action, admin, reason=reason, account=str(user_id))
        blocked_at = func.coalesce(users.c.blocked_at, func.clock_timestamp()) if blocked else None
        await connection.execute(update(users).where(users.c.id == user_id).values(blocked_at=blocked_at))
        if blocked:
            await connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
            driver = await driver_of(connection)
            await driver.execute(DISABLE_WEBHOOKS, user_id)
            await notify(connection, CREDENTIALS_CHANNEL, str(user_id))
        await audit.record(connection, "blocked" if blocked else "unblocked", Caller(user_id=user_id))
        return user_id


@retried
async def reset_password(db: Database, account: str, password_hash: str) -> UUID:
    """Replace the password of the account, and end all its sessions. Returns its id.

    API tokens and the access of apps (OAuth grants) stay valid. Raises `Conflict` if it has no password, because
    it signs in with another provider.
    """
    async with db.transaction() as connection:
        user_id = await _lock(connection, account)
        changed = update(passwords).where(passwords.c.user_id == user_id).returning(passwords.c.user_id)
        values = changed.values(hash=password_hash, changed_at=func.now())
        if (await connection.execute(values)).first() is None:
            raise Conflict("This account has no password: it signs in with another provider.")
        await connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
        await notify(connection, CREDENTIALS_CHANNEL, str(user_id))
        await audit.record(connection, "password_reset", Caller(user_id=user_id))
        return user_id


async def _is_blocked(connection: AsyncConnection, user_id: UUID) -> bool:
    query = select(users.c.blocked_at.is_not(None)).where(users.c.id == user_id)
    return bool((await connection.execute(query)).scalar_one())


async def _lock(connection: AsyncConnection, account: str) -> UUID:
    """Lock the account with this id or address. Raises `NotFound`, and `Conflict` if several have the address."""
    await connection.execute(select(func.now()))
    driver = await driver_of(connection)
    user_id = await find_account(driver, account)
    await thread_lists.lock_user(driver, user_id)
    return user_id
