"""The ledger: runs reserve amounts of budgets before they use them, and are settled when they end.

A send makes an initial reservation. The run's executor reserves more before the run exceeds it. The transaction that
ends the run releases the reservations and counts the usage by the receipts. So the sum of used and reserved amounts
stays within the limit, however many runs are active. A run's own limits are only in `usage_ledger`, and are reserved in
full, because no other run shares them.

Locks are taken in this order, after those of threads and runs and before those of users (`lock_order`): rows of
`usage_ledger` by run, scope and measure, then rows of `budgets` by scope, key, measure and window. Windows that all
sends share are divided into stripes, for which no transaction waits (`stripes`).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.budgets import (
    END_OF_TIME,
    FURTHER_RESERVATION,
    BudgetMeasure,
    BudgetScope,
    ReservationRequest,
    WindowKey,
    WindowUsage,
    grantable_amount,
)
from khala.domain.parts import TokenUsage
from khala.store.budgets import stripes
from khala.store.budgets.stripes import PUT_BACK, STRIPED, StripeShortage, refilled
from khala.store.budgets.windows import Window, lock_windows
from khala.store.postgres.array_arguments import any_of, unnested
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.runs.leases import ActiveRunRow

UNBOUNDED = Decimal(9_999_999_999)
"""The limit for usage that is counted, but can no longer be refused."""
MAX_SETTLED = 100_000_000
"""The maximum amount that one run is settled with, so that absurd numbers from a provider can't keep it from ending."""
ZERO = Decimal(0)

RESERVE = f"""
    WITH taken AS (
        SELECT * FROM unnest($2::text[], $3::bytea[], $4::text[], $5::timestamptz[], $6::numeric[], $7::numeric[])
            AS taken (scope, key, measure, starts_at, amount, most)
    ), entered AS (
        INSERT INTO usage_ledger (run_id, scope, measure, key, starts_at, reserved, most)
        SELECT $1, scope, measure, key, starts_at, amount, most FROM taken
    )
    UPDATE budgets SET reserved = budgets.reserved + taken.amount FROM taken
    WHERE budgets.scope = taken.scope AND budgets.key = taken.key
      AND budgets.measure = taken.measure AND budgets.starts_at = taken.starts_at
      AND taken.scope NOT IN ({STRIPED})
"""

CHARGE = f"""
    WITH taken AS (
        SELECT * FROM unnest($2::text[], $3::bytea[], $4::text[], $5::timestamptz[], $6::numeric[], $7::numeric[])
            AS taken (scope, key, measure, starts_at, amount, most)
    ), entered AS (
        INSERT INTO usage_ledger (run_id, scope, measure, key, starts_at, reserved, settled, most)
        SELECT $1, scope, measure, key, starts_at, amount, amount, most FROM taken
    ), summed AS (
        SELECT scope, key, measure, starts_at, amount AS freed, amount AS used, most FROM taken
    ), put_back AS ({PUT_BACK}
    )
    UPDATE budgets SET settled = budgets.settled + taken.amount FROM taken
    WHERE budgets.scope = taken.scope AND budgets.key = taken.key
      AND budgets.measure = taken.measure AND budgets.starts_at = taken.starts_at
      AND taken.scope NOT IN ({STRIPED})
"""

ENTRIES = f"""
    SELECT run_id, scope, measure, key, starts_at, reserved, most FROM usage_ledger
    WHERE run_id = {any_of(1, "uuid")} AND settled IS NULL ORDER BY run_id, scope, measure
"""

EXTEND = f"""
    WITH taken AS (
        SELECT * FROM unnest($2::text[], $3::bytea[], $4::text[], $5::timestamptz[], $6::numeric[])
            AS taken (scope, key, measure, starts_at, amount)
    ), entered AS (
        UPDATE usage_ledger SET reserved = usage_ledger.reserved + taken.amount FROM taken
        WHERE run_id = $1 AND usage_ledger.scope = taken.scope AND usage_ledger.measure = taken.measure
    )
    UPDATE budgets SET reserved = budgets.reserved + taken.amount FROM taken
    WHERE budgets.scope = taken.scope AND budgets.key = taken.key
      AND budgets.measure = taken.measure AND budgets.starts_at = taken.starts_at
      AND taken.scope NOT IN ({STRIPED})
"""

SUMS = """
    coalesce(sum(cost_usd), 0) AS usd,
    coalesce(sum((data->'usage'->>'inputTokens')::numeric + (data->'usage'->>'outputTokens')::numeric), 0) AS tokens,
    coalesce(sum((data->>'totalMs')::numeric), 0) / 1000 AS seconds
"""

SETTLE = f"""
    WITH due AS (
        SELECT entry.run_id, ended.thread_id, entry.scope, entry.measure,
               ended.cut_off AND entry.scope <> 'run' AS cut_off
        FROM usage_ledger AS entry
        JOIN {unnested(1, "uuid", "uuid", "bool")} AS ended (run_id, thread_id, cut_off)
          ON ended.run_id = entry.run_id
        WHERE entry.run_id = {any_of(1, "uuid")} AND entry.settled IS NULL
        ORDER BY entry.run_id, entry.scope, entry.measure FOR NO KEY UPDATE OF entry
    ), spent AS (
        SELECT ended.run_id, {SUMS} FROM (SELECT DISTINCT run_id, thread_id FROM due) AS ended
        JOIN receipts ON receipts.run_id = ended.run_id AND receipts.thread_id IS NOT DISTINCT FROM ended.thread_id
        GROUP BY ended.run_id
    ), closed AS (
        UPDATE usage_ledger AS entry SET settled = CASE
            WHEN due.measure = 'runs' THEN entry.reserved
            ELSE greatest(least({MAX_SETTLED}, coalesce(
                              CASE due.measure WHEN 'usd' THEN spent.usd WHEN 'tokens' THEN spent.tokens
                                               ELSE spent.seconds END, 0)),
                          CASE WHEN due.cut_off THEN entry.reserved ELSE 0 END) END
        FROM due LEFT JOIN spent ON spent.run_id = due.run_id
        WHERE entry.run_id = due.run_id AND entry.scope = due.scope AND entry.measure = due.measure
        RETURNING entry.scope, entry.key, entry.measure, entry.starts_at, entry.reserved, entry.settled, entry.most
    ), summed AS (
        SELECT scope, key, measure, starts_at, sum(reserved) AS freed, sum(settled) AS used, max(most) AS most
        FROM closed GROUP BY scope, key, measure, starts_at
    ), put_back AS ({PUT_BACK}
    ), held AS (
        SELECT summed.* FROM summed JOIN budgets USING (scope, key, measure, starts_at)
        WHERE scope NOT IN ({STRIPED})
        ORDER BY scope, key, measure, starts_at FOR NO KEY UPDATE OF budgets
    )
    UPDATE budgets SET reserved = budgets.reserved - held.freed, settled = budgets.settled + held.used FROM held
    WHERE budgets.scope = held.scope AND budgets.key = held.key
      AND budgets.measure = held.measure AND budgets.starts_at = held.starts_at
"""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run's reservation from one limit."""

    scope: BudgetScope
    measure: BudgetMeasure
    key: bytes
    starts_at: datetime
    reserved: Decimal
    most: Decimal


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ends.

    An `interrupted` run ends without its executor, so the usage of a call in progress is unknown. Such a run is settled
    with at least everything that it had reserved.
    """

    run_id: UUID
    thread_id: UUID
    interrupted: bool = False


class RunAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The reservations of a run, and the usage of its calls so far, including the calls of earlier executors."""

    entries: tuple[LedgerEntry, ...]
    usd: Decimal | None = None
    """None if no call had a known price."""
    usage: TokenUsage = TokenUsage()
    seconds: Decimal = ZERO
    last_receipt_hash: bytes | None = None


async def lock(driver: Driver, requests: Sequence[ReservationRequest] = (), *, run_ids: Sequence[UUID] = ()) -> None:
    """Lock all windows that these reservations and the settlements of these runs will lock afterwards.

    No transaction waits for stripes, so they are left out.
    """
    query = f"""
        SELECT scope, key, measure, starts_at, ends_at
        FROM usage_ledger JOIN budgets USING (scope, key, measure, starts_at)
        WHERE run_id = ANY($1::uuid[]) AND usage_ledger.settled IS NULL AND scope NOT IN ({STRIPED})
        ORDER BY run_id, scope, measure FOR NO KEY UPDATE OF usage_ledger
    """
    settlement_windows = [tuple(row) for row in await driver.fetch(query, run_ids)]
    await lock_windows(driver, [*(_window(request) for request in requests if _has_row(request)), *settlement_windows])


async def reserve(driver: Driver, run_id: UUID, requests: Sequence[ReservationRequest], now: datetime) -> None:
    """Reserve the amounts that the run needs before it may begin. Raises `BudgetExhausted` and `StripeShortage`."""
    if not requests:
        return
    granted = await _grant(driver, requests, {}, now)
    amounts = [(request, granted[request.window_key]) for request in requests]
    rows = [
        (
            request.scope,
            run_id.bytes if request.scope == "run" else request.key,
            request.measure,
            request.starts_at,
            amount,
            request.most,
        )
        for request, amount in amounts
    ]
    await driver.execute(RESERVE, run_id, *zip(*rows, strict=True))


async def charge(driver: Driver, call_id: UUID, requests: Sequence[ReservationRequest], now: datetime) -> None:
    """Count amounts as used, for a call that no run makes. Raises `BudgetExhausted` and `StripeShortage`."""
    granted = await _grant(driver, requests, {}, now)
    rows = [
        (request.scope, request.key, request.measure, request.starts_at, granted[request.window_key], request.most)
        for request in requests
    ]
    await driver.execute(CHARGE, call_id, *zip(*rows, strict=True))


async def read_first_accounts(driver: Driver, run_ids: Sequence[UUID]) -> dict[UUID, RunAccount]:
    """The reservations of runs that have made no call."""
    entries: dict[UUID, list[LedgerEntry]] = {run_id: [] for run_id in run_ids}
    for row in await driver.fetch(ENTRIES, run_ids):
        entries[row["run_id"]].append(_entry(row))
    return {run_id: RunAccount(entries=tuple(found)) for run_id, found in entries.items()}


async def read_account(driver: Driver, thread_id: UUID, run_id: UUID) -> RunAccount:
    """The reservations and usage of a run of this thread, with which its executor begins."""
    query = f"""
        SELECT {SUMS}, count(cost_usd) > 0 AS priced,
               coalesce(sum((data->'usage'->>'inputTokens')::numeric), 0) AS input_tokens,
               coalesce(sum((data->'usage'->>'outputTokens')::numeric), 0) AS output_tokens,
               (SELECT hash FROM receipts WHERE run_id = $2 AND thread_id IS NOT DISTINCT FROM $1
                ORDER BY run_id DESC, seq DESC LIMIT 1) AS last_receipt_hash
        FROM receipts WHERE run_id = $2 AND thread_id IS NOT DISTINCT FROM $1
    """
    spent = await driver.fetchrow(query, thread_id, run_id)
    return RunAccount(
        entries=await _entries(driver, run_id),
        usd=spent["usd"] if spent["priced"] else None,
        usage=TokenUsage(input_tokens=int(spent["input_tokens"]), output_tokens=int(spent["output_tokens"])),
        seconds=spent["seconds"],
        last_receipt_hash=spent["last_receipt_hash"],
    )


@retried
@refilled
async def extend(
    db: Database, run_id: UUID, needs: Mapping[BudgetMeasure, Decimal], now: datetime | None = None
) -> tuple[LedgerEntry, ...]:
    """Extend the run's reservations to the total amounts in `needs`, and by a further amount if that is available.

    Returns all reservations of the run; none if it has ended. Raises `BudgetExhausted`, and reserves nothing, if one of
    the limits does not suffice for the needs.
    """
    async with db.driver() as driver, driver.transaction(isolation="read_committed"):
        entries = await _entries(driver, run_id, locked=True)
        requests = [
            _further_request(entry, needs[entry.measure])
            for entry in entries
            if entry.reserved < needs.get(entry.measure, ZERO)
        ]
        if not requests:
            return entries
        own: dict[WindowKey, WindowUsage] = {
            _window_key(entry): WindowUsage(reserved=entry.reserved) for entry in entries if entry.scope == "run"
        }
        granted = await _grant(driver, requests, own, now or datetime.now(UTC))
        amounts = [(*request.window_key, granted[request.window_key]) for request in requests]
        await driver.execute(EXTEND, run_id, *zip(*amounts, strict=True))
        return await _entries(driver, run_id)


async def settle(driver: Driver, ended: Sequence[Settlement]) -> None:
    """Release the reservations of these runs, and count their usage. One statement. Repeating it changes nothing.

    The measure `runs` is counted as reserved. USD, tokens and seconds are counted by the receipts of all attempts;
    seconds are the time in model calls.
    """
    if ended:
        columns = zip(*map(msgspec.structs.astuple, ended), strict=True)
        await driver.execute(SETTLE, *map(list, columns))


async def settle_deleted(driver: Driver, active: Sequence[ActiveRunRow]) -> None:
    """Settle active runs that are deleted in this transaction. The caller holds their locks."""
    query = "SELECT EXISTS (SELECT FROM usage_ledger WHERE run_id = ANY($1::uuid[]) AND settled IS NULL)"
    # Without reservations no budget is locked, because the caller may already hold locks that come later in the order.
    if await driver.fetchval(query, [run.id for run in active]):
        ended = [
            Settlement(run_id=run.id, thread_id=run.thread_id, interrupted=run.status == "running") for run in active
        ]
        await settle(driver, ended)


MOVED = """
    SELECT entry.run_id, entry.scope, entry.key, entry.measure, entry.starts_at, entry.reserved, budgets.ends_at
    FROM usage_ledger AS entry JOIN runs ON runs.id = entry.run_id
    JOIN budgets USING (scope, key, measure, starts_at)
    WHERE runs.thread_id = $1 AND entry.scope = 'key' AND entry.settled IS NULL
    ORDER BY entry.run_id, entry.scope, entry.measure FOR NO KEY UPDATE OF entry
"""

MOVE = """
    WITH moved AS (
        UPDATE usage_ledger AS entry SET scope = 'user', key = $2, most = $3
        FROM unnest($1::uuid[], $4::text[], $5::bytea[], $6::timestamptz[], $7::numeric[])
            AS due (run_id, measure, key, starts_at, reserved)
        WHERE entry.run_id = due.run_id AND entry.scope = 'key' AND entry.measure = due.measure
        RETURNING due.*
    ), summed AS (
        SELECT scope, key, measure, starts_at, sum(amount) AS amount FROM (
            SELECT 'key' AS scope, key, measure, starts_at, -reserved AS amount FROM moved
            UNION ALL SELECT 'user', $2, measure, starts_at, reserved FROM moved
        ) AS sides GROUP BY scope, key, measure, starts_at
    )
    UPDATE budgets SET reserved = budgets.reserved + summed.amount FROM summed
    WHERE budgets.scope = summed.scope AND budgets.key = summed.key
      AND budgets.measure = summed.measure AND budgets.starts_at = summed.starts_at
"""


async def move_to_user(connection: AsyncConnection, thread_id: UUID, user_id: UUID) -> None:
    """Count the active runs of a claimed thread for the user instead of the key, even if that exceeds the user's limit.

    Settled usage stays counted for the key. Reservations from the limits of the network and of all anonymous use stay
    there, too: otherwise a claim would free budget. The caller holds the thread's lock, and no user's lock yet.
    """
    driver = await driver_of(connection)
    rows = await driver.fetch(MOVED, thread_id)
    if not rows:
        return
    key_windows = [(row["scope"], row["key"], row["measure"], row["starts_at"], row["ends_at"]) for row in rows]
    await lock_windows(driver, key_windows + [("user", user_id.bytes, *row[2:]) for row in key_windows])
    columns = zip(*((row["measure"], row["key"], row["starts_at"], row["reserved"]) for row in rows), strict=True)
    await driver.execute(MOVE, [row["run_id"] for row in rows], user_id.bytes, UNBOUNDED, *columns)


async def _grant(
    driver: Driver, requests: Sequence[ReservationRequest], own: Mapping[WindowKey, WindowUsage], now: datetime
) -> dict[WindowKey, Decimal]:
    """The amounts of these reservations. `own` is the usage of the run's own limits.

    Amounts of stripes are reserved here. The caller reserves the others, whose windows are locked here.
    """
    levels, taken = await stripes.lock_and_take(driver, [request for request in requests if request.scope != "run"])
    levels = {**own, **levels}
    granted = {
        request.window_key: grantable_amount(request, levels.get(request.window_key, WindowUsage()), now)
        for request in requests
        if not request.striped
    }
    missing = [request for request in requests if request.striped and request.window_key not in taken]
    if missing:
        raise StripeShortage(missing)
    return granted | taken


def _has_row(request: ReservationRequest) -> bool:
    """Whether the usage of the request's window is in one row of `budgets`."""
    return request.scope != "run" and not request.striped


async def _entries(driver: Driver, run_id: UUID, *, locked: bool = False) -> tuple[LedgerEntry, ...]:
    rows = await driver.fetch(ENTRIES + (" FOR NO KEY UPDATE" if locked else ""), [run_id])
    return tuple(map(_entry, rows))


def _entry(row: Record) -> LedgerEntry:
    return LedgerEntry(**{name: row[name] for name in LedgerEntry.__struct_fields__})


def _window(request: ReservationRequest) -> Window:
    return (*request.window_key, request.ends_at)


def _window_key(entry: LedgerEntry) -> WindowKey:
    return entry.scope, entry.key, entry.measure, entry.starts_at


def _further_request(entry: LedgerEntry, need: Decimal) -> ReservationRequest:
    least = need - entry.reserved
    return ReservationRequest(
        scope=entry.scope,
        measure=entry.measure,
        key=entry.key,
        starts_at=entry.starts_at,
        ends_at=END_OF_TIME,
        least=least,
        wanted=least + FURTHER_RESERVATION[entry.measure],
        most=entry.most,
    )
