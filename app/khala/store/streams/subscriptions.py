"""Subscriptions to streams: creates and deletes them, and lets workers claim, acknowledge and release their wakes.

Each command is one transaction that holds the lock of the subscription. A wake that a worker has to claim is announced
in the wake stream by the transaction that begins it, so none is lost.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from khala.domain import ids
from khala.domain.streams import wake_tokens
from khala.domain.streams.subscriptions import (
    MAX_EXPLICIT_STREAMS,
    MAX_SUBSCRIPTIONS,
    StreamCursor,
    SubscriptionConfig,
    SubscriptionError,
    WakeState,
    acknowledged,
)
from khala.domain.streams.wake_tokens import WakeToken
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import notify_subscriptions
from khala.store.postgres.retries import retried
from khala.store.streams import subscription_rows as rows
from khala.store.streams import wakes
from khala.store.streams.stream_rows import StreamLimits, StreamSpace
from khala.store.streams.subscription_rows import StoredSubscription

LOCK_USER = "SELECT id FROM users WHERE id IN (SELECT $1::uuid) ORDER BY id FOR KEY SHARE"
"""The foreign key of a new subscription takes this lock, too, but after others."""
COUNT = "SELECT count(*) FROM stream_subscriptions WHERE space_id = $1"
INSERT = """
    INSERT INTO stream_subscriptions (id, space_id, user_id, name, config, config_digest, url, token_key)
    VALUES ($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8) ON CONFLICT (space_id, name) DO NOTHING RETURNING id
"""
EXISTING = """
    SELECT id, start_position, tail, name FROM streams
    WHERE space_id = $1 AND name IS NOT NULL AND deleted_at IS NULL AND (name = ANY ($2::text[]) OR '/' || name ~ $3)
"""
COUNT_EXPLICIT = "SELECT count(*) FROM stream_links WHERE subscription_id = $1 AND explicit"
SET_URL = "UPDATE stream_subscriptions SET url = $2 WHERE id = $1"
UNLINK = "DELETE FROM stream_links WHERE subscription_id = $1 AND name = $2"
KEEP_MATCHED = "UPDATE stream_links SET explicit = false WHERE subscription_id = $1 AND name = $2"
DELETE = "DELETE FROM stream_subscriptions WHERE id = $1"
TOKEN_KEY_BYTES = 32


class SubscriptionView(msgspec.Struct, frozen=True):
    """A subscription and its streams, at most `MAX_LISTED_STREAMS`."""

    subscription: StoredSubscription
    cursors: Sequence[StreamCursor]


class WakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request about a wake: which one it means, and what it has processed: positions by stream."""

    token: WakeToken
    name: str
    generation: int
    wake_id: str
    acks: Mapping[str, int] = {}
    done: bool = False


@retried
async def create(
    db: Database, space: StreamSpace, name: str, config: SubscriptionConfig, url: str
) -> tuple[SubscriptionView, bool]:
    """Create the subscription, or find the one that an equal request has created. Returns whether it is new.

    Contents that its streams have by then count as acknowledged. Raises `SubscriptionError`.
    """
    async with db.driver() as driver, driver.transaction():
        await driver.execute(LOCK_USER, space.user_id)
        is_new = await _insert(driver, space, name, config, url)
        subscription = await rows.read(driver, space, name, lock=True)
        if subscription.digest != config.digest:
            message = "There is a subscription of this name with another configuration."
            raise SubscriptionError("SUBSCRIPTION_ALREADY_EXISTS", message, status=409)
        if is_new:
            await _link_existing(driver, subscription, config.streams, pattern=config.pattern)
        elif subscription.url != url:
            await driver.execute(SET_URL, subscription.id, url)
        return SubscriptionView(subscription, await rows.read_cursors(driver, subscription)), is_new


async def _insert(driver: Driver, space: StreamSpace, name: str, config: SubscriptionConfig, url: str) -> bool:
    encoded = msgspec.json.encode(config).decode()
    inserted = await driver.fetchval(
        INSERT, ids.new(), space.id, space.user_id, name, encoded, config.digest, url,
        secrets.token_bytes(TOKEN_KEY_BYTES),
    )  # fmt: skip
    if inserted is None:
        return False
    if await driver.fetchval(COUNT, space.id) > MAX_SUBSCRIPTIONS:
        message = f"There may be {MAX_SUBSCRIPTIONS} subscriptions. Delete one first."
        scope = "deployment" if space.user_id is None else "account"
        limit = {"limit": "subscriptions", "scope": scope, "most": str(MAX_SUBSCRIPTIONS), "retryAfter": 60}
        raise SubscriptionError("TOO_MANY_SUBSCRIPTIONS", message, status=429, details=limit)
    return True


async def _link_existing(
    driver: Driver, subscription: StoredSubscription, names: Sequence[str], *, pattern: str | None = None
) -> None:
    """Link these streams and those that the pattern matches at their ends. Streams that do not exist have no end."""
    regex = None if pattern is None else rows.regular_expression(pattern)
    found = await driver.fetch(EXISTING, subscription.space.id, list(names), regex)
    missing = set(names) - {row["name"] for row in found}
    cursors = [
        StreamCursor(
            name=row["name"],
            link_type="explicit" if row["name"] in names else "glob",
            stream_id=row["id"],
            acked=row["tail"],
            tail=row["tail"],
        )
        for row in found
    ]
    cursors += [
        StreamCursor(name=name, link_type="explicit", stream_id=None, acked=0, tail=None) for name in sorted(missing)
    ]
    await rows.save_cursors(driver, subscription.id, cursors)


async def find(db: Database, space: StreamSpace, name: str) -> SubscriptionView:
    """Return the subscription and its streams. Raises `SubscriptionError`."""
    async with db.snapshot() as driver:
        subscription = await rows.read(driver, space, name)
        return SubscriptionView(subscription, await rows.read_cursors(driver, subscription))


@retried
async def delete(db: Database, space: StreamSpace, name: str) -> None:
    """Delete the subscription. Requests of its wakes are refused from then on. Raises `SubscriptionError`."""
    async with db.driver() as driver, driver.transaction():
        subscription = await rows.read(driver, space, name, lock=True)
        await driver.execute(DELETE, subscription.id)


@retried
async def add_streams(db: Database, space: StreamSpace, name: str, streams: Sequence[str]) -> None:
    """Name these streams one by one, too. Their contents so far count as acknowledged. Raises `SubscriptionError`."""
    async with db.driver() as driver, driver.transaction():
        subscription = await rows.read(driver, space, name, lock=True)
        linked = {cursor.name: cursor for cursor in await rows.read_cursors(driver, subscription, names=streams)}
        known = [msgspec.structs.replace(linked[one], link_type="explicit") for one in streams if one in linked]
        await rows.save_cursors(driver, subscription.id, known)
        await _link_existing(driver, subscription, [one for one in streams if one not in linked])
        if await driver.fetchval(COUNT_EXPLICIT, subscription.id) > MAX_EXPLICIT_STREAMS:
            message = f"A subscription names at most {MAX_EXPLICIT_STREAMS:,} streams one by one."
            raise SubscriptionError("INVALID_REQUEST", message, status=400)


@retried
async def remove_stream(db: Database, space: StreamSpace, name: str, stream: str) -> None:
    """Do not name this stream any more. The pattern may still match it. Raises `SubscriptionError`."""
    async with db.driver() as driver, driver.transaction():
        subscription = await rows.read(driver, space, name, lock=True)
        is_matched = subscription.config.link_type(stream, explicit=False) is not None
        await driver.execute(KEEP_MATCHED if is_matched else UNLINK, subscription.id, stream)


@retried
async def claim(db: Database, space: StreamSpace, name: str, worker: str) -> tuple[SubscriptionView, str]:
    """Give the wake to this worker, and return the streams and the token. Raises `SubscriptionError`."""
    async with db.driver() as driver, driver.transaction():
        subscription = await rows.read(driver, space, name, lock=True)
        if subscription.config.kind != "pull-wake":
            raise SubscriptionError("INVALID_REQUEST", "Workers claim wakes of pull-wake subscriptions.", status=400)
        state = subscription.state.at(subscription.read_at)
        if state.holder is not None:
            details = {"current_holder": state.holder, "generation": state.generation}
            message = f"The worker {state.holder} has this wake."
            raise SubscriptionError("ALREADY_CLAIMED", message, status=409, details=details)
        cursors = await rows.read_cursors(driver, subscription)
        if not any(cursor.is_pending for cursor in cursors):
            raise SubscriptionError("NO_PENDING_WORK", "All contents are acknowledged.", status=409)
        if state.wake_id is None:
            state = state.woken(wakes.new_id(), None)
        claimed = await rows.save(driver, subscription, state.claimed(worker, _lease_end(subscription)))
        token = wake_tokens.sign(subscription.token_key, subscription.id, state.generation)
        return SubscriptionView(claimed, cursors), token


@retried
async def acknowledge(db: Database, request: WakeRequest, limits: StreamLimits) -> bool:
    """Store what a worker has processed; then end its wake, or give it more time.

    Returns whether contents that are not acknowledged begin another wake. Raises `SubscriptionError`.
    """
    async with db.driver() as driver, driver.transaction():
        subscription, state = await _lock_wake(driver, request)
        if request.acks:
            cursors = await rows.read_cursors(driver, subscription, names=list(request.acks))
            changed = acknowledged(cursors, request.acks)
            await rows.save_cursors(driver, subscription.id, changed)
        if not request.done:
            await rows.save(driver, subscription, state.extended(_lease_end(subscription)))
            return False
        return await _end_wake(driver, subscription, state, limits)


@retried
async def release(db: Database, request: WakeRequest, limits: StreamLimits) -> None:
    """End the wake without an acknowledgement. Contents that are pending begin another one."""
    async with db.driver() as driver, driver.transaction():
        subscription, state = await _lock_wake(driver, request)
        await _end_wake(driver, subscription, state, limits)


async def _lock_wake(driver: Driver, request: WakeRequest) -> tuple[StoredSubscription, WakeState]:
    """Lock the subscription, and return it with its state. Raises `SubscriptionError` for a wake that has ended."""
    subscription = await rows.lock_id(driver, request.token.subscription_id)
    request.token.check(subscription.token_key)
    if subscription.name != request.name:
        raise wake_tokens.invalid_token()
    state = subscription.state.at(subscription.read_at)
    state.check(request.generation, request.wake_id, request.token.generation)
    return subscription, state


async def _end_wake(driver: Driver, subscription: StoredSubscription, state: WakeState, limits: StreamLimits) -> bool:
    """End the wake, and return whether another one begins: at once, or when a process delivers it to the webhook."""
    ended = await rows.save(driver, subscription, state.ended())
    if subscription.config.kind == "pull-wake":
        return await wakes.begin(driver, ended, limits) is not None
    is_pending = any(cursor.is_pending for cursor in await rows.read_cursors(driver, ended, most=1))
    if is_pending:
        await notify_subscriptions(driver, [subscription.id])
    return is_pending


def _lease_end(subscription: StoredSubscription) -> datetime:
    return subscription.read_at + subscription.config.lease
