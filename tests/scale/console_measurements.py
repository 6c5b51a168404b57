"""Measurements of the operators' console: each list and the counting of usage, among all runs of the deployment."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from khala.domain import ids
from khala.domain.webhooks import DEPLOYMENT
from khala.store.console import (
    account_list,
    blob_list,
    executors,
    overview,
    record_lists,
    run_list,
    spend,
    thread_history,
    thread_list,
    usage_rollup,
)
from khala.store.console.record_lists import AuditFilter
from khala.store.console.run_list import RunFilter
from khala.store.console.spend import SpendFilter, SpendGroup
from khala.store.postgres.database import Driver
from tests.scale.deployment import COLLECTOR_ID, DEEP_THREAD_ID
from tests.scale.figures import Figure, usage_figures
from tests.scale.stage import ScaleStage

Read = Callable[[Driver], Awaitable[object]]

LIST_TARGET_MS = 50.0
PAGE_ITEMS = 50
DAYS = 30
AUDIT = """
    INSERT INTO audit (id, user_id, action, thread_id, detail, created_at)
    SELECT scale.id(at, 9, number), scale.user_id(number % {users}), CASE number % 5 WHEN 0 THEN 'link_made'
           ELSE 'visibility_set' END, scale.id(at, 2, number), '{{}}', at
    FROM generate_series(1::bigint, {entries}) AS number,
         LATERAL (SELECT now() - interval '90 days' * (1 - number::float / {entries}) AS at) AS moment
"""
HALF_WAY = "SELECT id FROM runs ORDER BY id OFFSET $1 LIMIT 1"
EXECUTORS = """
    INSERT INTO executors (id, host, version, places, active, started_at)
    SELECT 'executor-' || number, 'host', '1', 200, 100, now() FROM generate_series(1, 20) AS number
    ON CONFLICT DO NOTHING
"""


async def measure_console(stage: ScaleStage) -> list[Figure]:
    """Each list of the console, after the usage of the deployment's receipts was counted."""
    figures = await _count(stage)
    async with stage.connection() as driver:
        entries = max(1_000, stage.size.threads)
        await driver.execute(AUDIT.format(users=stage.size.users, entries=entries))
        await driver.execute(EXECUTORS)
        await driver.execute("VACUUM (ANALYZE) audit, spend_days, spend_user_days, tool_days, executors")
        runs = await driver.fetchval("SELECT count(*) FROM runs")
        middle = await driver.fetchval(HALF_WAY, runs // 2)
        deep = await driver.fetchval("SELECT revision FROM threads WHERE id = $1", DEEP_THREAD_ID)
    size = f"{runs:,} runs"
    for name, read in (_lists(middle) | _others(deep)).items():
        usage = await stage.meter.repeated(_reading(stage, read))
        figures += usage_figures(f"console: {name}", size, usage, milliseconds=LIST_TARGET_MS)
    return figures


async def _count(stage: ScaleStage) -> list[Figure]:
    """Count the receipts of the last days as the background task does, and the blobs."""
    days = stage.effort.counted_days
    async with stage.connection() as driver:
        await driver.execute("UPDATE usage_rollup SET counted_until = now() - make_interval(days => $1)", days)

    async def receipts() -> None:
        while await usage_rollup.count_receipts(stage.db):
            pass

    counted = await stage.meter.once(receipts)
    blobs = await stage.meter.once(lambda: usage_rollup.count_blobs(stage.db, interval=timedelta(0)))
    return [
        *usage_figures("console: count the receipts", f"{days} days", counted),
        *usage_figures("console: count the blobs", f"{stage.size.threads:,} threads", blobs),
    ]


def _reading(stage: ScaleStage, read: Read) -> Callable[[], Awaitable[object]]:
    async def call() -> object:
        async with stage.db.snapshot() as driver:
            return await read(driver)

    return call


def _lists(middle: Any) -> dict[str, Read]:
    """The lists of runs, by each filter."""

    def runs(before: Any = None, **wanted: Any) -> Read:
        return lambda driver: run_list.read_page(driver, RunFilter(**wanted), before, PAGE_ITEMS)

    return {
        "runs": runs(),
        "runs, half way": runs(middle),
        "active runs": runs(state="active"),
        "failed runs": runs(state="error"),
        "runs of an account": runs(account=COLLECTOR_ID),
        "failed runs of an account": runs(account=COLLECTOR_ID, state="error"),
        "runs of a thread": runs(thread=DEEP_THREAD_ID),
        "runs of an agent that has none": runs(agent="nobody"),
        "runs of a rare model (10,000 examined)": runs(model="rare:model"),
        "runs by a text (10,000 examined)": runs(q="no such text"),
        "runs by an id": runs(q=str(middle)),
        "runs by an unknown id": runs(q=str(ids.new())),
    }


def _others(revision: int) -> dict[str, Read]:
    """All other lists."""
    today = datetime.now(UTC).date()
    first = today - timedelta(days=DAYS - 1)

    def spent(by: SpendGroup) -> Read:
        wanted = SpendFilter(by=by, first=first, last=today)
        return lambda driver: spend.read_spend(driver, wanted, 400)

    def audit(**wanted: Any) -> Read:
        return lambda driver: record_lists.read_audit(driver, AuditFilter(**wanted), None, PAGE_ITEMS)

    return {
        "overview": lambda driver: overview.read(driver, lease_seconds=10),
        "executors": executors.read_all,
        "threads": lambda driver: thread_list.read_page(driver, None, None, None, PAGE_ITEMS),
        "threads of an account": lambda driver: thread_list.read_page(driver, COLLECTOR_ID, None, None, PAGE_ITEMS),
        "a thread half way back": lambda driver: thread_history.read_at(
            driver, DEEP_THREAD_ID, revision // 2, before=None, limit=PAGE_ITEMS
        ),
        "revisions of a thread": lambda driver: thread_history.read_revisions(driver, DEEP_THREAD_ID, None, PAGE_ITEMS),
        "slow tools, 30 days": lambda driver: spend.read_slow_tools(driver, first, today, PAGE_ITEMS),
        **{f"spend by {by}, 30 days": spent(by) for by in spend.GROUPS},
        "accounts": lambda driver: account_list.read_page(driver, None, None, None, PAGE_ITEMS),
        "accounts by a name": lambda driver: account_list.read_page(driver, "user 99", None, None, PAGE_ITEMS),
        "blobs": lambda driver: blob_list.read_page(driver, None, None, PAGE_ITEMS),
        "blobs of an account": lambda driver: blob_list.read_page(driver, COLLECTOR_ID, None, PAGE_ITEMS),
        "usage of blobs": blob_list.read_usage,
        "webhooks": lambda driver: record_lists.read_webhooks(driver, DEPLOYMENT, None, None, PAGE_ITEMS),
        "schedules": lambda driver: record_lists.read_schedules(driver, None, None, None, PAGE_ITEMS),
        "audit": audit(),
        "audit of an account": audit(account=COLLECTOR_ID),
        "audit of an action (10,000 examined)": audit(action="nothing*"),
    }
