"""Marks of accounts without rights: deleted ones, of which the purge deletes what is left, and blocked ones."""

from uuid import UUID

from khala.domain.errors import Unauthorized
from khala.store.postgres.database import Driver

IS_PRESENT = "NOT EXISTS (SELECT FROM deleted_accounts WHERE deleted_accounts.user_id = {0})"
"""SQL: the account with this id is not deleted."""
USER_IS_PRESENT = f"SELECT {IS_PRESENT.format('$1')}"
"""Whether the account with this id is not deleted. A statement of its own, after the lock of the user's row, sees a
deletion that the lock has waited for."""
IS_OWNER_PRESENT = IS_PRESENT.format("threads.owner_id")
"""A condition on a row of `threads`: its owner's account is not deleted. Otherwise nobody may read the thread."""
LOCK = "SELECT id FROM users WHERE id = $1 FOR KEY SHARE"
BLOCKED = "This account is blocked. Ask the operator of this server."


async def is_blocked(driver: Driver, user_id: UUID) -> bool:
    """Whether the operator has blocked this account."""
    return bool(await driver.fetchval("SELECT blocked_at IS NOT NULL FROM users WHERE id = $1", user_id))


async def lock_account(driver: Driver, user_id: UUID) -> None:
    """Keep the account from being deleted until the transaction ends. Raises `Unauthorized` if it was deleted."""
    is_locked = await driver.fetchval(LOCK, user_id) is not None
    if not is_locked or not await driver.fetchval(USER_IS_PRESENT, user_id):
        raise Unauthorized("This account was deleted.")
