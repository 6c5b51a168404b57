"""Limits that administrators set for single accounts, in place of those of their plans. Each change is audited."""

from uuid import UUID

import msgspec
from sqlalchemy import select, update

from khala.domain.access import Caller
from khala.domain.budgets import BudgetOverride
from khala.domain.errors import NotFound
from khala.store.accounts import audit
from khala.store.budgets import account_plans
from khala.store.postgres.database import Database, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import users
from khala.store.threads import thread_lists


@retried
async def set_override(
    db: Database, user_id: UUID, override: BudgetOverride | None, admin: Caller, reason: str | None
) -> bool:
    """Set the limits of an account; None removes them. Returns whether they changed. Raises `NotFound`."""
    async with db.transaction() as connection:
        await connection.execute(select(1))
        driver = await driver_of(connection)
        if not await driver.fetchval("SELECT true FROM users WHERE id = $1", user_id):
            raise NotFound("There is no such account.")
        await thread_lists.lock_user(driver, user_id)
        before = (await account_plans.read(driver, user_id)).override
        if before == override:
            return False
        stored = None if override is None else msgspec.to_builtins(override)
        await connection.execute(update(users).where(users.c.id == user_id).values(budget_limits=stored))
        await audit.record(
            connection,
            "console_budget_set",
            admin,
            account=str(user_id),
            before=_shown(before),
            after=_shown(override),
            reason=reason,
        )
        return True


def _shown(override: BudgetOverride | None) -> object:
    return None if override is None else msgspec.to_builtins(override)
