"""Stripes: rows among which a window of a limit that all sends share is divided, so that sends don't wait in one queue.

The usage of a window is the sum over its row of `budgets` and its stripes. A refill grants shares of the remainder: it
adds the amount to `reserved` in `budgets`, and subtracts it in the stripe. So a stripe has left what its own amounts
are below zero, and all remaining amounts together are never more than the window has left.

A reservation takes from any stripe that has enough and that no other transaction has locked. A settlement returns the
amount to any such stripe, since only the sums count. A process that freezes in a transaction withholds only the shares
of the stripes that it has locked.

A reservation that finds no stripe raises `StripeShortage`, and its transaction is rolled back. `refilled` then refills
the stripes, which is one statement that commits by itself, and runs the command again. Only a refill locks the window's
row, and no process can freeze while it holds that lock.

A stripe records the limit under which its share was granted. Reservations under a lower limit take from other stripes,
so a lower limit applies at once.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from decimal import Decimal
from functools import wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, TypeVar

from khala.domain.backoff import Backoff
from khala.domain.budgets import STRIPED_SCOPES, ReservationRequest, WindowKey, WindowUsage, exhausted_error
from khala.domain.errors import Unavailable
from khala.store.postgres.database import CONFLICT_MESSAGE, Database, Driver

P = ParamSpec("P")
T = TypeVar("T")

STRIPES = 32
"""Stripes of a window, at least. More transactions than that can't reserve from it at once."""
REFILL_TIMEOUT_SECONDS = 15.0
"""Seconds that a command waits for a share while transactions of others have locked all that is left."""
BACKOFF = Backoff(first_seconds=0.005, max_seconds=0.1, min_factor=0.5, max_factor=1.5)
"""Delays between tries."""
STRIPED = ", ".join(f"'{scope}'" for scope in STRIPED_SCOPES)
"""The striped scopes in SQL."""

LOCK_AND_TAKE = f"""
    WITH requested AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::numeric[],
                             $7::numeric[], $8::numeric[])
            AS requested (scope, key, measure, starts_at, ends_at, least, wanted, most)
    ), locked AS (
        INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at)
        SELECT scope, key, measure, starts_at, ends_at FROM requested WHERE scope NOT IN ({STRIPED})
        ORDER BY scope, key, measure, starts_at
        ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET reserved = budget.reserved
        RETURNING scope, key, measure, starts_at, reserved, settled
    ), chosen AS MATERIALIZED (
        SELECT requested.*, stripe.number,
               trunc(least(requested.wanted, -stripe.reserved - stripe.settled), 10) AS amount
        FROM requested CROSS JOIN LATERAL (
            SELECT number, reserved, settled FROM budget_stripes
            WHERE (scope, key, measure, starts_at)
                = (requested.scope, requested.key, requested.measure, requested.starts_at)
              AND budget_stripes.most <= requested.most AND -reserved - settled >= requested.least
            ORDER BY least(requested.wanted, -reserved - settled) DESC, random()
            LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) AS stripe
        WHERE requested.scope IN ({STRIPED}) AND (SELECT count(*) FROM locked) >= 0
    ), taken AS (
        UPDATE budget_stripes AS stripe SET reserved = stripe.reserved + chosen.amount FROM chosen
        WHERE (stripe.scope, stripe.key, stripe.measure, stripe.starts_at, stripe.number)
            = (chosen.scope, chosen.key, chosen.measure, chosen.starts_at, chosen.number)
        RETURNING stripe.scope, stripe.key, stripe.measure, stripe.starts_at, chosen.amount
    )
    SELECT *, NULL::numeric AS amount FROM locked
    UNION ALL SELECT scope, key, measure, starts_at, NULL, NULL, amount FROM taken
"""
"""Locks the windows that are one row, as `windows.LOCK` does, and takes from stripes of the others. The count of locked
rows makes the statement wait for locks before it takes: a transaction that waits locks no stripe.
"""

PUT_BACK = f"""
    INSERT INTO budget_stripes AS stripe (scope, key, measure, starts_at, number, reserved, settled, most)
    SELECT scope, key, measure, starts_at, coalesce(chosen.number, {STRIPES} + (random() * 1000000000)::int),
           -freed, used, summed.most
    FROM summed JOIN budgets USING (scope, key, measure, starts_at)
    LEFT JOIN LATERAL (
        SELECT number FROM budget_stripes
        WHERE (scope, key, measure, starts_at)
            = (summed.scope, summed.key, summed.measure, summed.starts_at)
          AND budget_stripes.most >= summed.most
        ORDER BY random() LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) AS chosen ON true
    WHERE scope IN ({STRIPED}) ORDER BY scope, key, measure, starts_at
    ON CONFLICT (scope, key, measure, starts_at, number) DO UPDATE
        SET reserved = stripe.reserved + excluded.reserved, settled = stripe.settled + excluded.settled
"""
"""Part of a statement that defines `summed`: settles amounts in stripes. If all are locked, it adds one, so it never
waits. An amount returns only to a stripe whose limit is not below the one under which it was reserved: otherwise a
lower limit could be exceeded."""

READ_USAGE = """
    SELECT coalesce(sum(reserved), 0) AS reserved, coalesce(sum(settled), 0) AS settled FROM (
        SELECT reserved, settled FROM budgets
        WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4
        UNION ALL
        SELECT reserved, settled FROM budget_stripes
        WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4
    ) AS every
"""

CREATE_WINDOW = """
    INSERT INTO budgets (scope, key, measure, starts_at, ends_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
"""

REFILL = """
    WITH base AS MATERIALIZED (
        SELECT reserved, settled FROM budgets
        WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4 FOR NO KEY UPDATE
    ), idle AS MATERIALIZED (
        SELECT stripe.* FROM base CROSS JOIN LATERAL (
            SELECT number, reserved, settled, most FROM budget_stripes
            WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4
            ORDER BY number FOR NO KEY UPDATE SKIP LOCKED
        ) AS stripe
    ), whole AS MATERIALIZED (
        SELECT $7::numeric - (SELECT reserved + settled FROM base) - coalesce(sum(reserved + settled), 0) AS amount
        FROM idle
    ), rest AS MATERIALIZED (
        SELECT amount, EXISTS (
            SELECT FROM idle WHERE most <= $7::numeric
               AND -reserved - settled >= greatest($5::numeric, least($6::numeric, amount))) AS sufficient
        FROM whole
    ), share AS MATERIALIZED (
        SELECT amount, $6::numeric * greatest(1, floor(amount / (2 * $8::int * $6::numeric))) AS size
        FROM rest WHERE amount >= $5::numeric AND NOT sufficient
    ), places AS (
        SELECT number, true AS stored FROM idle
        UNION ALL
        SELECT number, false FROM generate_series(0, $8::int - 1) AS number WHERE number NOT IN (
            SELECT number FROM budget_stripes WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4)
    ), granted AS MATERIALIZED (
        SELECT number, stored, trunc(greatest(0, least(
                   size, amount - size * (row_number() OVER (ORDER BY number) - 1))), 10) AS amount
        FROM places CROSS JOIN share
    ), added AS (
        INSERT INTO budget_stripes (scope, key, measure, starts_at, number, reserved, most)
        SELECT $1, $2, $3, $4, number, -amount, $7::numeric FROM granted WHERE NOT stored ORDER BY number
        ON CONFLICT DO NOTHING RETURNING reserved
    ), changed AS (
        UPDATE budget_stripes AS stripe SET reserved = -granted.amount, settled = 0, most = $7::numeric
        FROM granted JOIN idle USING (number)
        WHERE stripe.scope = $1 AND stripe.key = $2 AND stripe.measure = $3 AND stripe.starts_at = $4
          AND stripe.number = granted.number
        RETURNING idle.reserved + granted.amount AS reserved, idle.settled
    ), moved AS (
        UPDATE budgets SET
            reserved = budgets.reserved + (SELECT coalesce(sum(reserved), 0) FROM changed)
                                        - (SELECT coalesce(sum(reserved), 0) FROM added),
            settled = budgets.settled + (SELECT coalesce(sum(settled), 0) FROM changed)
        FROM share
        WHERE budgets.scope = $1 AND budgets.key = $2 AND budgets.measure = $3 AND budgets.starts_at = $4
    )
    SELECT sufficient OR coalesce((SELECT max(amount) FROM granted) >= $5::numeric, false) FROM rest
"""
"""Moves the amounts of all stripes that nobody has locked to the window's row, and grants half of the remainder to them
in equal shares: at least the amount of one reservation, as long as there is so much. Does nothing if a stripe has
what is wanted meanwhile, or the whole remainder. Returns whether a stripe has enough.
"""

_has_refilled: ContextVar[bool] = ContextVar("has_refilled", default=False)
"""Whether the stripes were refilled for the current command."""


class StripeShortage(Exception):  # no error: `refilled` handles it
    """No free stripe has enough left for these reservations. The transaction must be rolled back."""

    def __init__(self, requests: Sequence[ReservationRequest]) -> None:
        super().__init__()
        self.requests = requests


async def lock_and_take(
    driver: Driver, requests: Sequence[ReservationRequest]
) -> tuple[dict[WindowKey, WindowUsage], dict[WindowKey, Decimal]]:
    """Lock the windows that are one row, and reserve from stripes of the others.

    Returns the usage of the former, and the reserved amounts of the latter, without those that no free stripe has. Less
    than is wanted is taken only after a refill, which moves a smaller remainder to one stripe.
    """
    columns = [
        (*request.window_key, request.ends_at, _smallest_amount(request), request.wanted, request.most)
        for request in requests
    ]
    found = await driver.fetch(LOCK_AND_TAKE, *zip(*columns, strict=True)) if columns else []
    rows = [((row["scope"], row["key"], row["measure"], row["starts_at"]), row) for row in found]
    usage = {
        key: WindowUsage(reserved=row["reserved"], settled=row["settled"]) for key, row in rows if row["amount"] is None
    }
    return usage, {key: row["amount"] for key, row in rows if row["amount"] is not None}


def _smallest_amount(request: ReservationRequest) -> Decimal:
    return request.least if _has_refilled.get() else request.wanted


def refilled(
    command: Callable[Concatenate[Database, P], Awaitable[T]],
) -> Callable[Concatenate[Database, P], Coroutine[Any, Any, T]]:
    """Refill the stripes that the command lacked, and run it again, whole.

    For commands that are one transaction. Raises `BudgetExhausted` if less is left than a reservation needs, and
    `Unavailable` if others have locked the remainder for too long.
    """

    @wraps(command)
    async def run(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        until = time.monotonic() + REFILL_TIMEOUT_SECONDS
        token = _has_refilled.set(False)
        try:
            return await _repeat(db, until, lambda: command(db, *args, **kwargs))
        finally:
            _has_refilled.reset(token)

    return run


async def _repeat(db: Database, until: float, command: Callable[[], Awaitable[T]]) -> T:
    for tries in count(1):
        try:
            return await command()
        except StripeShortage as shortage:
            sufficient = [await _refill(db, request) for request in shortage.requests]
        _has_refilled.set(True)
        if tries > 1 or not all(sufficient):
            await _pause(tries, until)
    raise AssertionError("unreachable")


async def _pause(tries: int, until: float) -> None:
    if time.monotonic() > until:
        raise Unavailable(CONFLICT_MESSAGE, retry_after=1)
    await asyncio.sleep(BACKOFF.delay(tries, random.random()))


async def _refill(db: Database, request: ReservationRequest) -> bool:
    """Refill the window's stripes. False if transactions of others have locked all that is left."""
    async with db.driver() as driver:
        row = await driver.fetchrow(READ_USAGE, *request.window_key)
        usage = WindowUsage(reserved=row["reserved"], settled=row["settled"])
        # One snapshot of what is committed: less is left than the reservation needs, whoever holds locks.
        if usage.left(request.most) < request.least:
            raise exhausted_error(request, usage, datetime.now(UTC))
        await driver.execute(CREATE_WINDOW, *request.window_key, request.ends_at)
        amounts = request.least, request.wanted, request.most
        sufficient: bool = await driver.fetchval(REFILL, *request.window_key, *amounts, STRIPES)
        return sufficient
