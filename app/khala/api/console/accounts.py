"""The console's accounts and their budgets."""

from decimal import Decimal
from typing import Annotated
from uuid import UUID

import msgspec
import structlog
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter
from msgspec import Meta

from khala.api.console.access import ConsoleReason, Reason, given_reason, is_self
from khala.api.console.cursors import decode_id, encode_id
from khala.api.console.types import (
    BODY,
    DENIED,
    ConsoleController,
    ConsolePage,
    Cursor,
    Limit,
    Search,
    page_of,
)
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.types import ApiStruct
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.budgets import BudgetOverride
from khala.domain.errors import Conflict, InvalidInput
from khala.store.accounts import account_status
from khala.store.budgets import account_overrides
from khala.store.console import account_list, budget_list
from khala.store.console.account_list import AccountStateFilter, ConsoleAccount, ConsoleAccountDetails
from khala.store.console.budget_list import ConsoleBudgets, ConsoleUserBudgets

log = structlog.get_logger()

MAX_AMOUNT = 1_000_000_000
MAX_DIGITS = 12
"""Digits after the point."""

AccountId = Annotated[UUID, PathParameter(description="The account's id.")]
Reasoned = Annotated[ConsoleReason | None, BodyKwarg(examples=example("With a reason", reason="Sends spam."))]
ACCOUNT_ERRORS = documented_errors(*DENIED, "not_found", "conflict", *BODY)
Amount = Annotated[Decimal, Meta(description="At least 0, which switches the limit off.")]


class BudgetChange(ApiStruct, frozen=True, kw_only=True):
    """Limits of one account. A limit that is null or absent is that of its plan, and 0 switches one off."""

    runs_per_hour: Amount | None = None
    usd_per_day: Amount | None = None
    tokens_per_day: Amount | None = None


class BudgetOverrideChange(ApiStruct, frozen=True, kw_only=True):
    """The limits to set. `null` for `limits` removes those that an administrator has set."""

    limits: BudgetChange | None
    reason: Reason | None = None


class ConsoleAccountController(ConsoleController):
    """All accounts."""

    path = "/console/accounts"

    @get(
        "/",
        operation_id="listConsoleAccounts",
        summary="List accounts",
        response_description="Accounts, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        q: Search = None,
        in_state: Annotated[
            AccountStateFilter | None, QueryParameter(name="state", description="Only these accounts.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[ConsoleAccount]:
        """List accounts. `q` is an id, or the beginning of a name or e-mail address."""
        text = check_text(q.strip(), "q") if q else None
        async with context.db.snapshot() as driver:
            found = await account_list.read_page(driver, text, in_state, decode_id(cursor), limit + 1)
        return page_of(found, limit, lambda account: encode_id(account.id))

    @get(
        "/{account_id:uuid}",
        operation_id="readConsoleAccount",
        summary="Read an account",
        response_description="The account.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], admin: NamedDependency[Caller], account_id: AccountId
    ) -> ConsoleAccountDetails:
        """Read an account, and how much it has."""
        async with context.db.snapshot() as driver:
            return await account_list.read(driver, account_id)

    @post(
        "/{account_id:uuid}/block",
        operation_id="blockAccount",
        operation_class=OptionalBody,
        summary="Block an account",
        status_code=200,
        response_description="The account.",
        responses=ACCOUNT_ERRORS,
    )
    async def block(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account_id: AccountId,
        data: Reasoned = None,
    ) -> ConsoleAccountDetails:
        """Block an account: its sessions, subscriptions and webhooks end, and none of its credentials is accepted."""
        if is_self(admin, account_id):
            raise Conflict("You cannot block yourself.")
        return await _set_blocked(context, admin, account_id, data, blocked=True)

    @post(
        "/{account_id:uuid}/unblock",
        operation_id="unblockAccount",
        operation_class=OptionalBody,
        summary="Unblock an account",
        status_code=200,
        response_description="The account.",
        responses=ACCOUNT_ERRORS,
    )
    async def unblock(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account_id: AccountId,
        data: Reasoned = None,
    ) -> ConsoleAccountDetails:
        """Unblock an account. Its tokens are accepted again; its sessions have ended."""
        return await _set_blocked(context, admin, account_id, data, blocked=False)


async def _set_blocked(
    context: Context, admin: Caller, account_id: UUID, data: ConsoleReason | None, *, blocked: bool
) -> ConsoleAccountDetails:
    reason = given_reason(data)
    await account_status.set_blocked(context.db, str(account_id), blocked=blocked, admin=admin, reason=reason)
    log.info("console_account_changed", account=str(account_id), blocked=blocked)
    async with context.db.snapshot() as driver:
        return await account_list.read(driver, account_id)


class ConsoleBudgetController(ConsoleController):
    """Budgets of the deployment and of accounts."""

    path = "/console/budgets"

    @get(
        "/",
        operation_id="listConsoleBudgets",
        summary="Read the limits of the deployment",
        response_description="The limits, and the plans.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], admin: NamedDependency[Caller]) -> ConsoleBudgets:
        """Read all limits with the usage of those that all share, and the plans."""
        async with context.db.snapshot() as driver:
            return await budget_list.read_all(driver, context.limits.sends.budgets)

    @get(
        "/{account_id:uuid}",
        operation_id="readConsoleBudgets",
        summary="Read the limits of an account",
        response_description="The limits that apply, and their usage.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], admin: NamedDependency[Caller], account_id: AccountId
    ) -> ConsoleUserBudgets:
        """Read the limits of an account and their usage."""
        async with context.db.snapshot() as driver:
            return await budget_list.read_account(driver, context.limits.sends.budgets, account_id)

    @put(
        "/{account_id:uuid}",
        operation_id="setConsoleBudgets",
        summary="Set the limits of an account",
        response_description="The limits that apply, and their usage.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account_id: AccountId,
        data: Annotated[
            BudgetOverrideChange, BodyKwarg(examples=example("A higher limit", limits={"usdPerDay": "20"}))
        ],
    ) -> ConsoleUserBudgets:
        """Set limits in place of those of the account's plan, from the next message on."""
        reason = given_reason(ConsoleReason(reason=data.reason))
        override = None if data.limits is None else _override(data.limits)
        changed = await account_overrides.set_override(context.db, account_id, override, admin, reason)
        log.info("console_budget_set", account=str(account_id), changed=changed)
        async with context.db.snapshot() as driver:
            return await budget_list.read_account(driver, context.limits.sends.budgets, account_id)


def _override(limits: BudgetChange) -> BudgetOverride | None:
    """Return the limits. Without any there is no override."""
    amounts = {name: amount for name, amount in msgspec.structs.asdict(limits).items() if amount is not None}
    for name, amount in amounts.items():
        exponent = amount.as_tuple().exponent
        if not (isinstance(exponent, int) and exponent >= -MAX_DIGITS and 0 <= amount <= MAX_AMOUNT):
            path = f"limits.{BudgetChange.__struct_encode_fields__[BudgetChange.__struct_fields__.index(name)]}"
            bounds = f"between 0 and {MAX_AMOUNT:,}, with at most {MAX_DIGITS} digits after the point"
            raise InvalidInput(f"A limit is {bounds}.", path=path)
    return BudgetOverride(**amounts) if amounts else None
