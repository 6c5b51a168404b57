"""Marks of accounts without rights: deleted ones, of which the purge deletes what is left, and blocked ones."""

from uuid import UUID

from khala.store.postgres.database import Driver

IS_PRESENT = "NOT EXISTS (SELECT FROM deleted_accounts WHERE deleted_accounts.user_id = {0})"
"""SQL: the account with this id is not deleted."""
USER_IS_PRESENT = f"SELECT {IS_PRESENT.format('$1')}"
"""Whether the account with this id is not deleted. A statement of its own, after the lock of the user's row, sees a
deletion that the lock has waited for."""
IS_OWNER_PRESENT = IS_PRESENT.format("threads.owner_id")
"""A condition on a row of `threads`: its owner's account is not deleted. Otherwise nobody may read the thread."""
BLOCKED = "This account is blocked. Ask the operator of this server."


async def is_blocked(driver: Driver, user_id: UUID) -> bool:
    """Whether the operator has blocked this account."""
    return bool(await driver.fetchval("SELECT blocked_at IS NOT NULL FROM users WHERE id = $1", user_id))
