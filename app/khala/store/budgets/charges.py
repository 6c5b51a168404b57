"""Charges: calls of models outside of runs count against budgets, and have receipts.

A call is charged by an estimate before it begins, and by its usage when it has ended. If the process dies in between,
the estimate stays counted, as that of an interrupted run does.

Small calls that somebody waits for are not charged before: `remainder` says without any lock whether they may be made,
and `add` counts them later.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.budgets import (
    SMALLEST_AMOUNT,
    BudgetMeasure,
    BudgetPolicy,
    BudgetScope,
    ReservationRequest,
    current_window,
)
from khala.domain.parts import json_text
from khala.store.budgets import account_plans, ledger
from khala.store.budgets.ledger import MAX_SETTLED, UNBOUNDED
from khala.store.budgets.stripes import CREATE_WINDOW, PUT_BACK, STRIPED, refilled
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried

ChargePurpose: TypeAlias = Literal["extraction", "embedding", "title"]
Amounts: TypeAlias = Mapping[BudgetMeasure, Decimal]

RECEIPT = """
    INSERT INTO usage_receipts (id, user_id, thread_id, run_id, purpose, data, cost_usd)
    VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7) ON CONFLICT DO NOTHING
"""
CORRECT = f"""
    WITH due AS (
        SELECT entry.run_id, entry.scope, entry.measure, used.amount, entry.settled
        FROM usage_ledger AS entry JOIN unnest($2::text[], $3::numeric[]) AS used (measure, amount) USING (measure)
        WHERE entry.run_id = $1 ORDER BY entry.run_id, entry.scope, entry.measure FOR NO KEY UPDATE OF entry
    ), closed AS (
        UPDATE usage_ledger AS entry SET settled = due.amount FROM due
        WHERE entry.run_id = due.run_id AND entry.scope = due.scope AND entry.measure = due.measure
        RETURNING entry.scope, entry.key, entry.measure, entry.starts_at, due.amount - due.settled AS used, entry.most
    ), summed AS (
        SELECT scope, key, measure, starts_at, 0::numeric AS freed, used, most FROM closed
    ), put_back AS ({PUT_BACK}
    ), held AS (
        SELECT summed.* FROM summed JOIN budgets USING (scope, key, measure, starts_at)
        WHERE scope NOT IN ({STRIPED})
        ORDER BY scope, key, measure, starts_at FOR NO KEY UPDATE OF budgets
    )
    UPDATE budgets SET settled = budgets.settled + held.used FROM held
    WHERE budgets.scope = held.scope AND budgets.key = held.key
      AND budgets.measure = held.measure AND budgets.starts_at = held.starts_at
"""
ADD = f"""
    WITH added AS (
        SELECT * FROM unnest($2::text[], $3::bytea[], $4::text[], $5::timestamptz[], $6::numeric[], $7::numeric[])
            AS added (scope, key, measure, starts_at, amount, most)
    ), entered AS (
        INSERT INTO usage_ledger (run_id, scope, measure, key, starts_at, reserved, settled, most)
        SELECT $1, scope, measure, key, starts_at, 0, amount, most FROM added
    ), summed AS (
        SELECT scope, key, measure, starts_at, 0::numeric AS freed, amount AS used, most FROM added
    ), put_back AS ({PUT_BACK}
    ), held AS (
        SELECT added.* FROM added JOIN budgets USING (scope, key, measure, starts_at)
        WHERE scope NOT IN ({STRIPED})
        ORDER BY scope, key, measure, starts_at FOR NO KEY UPDATE OF budgets
    )
    UPDATE budgets SET settled = budgets.settled + held.amount FROM held
    WHERE budgets.scope = held.scope AND budgets.key = held.key
      AND budgets.measure = held.measure AND budgets.starts_at = held.starts_at
"""
REMAINDER = """
    SELECT measure, min(most - coalesce((
        SELECT reserved + settled FROM budgets
        WHERE (budgets.scope, budgets.key, budgets.measure, budgets.starts_at)
            = (limits.scope, limits.key, limits.measure, limits.starts_at)
    ), 0) - coalesce((
        SELECT sum(reserved + settled) FROM budget_stripes AS stripe
        WHERE (stripe.scope, stripe.key, stripe.measure, stripe.starts_at)
            = (limits.scope, limits.key, limits.measure, limits.starts_at)
    ), 0)) AS amount
    FROM unnest($1::text[], $2::bytea[], $3::text[], $4::timestamptz[], $5::numeric[])
        AS limits (scope, key, measure, starts_at, most)
    GROUP BY measure
"""
UNIT = Decimal(1)


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a call counts against, and the account, thread and run that its receipt names."""

    keys: Mapping[BudgetScope, bytes]
    user_id: UUID | None = None
    thread_id: UUID | None = None
    run_id: UUID | None = None


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was charged by an estimate. `id` is that of its receipt."""

    id: UUID
    payer: Payer
    purpose: ChargePurpose
    counted: bool
    """Whether any limit applies."""


@retried
@refilled
async def begin(
    db: Database,
    policy: BudgetPolicy,
    payer: Payer,
    purpose: ChargePurpose,
    estimate: Amounts,
    *,
    refusable: bool = True,
) -> Charge:
    """Charge a call by the estimate. Raises `BudgetExhausted` if a limit has less left, unless it is not refusable."""
    now = datetime.now(UTC)
    policy = await _policy(db, policy, payer)
    requests = _requests(policy, payer, estimate, now, refusable=refusable)
    charge = Charge(id=ids.new(), payer=payer, purpose=purpose, counted=bool(requests))
    if requests:
        async with db.driver() as driver, driver.transaction(isolation="read_committed"):
            await ledger.charge(driver, charge.id, requests, now)
    return charge


@retried
async def end(db: Database, charge: Charge, used: Amounts, facts: Mapping[str, Any], cost_usd: Decimal | None) -> None:
    """Replace the estimate by the usage, and store the receipt. Repeating it changes nothing."""
    async with db.driver() as driver, driver.transaction(isolation="read_committed"):
        if charge.counted:
            amounts = [min(amount, Decimal(MAX_SETTLED)).quantize(SMALLEST_AMOUNT) for amount in used.values()]
            await driver.execute(CORRECT, charge.id, list(used), amounts)
        await driver.execute(RECEIPT, *_receipt(charge, facts, cost_usd))


@retried
async def add(
    db: Database,
    policy: BudgetPolicy,
    payer: Payer,
    purpose: ChargePurpose,
    used: Amounts,
    facts: Mapping[str, Any],
    cost_usd: Decimal | None,
) -> None:
    """Count calls that have ended, even over a limit, and store one receipt for them."""
    charge = Charge(id=ids.new(), payer=payer, purpose=purpose, counted=True)
    policy = await _policy(db, policy, payer)
    requests = _requests(policy, payer, used, datetime.now(UTC), refusable=True)
    async with db.driver() as driver:
        for request in requests:
            await driver.execute(CREATE_WINDOW, *request.window_key, request.ends_at)
        async with driver.transaction(isolation="read_committed"):
            if requests:
                columns = [(*one.window_key, min(one.wanted, Decimal(MAX_SETTLED)), one.most) for one in requests]
                await driver.execute(ADD, charge.id, *zip(*columns, strict=True))
            await driver.execute(RECEIPT, *_receipt(charge, facts, cost_usd))


async def remainder(
    driver: Driver, policy: BudgetPolicy, payer: Payer, measures: Sequence[BudgetMeasure]
) -> Mapping[BudgetMeasure, Decimal]:
    """The amounts that the payer's limits have left. Waits for no lock. A measure without a limit is missing.

    `policy`: the limits that apply to the payer.
    """
    requests = _requests(policy, payer, dict.fromkeys(measures, UNIT), datetime.now(UTC), refusable=True)
    columns = [(*one.window_key, one.most) for one in requests]
    rows = await driver.fetch(REMAINDER, *zip(*columns, strict=True)) if columns else []
    return {row["measure"]: row["amount"] for row in rows}


async def _policy(db: Database, policy: BudgetPolicy, payer: Payer) -> BudgetPolicy:
    """The limits that apply to the payer."""
    if "user" not in payer.keys:
        return policy
    async with db.driver() as driver:
        return await account_plans.policy_of(driver, policy, payer.keys)


def _receipt(charge: Charge, facts: Mapping[str, Any], cost_usd: Decimal | None) -> Sequence[Any]:
    """The values of `RECEIPT`."""
    payer = charge.payer
    cost = None if cost_usd is None else cost_usd.quantize(SMALLEST_AMOUNT)
    return charge.id, payer.user_id, payer.thread_id, payer.run_id, charge.purpose, json_text(dict(facts)), cost


def _requests(
    policy: BudgetPolicy, payer: Payer, estimate: Amounts, now: datetime, *, refusable: bool
) -> Sequence[ReservationRequest]:
    """The amounts to reserve, all or nothing: of the limits that apply and are measured by the estimate.

    An amount of 0 is left out, as the cost of a model without a price: stripes grant no share of 0.
    """
    requests = []
    for limit in policy.limits:
        amount = estimate.get(limit.measure)
        if amount is None or limit.scope == "run" or limit.scope not in payer.keys:
            continue
        amount = amount.quantize(SMALLEST_AMOUNT)
        if not amount:
            continue
        starts_at, ends_at = current_window(limit, now)
        requests.append(
            ReservationRequest(
                scope=limit.scope,
                measure=limit.measure,
                key=payer.keys[limit.scope],
                starts_at=starts_at,
                ends_at=ends_at,
                least=amount,
                wanted=amount,
                most=limit.most if refusable else UNBOUNDED,
            )
        )
    return requests
