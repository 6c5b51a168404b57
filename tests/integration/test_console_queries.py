"""Each list of the console reads its rows by an index: no plan of its statements scans a table that grows."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from khala.domain.webhooks import DEPLOYMENT
from khala.store.console import (
    account_list,
    blob_list,
    executors,
    overview,
    record_lists,
    run_list,
    run_timeline,
    spend,
    thread_history,
    thread_list,
    usage_rollup,
)
from khala.store.console.pages import MAX_PAGE
from khala.store.console.record_lists import AuditFilter
from khala.store.console.run_list import RunFilter
from khala.store.console.spend import SpendFilter
from khala.store.postgres import index_builder
from khala.store.postgres.database import Database, Driver
from tests.support.statements import nodes, on_one_line, plan
from tests.support.store import ask, new_thread

GROWING = {
    "runs", "threads", "messages", "message_parts", "receipts", "usage_receipts", "approvals", "users", "identities",
    "sessions", "api_tokens", "audit", "blobs", "schedules", "webhook_deliveries", "spend_user_days", "spend_days",
    "spend_windows", "tool_days", "webhook_endpoints", "blob_owners", "plans", "listings",
}  # fmt: skip
"""Tables that grow with accounts, threads or time."""
SOME_ID = UUID(int=1)
TODAY = datetime.now(UTC).date()
NOW = datetime.now(UTC)


Read: TypeAlias = Callable[[Driver], Awaitable[object]]
BEFORE = NOW, SOME_ID
SORTED_BY_THEIR_INDEX = {
    "runs", "final runs", "failed runs", "runs of a thread", "failed runs of a thread", "failed runs of an account",
    "final runs of an account", "spend by user of 30 days",
}  # fmt: skip
"""Lists that read no more rows than a page needs, because their index has the order of the page."""


def runs(**wanted: Any) -> Read:
    return lambda driver: run_list.read_page(driver, RunFilter(**wanted), SOME_ID, 50)


def audit(**wanted: Any) -> Read:
    return lambda driver: record_lists.read_audit(driver, AuditFilter(**wanted), SOME_ID, 50)


def spent(days: int = 1, **wanted: Any) -> Read:
    first = TODAY - timedelta(days=days - 1)
    return lambda driver: spend.read_spend(driver, SpendFilter(first=first, last=TODAY, **wanted), 50)


def run_lists(run_id: UUID) -> dict[str, tuple[Read, set[str]]]:
    """By its name, each read of runs, and indexes that its plans use."""

    async def timeline(driver: Driver) -> object:
        run = await run_list.read_run(driver, run_id)
        assert run is not None
        return await run_timeline.read_timeline(driver, run)

    return {
        "runs": (runs(), {"runs_pkey"}),
        "final runs": (runs(state="final"), {"runs_pkey"}),
        "active runs": (runs(state="active"), {"runs_active_idx"}),
        "failed runs": (runs(state="error"), {"runs_failed_idx"}),
        "runs of an account": (runs(account=SOME_ID), {"runs_ended_user_id_idx"}),
        "runs of an agent": (runs(agent="a"), {"runs_ended_agent_idx"}),
        "runs of a thread": (runs(thread=SOME_ID), {"runs_thread_id_id_idx"}),
        "failed runs of a thread": (runs(thread=SOME_ID, state="error"), {"runs_thread_id_id_idx"}),
        "failed runs of an account": (runs(account=SOME_ID, state="error"), set()),
        "final runs of an account": (runs(account=SOME_ID, state="final"), {"runs_ended_user_id_idx"}),
        "runs of a model": (runs(model="openai:gpt-5"), {"runs_pkey"}),
        "runs by a text": (runs(q="a"), {"runs_pkey"}),
        "runs by an id": (runs(q=str(SOME_ID)), {"runs_user_message_id_idx", "runs_thread_id_id_idx"}),
        "all filters": (runs(account=SOME_ID, agent="a", state="error", model="b"), set()),
        "timeline": (timeline, {"message_parts_pkey", "receipts_pkey"}),
        "overview": (lambda driver: overview.read(driver, lease_seconds=10), {"runs_failed_idx"}),
        "executors": (executors.read_all, {"runs_active_idx"}),
    }


def thread_lists(thread_id: UUID) -> dict[str, tuple[Read, set[str]]]:
    """The same of threads and their blobs."""
    return {
        "threads": (lambda driver: thread_list.read_page(driver, None, None, BEFORE, 50), {"threads_created_at_idx"}),
        "threads of an account": (
            lambda driver: thread_list.read_page(driver, SOME_ID, None, BEFORE, 50),
            {"threads_owner_id_created_at_idx"},
        ),
        "threads by an id": (
            lambda driver: thread_list.read_page(driver, None, str(SOME_ID), BEFORE, 50),
            {"threads_pkey", "messages_pkey"},
        ),
        "a thread at a revision": (
            lambda driver: thread_history.read_at(driver, thread_id, 1, before=None, limit=50),
            {"messages_thread_id_revision_idx", "messages_thread_id_position_key"},
        ),
        "revisions": (
            lambda driver: thread_history.read_revisions(driver, thread_id, None, 50),
            {"messages_thread_id_position_key"},
        ),
        "blobs": (lambda driver: blob_list.read_page(driver, None, (7, SOME_ID), 50), {"blobs_size_idx"}),
        "blobs of an account": (
            lambda driver: blob_list.read_page(driver, SOME_ID, (7, SOME_ID), 50),
            {"blobs_thread_id_idx"},
        ),
        "usage of blobs": (blob_list.read_usage, {"blob_owners_bytes_idx"}),
    }


def other_lists() -> dict[str, tuple[Read, set[str]]]:
    """The same of spend, accounts, webhooks, schedules and the audit trail."""
    return {
        "slow tools": (lambda driver: spend.read_slow_tools(driver, TODAY, TODAY, 50), {"tool_days_pkey"}),
        "spend by day": (spent(by="day"), {"spend_days_pkey"}),
        "spend by user": (spent(by="user"), {"spend_user_days_day_idx"}),
        "spend by user of 30 days": (spent(30, by="user"), {"spend_windows_days_usd_idx"}),
        "spend of an account": (spent(by="model", account=SOME_ID), {"spend_user_days_pkey"}),
        "accounts": (lambda driver: account_list.read_page(driver, None, None, SOME_ID, 50), {"users_pkey"}),
        "accounts by a name": (
            lambda driver: account_list.read_page(driver, "art", None, SOME_ID, 50),
            {"users_lower_name_idx", "users_lower_email_idx", "identities_lower_email_idx"},
        ),
        "blocked accounts": (
            lambda driver: account_list.read_page(driver, None, "blocked", SOME_ID, 50),
            {"users_blocked_idx"},
        ),
        "webhooks": (
            lambda driver: record_lists.read_webhooks(driver, DEPLOYMENT, None, SOME_ID, 50),
            {"webhook_endpoints_scope_id_idx"},
        ),
        "schedules": (
            lambda driver: record_lists.read_schedules(driver, None, None, BEFORE, 50),
            {"schedules_created_at_idx"},
        ),
        "audit": (audit(), {"audit_pkey"}),
        "audit of an account": (audit(account=SOME_ID), {"audit_user_id_idx"}),
        "audit of a thread": (audit(thread=SOME_ID), {"audit_thread_id_idx"}),
        "audit of an action": (audit(action="console_*"), {"audit_pkey"}),
    }


@contextmanager
def statements_of(driver: Driver) -> Iterator[set[str]]:
    seen: set[str] = set()

    def log(record: Any) -> None:
        seen.add(on_one_line(record.query))

    driver.add_query_logger(log)
    try:
        yield seen
    finally:
        driver.remove_query_logger(log)


async def test_each_list_reads_by_an_index(db: Database) -> None:
    await index_builder.build_missing(db)
    thread_id = await new_thread(db)
    sent = await ask(db, thread_id)
    async with db.driver() as driver:
        await driver.execute("SET enable_seqscan = off")
        await driver.execute(usage_rollup.MOVE, NOW, TODAY)
        for name, (read, indexes) in (run_lists(sent.run_id) | thread_lists(thread_id) | other_lists()).items():
            await driver.execute(f"SET enable_sort = {'off' if name in SORTED_BY_THEIR_INDEX else 'on'}")
            with statements_of(driver) as seen:
                await read(driver)
                await asyncio.sleep(0)  # The driver calls its loggers in the next turn of the loop.
            found = [node for statement in seen for node in nodes(await plan(driver, statement))]
            scanned = {node["Relation Name"] for node in found if node["Node Type"] == "Seq Scan"}
            assert not scanned & GROWING, (name, scanned)
            used = {node["Index Name"] for node in found if "Index Name" in node}
            assert indexes <= used, (name, used)
            sorts = [node for node in found if "Sort" in node["Node Type"]]
            assert not sorts or name not in SORTED_BY_THEIR_INDEX, (name, sorts)


async def test_the_rollup_reads_receipts_of_its_hour_by_an_index(db: Database) -> None:
    await index_builder.build_missing(db)
    async with db.driver() as driver:
        await driver.execute("SET enable_seqscan = off")
        for statement in (usage_rollup.SPEND, usage_rollup.TOOLS):
            found = list(nodes(await plan(driver, statement)))
            assert "receipts_created_at_idx" in {node.get("Index Name") for node in found}
            assert not {node.get("Relation Name") for node in found if node["Node Type"] == "Seq Scan"} & GROWING


MANY_RUNS = """
    INSERT INTO runs (id, thread_id, message_id, user_message_id, position, fairness_key, status, options, user_id)
    SELECT gen_random_uuid(), $1, gen_random_uuid(), gen_random_uuid(), n, $1, 'error', '{}',
           CASE WHEN n % 10 = 0 THEN $1 ELSE gen_random_uuid() END
    FROM generate_series(1, 3000) AS n
"""


async def test_a_page_of_a_large_thread_or_account_reads_few_runs(db: Database) -> None:
    """Of 3,000 failed runs, of which an account has 300."""
    await index_builder.build_missing(db)
    thread_id = await new_thread(db)
    async with db.driver() as driver:
        await driver.execute(MANY_RUNS, thread_id)
        await driver.execute("ANALYZE runs")
        for wanted in (RunFilter(thread=thread_id), RunFilter(account=thread_id, state="error")):
            executed: list[Any] = []
            driver.add_query_logger(executed.append)
            page = await run_list.read_page(driver, wanted, None, 50)
            await asyncio.sleep(0)
            driver.remove_query_logger(executed.append)
            assert (len(page.items), page.next) == (50, page.items[-1].id)
            (query,) = executed
            explained = await driver.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.query}", *query.args)
            read = [rows_of(node) for node in nodes(json.loads(explained)[0]["Plan"]) if is_of_runs(node)]
            assert max(read) <= 2 * MAX_PAGE + 2, (wanted, read)


def is_of_runs(node: dict[str, Any]) -> bool:
    return node.get("Relation Name") == "runs"


def rows_of(node: dict[str, Any]) -> float:
    """The rows that a scan has read, also those that did not match."""
    return float(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
