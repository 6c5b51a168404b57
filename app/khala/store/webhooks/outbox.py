"""The outbox of webhooks: records events in the transaction of the change, in one row for each endpoint that wants one.

The caller holds the thread's lock, so the numbers of a thread's rows are in the order of commits. Where no endpoint is
enabled, `record` stores nothing; statements of the hot path ask with `IS_WANTED`, so that `record` is not even called.
"""

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

import msgspec
import structlog

from khala.domain.errors import BudgetExhausted, Unavailable
from khala.domain.parts import json_text
from khala.domain.webhooks import DEPLOYMENT, RUN_EVENTS, EventType, WebhookEvent
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import WEBHOOKS_CHANNEL
from khala.store.postgres.retries import retried

log = structlog.get_logger()

P = ParamSpec("P")
R = TypeVar("R")


class RequestInThread(Protocol):
    """A request that names its thread."""

    @property
    def thread_id(self) -> UUID:
        """The thread's id."""


Q = TypeVar("Q", bound=RequestInThread)

IS_IN_SCOPE = f"""
    endpoint.scope_id IN ('{DEPLOYMENT}', coalesce({{0}}, '{DEPLOYMENT}')) AND endpoint.is_enabled
    AND endpoint.deleted_at IS NULL
"""
"""SQL: the endpoint gets events of threads with this owner. A condition that the index of scopes has."""
IS_WANTED = f"EXISTS (SELECT FROM webhook_endpoints AS endpoint WHERE {IS_IN_SCOPE})"
"""SQL: any endpoint gets events of threads with this owner. It sees all endpoints that were created before the
statement began: an endpoint gets the events of transactions that begin after its creation.
"""
SEQUENCE = "webhook_deliveries_seq"
"""The sequence of the numbers of deliveries."""
RECORD = f"""
    WITH recorded AS (
        INSERT INTO webhook_deliveries (endpoint_id, seq, id, thread_id, revision, type, data, due_at, created_at)
        SELECT endpoint_id, nextval('{SEQUENCE}'), gen_random_uuid(), thread_id, revision, type, jsonb_strip_nulls(
            jsonb_build_object('threadId', thread_id, 'ownerId', owner_id, 'revision', revision)
        ) || data::jsonb, to_timestamp(0), clock_timestamp()
        FROM (
            SELECT endpoint.id AS endpoint_id, thread.id AS thread_id, thread.owner_id, thread.revision, event.type,
                   event.data
            FROM unnest($1::text[], $2::uuid[], $3::text[]) WITH ORDINALITY AS event (type, thread_id, data, number)
            JOIN threads AS thread ON thread.id = event.thread_id
            JOIN webhook_endpoints AS endpoint ON {IS_IN_SCOPE.format("thread.owner_id")}
             AND (endpoint.events = '{{}}' OR event.type = ANY (endpoint.events))
            ORDER BY event.number
        ) AS wanted
        RETURNING 1
    )
    SELECT pg_notify('{WEBHOOKS_CHANNEL}', '') FROM recorded LIMIT 1
"""
"""`to_timestamp(0)`: due at once, whatever the clocks say."""
ENDED = """
    SELECT ended.number, runs.user_message_id, runs.options->>'agent' AS agent, runs.plan_id, (
        SELECT part.data->>'code' FROM message_parts AS part
        WHERE part.run_id = runs.id AND part.thread_id IS NOT DISTINCT FROM runs.thread_id AND part.kind = 'error'
        ORDER BY part.run_id DESC, part.seq DESC LIMIT 1
    ) AS error
    FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS ended (id, thread_id, number)
    JOIN runs ON runs.id = ended.id AND runs.thread_id IS NOT DISTINCT FROM ended.thread_id
    ORDER BY ended.number
"""
LOCK_THREAD = """
    SELECT id FROM threads WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE
"""
WAS_TOLD = f"""
    SELECT NOT {IS_WANTED.format("threads.owner_id")} OR EXISTS (
        SELECT FROM webhook_deliveries
        WHERE endpoint_id IN (
            SELECT id FROM webhook_endpoints AS endpoint WHERE {IS_IN_SCOPE.format("threads.owner_id")}
        ) AND created_at > clock_timestamp() - interval '1 hour' AND thread_id = $1 AND type = 'budget.exhausted')
    FROM threads WHERE id = $1
"""
"""No endpoint wants the event, or one was recorded for the thread within the last hour."""


class EndedRunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended in this transaction."""

    run_id: UUID
    thread_id: UUID
    message_id: UUID
    status: str
    reason: str
    usage: object
    cost_usd: str | None = None
    model: str | None = None


async def record(driver: Driver, events: Sequence[WebhookEvent]) -> None:
    """Record events for the endpoints that want them, in the caller's transaction, which holds the threads' locks."""
    if events:
        columns = [(event.type, event.thread_id, json_text(event.data)) for event in events]
        await driver.execute(RECORD, *map(list, zip(*columns, strict=True)))


async def record_one(driver: Driver, event_type: EventType, thread_id: UUID, **data: object) -> None:
    """As `record`, for one event. Names of `data` are those on the wire; fields that are None are left out."""
    shown = {name: value for name, value in data.items() if value is not None}
    await record(driver, [WebhookEvent(type=event_type, thread_id=thread_id, data=shown)])


async def record_ended(driver: Driver, ended: Sequence[EndedRunFacts]) -> None:
    """Record that these runs have ended, and which of them for want of budget."""
    if not ended:
        return
    found = await driver.fetch(ENDED, [run.run_id for run in ended], [run.thread_id for run in ended])
    more = {row["number"]: row for row in found}
    events = []
    for number, run in enumerate(ended, start=1):
        row = more.get(number)
        data: dict[str, object] = {
            "runId": run.run_id,
            "messageId": run.message_id,
            "status": run.status,
            "reason": run.reason,
            "usage": run.usage,
            "costUsd": run.cost_usd,
            "model": run.model,
        }
        if row is not None:
            data |= {
                "userMessageId": row["user_message_id"],
                "agent": row["agent"],
                "planId": row["plan_id"],
                "error": row["error"] if run.status == "error" else None,
            }
        shown = {name: value for name, value in data.items() if value is not None}
        events.append(WebhookEvent(type=RUN_EVENTS[run.status], thread_id=run.thread_id, data=shown))
        if run.status == "error" and run.reason == "budget":
            exhausted = {"runId": run.run_id, "cause": "run"}
            events.append(WebhookEvent(type="budget.exhausted", thread_id=run.thread_id, data=exhausted))
    await record(driver, events)


def exhaustion_recorded(
    command: Callable[Concatenate[Database, Q, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Database, Q, P], Coroutine[Any, Any, R]]:
    """Record `budget.exhausted` where the command refuses a message for want of budget. Its transaction is undone.

    The event has a transaction of its own. There is at most one an hour for each thread.
    """

    @functools.wraps(command)
    async def recorded(db: Database, request: Q, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await command(db, request, *args, **kwargs)
        except BudgetExhausted:
            try:
                await _record_refusal(db, request.thread_id)
            except Unavailable as error:
                # The caller learns of the budget in any case.
                log.warning("refusal_not_recorded", error=str(error.__cause__))
            raise

    return recorded


@retried
async def _record_refusal(db: Database, thread_id: UUID) -> None:
    async with db.driver() as driver:
        if await driver.fetchval(WAS_TOLD, thread_id) is not False:
            return
        async with driver.transaction():
            locked = await driver.fetchval(LOCK_THREAD, thread_id)
            if locked is not None and await driver.fetchval(WAS_TOLD, thread_id) is False:
                await record_one(driver, "budget.exhausted", thread_id, cause="send")
