"""The ledger: what runs reserve of budgets before they use it, and what is settled when they end.

A send reserves a first portion, the run's executor reserves more before it passes that, and whatever ends the run gives
back what is reserved and counts what its receipts say, in the transaction of that end. So the sum of what is used and
what is reserved stays within the limit, however many runs are under way. A run's own limits are only in `usage_ledger`,
wholly reserved, since they concern nobody else.

Locks are taken in this order, after those of threads and runs and before those of users (`lock_order`): rows of
`usage_ledger` by run, scope and measure, then rows of `budgets` by scope, key, measure and window.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Caller
from khala.domain.budgets import (
    DAY_SECONDS,
    END_OF_TIME,
    FURTHER_RESERVATION,
    BudgetLimit,
    BudgetMeasure,
    BudgetPolicy,
    BudgetScope,
    BudgetUsage,
    ReservationRequest,
    WindowKey,
    WindowUsage,
    current_window,
    fixed_window,
    grantable_amount,
)
from khala.domain.decimals import format_decimal
from khala.domain.parts import TokenUsage
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record

UNBOUNDED = Decimal(9_999_999_999)
"""The limit of what counts, but is not to be refused any more."""
MOST_OF_ONE = 100_000_000
"""The most that one run is counted for: a provider that tells nonsense must not keep runs from ending."""
ZERO = Decimal(0)

LOCK = """
    INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at)
    SELECT DISTINCT scope, key, measure, starts_at, ends_at
    FROM unnest($1::text[], $2::bytea[], $3::text[], $4::timestamptz[], $5::timestamptz[])
        AS asked (scope, key, measure, starts_at, ends_at)
    ORDER BY scope, key, measure, starts_at
    ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET reserved = budget.reserved
    RETURNING scope, key, measure, starts_at, reserved, settled
"""
"""A changing of nothing locks the row and reads it as it is, whether it was there or not."""

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
               coalesce($3 AND runs.status = 'running' AND entry.scope <> 'run', false) AS cut_off
        FROM usage_ledger AS entry
        JOIN unnest($1::uuid[], $2::uuid[]) AS ended (run_id, thread_id) ON ended.run_id = entry.run_id
        LEFT JOIN runs ON runs.id = ended.run_id AND runs.thread_id = ended.thread_id
        WHERE entry.run_id = ANY($1::uuid[]) AND entry.settled IS NULL
        ORDER BY entry.run_id, entry.scope, entry.measure FOR NO KEY UPDATE OF entry
    ), spent AS (
        SELECT ended.run_id, {SUMS} FROM (SELECT DISTINCT run_id, thread_id FROM due) AS ended
        JOIN receipts ON receipts.run_id = ended.run_id AND receipts.thread_id IS NOT DISTINCT FROM ended.thread_id
        GROUP BY ended.run_id
    ), closed AS (
        UPDATE usage_ledger AS entry SET settled = CASE
            WHEN due.measure = 'runs' THEN entry.reserved
            ELSE greatest(least({MOST_OF_ONE}, coalesce(
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


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has reserved of one limit."""

    scope: BudgetScope
    measure: BudgetMeasure
    key: bytes
    starts_at: datetime
    reserved: Decimal
    most: Decimal


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has reserved, and what its calls have used so far, those of earlier executors, too."""

    entries: tuple[Entry, ...]
    usd: Decimal | None = None
    """None where no call had a price that is known."""
    usage: TokenUsage = TokenUsage()
    seconds: Decimal = ZERO
    witness: bytes | None = None
    """The hash of the last receipt."""


async def lock(driver: Driver, asks: Sequence[ReservationRequest], *, run_ids: Sequence[UUID] = ()) -> None:
    """Lock all windows that these asks and the ends of these runs are about, because they will come one by one."""
    query = """
        SELECT scope, key, measure, starts_at, ends_at
        FROM usage_ledger JOIN budgets USING (scope, key, measure, starts_at)
        WHERE run_id = ANY($1::uuid[]) AND usage_ledger.settled IS NULL
        ORDER BY run_id, scope, measure FOR NO KEY UPDATE OF usage_ledger
    """
    others = [tuple(row) for row in await driver.fetch(query, run_ids)]
    await _lock(driver, [*(_window(ask) for ask in asks if ask.scope != "run"), *others])


async def reserve(driver: Driver, run_id: UUID, asks: Sequence[ReservationRequest], now: datetime) -> None:
    """Take what the run has to reserve before it may begin. Raises `BudgetExhausted`."""
    if not asks:
        return
    levels = await _lock(driver, [_window(ask) for ask in asks if ask.scope != "run"])
    taken = [(ask, grantable_amount(ask, levels.get(ask.place, WindowUsage()), now)) for ask in asks]
    rows = [
        (ask.scope, run_id.bytes if ask.scope == "run" else ask.key, ask.measure, ask.starts_at, amount, ask.most)
        for ask, amount in taken
    ]
    await driver.execute(RESERVE, run_id, *zip(*rows, strict=True))


async def account(driver: Driver, thread_id: UUID, run_id: UUID) -> Account:
    """What a run of this thread may use, as its executor has to know before it begins."""
    query = f"""
        SELECT {SUMS}, count(cost_usd) > 0 AS priced,
               coalesce(sum((data->'usage'->>'inputTokens')::numeric), 0) AS input_tokens,
               coalesce(sum((data->'usage'->>'outputTokens')::numeric), 0) AS output_tokens,
               (SELECT hash FROM receipts WHERE run_id = $2 AND thread_id IS NOT DISTINCT FROM $1
                ORDER BY run_id DESC, seq DESC LIMIT 1) AS witness
        FROM receipts WHERE run_id = $2 AND thread_id IS NOT DISTINCT FROM $1
    """
    spent = await driver.fetchrow(query, thread_id, run_id)
    return Account(
        entries=await _entries(driver, run_id),
        usd=spent["usd"] if spent["priced"] else None,
        usage=TokenUsage(input_tokens=int(spent["input_tokens"]), output_tokens=int(spent["output_tokens"])),
        seconds=spent["seconds"],
        witness=spent["witness"],
    )


@retried
async def extend(
    db: Database, run_id: UUID, needs: Mapping[BudgetMeasure, Decimal], now: datetime | None = None
) -> tuple[Entry, ...]:
    """Reserve what the run will have used soon, in all, and a further portion where there is room.

    All of it or nothing: raises `BudgetExhausted` if one of the limits has no room for what is needed. Returns all that
    the run has reserved now, or nothing if it has ended.
    """
    async with db.driver() as driver, driver.transaction(isolation="read_committed"):
        entries = await _entries(driver, run_id, locked=True)
        asks = [_further(one, needs[one.measure]) for one in entries if one.reserved < needs.get(one.measure, ZERO)]
        if not asks:
            return entries
        levels = await _lock(driver, [_window(ask) for ask in asks if ask.scope != "run"])
        own: dict[WindowKey, WindowUsage] = {
            _place(one): WindowUsage(reserved=one.reserved) for one in entries if one.scope == "run"
        }
        moment = now or datetime.now(UTC)
        taken = [(*ask.place, grantable_amount(ask, (own | levels)[ask.place], moment)) for ask in asks]
        await driver.execute(EXTEND, run_id, *zip(*taken, strict=True))
        return await _entries(driver, run_id)


async def settle(driver: Driver, ended: Mapping[UUID, UUID], *, cut_off: bool = False) -> None:
    """Give back what these runs have reserved, and count what they have used. One statement; a second time it is none.

    `ended` are their threads, by run.

    Runs count as reserved; USD, tokens and seconds as the receipts of all attempts say, seconds being the time in model
    calls. `cut_off`: they are ended over the head of their executor, before the status says so, and what the call
    under way has used nobody will tell; it counts as all that was reserved.
    """
    if ended:
        await driver.execute(SETTLE, list(ended), list(ended.values()), cut_off)


async def lock_ends(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> None:
    """Lock all that `cut_off` will change, where other locks have to come between."""
    found = await under_way(await driver_of(connection), thread_ids)
    await lock(await driver_of(connection), (), run_ids=list(found))


async def cut_off(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> None:
    """Settle the runs under way in these threads, whose locks the caller holds, and which are to be deleted."""
    driver = await driver_of(connection)
    ended = await under_way(driver, thread_ids)
    query = "SELECT EXISTS (SELECT FROM usage_ledger WHERE run_id = ANY($1::uuid[]) AND settled IS NULL)"
    # Where nothing is reserved no budget is locked: the caller may hold locks that come later by now.
    if await driver.fetchval(query, list(ended)):
        await settle(driver, ended, cut_off=True)


async def under_way(driver: Driver, thread_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """The runs of these threads that have not ended, locked, and their threads. The caller holds the threads' locks."""
    query = """
        SELECT id, thread_id FROM runs
        WHERE thread_id = ANY($1::uuid[]) AND status IN ('queued', 'running', 'blocked')
        ORDER BY id FOR UPDATE
    """
    # In the order in which heartbeats lock them.
    return {row["id"]: row["thread_id"] for row in await driver.fetch(query, thread_ids)}


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


async def move(connection: AsyncConnection, thread_id: UUID, user_id: UUID) -> None:
    """The runs under way in a claimed thread count for the user instead of the key, even if that is over their limit.

    What was settled stays counted for the key, and what a run has reserved of its network's and of all anonymous use
    stays there, or else a claim would make room for more. The caller holds the thread's lock, and no user's yet.
    """
    driver = await driver_of(connection)
    rows = await driver.fetch(MOVED, thread_id)
    if not rows:
        return
    keyed = [(row["scope"], row["key"], row["measure"], row["starts_at"], row["ends_at"]) for row in rows]
    await _lock(driver, keyed + [("user", user_id.bytes, *row[2:]) for row in keyed])
    columns = zip(*((row["measure"], row["key"], row["starts_at"], row["reserved"]) for row in rows), strict=True)
    await driver.execute(MOVE, [row["run_id"] for row in rows], user_id.bytes, UNBOUNDED, *columns)


async def counted(
    db: Database, scope: str, key: bytes, measure: str, most: int, *, window_seconds: int, now: datetime | None = None
) -> float | None:
    """Count one more if it fits, in a transaction of its own; else the seconds until the window ends."""
    moment = now or datetime.now(UTC)
    starts_at, ends_at = fixed_window(window_seconds, moment)
    query = """
        INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at, settled)
        SELECT $1, $2, $3, $4, $5, 1 WHERE $6::int > 0
        ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET settled = budget.settled + 1
        WHERE budget.settled < $6::int
        RETURNING true
    """
    async with db.driver() as driver:
        fits = await driver.fetchval(query, scope, key, measure, starts_at, ends_at, most)
    return None if fits else max(1.0, (ends_at - moment).total_seconds())


async def taken(driver: Driver, scope: str, key: bytes, measure: str, amount: Decimal, *, most: int) -> float | None:
    """Count so much of today's limit if it fits; else the seconds until the day ends."""
    moment = datetime.now(UTC)
    starts_at, ends_at = fixed_window(DAY_SECONDS, moment)
    query = """
        INSERT INTO budgets AS budget (scope, key, measure, starts_at, ends_at, settled)
        SELECT $1, $2, $3, $4, $5, $6::numeric WHERE $6::numeric <= $7::numeric
        ON CONFLICT (scope, key, measure, starts_at) DO UPDATE SET settled = budget.settled + $6::numeric
        WHERE budget.settled + $6::numeric <= $7::numeric
        RETURNING true
    """
    fits = await driver.fetchval(query, scope, key, measure, starts_at, ends_at, amount, most)
    return None if fits else max(1.0, (ends_at - moment).total_seconds())


async def discount(
    db: Database, scope: str, key: bytes, measure: str, *, window_seconds: int, now: datetime | None = None
) -> None:
    """Take back one that was counted in this window."""
    starts_at, _ = fixed_window(window_seconds, now or datetime.now(UTC))
    query = """
        UPDATE budgets SET settled = settled - 1
        WHERE scope = $1 AND key = $2 AND measure = $3 AND starts_at = $4 AND settled > 0
    """
    async with db.driver() as driver:
        await driver.execute(query, scope, key, measure, starts_at)


async def usage(driver: Driver, caller: Caller, policy: BudgetPolicy, now: datetime | None = None) -> list[BudgetUsage]:
    """What is used of the caller's own limits: the account's, else the anonymous key's.

    Not those of the network and of all anonymous use, which would tell what others do.
    """
    scope, key = ("key", caller.anon_key_hash) if caller.user_id is None else ("user", caller.user_id.bytes)
    limits = [limit for limit in policy.limits if limit.scope == scope and key is not None]
    spans = [current_window(limit, now or datetime.now(UTC)) for limit in limits]
    query = """
        SELECT measure, starts_at, reserved, settled FROM budgets
        WHERE scope = $1 AND key = $2 AND starts_at = ANY($3::timestamptz[])
    """
    rows = await driver.fetch(query, scope, key, [starts_at for starts_at, _ in spans]) if limits else []
    levels = {(row["measure"], row["starts_at"]): _level(row) for row in rows}
    return [
        _used(limit, levels.get((limit.measure, starts_at), WindowUsage()), ends_at)
        for limit, (starts_at, ends_at) in zip(limits, spans, strict=True)
    ]


async def _lock(
    driver: Driver, spans: Iterable[tuple[str, bytes, str, datetime, datetime]]
) -> dict[WindowKey, WindowUsage]:
    columns = list(zip(*spans, strict=True))
    rows = await driver.fetch(LOCK, *columns) if columns else []
    return {(row["scope"], row["key"], row["measure"], row["starts_at"]): _level(row) for row in rows}


def _level(row: Record) -> WindowUsage:
    return WindowUsage(reserved=row["reserved"], settled=row["settled"])


async def _entries(driver: Driver, run_id: UUID, *, locked: bool = False) -> tuple[Entry, ...]:
    rows = await driver.fetch(ENTRIES + (" FOR NO KEY UPDATE" if locked else ""), run_id)
    return tuple(Entry(**{name: row[name] for name in Entry.__struct_fields__}) for row in rows)


def _window(ask: ReservationRequest) -> tuple[str, bytes, str, datetime, datetime]:
    return (*ask.place, ask.ends_at)


def _place(entry: Entry) -> WindowKey:
    return entry.scope, entry.key, entry.measure, entry.starts_at


def _further(entry: Entry, need: Decimal) -> ReservationRequest:
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


def _used(limit: BudgetLimit, level: WindowUsage, ends_at: datetime) -> BudgetUsage:
    return BudgetUsage(
        scope=limit.scope,
        measure=limit.measure,
        used=format_decimal(level.settled),
        reserved=format_decimal(level.reserved),
        most=format_decimal(limit.most),
        ends_at=None if ends_at == END_OF_TIME else ends_at,
    )
