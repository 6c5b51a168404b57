"""The limits that apply to a user, or to a thread: those of its owner, or of its guests if it has none."""

from uuid import UUID

from khala.domain.access import Caller
from khala.domain.budgets import budget_keys
from khala.store.budgets.charges import Payer
from khala.store.postgres.database import Driver

OWNER = """
    SELECT id AS thread_id, owner_id AS user_id, anon_key_hash FROM threads WHERE id = $1
    UNION ALL SELECT NULL, id, NULL FROM users WHERE id = $1
"""


def of_user(user_id: UUID) -> Payer:
    """The payer of a user's calls outside of threads."""
    return Payer(keys={"user": user_id.bytes, "accounts": b""}, user_id=user_id)


async def of_owner(driver: Driver, owner_id: UUID) -> Payer | None:
    """The payer of calls for this user or thread; None if it has been deleted."""
    row = await driver.fetchrow(OWNER, owner_id)
    if row is None:
        return None
    if row["thread_id"] is None:
        return of_user(owner_id)
    keys = budget_keys(Caller(), owner_id, row["user_id"], row["anon_key_hash"])
    return Payer(keys=keys, user_id=row["user_id"], thread_id=owner_id)
