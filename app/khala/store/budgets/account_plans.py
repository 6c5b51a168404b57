"""The limits of an account: those of its budget plan, and those that an administrator has set in place of them."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from khala.domain.budgets import BudgetOverride, BudgetPolicy, BudgetScope
from khala.store.postgres.database import Driver

PAYER = "SELECT budget_plan, budget_limits FROM users WHERE id = {0} LIMIT 1"
"""SQL: the columns of `AccountLimits`."""


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of an account, and what an administrator has set in place of its limits."""

    plan: str | None = None
    override: BudgetOverride | None = None

    def applied(self, policy: BudgetPolicy) -> BudgetPolicy:
        """The limits that apply to the account."""
        return policy.of_plan(self.plan).overridden(self.override)


def account_limits(plan: str | None, limits: str | None) -> AccountLimits:
    """The columns of `PAYER`."""
    return AccountLimits(plan=plan, override=None if limits is None else decode_override(limits))


def decode_override(limits: str) -> BudgetOverride:
    """The stored limits of an account."""
    return msgspec.json.decode(limits, type=BudgetOverride)


async def read(driver: Driver, user_id: UUID) -> AccountLimits:
    """The limits of this account; those of all accounts if there is no such account."""
    row = await driver.fetchrow(PAYER.format("$1"), user_id)
    return AccountLimits() if row is None else account_limits(row["budget_plan"], row["budget_limits"])


async def policy_of(driver: Driver, policy: BudgetPolicy, keys: Mapping[BudgetScope, bytes]) -> BudgetPolicy:
    """The limits that apply where these keys pay."""
    user = keys.get("user")
    return policy if user is None else (await read(driver, UUID(bytes=user))).applied(policy)
