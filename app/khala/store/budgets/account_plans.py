"""The budget plan of an account: which of the operator's plans its limits come from."""

from collections.abc import Mapping
from uuid import UUID

from khala.domain.budgets import BudgetPolicy, BudgetScope
from khala.store.postgres.database import Driver

PLAN = "SELECT budget_plan FROM users WHERE id = $1"


async def policy_of(driver: Driver, policy: BudgetPolicy, keys: Mapping[BudgetScope, bytes]) -> BudgetPolicy:
    """The limits that apply where these keys pay. Without plans, nothing is read."""
    user = keys.get("user")
    if not policy.plans or user is None:
        return policy
    return policy.of_plan(await driver.fetchval(PLAN, UUID(bytes=user)))
