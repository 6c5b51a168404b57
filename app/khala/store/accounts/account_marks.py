"""Marks of deleted accounts: an account that is marked has no rights, and the purge deletes what is left of it."""

IS_PRESENT = "NOT EXISTS (SELECT FROM deleted_accounts WHERE deleted_accounts.user_id = {0})"
"""SQL: the account with this id is not deleted."""
USER_IS_PRESENT = f"SELECT {IS_PRESENT.format('$1')}"
"""Whether the account with this id is not deleted. A statement of its own, after the lock of the user's row, sees a
deletion that the lock has waited for."""
IS_OWNER_PRESENT = IS_PRESENT.format("threads.owner_id")
"""A condition on a row of `threads`: its owner's account is not deleted. Otherwise nobody may read the thread."""
