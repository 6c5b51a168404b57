"""NOTIFY: the channels, and the notifications that a transaction sends when it commits.

A notification only says which rows have changed. Listeners read the rows, so a lost notification delays a change, but
loses none.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.store.postgres.database import Driver

PLANS_CHANNEL = "khala_plans"
"""NOTIFY channel: these plans have changed, or a run of a step has ended."""
THREADS_CHANNEL = "khala_threads"
"""NOTIFY channel: these threads have changed."""
RUNS_CHANNEL = "khala_runs"
"""NOTIFY channel: a run was queued or has ended, or its cancellation was requested."""
ACCOUNTS_CHANNEL = "khala_accounts"
"""NOTIFY channel: these users' thread lists have changed."""
CREDENTIALS_CHANNEL = "khala_credentials"
"""NOTIFY channel: sessions or tokens of these users have ended, so their subscriptions must be rechecked."""
PRESENCE_CHANNEL = "khala_presence"
"""NOTIFY channel: presence in these threads has changed."""
STREAMS_CHANNEL = "khala_streams"
"""NOTIFY channel: these durable streams have changed."""
SUBSCRIPTIONS_CHANNEL = "khala_stream_subscriptions"
"""NOTIFY channel: these subscriptions to durable streams have pending contents."""
SCHEDULES_CHANNEL = "khala_schedules"
"""NOTIFY channel: a schedule has a new time."""
WEBHOOKS_CHANNEL = "khala_webhooks"
"""NOTIFY channel: events wait for webhooks, or an endpoint was changed."""
PUSH_CHANNEL = "khala_push"
"""NOTIFY channel: notifications wait for push services."""
EVERYTHING = "*"
"""A payload that names no row: any row may have changed."""
MAX_IDS_PER_PAYLOAD = 200
"""Ids in one payload. Postgres accepts payloads of up to 7,999 bytes, and an id takes 36."""


async def notify(connection: AsyncConnection, channel: str, payload: str) -> None:
    """Notify the listeners of this channel when the transaction commits."""
    await connection.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": channel, "payload": payload})


def payload_of(ids: Collection[UUID]) -> str:
    """The payload of a notification about these rows; `EVERYTHING` if they are too many to be named."""
    return ",".join(map(str, ids)) if len(ids) <= MAX_IDS_PER_PAYLOAD else EVERYTHING


async def notify_threads(driver: Driver, thread_ids: Collection[UUID], *, executors: bool = False) -> None:
    """Notify the listeners of threads that these have changed, when the transaction commits; and `executors`, too."""
    query = "SELECT pg_notify($1, $2), pg_notify($3, '')" if executors else "SELECT pg_notify($1, $2)"
    await driver.execute(query, THREADS_CHANNEL, payload_of(thread_ids), *([RUNS_CHANNEL] if executors else []))


async def notify_executors(driver: Driver) -> None:
    """Notify executors that a run is queued or has ended, when the transaction commits."""
    await driver.execute("SELECT pg_notify($1, '')", RUNS_CHANNEL)


async def notify_drivers(driver: Driver, plan_ids: Collection[UUID]) -> None:
    """Notify the drivers of these plans, when the transaction commits."""
    await driver.execute("SELECT pg_notify($1, $2)", PLANS_CHANNEL, payload_of(plan_ids))


async def notify_streams(driver: Driver, stream_ids: Collection[UUID]) -> None:
    """Notify the readers of these durable streams, when the transaction commits."""
    await driver.execute("SELECT pg_notify($1, $2)", STREAMS_CHANNEL, payload_of(stream_ids))


async def notify_subscriptions(driver: Driver, subscription_ids: Collection[UUID]) -> None:
    """Notify the processes that wake the workers of subscriptions to streams, when the transaction commits."""
    await driver.execute("SELECT pg_notify($1, $2)", SUBSCRIPTIONS_CHANNEL, payload_of(subscription_ids))
