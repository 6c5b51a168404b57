"""The console's budgets: the limits of the deployment with their usage, the plans, and the limits of one account."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.budgets import (
    END_OF_TIME,
    STRIPED_SCOPES,
    BudgetLimit,
    BudgetMeasure,
    BudgetOverride,
    BudgetPolicy,
    BudgetScope,
    current_window,
)
from khala.domain.decimals import format_decimal, format_optional
from khala.domain.errors import NotFound
from khala.store.budgets import account_plans, windows
from khala.store.console.pages import AccountRef, ConsoleStruct, account_columns, account_ref
from khala.store.postgres.database import Driver

SHARED = """
    SELECT scope, measure, reserved + coalesce((
               SELECT sum(stripe.reserved) FROM budget_stripes AS stripe
               WHERE (stripe.scope, stripe.key, stripe.measure, stripe.starts_at)
                   = (budgets.scope, budgets.key, budgets.measure, budgets.starts_at)), 0) AS reserved,
           settled + coalesce((
               SELECT sum(stripe.settled) FROM budget_stripes AS stripe
               WHERE (stripe.scope, stripe.key, stripe.measure, stripe.starts_at)
                   = (budgets.scope, budgets.key, budgets.measure, budgets.starts_at)), 0) AS settled
    FROM budgets WHERE scope = ANY($1::text[]) AND key = '' AND starts_at = ANY($2::timestamptz[])
"""
"""The usage of a window is the sum over its row and its stripes."""
ACCOUNT = f"SELECT {account_columns('page.id', 'account')} FROM (SELECT id FROM users WHERE id = $1) AS page"


class ConsoleLimit(ConsoleStruct, frozen=True, kw_only=True):
    """A limit, in decimal texts. The usage is that of the current window, null where each subject has its own."""

    scope: BudgetScope
    measure: BudgetMeasure
    most: str
    window: int | None
    used: str | None = None
    reserved: str | None = None
    ends_at: datetime | None = None


class ConsoleBudgetPlan(ConsoleStruct, frozen=True, kw_only=True):
    """A plan, and all limits of an account that has it."""

    name: str
    limits: list[ConsoleLimit]


class ConsoleBudgets(ConsoleStruct, frozen=True, kw_only=True):
    """The limits of the deployment."""

    limits: list[ConsoleLimit]
    plans: list[ConsoleBudgetPlan]
    default_plan: str | None


class ConsoleOverride(ConsoleStruct, frozen=True, kw_only=True):
    """Limits that an administrator has set, in decimal texts; null for that of the plan, 0 for none."""

    runs_per_hour: str | None
    usd_per_day: str | None
    tokens_per_day: str | None


class ConsoleUserBudgets(ConsoleStruct, frozen=True, kw_only=True):
    """The limits that apply to an account, and their usage."""

    account: AccountRef
    plan: str | None
    override: ConsoleOverride | None
    usage: list[ConsoleLimit]


async def read_all(driver: Driver, policy: BudgetPolicy) -> ConsoleBudgets:
    """Return the limits of the deployment, with the usage of those that all share, and the plans."""
    now = datetime.now(UTC)
    starts = [current_window(limit, now)[0] for limit in policy.limits if limit.scope in STRIPED_SCOPES]
    found = await driver.fetch(SHARED, list(STRIPED_SCOPES), list(set(starts)))
    used = {(row["scope"], row["measure"]): (row["settled"], row["reserved"]) for row in found}
    limits = []
    for limit in policy.limits:
        shown = _limit(limit)
        if limit.scope in STRIPED_SCOPES:
            settled, reserved = used.get((limit.scope, limit.measure), (Decimal(0), Decimal(0)))
            usage = {"used": format_decimal(settled), "reserved": format_decimal(reserved)}
            shown = msgspec.structs.replace(shown, **usage, ends_at=_end(limit, now))
        limits.append(shown)
    plans = [ConsoleBudgetPlan(name=name, limits=_limits(found)) for name, found in policy.plans.items()]
    return ConsoleBudgets(limits=limits, plans=plans, default_plan=policy.default_plan)


async def read_account(driver: Driver, policy: BudgetPolicy, user_id: UUID) -> ConsoleUserBudgets:
    """Return the limits of an account and their usage. Raises `NotFound`."""
    row = await driver.fetchrow(ACCOUNT, user_id)
    account = None if row is None else account_ref(row, "account")
    if account is None:
        raise NotFound("There is no such account.")
    own = await account_plans.read(driver, user_id)
    windows_of = {limit.measure: limit.window for limit in own.applied(policy).limits if limit.scope == "user"}
    usage = [
        ConsoleLimit(
            scope=each.scope,
            measure=each.measure,
            most=each.most,
            window=windows_of.get(each.measure),
            used=each.used,
            reserved=each.reserved,
            ends_at=each.ends_at,
        )
        for each in await windows.read_usage(driver, Caller(user_id=user_id), policy)
    ]
    return ConsoleUserBudgets(account=account, plan=own.plan, override=_override(own.override), usage=usage)


def _limits(limits: Sequence[BudgetLimit]) -> list[ConsoleLimit]:
    return [_limit(limit) for limit in limits]


def _limit(limit: BudgetLimit) -> ConsoleLimit:
    most = format_decimal(limit.most)
    return ConsoleLimit(scope=limit.scope, measure=limit.measure, most=most, window=limit.window)


def _end(limit: BudgetLimit, now: datetime) -> datetime | None:
    end = current_window(limit, now)[1]
    return None if end == END_OF_TIME else end


def _override(override: BudgetOverride | None) -> ConsoleOverride | None:
    if override is None:
        return None
    names = BudgetOverride.__struct_fields__
    return ConsoleOverride(**{name: format_optional(getattr(override, name)) for name in names})
