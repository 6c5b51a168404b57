"""The limits that apply to a user, or to a thread: those of its owner, or of its guests if it has none."""

from uuid import UUID

from khala.domain.access import Caller
from khala.domain.budgets import BudgetPolicy, budget_keys
from khala.store.budgets import account_plans
from khala.store.budgets.charges import Payer
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

OWNER = """
    SELECT threads.id AS thread_id, owner_id AS user_id, anon_key_hash, budget_plan, budget_limits
    FROM threads LEFT JOIN users ON users.id = owner_id WHERE threads.id = $1
    UNION ALL SELECT NULL, id, NULL, budget_plan, budget_limits FROM users WHERE id = $1
"""


def of_user(user_id: UUID) -> Payer:
    """The payer of a user's calls outside of threads."""
    return Payer(keys={"user": user_id.bytes, "accounts": b""}, user_id=user_id)


async def of_owner(driver: Driver, owner_id: UUID) -> Payer | None:
    """The payer of calls for this user or thread; None if it has been deleted."""
    row = await driver.fetchrow(OWNER, owner_id)
    return None if row is None else _payer(row, owner_id)


async def with_limits(driver: Driver, policy: BudgetPolicy, owner_id: UUID) -> tuple[Payer, BudgetPolicy] | None:
    """The payer of calls for this user or thread, and the limits that apply; None if it has been deleted.

    One statement. `policy`: the limits of this deployment.
    """
    row = await driver.fetchrow(OWNER, owner_id)
    if row is None:
        return None
    limits = account_plans.account_limits(row["budget_plan"], row["budget_limits"])
    return _payer(row, owner_id), policy if row["user_id"] is None else limits.applied(policy)


def _payer(row: Record, owner_id: UUID) -> Payer:
    if row["thread_id"] is None:
        return of_user(owner_id)
    keys = budget_keys(Caller(), owner_id, row["user_id"], row["anon_key_hash"])
    return Payer(keys=keys, user_id=row["user_id"], thread_id=owner_id)
