"""Limits that all sends share: exact under concurrency, and no queue of sends."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from khala.domain import ids
from khala.domain.budgets import (
    END_OF_TIME,
    HOUR_SECONDS,
    INITIAL_RESERVATION,
    UNIX_EPOCH,
    BudgetLimit,
    ReservationRequest,
)
from khala.domain.errors import BudgetExhausted, Unavailable
from khala.store.budgets import ledger, stripes
from khala.store.budgets.ledger import Settlement
from khala.store.budgets.stripes import STRIPES, refilled
from khala.store.operations import retention
from khala.store.postgres.database import Database, driver_url
from tests.integration.test_budgets import assert_nothing_reserved, count, levels, limit, limited, outcomes
from tests.support.store import ask, claim, ending, new_thread, write

USD = INITIAL_RESERVATION["usd"]


def runs_limit(most: int) -> BudgetLimit:
    return limit("anonymous", "runs", most, HOUR_SECONDS)


AMPLE = limited(limit("anonymous", "usd", 1000))


@contextlib.asynccontextmanager
async def locked_stripes(db: Database, condition: str) -> AsyncIterator[int]:
    """Lock these stripes, as a frozen process does. Returns their number."""
    other = await asyncpg.connect(driver_url(db.url))
    try:
        async with other.transaction():
            yield len(await other.fetch(f"SELECT FROM budget_stripes WHERE {condition} FOR UPDATE"))
    finally:
        await other.close()


async def test_320_sends_at_once_over_many_connections_use_a_limit_of_200_exactly(database_url: str) -> None:
    processes = [Database(database_url, pool_size=12) for _ in range(3)]
    try:
        limits = limited(runs_limit(200))
        places = [await new_thread(processes[0]) for _ in range(320)]
        sending = [ask(processes[at % 3], place, limits=limits) for at, place in enumerate(places)]
        assert await outcomes(sending) == (200, 120)
        assert await levels(processes[0]) == {("anonymous", "runs"): (200, 0)}
        assert await count(processes[0], "runs") == 200
    finally:
        for process in processes:
            await process.close()


async def test_sends_at_once_leave_less_than_one_of_them_needs(db: Database) -> None:
    most = Decimal("0.2022")
    places = [await new_thread(db) for _ in range(80)]
    made, refused = await outcomes(
        [ask(db, place, limits=limited(limit("anonymous", "usd", most))) for place in places]
    )
    reserved, _ = (await levels(db))["anonymous", "usd"]
    assert made > 0
    assert refused > 0
    assert most - USD / 10 < reserved <= most


async def test_sends_do_not_wait_for_a_process_that_is_frozen_in_a_send(db: Database) -> None:
    await ask(db, await new_thread(db), limits=AMPLE)
    places = [await new_thread(db) for _ in range(60)]
    async with locked_stripes(db, "number < 8") as locked:
        assert locked == 8
        began = time.monotonic()
        assert await outcomes([ask(db, place, limits=AMPLE) for place in places]) == (60, 0)
        assert time.monotonic() - began < 5
    assert (await levels(db))["anonymous", "usd"] == (61 * USD, 0)


async def test_a_send_waits_for_the_last_remainder_while_another_transaction_has_locked_it(db: Database) -> None:
    limits = limited(runs_limit(2))
    await ask(db, await new_thread(db), limits=limits)
    place = await new_thread(db)
    async with locked_stripes(db, "reserved < 0") as locked:
        assert locked == 1
        sending = asyncio.create_task(ask(db, place, limits=limits))
        done, _ = await asyncio.wait({sending}, timeout=0.3)
        assert not done, "neither refused nor granted"
    await asyncio.wait_for(sending, 5)
    assert await levels(db) == {("anonymous", "runs"): (2, 0)}


async def test_a_command_gives_up_when_the_remainder_stays_locked(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "REFILL_TIMEOUT_SECONDS", 0.1)
    limits = limited(runs_limit(2))
    await ask(db, await new_thread(db), limits=limits)
    place = await new_thread(db)
    async with locked_stripes(db, "reserved < 0"):
        with pytest.raises(Unavailable):
            await ask(db, place, limits=limits)
    assert await levels(db) == {("anonymous", "runs"): (1, 0)}


async def test_a_run_ends_while_all_stripes_are_locked(db: Database) -> None:
    await ask(db, await new_thread(db), limits=AMPLE)
    (claimed,) = await claim(db)
    async with locked_stripes(db, "true") as locked:
        assert locked == STRIPES
        await asyncio.wait_for(write(db, ending(claimed.lease, 0, ())), 5)
    assert await assert_nothing_reserved(db) == {("anonymous", "usd"): (0, 0)}
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM budget_stripes") == STRIPES + 1


async def test_a_lower_limit_applies_at_once_and_a_higher_one_adds_the_difference(db: Database) -> None:
    places = [await new_thread(db) for _ in range(40)]

    async def send(most: int, times: int) -> tuple[int, int]:
        limits = limited(runs_limit(most))
        return await outcomes([ask(db, place, limits=limits) for place in places[:times]])

    assert await send(30, 12) == (12, 0)
    assert await send(10, 5) == (0, 5)
    assert await send(14, 5) == (2, 3)
    assert await send(30, 40) == (16, 24)
    assert await send(33, 40) == (3, 37)
    assert await levels(db) == {("anonymous", "runs"): (33, 0)}


async def test_what_a_run_under_a_higher_limit_returns_is_not_for_a_lower_one(db: Database) -> None:
    each = INITIAL_RESERVATION["tokens"]
    low, high = (limited(limit("anonymous", "tokens", times * each)) for times in (4, 50))
    places = [await new_thread(db) for _ in range(24)]
    assert await outcomes([ask(db, place, limits=low) for place in places[:2]]) == (2, 0)
    # Locked stripes keep the shares of the lower limit.
    async with locked_stripes(db, "number > 1"):
        assert await outcomes([ask(db, place, limits=high) for place in places[2:12]]) == (10, 0)
    async with db.driver() as driver:
        ended = await driver.fetch("SELECT run_id FROM usage_ledger WHERE most = $1 LIMIT 8", 50 * each)
        await ledger.settle(driver, [Settlement(run_id=row["run_id"], thread_id=places[0]) for row in ended])
    assert (await levels(db))["anonymous", "tokens"] == (4 * each, 0)
    made, _ = await outcomes([ask(db, place, limits=low) for place in places[12:]])
    assert made <= 2, "no more than was set aside under this limit"


async def test_a_process_of_the_version_before_and_this_one_share_the_limit(db: Database) -> None:
    limits = limited(runs_limit(20))
    for _ in range(3):
        await ask(db, await new_thread(db), limits=limits)
    async with db.driver() as driver:
        # As that version reserves: in the window's row, under its lock.
        old = await driver.fetchrow("SELECT reserved, settled FROM budgets WHERE scope = 'anonymous'")
        left = 20 - old["reserved"] - old["settled"]
        assert left <= 17
        await driver.execute("UPDATE budgets SET reserved = reserved + $1 WHERE scope = 'anonymous'", min(left, 4))
    place = [await new_thread(db) for _ in range(30)]
    expected = 17 - int(min(left, 4))
    assert await outcomes([ask(db, one, limits=limits) for one in place]) == (expected, 30 - expected)


async def test_a_refill_with_other_shares_changes_no_usage(db: Database) -> None:
    small, large = Decimal(10), Decimal(2000)  # the shares for the small one are too small for the large one
    for wanted in (small, large):
        await _reserve(db, _tokens(least=wanted, wanted=wanted, most=Decimal(100_000)))
    assert await levels(db) == {("anonymous", "tokens"): (small + large, 0)}


async def test_windows_with_stripes_are_purged_only_when_nothing_is_reserved(db: Database) -> None:
    await ask(db, await new_thread(db), limits=AMPLE)
    (claimed,) = await claim(db)
    keep = retention.RetentionPolicy(idle=timedelta(0))
    async with db.driver() as driver:
        await driver.execute("UPDATE budgets SET ends_at = now() - interval '2 days'")
    assert (await retention.purge(db, keep))["budgets"] == 0
    await write(db, ending(claimed.lease, 0, ()))
    assert (await retention.purge(db, keep))["budgets"] == 1
    assert await count(db, "budget_stripes") == 0


actions = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(1, 60), st.integers(0, 40), st.sampled_from([300, 300, 300, 120])),
        st.tuples(st.just("settle"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("extend"), st.integers(0, 20), st.integers(1, 80)),
    ),
    max_size=30,
)


def test_a_reservation_succeeds_exactly_if_enough_is_left(database_url: str) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(actions)
    def law(script: list[tuple[object, ...]]) -> None:
        asyncio.run(_play(database_url, script))

    law()


def _tokens(*, least: Decimal, wanted: Decimal, most: Decimal) -> ReservationRequest:
    return ReservationRequest(
        scope="anonymous", measure="tokens", key=b"", starts_at=UNIX_EPOCH, ends_at=END_OF_TIME,
        least=least, wanted=wanted, most=most,
    )  # fmt: skip


@refilled
async def _reserve(db: Database, request: ReservationRequest) -> UUID:
    run_id = ids.new()
    async with db.driver() as driver, driver.transaction():
        await ledger.reserve(driver, run_id, [request], datetime.now(UTC))
    return run_id


class _Model:
    """The usage of one window, as a plain sum."""

    def __init__(self) -> None:
        self.reserved: dict[UUID, Decimal] = {}
        self.most: dict[UUID, Decimal] = {}
        self.used = Decimal(0)

    @property
    def total(self) -> Decimal:
        return sum(self.reserved.values(), self.used)


async def _play(database_url: str, script: list[tuple[object, ...]]) -> None:
    db = Database(database_url, pool_size=2)
    model = _Model()
    try:
        async with db.driver() as driver:
            await driver.execute("DELETE FROM budgets; DELETE FROM usage_ledger")
        for action in script:
            match action:
                case ("reserve", int(least), int(more), int(most)):
                    await _play_reserve(db, model, Decimal(least), Decimal(least + more), Decimal(most))
                case ("settle", int(which), bool(interrupted)) if model.reserved:
                    run_id = list(model.reserved)[which % len(model.reserved)]
                    amount = model.reserved.pop(run_id)
                    model.used += amount if interrupted else 0
                    async with db.driver() as driver:
                        ended = Settlement(run_id=run_id, thread_id=ids.new(), interrupted=interrupted)
                        await ledger.settle(driver, [ended])
                case ("extend", int(which), int(need)) if model.reserved:
                    run_id = list(model.reserved)[which % len(model.reserved)]
                    await _play_extend(db, model, run_id, Decimal(need))
            held = (sum(model.reserved.values(), Decimal(0)), model.used)
            assert (await levels(db)).get(("anonymous", "tokens"), (0, 0)) == held
    finally:
        await db.close()


async def _play_reserve(db: Database, model: _Model, least: Decimal, wanted: Decimal, most: Decimal) -> None:
    try:
        run_id = await _reserve(db, _tokens(least=least, wanted=wanted, most=most))
    except BudgetExhausted:
        assert model.total + least > most, "nothing is refused that is left"
        return
    async with db.driver() as driver:
        amount = await driver.fetchval("SELECT reserved FROM usage_ledger WHERE run_id = $1", run_id)
    assert least <= amount <= wanted
    model.reserved[run_id] = amount
    model.most[run_id] = most
    assert model.total <= max(model.most.values()), "the limit is kept"


async def _play_extend(db: Database, model: _Model, run_id: UUID, need: Decimal) -> None:
    before = model.reserved[run_id]
    most = model.most[run_id]
    try:
        (entry,) = await ledger.extend(db, run_id, {"tokens": need})
    except BudgetExhausted:
        assert model.total - before + need > most
        return
    model.reserved[run_id] = entry.reserved
    assert entry.reserved >= max(need, before)
    assert model.total <= max(model.most.values())
