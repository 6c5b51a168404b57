"""Deliveries of events to endpoints: claims, outcomes, lists and replays.

All changes of an endpoint's deliveries hold the endpoint's lock. Transactions that record events only insert rows,
which are due at once, and need no lock.

In each thread only the first pending delivery, the head, may be attempted. A claim that finds another one due takes its
`due_at` away; the end of an attempt makes the thread's head due again. If a process dies, its lease lapses, so that
another process attempts the delivery again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.fold import text_of
from khala.domain.webhooks import (
    MAX_CONTENT_CHARACTERS,
    DeliveryAttempt,
    DeliveryState,
    EndpointHealth,
    Judgement,
    judge,
)
from khala.store.accounts import audit
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.notifications import WEBHOOKS_CHANNEL
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import content
from khala.store.threads.reset_marks import IS_MESSAGE
from khala.store.webhooks import endpoints
from khala.store.webhooks.endpoints import StoredEndpoint, stored_endpoint

MAX_IN_FLIGHT = 4
"""Requests to one endpoint at the same time, by all processes. One that fails gets one at a time."""
MAX_EXAMINED = 200
"""Due deliveries that one claim looks at."""
MAX_ENDPOINTS = 1000
"""Endpoints that one look returns."""
MAX_REPLAYED = 10_000
"""Deliveries that one replay requests."""
NOW = "(clock_timestamp() + make_interval(secs => $1))"
"""The time. The argument is 0, except in tests."""

LOOK = f"""
    WITH RECURSIVE waiting AS (
        (SELECT endpoint_id, due_at FROM webhook_deliveries WHERE due_at IS NOT NULL
         ORDER BY endpoint_id, due_at LIMIT 1)
        UNION ALL
        SELECT next.* FROM waiting CROSS JOIN LATERAL (
            SELECT endpoint_id, due_at FROM webhook_deliveries
            WHERE due_at IS NOT NULL AND endpoint_id > waiting.endpoint_id ORDER BY endpoint_id, due_at LIMIT 1
        ) AS next
    )
    SELECT endpoint.id, endpoint.failures > 0 AS fails,
           extract(epoch FROM greatest(waiting.due_at, endpoint.paused_until) - {NOW})::float8 AS seconds
    FROM waiting CROSS JOIN LATERAL (
        SELECT * FROM webhook_endpoints WHERE id = waiting.endpoint_id AND is_enabled LIMIT 1
    ) AS endpoint
    ORDER BY fails, seconds, id LIMIT {MAX_ENDPOINTS}
"""
"""Reads one row of each endpoint that has deliveries waiting, however many these are, and no other endpoints."""
LOCK = f"""
    SELECT *, {NOW} AS now FROM webhook_endpoints
    WHERE id = $2 AND is_enabled AND coalesce(paused_until <= {NOW}, true) FOR NO KEY UPDATE SKIP LOCKED
"""
IN_FLIGHT = "SELECT count(*) FROM webhook_deliveries WHERE endpoint_id = $1 AND claim_id IS NOT NULL AND due_at > $2"
DUE = f"""
    SELECT due.seq, due.thread_id, NOT EXISTS (
        SELECT FROM webhook_deliveries AS other WHERE other.endpoint_id = $1 AND other.thread_id = due.thread_id
          AND other.state = 'pending' AND (other.seq < due.seq OR (other.claim_id IS NOT NULL AND other.due_at > $2))
    ) AS is_head
    FROM webhook_deliveries AS due
    WHERE endpoint_id = $1 AND due_at <= $2 ORDER BY due_at, seq LIMIT {MAX_EXAMINED}
"""
"""The deliveries that are due, and whether each may be attempted: none of its thread is before it or in flight."""
DEFER = """
    UPDATE webhook_deliveries SET due_at = NULL, claim_id = NULL WHERE endpoint_id = $1 AND seq = ANY ($2::bigint[])
"""
CLAIM = """
    UPDATE webhook_deliveries SET due_at = $3::timestamptz + make_interval(secs => $4), claim_id = $5,
           attempts = attempts + 1, attempted_at = $3::timestamptz,
           first_attempt_at = coalesce(first_attempt_at, $3::timestamptz)
    WHERE endpoint_id = $1 AND seq = ANY ($2::bigint[]) RETURNING *
"""
PROMOTE = """
    UPDATE webhook_deliveries AS head SET due_at = $3::timestamptz
    FROM (
        SELECT first.seq, thread.id AS thread_id FROM unnest($2::uuid[]) AS thread (id) CROSS JOIN LATERAL (
            SELECT seq FROM webhook_deliveries WHERE endpoint_id = $1 AND thread_id = thread.id AND state = 'pending'
            ORDER BY endpoint_id, thread_id, seq LIMIT 1
        ) AS first
    ) AS first
    WHERE head.endpoint_id = $1 AND head.seq = first.seq AND head.due_at IS NULL AND NOT EXISTS (
        SELECT FROM webhook_deliveries AS other WHERE other.endpoint_id = $1 AND other.thread_id = first.thread_id
          AND other.state = 'pending' AND other.claim_id IS NOT NULL AND other.due_at > $3::timestamptz)
"""
"""Makes the heads of these threads due, unless they have a time already or a delivery of their thread is in flight."""
LOCK_ANY = f"SELECT *, {NOW} AS now FROM webhook_endpoints WHERE id = $2 FOR NO KEY UPDATE"
CLAIMED = """
    SELECT attempts, first_attempt_at FROM webhook_deliveries WHERE endpoint_id = $1 AND seq = $2 AND claim_id = $3
"""
RECORD = """
    UPDATE webhook_deliveries SET state = $3, due_at = $4, claim_id = NULL, response_status = $5, response = $6,
           error = $7, duration_ms = $8
    WHERE endpoint_id = $1 AND seq = $2
"""
SET_HEALTH = """
    UPDATE webhook_endpoints SET failures = $2, failing_since = $3, paused_until = $4, disabled_reason = $5,
           is_enabled = is_enabled AND $5::text IS NULL
    WHERE id = $1
"""
PAGE = """
    SELECT * FROM webhook_deliveries
    WHERE endpoint_id = $1 AND ($2::bigint IS NULL OR seq < $2) AND ($3::text IS NULL OR state = $3)
    ORDER BY endpoint_id DESC, seq DESC LIMIT $4
"""
REPLAY = """
    WITH chosen AS (
        SELECT seq FROM webhook_deliveries
        WHERE endpoint_id = $1 AND seq > $2 AND state <> 'pending' AND created_at >= $3
          AND ($4::uuid IS NULL OR thread_id = $4) AND revision > $5
        ORDER BY endpoint_id, seq LIMIT $6
    ), replayed AS (
        UPDATE webhook_deliveries SET state = 'pending', due_at = to_timestamp(0), attempts = 0,
               first_attempt_at = NULL, claim_id = NULL
        WHERE endpoint_id = $1 AND seq IN (SELECT seq FROM chosen) RETURNING seq
    )
    SELECT count(*) AS replayed, max(seq) AS last FROM replayed
"""
MESSAGE = f"""
    SELECT messages.content FROM messages JOIN threads ON threads.id = messages.thread_id
    WHERE messages.id = $1 AND messages.thread_id = $2 AND threads.deleted_at IS NULL AND {IS_MESSAGE}
      AND ($3::uuid IS NULL OR threads.owner_id = $3)
"""
STATUS = """
    SELECT count(*) AS waiting,
           coalesce(extract(epoch FROM clock_timestamp() - min(delivery.created_at)), 0)::float8 AS oldest_seconds,
           (SELECT count(*) FROM webhook_endpoints WHERE NOT is_enabled AND disabled_reason IS NOT NULL
             AND deleted_at IS NULL) AS disabled
    FROM (
        SELECT waiting.created_at FROM webhook_deliveries AS waiting
        JOIN webhook_endpoints AS endpoint ON endpoint.id = waiting.endpoint_id
        WHERE state = 'pending' AND endpoint.is_enabled LIMIT 100000
    ) AS delivery
"""


class EventDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event for an endpoint, and the outcome of the last attempt."""

    endpoint_id: UUID
    seq: int
    id: UUID
    thread_id: UUID
    revision: int
    type: str
    data: dict[str, Any]
    state: DeliveryState
    due_at: datetime | None
    claim_id: UUID | None
    attempts: int
    attempted_at: datetime | None
    response_status: int | None
    response: str | None
    error: str | None
    duration_ms: int | None
    created_at: datetime


class WaitingEndpoint(msgspec.Struct, frozen=True):
    """An endpoint with deliveries, and the seconds until one of them may be attempted; negative if that is past."""

    id: UUID
    fails: bool
    seconds: float


class OutboxStatus(msgspec.Struct, frozen=True):
    """Deliveries that wait for enabled endpoints, at most 100,000, the age of the oldest, and endpoints that failed."""

    waiting: int
    oldest_seconds: float
    disabled: int


class DeliveryClaim(msgspec.Struct, frozen=True):
    """Claimed deliveries of an endpoint. `is_full`: others wait until an attempt that is in flight has ended."""

    endpoint: StoredEndpoint
    deliveries: Sequence[EventDelivery]
    is_full: bool


def _delivery(row: Mapping[Any, Any]) -> EventDelivery:
    fields = {name: row[name] for name in EventDelivery.__struct_fields__}
    return EventDelivery(**fields | {"data": msgspec.json.decode(row["data"], type=dict[str, Any])})


async def look(driver: Driver, *, ahead: float = 0) -> list[WaitingEndpoint]:
    """Return the enabled endpoints with deliveries that wait: those without failures first, the earliest first."""
    return [WaitingEndpoint(*row) for row in await driver.fetch(LOOK, ahead)]


@retried
async def claim(
    db: Database, endpoint_id: UUID, *, most: int, lease_seconds: float, ahead: float = 0
) -> DeliveryClaim | None:
    """Claim up to `most` deliveries of the endpoint for `lease_seconds`.

    None if it is disabled or paused, or another process holds it.
    """
    async with db.driver() as driver, driver.transaction():
        row = await driver.fetchrow(LOCK, ahead, endpoint_id)
        if row is None:
            return None
        endpoint, now = stored_endpoint(row), row["now"]
        in_flight = await driver.fetchval(IN_FLIGHT, endpoint_id, now)
        room = min(most, (1 if endpoint.health.failures else MAX_IN_FLIGHT) - in_flight)
        due = await driver.fetch(DUE, endpoint_id, now)
        # A thread has one head, so no two of these are of one thread.
        chosen = [row["seq"] for row in due if row["is_head"]][: max(0, room)]
        claimed = []
        if chosen:
            arguments = endpoint_id, chosen, now, lease_seconds, ids.new()
            claimed = [_delivery(row) for row in await driver.fetch(CLAIM, *arguments)]
        behind = [row for row in due if not row["is_head"]]
        if behind:
            await driver.execute(DEFER, endpoint_id, [row["seq"] for row in behind])
            await driver.execute(PROMOTE, endpoint_id, list({row["thread_id"] for row in behind}), now)
        return DeliveryClaim(endpoint, claimed, is_full=room <= 0)


@retried
async def record(
    db: Database, delivery: EventDelivery, attempt: DeliveryAttempt, *, jitter: float, ahead: float = 0
) -> Judgement | None:
    """Store the outcome of an attempt. None if it is another's by now, because the lease has lapsed."""
    async with db.driver() as driver, driver.transaction():
        row = await driver.fetchrow(LOCK_ANY, ahead, delivery.endpoint_id)
        key = delivery.endpoint_id, delivery.seq
        held = await driver.fetchrow(CLAIMED, *key, delivery.claim_id)
        if row is None or held is None:
            return None
        health, now = stored_endpoint(row).health, row["now"]
        judged = judge(attempt, health, attempts=held[0], first_attempt_at=held[1], now=now, jitter=jitter)
        outcome = attempt.status, attempt.response, None if attempt.succeeded else attempt.problem, attempt.duration_ms
        await driver.execute(RECORD, *key, judged.state, judged.due_at, *outcome)
        await driver.execute(PROMOTE, delivery.endpoint_id, [delivery.thread_id], now)
        if judged.health != health:
            await _save_health(driver, delivery.endpoint_id, judged.health)
        return judged


async def _save_health(driver: Driver, endpoint_id: UUID, health: EndpointHealth) -> None:
    await driver.execute(SET_HEALTH, endpoint_id, *msgspec.structs.astuple(health))


async def page(
    driver: Driver, endpoint_id: UUID, *, before: int | None, state: DeliveryState | None, limit: int
) -> list[EventDelivery]:
    """Return deliveries of the endpoint, the newest first. `before` is the last one of the previous page."""
    return [_delivery(row) for row in await driver.fetch(PAGE, endpoint_id, before, state, limit)]


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries to repeat: those since a time, or of a thread after a revision, at most `limit`.

    `after` continues a replay after the delivery with this number.
    """

    since: datetime
    thread_id: UUID | None = None
    after_revision: int = -1
    after: int = 0
    limit: int = MAX_REPLAYED


@retried
async def replay(
    db: Database,
    scope_id: UUID,
    endpoint_id: UUID,
    request: ReplayRequest,
    *,
    admin: Caller | None = None,
    reason: str | None = None,
) -> tuple[int, int | None]:
    """Deliver events again that were delivered or given up. Returns their number, and that of the last one.

    They have the same ids as before, and come in order. Raises `NotFound`. An `admin` who does it in the console has an
    entry of the audit trail.
    """
    async with db.transaction() as connection:
        await connection.execute(select(1))
        driver = await driver_of(connection)
        await endpoints.lock(driver, scope_id, endpoint_id)
        if admin is not None:
            await audit.record(connection, "console_webhook_replayed", admin, reason=reason, webhook=str(endpoint_id))
        chosen = request.after, request.since, request.thread_id, request.after_revision, request.limit
        row = await driver.fetchrow(REPLAY, endpoint_id, *chosen)
        assert row is not None
        await driver.execute("SELECT pg_notify($1, '')", WEBHOOKS_CHANNEL)
        return row["replayed"], row["last"]


async def read_text(driver: Driver, endpoint: StoredEndpoint, delivery: EventDelivery) -> Mapping[str, object]:
    """Return the text of the message that the event is about, for an endpoint that asks for content.

    Nothing, if the event is about no message, or the message is gone, or the thread has another owner by now.
    """
    message_id = delivery.data.get("messageId")
    if not endpoint.config.include_content or message_id is None:
        return {}
    owner = None if endpoint.scope_id.int == 0 else endpoint.scope_id
    row = await driver.fetchrow(MESSAGE, UUID(message_id), delivery.thread_id, owner)
    if row is None:
        return {}
    text = text_of(content(row["content"]) or ())
    shown: dict[str, object] = {"text": text[:MAX_CONTENT_CHARACTERS]}
    return shown | ({"truncated": True} if len(text) > MAX_CONTENT_CHARACTERS else {})


async def read_status(driver: Driver) -> OutboxStatus:
    """Return the state of the outbox, for monitoring."""
    row = await driver.fetchrow(STATUS)
    assert row is not None
    return OutboxStatus(*row)
