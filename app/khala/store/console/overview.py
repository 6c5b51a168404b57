"""The console's overview: queue, executors, failures, approvals, webhooks and today's spend, each by an index."""

from datetime import UTC, datetime, timedelta

from khala.domain import ids
from khala.store.console import executors, spend
from khala.store.console.executors import ExecutorLoad
from khala.store.console.pages import ConsoleStruct
from khala.store.console.spend import COUNTED_UNTIL, SpendFilter, SpendSum
from khala.store.postgres.database import Driver
from khala.store.runs import run_queue
from khala.store.webhooks import deliveries

MAX_COUNTED = 10_000
RECENT = timedelta(hours=1)

FAILED = f"""
    SELECT count(*) FROM (
        SELECT FROM runs WHERE status = $1 AND status IN ('error', 'canceled') AND id >= $2 LIMIT {MAX_COUNTED}
    ) AS failed
"""
FAILING_WEBHOOKS = f"""
    SELECT count(*) FROM (
        SELECT FROM webhook_endpoints WHERE is_enabled AND failures > 0 AND deleted_at IS NULL LIMIT {MAX_COUNTED}
    ) AS failing
"""
APPROVALS = f"SELECT count(*) FROM (SELECT FROM approvals WHERE state = 'pending' LIMIT {MAX_COUNTED}) AS pending"


class QueueDepth(ConsoleStruct, frozen=True, kw_only=True):
    """Runs by state. Seconds: how long the oldest that could begin waits, and the longest silence of a lease."""

    queued: int
    running: int
    blocked: int
    oldest_seconds: float
    silent_seconds: float


class WebhookBacklog(ConsoleStruct, frozen=True, kw_only=True):
    """Deliveries that wait, the age of the oldest, webhooks whose last attempt failed, and those disabled by Khala."""

    waiting: int
    oldest_seconds: float
    failing: int
    disabled: int


class ConsoleOverview(ConsoleStruct, frozen=True, kw_only=True):
    """The state of the deployment at the time `at`."""

    queue: QueueDepth
    executors: ExecutorLoad
    failures_last_hour: int
    canceled_last_hour: int
    approvals_waiting: int
    webhooks: WebhookBacklog
    spend_today: SpendSum
    counted_until: datetime | None
    at: datetime


async def read(driver: Driver, *, lease_seconds: float) -> ConsoleOverview:
    """Return the overview. `lease_seconds` is the duration of a lease."""
    now = datetime.now(UTC)
    queue = await run_queue.read_queue_status(driver, lease_seconds=lease_seconds)
    outbox = await deliveries.read_status(driver)
    since = ids.before(now - RECENT)
    day = SpendFilter(by="day", first=now.date(), last=now.date())
    return ConsoleOverview(
        queue=QueueDepth(
            queued=queue.queued,
            running=queue.running,
            blocked=queue.blocked,
            oldest_seconds=queue.oldest,
            silent_seconds=max(0.0, queue.lease_age),
        ),
        executors=await executors.read_load(driver),
        failures_last_hour=await driver.fetchval(FAILED, "error", since),
        canceled_last_hour=await driver.fetchval(FAILED, "canceled", since),
        approvals_waiting=await driver.fetchval(APPROVALS),
        webhooks=WebhookBacklog(
            waiting=outbox.waiting,
            oldest_seconds=outbox.oldest_seconds,
            failing=await driver.fetchval(FAILING_WEBHOOKS),
            disabled=outbox.disabled,
        ),
        spend_today=await spend.read_total(driver, day),
        counted_until=await driver.fetchval(COUNTED_UNTIL),
        at=now,
    )
