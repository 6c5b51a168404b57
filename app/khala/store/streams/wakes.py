"""Wakes of subscriptions to streams: finds subscriptions with pending contents, and begins their wakes.

Any process may begin a wake: the lock of the subscription decides which one does. A wake of a webhook is returned to
the process, which delivers it; if the process dies, the lease lapses and another wake follows.
"""

import random
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.errors import KhalaError
from khala.domain.streams import wake_tokens
from khala.domain.streams.appends import Accepted, StreamAppend
from khala.domain.streams.content import JSON_TYPE
from khala.domain.streams.subscriptions import StreamCursor, SubscriptionConfig, SubscriptionError
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.streams import subscription_rows as rows
from khala.store.streams.append_transaction import append_within
from khala.store.streams.stream_rows import StreamLimits
from khala.store.streams.subscription_rows import StoredSubscription

MAX_FOUND = 100
"""Subscriptions that one query returns."""
WAKE_ID_BYTES = 12

IDLE = "subscription.wake_id IS NULL AND subscription.due_at IS NULL"
CHANGED = f"""
    SELECT subscription.id, subscription.config::text AS config, streams.name,
           EXISTS (SELECT FROM stream_links WHERE explicit
                   AND (subscription_id, stream_links.name) = (subscription.id, streams.name)) AS explicit
    FROM streams JOIN stream_subscriptions AS subscription USING (space_id)
    WHERE streams.id = ANY ($1::uuid[]) AND streams.name IS NOT NULL AND {IDLE}
"""
DUE = f"""
    SELECT id FROM stream_subscriptions AS subscription
    WHERE due_at <= $1 AND {rows.IS_OPEN} ORDER BY due_at LIMIT {MAX_FOUND}
"""
NEXT_DUE = f"""
    SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM stream_subscriptions AS subscription
    WHERE due_at > $1 AND {rows.IS_OPEN}
"""
IDLE_AFTER = f"""
    SELECT id FROM stream_subscriptions AS subscription
    WHERE id > $1 AND {IDLE} AND {rows.IS_OPEN} ORDER BY id LIMIT {MAX_FOUND}
"""

DeliveryOutcome: TypeAlias = Literal["done", "taken", "failed"]
"""The webhook has processed everything, has taken the wake and will report later, or could not be reached."""


class Wake(msgspec.Struct, frozen=True):
    """A wake that has begun, and the streams of its subscription at that time."""

    subscription: StoredSubscription
    cursors: Sequence[StreamCursor]

    @property
    def token(self) -> str:
        """The token with which the worker reports."""
        subscription = self.subscription
        return wake_tokens.sign(subscription.token_key, subscription.id, subscription.state.generation)


def new_id() -> str:
    """Return the id of a wake."""
    return f"w_{secrets.token_hex(WAKE_ID_BYTES)}"


async def begin(driver: Driver, subscription: StoredSubscription, limits: StreamLimits) -> Wake | None:
    """Begin a wake of the locked subscription, if it may wake and contents are pending."""
    if not subscription.state.may_wake:
        return None
    cursors = await rows.read_cursors(driver, subscription)
    if not any(cursor.is_pending for cursor in cursors):
        return None
    webhook = subscription.config.kind == "webhook"
    lease_until = subscription.read_at + subscription.config.lease if webhook else None
    state = subscription.state.woken(new_id(), lease_until)
    woken = msgspec.structs.replace(subscription, state=state)
    if not webhook and not await _announce(driver, woken, cursors[0].name, limits):
        await rows.save(driver, subscription, state.undelivered(subscription.read_at, random.random()))
        return None
    if not webhook:
        state = state.delivered()
    return Wake(await rows.save(driver, subscription, state), cursors)


async def _announce(driver: Driver, woken: StoredSubscription, stream: str, limits: StreamLimits) -> bool:
    """Append the wake to the wake stream. False if that takes no append, for example because it does not exist."""
    event = {
        "type": "wake",
        "subscription_id": woken.name,
        "stream": stream,
        "generation": woken.state.generation,
        "ts": _milliseconds(woken.read_at),
    }
    append = StreamAppend(body=msgspec.json.encode(event), content_type=JSON_TYPE)
    name = woken.config.wake_stream or ""
    outcome = await append_within(driver, woken.space, name, append, limits)
    return not isinstance(outcome, KhalaError) and isinstance(outcome, Accepted)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


async def find_changed(driver: Driver, stream_ids: Collection[UUID]) -> set[UUID]:
    """Return the idle subscriptions that name any of these streams."""
    found = await driver.fetch(CHANGED, list(stream_ids))
    return {
        row["id"]
        for row in found
        if msgspec.json.decode(row["config"], type=SubscriptionConfig).link_type(row["name"], explicit=row["explicit"])
    }


async def read_time(driver: Driver) -> datetime:
    """Return the time of the database, for `find_due` and `seconds_to_next`."""
    now: datetime = await driver.fetchval("SELECT clock_timestamp()")
    return now


async def find_due(driver: Driver, now: datetime) -> set[UUID]:
    """Return subscriptions whose lease has lapsed, or whose next attempt is due, at this time."""
    return {row["id"] for row in await driver.fetch(DUE, now)}


async def find_idle(driver: Driver, after: UUID) -> list[UUID]:
    """Return the next idle subscriptions after this id, in order."""
    return [row["id"] for row in await driver.fetch(IDLE_AFTER, after)]


async def seconds_to_next(driver: Driver, after: datetime) -> float | None:
    """Return the seconds until the first subscription is due after this time; None if none will be.

    Negative for one that has become due since.
    """
    seconds: float | None = await driver.fetchval(NEXT_DUE, after)
    return seconds


@retried
async def advance(
    db: Database, subscription_id: UUID, limits: StreamLimits, *, can_deliver: bool
) -> Wake | Literal["deferred"] | None:
    """End a lease that has lapsed, and begin a wake if contents are pending. Returns a wake to deliver.

    Returns "deferred" for a subscription of a webhook if this process cannot deliver now.
    """
    async with db.driver() as driver, driver.transaction():
        try:
            subscription = await rows.lock_id(driver, subscription_id)
        except SubscriptionError:
            return None
        is_webhook = subscription.config.kind == "webhook"
        if is_webhook and not can_deliver:
            return "deferred"
        current = await rows.save(driver, subscription, subscription.state.at(subscription.read_at))
        wake = await begin(driver, current, limits)
        return wake if is_webhook else None


@retried
async def record_delivery(db: Database, wake: Wake, outcome: DeliveryOutcome) -> None:
    """Store how the delivery of a wake has ended, unless the wake has ended meanwhile."""
    async with db.driver() as driver, driver.transaction():
        try:
            current = await rows.lock_id(driver, wake.subscription.id)
        except SubscriptionError:
            return
        if (current.state.generation, current.state.wake_id) != (
            wake.subscription.state.generation,
            wake.subscription.state.wake_id,
        ):
            return
        if outcome == "failed":
            await rows.save(driver, current, current.state.undelivered(current.read_at, random.random()))
            return
        if outcome == "done":
            processed = [msgspec.structs.replace(each, acked=each.tail) for each in wake.cursors if each.is_pending]
            await rows.save_cursors(driver, current.id, processed)
        state = current.state.delivered()
        await rows.save(driver, current, state.ended() if outcome == "done" else state)
