"""The console's spend and slow tools, from what the usage rollup has counted."""

from collections import defaultdict
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.decimals import format_decimal
from khala.domain.durations import percentile
from khala.store.console.pages import AccountRef, ConsoleStruct, Statement, account_columns, account_ref, joined
from khala.store.console.usage_rollup import WINDOW_DAYS
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

SpendGroup: TypeAlias = Literal["user", "model", "day"]

MAX_ITEMS = 400
"""Days, models or users of one response."""
SUMS = """
    coalesce(sum(usd), 0) AS usd, coalesce(sum(calls), 0)::bigint AS calls,
    coalesce(sum(input_tokens), 0)::bigint AS input_tokens, coalesce(sum(output_tokens), 0)::bigint AS output_tokens
"""
GROUPS: dict[SpendGroup, tuple[str, str]] = {
    "day": ("day", "day DESC"),
    "model": ("provider, model", "usd DESC, provider, model"),
    "user": ("user_id", "usd DESC, user_id"),
}
"""The columns of each group, and its order."""
COUNTED_UNTIL = "SELECT counted_until FROM usage_rollup WHERE id = 1"
WINDOWS = "SELECT windows_day FROM usage_rollup WHERE id = 1 AND windows_until = counted_until"
"""The last day of the windows, unless they are behind the other counts."""
TOOL_DAYS = """
    SELECT tool, source, bucket, sum(calls)::bigint AS calls, sum(failures)::bigint AS failures,
           sum(total_ms)::bigint AS total_ms, max(max_ms) AS max_ms,
           (array_agg(slowest_run_id ORDER BY max_ms DESC))[1] AS slowest_run_id
    FROM tool_days WHERE day BETWEEN $1 AND $2 GROUP BY tool, source, bucket
"""


class SpendFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The spend to add up: of these days (UTC), by this group, of one account or model (`provider:name`)."""

    by: SpendGroup
    first: date
    last: date
    account: UUID | None = None
    model: str | None = None


class SpendSum(ConsoleStruct, frozen=True, kw_only=True):
    """The model calls of something, with their cost as a decimal text."""

    usd: str
    model_calls: int
    input_tokens: int
    output_tokens: int


class SpendItem(SpendSum, frozen=True, kw_only=True):
    """The spend of a day, a model or a user. Only the fields of the group are set; no account stands for guests."""

    day: date | None
    account: AccountRef | None
    provider: str | None
    model: str | None


class SpendReport(ConsoleStruct, frozen=True, kw_only=True):
    """Spend by group. Calls after `countedUntil` are not counted yet."""

    items: list[SpendItem]
    total: SpendSum
    first: date = msgspec.field(name="from")
    last: date = msgspec.field(name="to")
    counted_until: datetime | None


class SlowTool(ConsoleStruct, frozen=True, kw_only=True):
    """The calls of a tool. Percentiles are upper bounds within a fifth."""

    tool: str
    source: str
    calls: int
    failures: int
    p50_ms: int
    p95_ms: int
    mean_ms: int
    max_ms: int
    slowest_run_id: UUID | None


class SlowToolReport(ConsoleStruct, frozen=True, kw_only=True):
    """Tools by the 95th percentile of their duration, the slowest first."""

    items: list[SlowTool]
    counted_until: datetime | None


async def read_spend(driver: Driver, wanted: SpendFilter, limit: int) -> SpendReport:
    """Return the spend of these days. All queries see the same state: the transaction is a snapshot."""
    columns, order = GROUPS[wanted.by]
    statement = Statement()
    days = await _window(driver, wanted)
    if days is None:
        grouped = f"SELECT {columns}, {SUMS} FROM {_source(statement, wanted)} GROUP BY {columns}"
    else:
        grouped = f"""
            SELECT user_id, usd, calls, input_tokens, output_tokens FROM spend_windows
            WHERE days = {statement.add(days, "smallint")}
        """
    with_account = f", {account_columns('page.user_id', 'account')}" if wanted.by == "user" else ""
    query = f"""
        SELECT page.*{with_account} FROM (
            {grouped} ORDER BY {order} LIMIT {statement.add(limit, "int")}
        ) AS page ORDER BY {order}
    """
    found = await driver.fetch(query, *statement.arguments)
    return SpendReport(
        items=[_item(row, wanted.by) for row in found],
        total=await read_total(driver, wanted),
        first=wanted.first,
        last=wanted.last,
        counted_until=await driver.fetchval(COUNTED_UNTIL),
    )


async def _window(driver: Driver, wanted: SpendFilter) -> int | None:
    """Return the days of the window that has counted exactly what is wanted; None if there is none."""
    days = (wanted.last - wanted.first).days + 1
    if wanted.by != "user" or wanted.account is not None or wanted.model is not None or days not in WINDOW_DAYS:
        return None
    return days if await driver.fetchval(WINDOWS) == wanted.last else None


async def read_total(driver: Driver, wanted: SpendFilter) -> SpendSum:
    """Return the sum of these days."""
    statement = Statement()
    # All users together are in a table of few rows.
    by_day = msgspec.structs.replace(wanted, by="day")
    row = await driver.fetchrow(f"SELECT {SUMS} FROM {_source(statement, by_day)}", *statement.arguments)
    assert row is not None
    return SpendSum(**_sums(row))


def _source(statement: Statement, wanted: SpendFilter) -> str:
    """SQL: the rows of these days, of the smallest table that has them."""
    table = "spend_days" if wanted.account is None and wanted.by != "user" else "spend_user_days"
    conditions = [f"day BETWEEN {statement.add(wanted.first, 'date')} AND {statement.add(wanted.last, 'date')}"]
    if wanted.account is not None:
        conditions.append(f"user_id = {statement.add(wanted.account, 'uuid')}")
    if wanted.model is not None:
        provider, _, name = wanted.model.partition(":")
        conditions.append(f"provider = {statement.add(provider, 'text')} AND model = {statement.add(name, 'text')}")
    return f"{table} WHERE {joined(conditions)}"


def _item(row: Record, by: SpendGroup) -> SpendItem:
    of_group: dict[str, Any] = {"day": None, "account": None, "provider": None, "model": None}
    if by == "user":
        of_group["account"] = account_ref(row, "account")
    else:
        of_group |= {name: row[name] for name in GROUPS[by][0].split(", ")}
    return SpendItem(**_sums(row), **of_group)


def _sums(row: Record) -> dict[str, Any]:
    tokens = {name: row[name] for name in ("input_tokens", "output_tokens")}
    return {"usd": format_decimal(row["usd"]), "model_calls": row["calls"], **tokens}


async def read_slow_tools(driver: Driver, first: date, last: date, limit: int) -> SlowToolReport:
    """Return the slowest tools of these days."""
    buckets: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in await driver.fetch(TOOL_DAYS, first, last):
        buckets[row["tool"], row["source"]].append(row)
    tools = sorted((_tool(*name, found) for name, found in buckets.items()), key=_slowest_first)
    return SlowToolReport(items=tools[:limit], counted_until=await driver.fetchval(COUNTED_UNTIL))


def _slowest_first(tool: SlowTool) -> tuple[int, str, str]:
    return -tool.p95_ms, tool.tool, tool.source


def _tool(tool: str, source: str, found: list[Record]) -> SlowTool:
    by_bucket = {row["bucket"]: row["calls"] for row in found}
    calls, slowest = sum(by_bucket.values()), max(found, key=lambda row: row["max_ms"])
    return SlowTool(
        tool=tool,
        source=source,
        calls=calls,
        failures=sum(row["failures"] for row in found),
        p50_ms=min(percentile(by_bucket, 0.5), slowest["max_ms"]),
        p95_ms=min(percentile(by_bucket, 0.95), slowest["max_ms"]),
        mean_ms=round(sum(row["total_ms"] for row in found) / calls),
        max_ms=slowest["max_ms"],
        slowest_run_id=slowest["slowest_run_id"],
    )


def today() -> date:
    """The current day in UTC."""
    return datetime.now(UTC).date()
