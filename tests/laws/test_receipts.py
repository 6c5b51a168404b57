"""Laws of the receipt chain: every change of a receipt is detected, and storage does not change receipts."""

import asyncio
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from khala.domain.budgets import SMALLEST_AMOUNT
from khala.domain.flush_policy import FlushPolicy
from khala.domain.parts import Finish, TokenUsage
from khala.domain.receipts import FIRST_HASH, _stored, chained_hash
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from khala.store.runs.group_commit import Writer
from tests.support.store import lease_of, new_thread

RUN = UUID(int=7)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = (
    st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, -0.0, 1.0, 1e16, 1e22, 1e-7, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 2**53 + 1, 123.0])
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
receipts = st.fixed_dictionaries(
    {
        "seq": st.integers(0, 9999),
        "kind": st.sampled_from(["model", "tool"]),
        "tool_call_id": st.none() | texts,
        "data": st.dictionaries(texts, values, max_size=4),
        "cost_usd": st.none() | st.decimals(0, 1000, places=6),
    }
)


def chained(entries: list[dict[str, Any]], run_id: UUID = RUN) -> bytes:
    """The hash of the last entry of the chain."""
    last = FIRST_HASH
    for entry in entries:
        last = chained_hash(last, run_id=run_id, **entry)
    return last


def canonical(entry: dict[str, Any]) -> bytes:
    """A canonical encoding of a receipt: equal receipts have equal encodings."""
    cost = entry["cost_usd"]
    same = entry | {"cost_usd": None if cost is None else f"{cost.normalize():f}"}
    return msgspec.json.encode(same, order="deterministic")


@given(st.lists(receipts, min_size=1, max_size=5), st.data())
def test_any_change_of_any_field_changes_the_last_hash(entries: list[dict[str, Any]], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(entries) - 1))
    field = data.draw(st.sampled_from(sorted(entries[0])))
    other = data.draw(receipts)
    changed = entries[place] | {field: other[field]}
    assume(canonical(changed) != canonical(entries[place]))
    assert chained([*entries[:place], changed, *entries[place + 1 :]]) != chained(entries)


@given(st.lists(receipts, min_size=1, max_size=5), st.data())
def test_one_less_one_more_and_another_order_change_it(entries: list[dict[str, Any]], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(entries) - 1))
    whole = chained(entries)
    assert chained([*entries[:place], *entries[place + 1 :]]) != whole
    assert chained([*entries[:place], data.draw(receipts), *entries[place:]]) != whole
    other = data.draw(st.permutations(entries))
    assume([canonical(entry) for entry in other] != [canonical(entry) for entry in entries])
    assert chained(other) != whole


@given(st.lists(receipts, min_size=1, max_size=3))
def test_another_runs_receipts_are_no_witness(entries: list[dict[str, Any]]) -> None:
    assert chained(entries) != chained(entries, UUID(int=8))


@given(receipts)
def test_the_same_cost_written_otherwise_is_the_same(entry: dict[str, Any]) -> None:
    assume(entry["cost_usd"] is not None)
    again = entry | {"cost_usd": entry["cost_usd"].quantize(SMALLEST_AMOUNT)}
    assert chained([again]) == chained([entry])


costs = st.decimals(0, 1000, places=9) | st.sampled_from([Decimal(0), Decimal("1E+2"), Decimal("0.000000001")])


def test_what_postgres_makes_of_receipts_keeps_their_hashes(database_url: str) -> None:
    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.dictionaries(texts, values, max_size=4), st.none() | costs), min_size=1, max_size=6))
    def law(entries: list[tuple[dict[str, Any], Decimal | None]]) -> None:
        assert asyncio.run(_problems(database_url, entries)) == []

    law()


async def _problems(database_url: str, entries: list[tuple[dict[str, Any], Decimal | None]]) -> list[str]:
    """Store these receipts of a run; returns the differences that `verify` finds."""
    db = Database(database_url, pool_size=2)
    try:
        await _run_with(db, entries)
        return await _differences(db)
    finally:
        await db.close()


async def _run_with(db: Database, entries: list[tuple[dict[str, Any], Decimal | None]]) -> None:
    writer = Writer(db, FlushPolicy())
    writing = asyncio.create_task(writer.run())
    stream = writer.open(await lease_of(db, await new_thread(db)))
    for place, (data, cost) in enumerate(entries):
        stream.append_receipt("model" if place % 2 else "tool", data, cost, None if place % 2 else f"call_{place}")
    await stream.end("final", Finish(reason="stop", usage=TokenUsage()))
    writing.cancel()


async def _differences(db: Database) -> list[str]:
    return [difference.problem async for difference in find_differences(db, VerifyProgress())]


@pytest.mark.parametrize(
    "change",
    [
        "data = jsonb_set(data, '{amount}', '10000000000000001') WHERE seq = 0",
        "data = jsonb_set(data, '{text}', '\"b\"') WHERE seq = 0",
        "data = data - 'list' WHERE seq = 1",
        "cost_usd = 0.1000001 WHERE seq = 0",
        "cost_usd = 0 WHERE seq = 1",
        "tool_call_id = 'x' WHERE seq = 1",
        "type = 'model' WHERE seq = 0",
        "hash = decode('00', 'hex') WHERE seq = 0",
        "seq = 7 WHERE seq = 1",
    ],
)
async def test_a_change_in_the_table_is_differences(db: Database, change: str) -> None:
    data = {"amount": 1e16, "text": "a\0b", "list": [1.0, -0.0, 2**63]}
    await _run_with(db, [(data, Decimal("0.1")), (data, None)])
    assert await _differences(db) == []
    async with db.transaction() as connection:
        await connection.execute(text(f"UPDATE receipts SET {change}"))
    (problem,) = await _differences(db)
    assert "receipt" in problem


def test_a_float_that_is_whole_counts_as_the_number_that_postgres_writes() -> None:
    assert _stored({"a": [1e23, 2.0, 0.5]}) == {"a": [10**23, 2, 0.5]}
