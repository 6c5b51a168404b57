"""The ledger: what runs reserve of budgets before they use it, and what is settled when they end.

A send reserves a first portion, the run's executor reserves more before it passes that, and the end of the run gives
back what is reserved and counts what its receipts say, in the transaction of that end. So the sum of what is used and
what is reserved stays within the limit, however many runs are active. A run's own limits are only in `usage_ledger`,
wholly reserved, since they concern no other run.

Locks are taken in this order, after those of threads and runs and before those of users (`lock_order`): rows of
`usage_ledger` by run, scope and measure, then rows of `budgets` by scope, key, measure and window.
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
from khala.store.budgets.windows import Window, lock_windows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.runs.leases import ActiveRunRow

UNBOUNDED = Decimal(9_999_999_999)
"""The limit of usage that counts, but can't be refused any more."""
MAX_SETTLED = 100_000_000
"""Upper bound of what one run is counted for: absurd numbers of a provider must not keep runs from ending."""
ZERO = Decimal(0)

RESERVE = """
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
"""

ENTRIES = """
    SELECT * FROM usage_ledger WHERE run_id = $1 AND settled IS NULL ORDER BY run_id, scope, measure
"""

EXTEND = """
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
        JOIN unnest($1::uuid[], $2::uuid[], $3::bool[]) AS ended (run_id, thread_id, cut_off)
          ON ended.run_id = entry.run_id
        WHERE entry.run_id = ANY($1::uuid[]) AND entry.settled IS NULL
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
        RETURNING entry.scope, entry.key, entry.measure, entry.starts_at, entry.reserved, entry.settled
    ), summed AS (
        SELECT scope, key, measure, starts_at, sum(reserved) AS freed, sum(settled) AS used
        FROM closed GROUP BY scope, key, measure, starts_at
    ), held AS (
        SELECT summed.* FROM summed JOIN budgets USING (scope, key, measure, starts_at)
        ORDER BY scope, key, measure, starts_at FOR NO KEY UPDATE OF budgets
    )
    UPDATE budgets SET reserved = budgets.reserved - held.freed, settled = budgets.settled + held.used FROM held
    WHERE budgets.scope = held.scope AND budgets.key = held.key
      AND budgets.measure = held.measure AND budgets.starts_at = held.starts_at
"""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of a run of one limit."""

    scope: BudgetScope
    measure: BudgetMeasure
    key: bytes
    starts_at: datetime
    reserved: Decimal
    most: Decimal


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ends.

    `cut_off`: it ends without its executor, so the usage of a call in progress will never be known. It is settled as
    everything that was reserved.
    """

    run_id: UUID
    thread_id: UUID
    cut_off: bool = False


class RunAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The reservations of a run, and the usage of its calls so far, those of earlier executors included."""

    entries: tuple[LedgerEntry, ...]
    usd: Decimal | None = None
    """None where no call had a known price."""
    usage: TokenUsage = TokenUsage()
    seconds: Decimal = ZERO
    last_receipt_hash: bytes | None = None


async def lock(driver: Driver, asks: Sequence[ReservationRequest] = (), *, run_ids: Sequence[UUID] = ()) -> None:
    """Lock all windows of these asks and of the settlements of these runs, which come one by one afterwards."""
    query = """
        SELECT scope, key, measure, starts_at, ends_at
        FROM usage_ledger JOIN budgets USING (scope, key, measure, starts_at)
        WHERE run_id = ANY($1::uuid[]) AND usage_ledger.settled IS NULL
        ORDER BY run_id, scope, measure FOR NO KEY UPDATE OF usage_ledger
    """
    others = [tuple(row) for row in await driver.fetch(query, run_ids)]
    await lock_windows(driver, [*(_window(ask) for ask in asks if ask.scope != "run"), *others])


async def reserve(driver: Driver, run_id: UUID, asks: Sequence[ReservationRequest], now: datetime) -> None:
    """Reserve what the run needs before it may begin. Raises `BudgetExhausted`."""
    if not asks:
        return
    levels = await lock_windows(driver, [_window(ask) for ask in asks if ask.scope != "run"])
    amounts = [(ask, grantable_amount(ask, levels.get(ask.place, WindowUsage()), now)) for ask in asks]
    rows = [
        (ask.scope, run_id.bytes if ask.scope == "run" else ask.key, ask.measure, ask.starts_at, amount, ask.most)
        for ask, amount in amounts
    ]
    await driver.execute(RESERVE, run_id, *zip(*rows, strict=True))


async def read_account(driver: Driver, thread_id: UUID, run_id: UUID) -> RunAccount:
    """The reservations and usage of a run of this thread, for its executor to begin with."""
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
async def extend(
    db: Database, run_id: UUID, needs: Mapping[BudgetMeasure, Decimal], now: datetime | None = None
) -> tuple[LedgerEntry, ...]:
    """Reserve what the run will have used soon, in all (`needs`), and a further portion where there is room.

    Returns all that the run has reserved now; nothing if it has ended. Raises `BudgetExhausted` if one of the limits
    has no room for what is needed; nothing is reserved then.
    """
    async with db.driver() as driver, driver.transaction(isolation="read_committed"):
        entries = await _entries(driver, run_id, locked=True)
        asks = [
            _further(entry, needs[entry.measure])
            for entry in entries
            if entry.reserved < needs.get(entry.measure, ZERO)
        ]
        if not asks:
            return entries
        levels = await lock_windows(driver, [_window(ask) for ask in asks if ask.scope != "run"])
        own: dict[WindowKey, WindowUsage] = {
            _place(entry): WindowUsage(reserved=entry.reserved) for entry in entries if entry.scope == "run"
        }
        moment = now or datetime.now(UTC)
        amounts = [(*ask.place, grantable_amount(ask, (own | levels)[ask.place], moment)) for ask in asks]
        await driver.execute(EXTEND, run_id, *zip(*amounts, strict=True))
        return await _entries(driver, run_id)


async def settle(driver: Driver, ended: Sequence[Settlement]) -> None:
    """Give back what these runs have reserved, and count what they have used. One statement; repeating it does nothing.

    Runs count as reserved; USD, tokens and seconds as the receipts of all attempts say, seconds being the time in model
    calls.
    """
    if ended:
        columns = zip(*map(msgspec.structs.astuple, ended), strict=True)
        await driver.execute(SETTLE, *map(list, columns))


async def settle_deleted(driver: Driver, active: Sequence[ActiveRunRow]) -> None:
    """Settle active runs that are deleted in this transaction. The caller holds their locks."""
    query = "SELECT EXISTS (SELECT FROM usage_ledger WHERE run_id = ANY($1::uuid[]) AND settled IS NULL)"
    # Where nothing is reserved no budget is locked: the caller may hold locks that come later by now.
    if await driver.fetchval(query, [run.id for run in active]):
        ended = [Settlement(run_id=run.id, thread_id=run.thread_id, cut_off=run.status == "running") for run in active]
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

    Settled usage stays counted for the key, and reservations of the network's limit and of the limit of all anonymous
    use stay there: otherwise a claim would make room for more. The caller holds the thread's lock, and no user's yet.
    """
    driver = await driver_of(connection)
    rows = await driver.fetch(MOVED, thread_id)
    if not rows:
        return
    keyed = [(row["scope"], row["key"], row["measure"], row["starts_at"], row["ends_at"]) for row in rows]
    await lock_windows(driver, keyed + [("user", user_id.bytes, *row[2:]) for row in keyed])
    columns = zip(*((row["measure"], row["key"], row["starts_at"], row["reserved"]) for row in rows), strict=True)
    await driver.execute(MOVE, [row["run_id"] for row in rows], user_id.bytes, UNBOUNDED, *columns)


async def _entries(driver: Driver, run_id: UUID, *, locked: bool = False) -> tuple[LedgerEntry, ...]:
    rows = await driver.fetch(ENTRIES + (" FOR NO KEY UPDATE" if locked else ""), run_id)
    return tuple(LedgerEntry(**{name: row[name] for name in LedgerEntry.__struct_fields__}) for row in rows)


def _window(ask: ReservationRequest) -> Window:
    return (*ask.place, ask.ends_at)


def _place(entry: LedgerEntry) -> WindowKey:
    return entry.scope, entry.key, entry.measure, entry.starts_at


def _further(entry: LedgerEntry, need: Decimal) -> ReservationRequest:
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
