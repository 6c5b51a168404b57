"""Budgets on a real Postgres, with a provider's real protocol: no overspending, and no reservation is left over."""

import asyncio
import contextlib
import itertools
import json
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text

from khala.domain import budgets, ids
from khala.domain.access import Caller, key_hash
from khala.domain.budgets import (
    DAY_SECONDS,
    HOUR_SECONDS,
    INITIAL_RESERVATION,
    BudgetLimit,
    BudgetMeasure,
    BudgetPolicy,
    BudgetScope,
)
from khala.domain.chat import RunBudget, RunOptions, SendResult
from khala.domain.errors import BudgetExhausted, Conflict, RateLimited, RunActive
from khala.runs import budget_meter
from khala.runs.budget_meter import BudgetMeter
from khala.runs.usage_tally import UsageTally
from khala.store.accounts import claims
from khala.store.budgets import counters, ledger, windows
from khala.store.budgets.ledger import Settlement
from khala.store.operations import retention
from khala.store.postgres.database import Database
from khala.store.runs import run_queue, runs
from khala.store.runs.leases import Lease
from khala.store.runs.parts import Batch, append
from khala.store.runs.receipts import ReceiptEntry
from khala.store.schema.tables import users
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest
from tests.integration.test_runs import khala_with_provider, kinds, receipts, revisions
from tests.support.callers import person
from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Reply
from tests.support.store import CALLER, KEY, ask, batch, claim, ending, new_thread, write

MODEL = "openai:gpt-4o"
GPT_4O = {"KHALA_MODEL": MODEL, "KHALA_SYSTEM_PROMPT": "Be brief."}
WORDS = ("abc ",)
"""One token by estimate."""
TOKEN_USD = Decimal("0.00001")
"""What gpt-4o takes for a token of output."""

Amount: TypeAlias = Decimal | int
Levels: TypeAlias = dict[tuple[str, str], tuple[Amount, Amount]]


def limited(*limits: BudgetLimit) -> SendLimits:
    return SendLimits(per_owner=10_000, waiting=10_000, budgets=BudgetPolicy(limits=limits))


def limit(scope: BudgetScope, measure: BudgetMeasure, most: object, window: int | None = DAY_SECONDS) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure=measure, most=Decimal(str(most)), window=window)


USUAL = limited(
    limit("key", "runs", 1000, HOUR_SECONDS),
    limit("key", "usd", 1),
    limit("key", "tokens", 100_000),
    limit("anonymous", "usd", 5),
    limit("thread", "seconds", 1000, HOUR_SECONDS),
    limit("run", "usd", "0.5", None),
)


LEVELS = """
    SELECT scope, key, measure, starts_at, sum(reserved) AS reserved, sum(settled) AS settled FROM (
        SELECT scope, key, measure, starts_at, reserved, settled FROM budgets
        UNION ALL SELECT scope, key, measure, starts_at, reserved, settled FROM budget_stripes
    ) AS every GROUP BY 1, 2, 3, 4
"""


async def levels(db: Database) -> Levels:
    """The reserved and the settled amount by scope and measure; asserts that they equal the sums of the entries."""
    async with db.driver() as driver:
        torn = await driver.fetch(f"""
            SELECT levels.*, coalesce(held, 0) AS held, coalesce(used, 0) AS used FROM ({LEVELS}) AS levels LEFT JOIN (
                SELECT scope, key, measure, starts_at, sum(reserved) FILTER (WHERE settled IS NULL) AS held,
                       sum(settled) AS used FROM usage_ledger GROUP BY scope, key, measure, starts_at
            ) AS sums USING (scope, key, measure, starts_at)
            WHERE reserved <> coalesce(held, 0) OR settled <> coalesce(used, 0)
        """)
        rows = await driver.fetch(f"""
            SELECT scope, measure, sum(reserved) AS reserved, sum(settled) AS settled
            FROM ({LEVELS}) AS levels GROUP BY 1, 2
        """)
    assert [dict(row) for row in torn] == []
    return {(row["scope"], row["measure"]): (row["reserved"], row["settled"]) for row in rows}


async def assert_nothing_reserved(db: Database) -> Levels:
    """Assert that nothing is reserved and every entry is settled; returns the levels."""
    found = await levels(db)
    assert {place: held for place, (held, _) in found.items() if held} == {}
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM usage_ledger WHERE settled IS NULL") == 0
    return found


async def outcomes(sending: list[Coroutine[Any, Any, SendResult]]) -> tuple[int, int]:
    """The number of sends that made a run, and of those that met a limit; any other outcome is an error."""
    found = await asyncio.gather(*sending, return_exceptions=True)
    refused = [result for result in found if isinstance(result, BudgetExhausted)]
    made = [result for result in found if isinstance(result, SendResult)]
    assert len(made) + len(refused) == len(found), [result for result in found if not isinstance(result, SendResult)][
        :3
    ]
    assert all(response.retry_after and response.retry_after <= HOUR_SECONDS for response in refused)
    return len(made), len(refused)


async def count(db: Database, table: str) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval(f"SELECT count(*) FROM {table}"))


TEN = limited(limit("key", "runs", 10, HOUR_SECONDS), limit("anonymous", "usd", 20), limit("key", "usd", 10))


async def test_a_hundred_sends_at_once_to_many_threads_of_one_key_use_a_budget_of_ten_exactly(db: Database) -> None:
    places = [await new_thread(db) for _ in range(20)]
    sending = [ask(db, places[at % 20], limits=TEN) for at in range(100)]
    assert await outcomes(sending) == (10, 90)
    assert (await levels(db))["key", "runs"] == (10, 0)
    assert (await count(db, "runs"), await count(db, "messages")) == (10, 20)


async def test_a_hundred_sends_at_once_to_one_thread_use_a_budget_of_ten_exactly(db: Database) -> None:
    place = await new_thread(db)
    assert await outcomes([ask(db, place, limits=TEN) for _ in range(100)]) == (10, 90)
    assert await count(db, "runs") == 10


AMPLE = limited(*(msgspec.structs.replace(limit_, most=1000 * limit_.most) for limit_ in USUAL.budgets.limits))
"""Room for runs that are all cut off and count as all that they reserved: how many are is a matter of speed."""


async def test_sends_that_interrupt_each_other_and_end_never_deadlock(db: Database) -> None:
    places = [await new_thread(db) for _ in range(6)]

    async def work(place: UUID) -> None:
        for _ in range(12):
            sent = await ask(db, place, limits=AMPLE, if_busy="interrupt")
            await ledger.extend(db, sent.run_id, {"usd": Decimal("0.01"), "tokens": Decimal(3000)})
            for claimed in await claim(db, most=2, lease=0.01):
                await write(db, ending(claimed.lease, claimed.next_seq, ()))

    await asyncio.gather(*map(work, places))
    for place in places:
        await threads.remove(db, place, CALLER)
    assert (await assert_nothing_reserved(db))["key", "runs"] == (0, 72)


async def test_a_send_that_is_refused_or_repeated_reserves_nothing(db: Database) -> None:
    place = await new_thread(db)
    sent = await ask(db, place, limits=USUAL)
    before = await levels(db)
    again = SendRequest(thread_id=place, message_id=sent.user_message_id, text="?", options=RunOptions())
    assert await sends.send(db, again, CALLER, USUAL) == (sent, False)
    with pytest.raises(RunActive):
        await ask(db, place, limits=USUAL, if_busy="reject")
    with pytest.raises(RateLimited):
        await ask(db, place, limits=SendLimits(per_owner=1, budgets=USUAL.budgets))
    with pytest.raises(Conflict):
        await _send_with_same_id(db, sent)
    assert await levels(db) == before
    with pytest.raises(BudgetExhausted):
        await ask(db, place, limits=limited(*USUAL.budgets.limits[1:], limit("key", "runs", 1, HOUR_SECONDS)))
    assert await levels(db) == before


async def _send_with_same_id(db: Database, sent: SendResult) -> None:
    other = await new_thread(db)
    question = SendRequest(thread_id=other, message_id=sent.user_message_id, text="?", options=RunOptions())
    await sends.send(db, question, CALLER, USUAL)


async def test_a_refused_interrupting_send_cancels_no_run(db: Database) -> None:
    place, tight = await new_thread(db), limited(limit("key", "runs", 1, HOUR_SECONDS))
    sent = await ask(db, place, limits=tight)
    with pytest.raises(BudgetExhausted):
        await ask(db, place, limits=tight, if_busy="interrupt")
    assert (await runs.get(db, sent.run_id, CALLER)).status == "queued"


async def test_a_new_window_has_its_full_budget(db: Database) -> None:
    place, tight = await new_thread(db), limited(limit("key", "runs", 1, HOUR_SECONDS))
    await ask(db, place, limits=tight)
    with pytest.raises(BudgetExhausted) as refused:
        await ask(db, place, limits=tight)
    assert refused.value.retry_after is not None
    assert refused.value.retry_after <= HOUR_SECONDS
    async with db.driver() as driver:
        for table in ("budgets", "usage_ledger"):
            await driver.execute(f"UPDATE {table} SET starts_at = starts_at - interval '1 hour'")
        await driver.execute("UPDATE budgets SET ends_at = ends_at - interval '1 hour'")
    await ask(db, place, limits=tight)
    for claimed in await claim(db) + await claim(db):
        await write(db, ending(claimed.lease, 0, ()))
    assert (await levels(db))["key", "runs"] == (1, 1)


End: TypeAlias = Callable[[Database, Lease], Coroutine[Any, Any, None]]
RECEIPT = {"usage": {"inputTokens": 100, "outputTokens": 40}, "totalMs": 2500}


def entry(seq: int, data: str, cost_usd: Decimal | None) -> ReceiptEntry:
    return ReceiptEntry(seq=seq, type="model", data=data, hash=b"", cost_usd=cost_usd)


def receipt(seq: int) -> ReceiptEntry:
    return entry(seq, json.dumps(RECEIPT), Decimal("0.003"))


async def finish(db: Database, lease: Lease) -> None:
    last = ending(lease, 0, ())
    await write(db, Batch(lease=lease, parts=last.parts, receipts=[receipt(0)], ending=last.ending))
    assert await write(db, last) == {lease.run_id: 0}, "repeated after a commit whose acknowledgement was lost"


async def crash_and_take_over(db: Database, lease: Lease) -> None:
    first = batch(lease, 0, "a")
    await write(db, Batch(lease=lease, parts=first.parts, receipts=[receipt(0)]))
    await lapse(db)
    (later,) = await claim(db)
    await ledger.extend(db, lease.run_id, {"usd": Decimal("0.03")})
    assert await write(db, ending(lease, 1, ())) == {}, "the executor before the take-over is fenced off"
    last = ending(later.lease, 1, ())
    await write(db, Batch(lease=later.lease, parts=last.parts, receipts=[receipt(1)], ending=last.ending))


async def hand_over(db: Database, lease: Lease) -> None:
    await run_queue.release(db, lease, [receipt(0)])
    held = await levels(db)
    assert held["key", "usd"] == (INITIAL_RESERVATION["usd"], 0), "the next executor keeps the reservation"
    (later,) = await claim(db)
    await write(db, ending(later.lease, 0, ()))


async def cancel_unheld(db: Database, lease: Lease) -> None:
    await lapse(db)
    await runs.cancel(db, lease.run_id, CALLER)
    await runs.cancel(db, lease.run_id, CALLER)


async def cancel_queued(db: Database, lease: Lease) -> None:
    await run_queue.release(db, lease, [])
    await runs.cancel(db, lease.run_id, CALLER)


async def delete(db: Database, lease: Lease) -> None:
    await threads.remove(db, lease.thread_id, CALLER)
    assert await ledger.extend(db, lease.run_id, {"usd": Decimal(1)}) == ()


async def reset(db: Database, lease: Lease) -> None:
    await threads.reset(db, lease.thread_id, CALLER, welcome="")
    await threads.reset(db, lease.thread_id, CALLER, welcome="")


async def lapse(db: Database) -> None:
    async with db.driver() as driver:
        await driver.execute("UPDATE runs SET lease_expires_at = now() - interval '1 second'")


@pytest.mark.parametrize(
    ("end", "usd", "tokens"),
    [
        (finish, "0.003", 140),
        (crash_and_take_over, "0.006", 280),
        (hand_over, "0.003", 140),
        (cancel_queued, 0, 0),
        # The unknown use of an interrupted call counts as the reserved amount.
        (cancel_unheld, INITIAL_RESERVATION["usd"], INITIAL_RESERVATION["tokens"]),
        (delete, INITIAL_RESERVATION["usd"], INITIAL_RESERVATION["tokens"]),
        (reset, INITIAL_RESERVATION["usd"], INITIAL_RESERVATION["tokens"]),
    ],
)
async def test_whatever_ends_a_run_settles_it_once(db: Database, end: End, usd: object, tokens: object) -> None:
    sent = await ask(db, await new_thread(db), limits=USUAL)
    held = await levels(db)
    assert held["key", "usd"] == held["anonymous", "usd"] == (INITIAL_RESERVATION["usd"], 0)
    assert held["key", "runs"] == (1, 0)
    assert ("run", "usd") not in held
    (claimed,) = await claim(db)
    assert claimed.lease.run_id == sent.run_id
    await end(db, claimed.lease)
    found = await assert_nothing_reserved(db)
    assert found["key", "runs"] == (0, 1)
    assert found["key", "usd"] == found["anonymous", "usd"] == (0, Decimal(str(usd)))
    assert found["key", "tokens"] == (0, Decimal(str(tokens)))
    async with db.driver() as driver:
        await ledger.settle(driver, [Settlement(run_id=sent.run_id, thread_id=sent.thread_id, interrupted=True)])
    assert await assert_nothing_reserved(db) == found


async def test_a_provider_with_absurd_usage_does_not_keep_a_run_from_ending(db: Database) -> None:
    await ask(db, await new_thread(db), limits=USUAL)
    lease = (await claim(db))[0].lease
    last = ending(lease, 0, ())
    usage = {"inputTokens": 10**15, "outputTokens": -1}
    nonsense = entry(0, json.dumps({"usage": usage, "totalMs": -5}), None)
    assert await write(db, Batch(lease=lease, parts=last.parts, receipts=[nonsense], ending=last.ending))
    found = await assert_nothing_reserved(db)
    assert found["key", "tokens"] == (0, ledger.MAX_SETTLED)
    assert found["thread", "seconds"] == (0, 0)


async def test_seconds_count_the_time_of_model_calls(db: Database) -> None:
    await ask(db, await new_thread(db), limits=USUAL)
    await finish(db, (await claim(db))[0].lease)
    assert (await assert_nothing_reserved(db))["thread", "seconds"] == (0, Decimal("2.5"))


async def test_a_group_commit_ends_many_runs_in_as_many_statements_as_one(db: Database) -> None:
    places = [await new_thread(db) for _ in range(30)]
    for place in places:
        await ask(db, place, limits=USUAL)
    leases = [claimed.lease for claimed in await claim(db)]
    statements: list[str] = []
    counts: list[int] = []
    # On first use, the driver also queries the types.
    for some in (leases[:1], leases[1:2], leases[2:]):
        async with db.driver() as driver:
            with driver.query_logger(lambda record: statements.append(record.query)):
                await append(driver, [ending(lease, 0, ()) for lease in some])
        counts.append(len(statements))
        statements.clear()
    assert counts[1] == counts[2]
    assert (await assert_nothing_reserved(db))["key", "runs"] == (0, 30)


async def test_a_claim_moves_open_reservations_to_the_user_and_leaves_settled_ones(db: Database) -> None:
    place, elsewhere, user_id = await new_thread(db), await new_thread(db), ids.new()
    await ask(db, place, limits=USUAL)
    await finish(db, (await claim(db))[0].lease)
    await ask(db, place, limits=USUAL)
    await ask(db, elsewhere, limits=USUAL)
    async with db.transaction() as connection:
        await connection.execute(insert(users).values(id=user_id))
        await threads.lock(connection, place)
        await ledger.move_to_user(connection, place, user_id)
    found = await levels(db)
    assert found["key", "runs"] == (1, 1), "the run of the other thread stays with the key"
    assert found["user", "runs"] == (1, 0)
    assert found["user", "usd"] == (INITIAL_RESERVATION["usd"], 0)
    assert found["anonymous", "usd"] == (2 * INITIAL_RESERVATION["usd"], Decimal("0.003"))
    for claimed in await claim(db):
        await ledger.extend(db, claimed.lease.run_id, {"usd": Decimal("0.4"), "tokens": Decimal(5000)})
        await finish(db, claimed.lease)
    found = await assert_nothing_reserved(db)
    assert found["user", "runs"] == (0, 1)
    assert found["user", "usd"] == (0, Decimal("0.003"))
    assert found["key", "usd"] == (0, Decimal("0.006"))


async def test_an_extension_fits_every_budget_or_reserves_nothing(db: Database) -> None:
    tight = limited(limit("key", "usd", 1), limit("anonymous", "usd", "0.02"))
    sent = await ask(db, await new_thread(db), limits=tight)
    entries = await ledger.extend(db, sent.run_id, {"usd": Decimal("0.01")})
    assert {entry.scope: entry.reserved for entry in entries} == {"key": Decimal("0.03"), "anonymous": Decimal("0.02")}
    before = await levels(db)
    with pytest.raises(BudgetExhausted, match="guests"):
        await ledger.extend(db, sent.run_id, {"usd": Decimal("0.04")})
    assert await levels(db) == before


async def test_time_is_reserved_in_portions_until_none_is_left(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for portions in (budgets.INITIAL_RESERVATION, budgets.FURTHER_RESERVATION):
        monkeypatch.setitem(portions, "seconds", Decimal("0.1"))
    sent = await ask(db, await new_thread(db), limits=limited(limit("thread", "seconds", "0.35")))
    tally = UsageTally()
    # Each reading is 3 ms after the previous one: on a slow machine, real time would pass several portions at once. No
    # number of such steps is at the end of a portion, where rounding would decide.
    readings = (tally.began + number * 0.003 for number in itertools.count())
    clock = SimpleNamespace(monotonic=lambda: next(readings))
    monkeypatch.setattr(budget_meter, "time", clock)
    async with db.driver() as driver:
        meter = BudgetMeter(db, sent.run_id, await ledger.read_account(driver, sent.thread_id, sent.run_id), tally)
    assert (await levels(db))["thread", "seconds"] == (Decimal("0.1"), 0)
    with pytest.raises(BudgetExhausted, match="this chat"):
        await asyncio.wait_for(meter.watch_time(), 60)
    assert clock.monotonic() - tally.began >= 0.35
    assert meter.exhausted
    assert (await levels(db))["thread", "seconds"] == (Decimal("0.35"), 0)


async def test_counts_are_shared_by_all_processes_and_survive_a_rollback_around_them(db: Database) -> None:
    async def tried() -> float | None:
        return await counters.count(db, "login", b"me", "tries", 10, window_seconds=900)

    found = await asyncio.gather(*(tried() for _ in range(50)))
    assert found.count(None) == 10
    assert all(0 < wait <= 900 for wait in found if wait is not None)
    await counters.discount(db, "login", b"me", "tries", window_seconds=900)
    assert await tried() is None
    assert await tried() is not None
    later = datetime.now(UTC) + timedelta(seconds=900)
    assert await counters.count(db, "login", b"me", "tries", 10, window_seconds=900, now=later) is None
    assert await counters.count(db, "login", b"you", "tries", 0, window_seconds=900) is not None
    await counters.discount(db, "login", b"nobody", "tries", window_seconds=900)


async def test_old_windows_and_old_entries_are_purged_but_none_that_a_run_still_needs(db: Database) -> None:
    place, keep = await new_thread(db), retention.RetentionPolicy(idle=timedelta(0))
    for _ in range(3):
        await ask(
            db, place, limits=limited(limit("key", "runs", 9, HOUR_SECONDS), limit("thread", "runs", 9, HOUR_SECONDS))
        )
    (claimed,) = await claim(db)
    await finish(db, claimed.lease)
    async with db.driver() as driver:
        await driver.execute("UPDATE usage_ledger SET created_at = now() - interval '8 days'")
        await driver.execute("UPDATE budgets SET ends_at = now() - interval '2 days'")
        gone = await retention.purge(db, keep)
        assert (gone["usage_ledger"], gone["budgets"]) == (2, 0), "windows with runs that are not settled stay"
        ended = await driver.fetch("SELECT id FROM runs")
        await ledger.settle(driver, [Settlement(run_id=row["id"], thread_id=place) for row in ended])
    await retention.purge(db, keep)
    assert (await count(db, "budgets"), await count(db, "usage_ledger")) == (0, 0)


async def test_callers_see_the_use_of_their_own_limits(db: Database) -> None:
    place = await new_thread(db)
    await ask(db, place, limits=USUAL)
    await finish(db, (await claim(db))[0].lease)
    await ask(db, place, limits=USUAL)
    async with db.driver() as driver:
        found = {usage.measure: usage for usage in await windows.read_usage(driver, CALLER, USUAL.budgets)}
        assert await windows.read_usage(driver, Caller(), USUAL.budgets) == []
        (other,) = await windows.read_usage(
            driver, Caller(user_id=ids.new()), BudgetPolicy(limits=(limit("user", "usd", "10.50"),))
        )
    assert set(found) == {"runs", "usd", "tokens"}
    assert (found["usd"].used, found["usd"].reserved, found["usd"].most) == ("0.003", "0.005", "1")
    assert (found["tokens"].used, found["runs"].used, found["runs"].reserved) == ("140", "1", "1")
    assert found["runs"].ends_at is not None
    assert found["runs"].ends_at > datetime.now(UTC)
    assert (other.used, other.reserved, other.most) == ("0", "0", "10.5")


steps = st.lists(
    st.tuples(st.sampled_from(["send", "extend", "finish", "cancel", "lapse"]), st.integers(0, 3)), max_size=25
)


def test_no_order_of_reserving_extending_and_settling_holds_back_more_than_the_limit(database_url: str) -> None:
    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(steps)
    def law(script: list[tuple[str, int]]) -> None:
        asyncio.run(play(database_url, script))

    law()


async def play(database_url: str, script: list[tuple[str, int]]) -> None:
    db = Database(database_url, pool_size=2)
    try:
        async with db.transaction() as connection:
            for table in ("budgets", "usage_ledger", "runs"):
                await connection.execute(text(f"DELETE FROM {table}"))
        places = [await new_thread(db) for _ in range(4)]
        overshoot = Decimal(0)
        for action, which in script:
            overshoot += await perform(db, action, places[which])
            await levels(db)
            async with db.driver() as driver:
                rows = await driver.fetch(LEVELS)
            for row in rows:
                most = next(
                    x.most for x in TIGHT.budgets.limits if (x.scope, x.measure) == (row["scope"], row["measure"])
                )
                assert row["reserved"] >= 0
                assert row["reserved"] + row["settled"] <= most + overshoot
        for place in places:
            await threads.remove(db, place, CALLER)
        await assert_nothing_reserved(db)
    finally:
        await db.close()


TIGHT = limited(
    limit("key", "runs", 6), limit("key", "usd", "0.03"), limit("thread", "usd", "0.012"),
    limit("anonymous", "usd", "0.035"), limit("anonymous", "runs", 7),
)  # fmt: skip
OVER = Decimal("0.001")
"""How far a run goes beyond what it has reserved, before it is measured again."""


async def perform(db: Database, action: str, place: UUID) -> Decimal:
    """Perform the action; returns by how much it allows the use to exceed the limits."""
    async with db.driver() as driver:
        run_id = await driver.fetchval(
            "SELECT id FROM runs WHERE thread_id = $1 AND status IN ('queued', 'running') ORDER BY id", place
        )
    with contextlib.suppress(BudgetExhausted):
        if action == "send":
            await ask(db, place, limits=TIGHT)
        elif action == "extend" and run_id:
            await ledger.extend(db, run_id, {"usd": Decimal("0.007"), "tokens": Decimal(9)})
        elif action == "cancel" and run_id:
            await runs.cancel(db, run_id, CALLER)
        elif action == "lapse":
            await lapse(db)
        elif action == "finish" and run_id:
            return await finish_with_random_use(db, run_id)
    return Decimal(0)


async def finish_with_random_use(db: Database, run_id: UUID) -> Decimal:
    await claim(db)
    async with db.driver() as driver:
        row = await driver.fetchrow("SELECT * FROM runs WHERE id = $1 AND status = 'running'", run_id)
        if row is None:
            return Decimal(0)
        held = await driver.fetchval(
            "SELECT min(reserved) FROM usage_ledger WHERE run_id = $1 AND measure = 'usd'", run_id
        )
    lease = Lease(run_id=run_id, thread_id=row["thread_id"], message_id=row["message_id"], epoch=row["epoch"])
    last, cost = ending(lease, 0, ()), entry(0, json.dumps(RECEIPT), held + OVER)
    await write(db, Batch(lease=lease, parts=last.parts, receipts=[cost], ending=last.ending))
    return OVER


async def threads_of_one_key(server: InProcessServer, number: int) -> list[Thread]:
    """So many threads of one anonymous key."""
    key = uuid.uuid4().hex * 2
    made = [
        (await server.http.post("/api/threads", json={"anonKey": key})).json()["thread"]["id"] for _ in range(number)
    ]
    return [Thread(server.http, thread_id, key) for thread_id in made]


async def test_a_limit_reached_before_a_run_begins_is_a_429_with_retry_after(database_url: str) -> None:
    async with khala(database_url, with_executor=False, KHALA_ANON_RUNS_PER_HOUR="1") as server:
        (thread,) = await threads_of_one_key(server, 1)
        sent = await thread.send("One")
        refused = await thread.post("send", {"text": "Two", "options": {"ifBusy": "queue"}})
        assert (refused.status_code, refused.json()["code"]) == (429, "budget_exhausted")
        assert 1 <= int(refused.headers["retry-after"]) <= HOUR_SECONDS
        again = await thread.post("send", {"text": "One", "messageId": sent["userMessageId"]})
        assert (again.status_code, again.json()) == (200, sent)
        assert (await (await server.thread()).post("send", {"text": "Another key's"})).status_code == 202


async def test_an_invalid_budget_is_refused_by_name(database_url: str) -> None:
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        refused = await thread.post("send", {"text": "?", "options": {"budget": {"usd": "-1"}}})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")
        assert refused.json()["errors"][0]["path"].startswith("options.budget")


async def test_many_priced_runs_at_once_exceed_the_limit_by_at_most_a_token_each(database_url: str) -> None:
    most, many, length = Decimal("0.1"), 10, 9000
    reply = Reply(tokens=WORDS * length, pace=1000, usage=(20, length))
    env = GPT_4O | {"KHALA_ANON_USD_PER_DAY": str(most), "KHALA_ANON_TOKENS_PER_DAY": "0"}
    async with khala_with_provider(database_url, *[reply] * many, **env) as (server, _):
        places = await threads_of_one_key(server, many)
        answers = await asyncio.gather(*(thread.post("send", {"text": "Go on and on."}) for thread in places))
        # On a slow machine the first runs may have used up the budget before the last send.
        made = [
            (thread, response.json())
            for thread, response in zip(places, answers, strict=True)
            if response.status_code == 202
        ]
        ended = [await thread.ended(sent["runId"], within=60) for thread, sent in made]
        again = await places[0].post("send", {"text": "More?"})
    refused = [answer for answer in (*answers, again) if answer.status_code != 202]
    assert {(response.status_code, response.json()["code"]) for response in refused} == {(429, "budget_exhausted")}
    assert again in refused
    assert len(made) > 1
    assert {run["finish"]["reason"] for run in ended} == {"budget"}
    db = Database(database_url)
    found = await assert_nothing_reserved(db)
    async with db.driver() as driver:
        total = await driver.fetchval("SELECT sum(cost_usd) FROM receipts")
    await db.close()
    used = found["key", "usd"][1]
    assert used == total == found["anonymous", "usd"][1]
    assert most * Decimal("0.9") < used <= most + len(made) * 10 * TOKEN_USD


async def run_with_budget(server: InProcessServer, **budget: object) -> tuple[Thread, dict[str, Any], dict[str, Any]]:
    """Send with a budget; returns the thread, the run when it has ended, and the answer."""
    thread = await server.thread()
    sent = await thread.send("Go on and on.", options={"budget": budget})
    run = await thread.ended(sent["runId"], within=15)
    return thread, run, (await thread.snapshot())["messages"][-1]


def assert_ended_by_budget(run: dict[str, Any], message: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    assert (run["status"], message["status"], run["finish"]["reason"]) == ("error", "error", "budget")
    assert kinds(parts)[-3:] == ["text-delta", "error", "finish"]
    assert parts[-2]["data"]["code"] == "budget_exhausted"
    assert text_of(message).endswith(parts[-2]["data"]["message"])


@pytest.mark.parametrize("budget", [{"usd": "0.002"}, {"tokens": 200}])
async def test_a_run_that_reaches_its_limit_in_midstream_ends_visibly(
    database_url: str, budget: dict[str, object]
) -> None:
    async with khala_with_provider(database_url, Reply(tokens=WORDS * 5000, pace=1000), **GPT_4O) as (server, provider):
        thread, run, message = await run_with_budget(server, **budget)
        parts = await thread.parts(run["id"])
        (found,) = await receipts(thread, run["id"])
        call = await provider.call(0)
        await asyncio.wait_for(call.gone.wait(), 5)
    assert_ended_by_budget(run, message, parts)
    assert text_of(message).startswith("abc abc abc ")
    assert call.left is not None
    assert not call.completed
    assert (found["type"], found["data"]["outcome"], found["data"]["estimated"]) == ("model", "budget_exhausted", True)
    usage = found["data"]["usage"]
    assert 150 <= usage["inputTokens"] + usage["outputTokens"] <= (201 if "tokens" in budget else 221)
    assert Decimal(found["costUsd"]) <= Decimal("0.00201")
    assert await revisions(database_url, "error", "finish") == [1, 1]


async def test_a_call_that_the_budget_does_not_allow_is_never_made(database_url: str) -> None:
    async with khala_with_provider(database_url, Reply(), **GPT_4O) as (server, provider):
        thread, run, message = await run_with_budget(server, tokens=3)
        parts = await thread.parts(run["id"])
        (found,) = await receipts(thread, run["id"])
        assert provider.calls == []
    assert_ended_by_budget(run, message, parts)
    assert text_of(message) == parts[-2]["data"]["message"]
    assert (found["type"], found["data"]["outcome"]) == ("model", "budget_exhausted")
    assert found["data"]["usage"] == {"inputTokens": 0, "outputTokens": 0}
    assert Decimal(found["costUsd"]) == 0


async def test_a_silent_model_is_stopped_when_the_time_budget_is_used_up(database_url: str) -> None:
    began = time.monotonic()
    async with khala_with_provider(database_url, Reply(tokens=WORDS * 9, hang_after=2), **GPT_4O) as (server, provider):
        thread, run, message = await run_with_budget(server, seconds=0.5)
        parts = await thread.parts(run["id"])
        (found,) = await receipts(thread, run["id"])
        call = await provider.call(0)
        await asyncio.wait_for(call.gone.wait(), 5)
    assert_ended_by_budget(run, message, parts)
    assert text_of(message).startswith("abc abc \n\n")
    assert budgets.OUT_OF_TIME_MESSAGE in text_of(message)
    assert found["data"]["outcome"] == "budget_exhausted"
    assert 300 <= found["data"]["totalMs"] < 3000
    assert time.monotonic() - began < 12


async def test_tokens_of_a_model_without_a_price_are_counted(database_url: str) -> None:
    env = {"KHALA_MODEL": "openai:my-own-model", "KHALA_ANON_TOKENS_PER_DAY": "2500"}
    async with khala_with_provider(database_url, Reply(tokens=WORDS * 9000, pace=8000), **env) as (server, _):
        thread = await server.thread()
        sent = await thread.send("Go on and on.")
        run = await thread.ended(sent["runId"], within=15)
        (found,) = await receipts(thread, run["id"])
    assert run["finish"]["reason"] == "budget"
    assert "costUsd" not in found
    db = Database(database_url)
    used = (await assert_nothing_reserved(db))["key", "tokens"][1]
    await db.close()
    assert 2400 <= used <= 2510


async def test_a_run_that_is_canceled_or_deleted_while_running_releases_its_reservation(database_url: str) -> None:
    reply = Reply(tokens=WORDS * 9, hang_after=3)
    async with khala_with_provider(database_url, reply, reply, **GPT_4O) as (server, provider):
        for at, end in enumerate(("cancel", "delete")):
            thread = await server.thread()
            sent = await thread.send("Hello?")
            call = await provider.call(at)
            if end == "cancel":
                await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
                await thread.ended(sent["runId"])
            else:
                await server.http.delete(f"/api/threads/{thread.id}", headers=thread.headers)
            await asyncio.wait_for(call.gone.wait(), 5)
        db = Database(database_url)
        found = await assert_nothing_reserved(db)
        await db.close()
    assert found["key", "runs"] == (0, 2)
    assert found["key", "usd"][1] > INITIAL_RESERVATION["usd"]


async def test_a_run_that_is_taken_over_continues_within_the_rest_of_its_budget(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False, KHALA_MODEL="demo") as server:
        thread = await server.thread()
        sent = await thread.send("/words=900 /pace=0", options={"budget": {"tokens": 200}})
        (dead,) = await claim(db, most=1, lease=0.2)
        written = batch(dead.lease, 0, "word1 word2 ")
        await write(db, Batch(lease=dead.lease, parts=written.parts, receipts=[receipt(0)]))
        async with khala(database_url):
            run = await thread.ended(sent["runId"], within=15)
    async with db.driver() as driver:
        rows = await driver.fetch(
            "SELECT data->>'outcome' AS outcome, data->'usage' AS usage FROM receipts ORDER BY seq"
        )
    assert (run["attempt"], run["finish"]["reason"]) == (2, "budget")
    assert rows[-1]["outcome"] == "budget_exhausted"
    assert sum(sum(json.loads(row["usage"]).values()) for row in rows) <= 205
    await assert_nothing_reserved(db)
    await db.close()


async def test_a_guests_send_counts_for_the_owner_and_for_the_network(db: Database) -> None:
    owner, guest = ids.new(), Caller(share_key_hash=b"s" * 32, network="203.0.113.0/24")
    async with db.transaction() as connection:
        await connection.execute(insert(users).values(id=owner))
    thread, _ = await threads.create(db, ids.new(), Caller(user_id=owner), title=None, welcome="")
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO share_links (id, thread_id, key_hash, role) VALUES ($1, $2, $3, 'editor')",
            ids.new(), thread.id, guest.share_key_hash,
        )  # fmt: skip
    policy = limited(limit("user", "runs", 1), limit("network", "runs", 5), limit("anonymous", "usd", 5))
    options = RunOptions(if_busy="queue", budget=RunBudget(usd=Decimal(1)))

    async def send() -> None:
        question = SendRequest(thread_id=thread.id, message_id=ids.new(), text="?", options=options)
        await sends.send(db, question, guest, policy)

    await send()
    with pytest.raises(BudgetExhausted, match="this account"):
        await send()
    assert await levels(db) == {("user", "runs"): (1, 0), ("network", "runs"): (1, 0)}


async def test_an_amount_is_counted_up_to_the_limit_and_not_beyond(db: Database) -> None:
    async with db.driver() as driver:

        async def take(amount: int) -> bool:
            return await counters.count_amount(driver, "anonymous", b"", "KiB", Decimal(amount), most=5) is None

        assert [await take(6), await take(3), await take(3), await take(2), await take(1)] == [
            False,
            True,
            False,
            True,
            False,
        ]
        assert await driver.fetchval("SELECT settled FROM budgets") == 5


async def test_an_amount_that_was_never_counted_is_not_released(db: Database) -> None:
    place = ("login pair", b"key", "tries")

    async def fits() -> bool:
        return await counters.count(db, *place, most=2, window_seconds=HOUR_SECONDS) is None

    for _ in range(3):
        await counters.discount(db, *place, window_seconds=HOUR_SECONDS)
    assert [await fits() for _ in range(3)] == [True, True, False]
    for _ in range(3):
        await counters.discount(db, *place, window_seconds=HOUR_SECONDS)
    assert [await fits() for _ in range(3)] == [True, True, False]


async def test_the_user_who_claims_a_thread_pays_for_its_unfinished_runs(db: Database) -> None:
    thread_id = await new_thread(db)
    await ask(db, thread_id, limits=USUAL)
    owner = await person(db)
    await claims.claim(db, thread_id, key_hash(KEY), owner.caller)
    held = await levels(db)
    assert [held[scope, "usd"] for scope in ("key", "user")] == [(0, 0), (INITIAL_RESERVATION["usd"], 0)]
    assert [held[scope, "runs"] for scope in ("key", "user")] == [(0, 0), (1, 0)]
