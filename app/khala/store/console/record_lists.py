"""The console's lists of schedules, webhooks and the audit trail. None shows texts of people or secrets."""

from datetime import datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from khala.domain.errors import NotFound
from khala.domain.schedules import Timing
from khala.domain.webhooks import DEPLOYMENT, DeliveryState, message_id
from khala.store.console.pages import (
    LAST_ID,
    MAX_EXAMINED,
    AccountRef,
    ConsoleStruct,
    Statement,
    account_columns,
    account_ref,
    joined,
)
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.threads.thread_pages import LAST_POSITION
from khala.store.webhooks import deliveries
from khala.store.webhooks.deliveries import EventDelivery

ScheduleStateFilter: TypeAlias = Literal["active", "paused", "ended"]
WebhookStateFilter: TypeAlias = Literal["failing", "disabled", "enabled"]

MAX_PENDING = 1_000
"""Pending deliveries of a webhook that are counted."""
MAX_WEBHOOKS = 2_000
"""Webhooks that one page examines: each has its own number of pending deliveries."""
WEBHOOK_STATES: dict[WebhookStateFilter, str] = {
    "failing": "is_enabled AND failures > 0",
    "disabled": "NOT is_enabled",
    "enabled": "is_enabled",
}
PENDING = f"""(
    SELECT count(*) FROM (SELECT FROM webhook_deliveries WHERE endpoint_id = page.id AND state = 'pending'
                          LIMIT {MAX_PENDING}) AS counted
) AS pending"""
NO_WEBHOOK = "There is no such webhook."
FIND_WEBHOOK = "SELECT scope_id FROM webhook_endpoints WHERE id = $1 AND deleted_at IS NULL"


class ConsoleSchedule(ConsoleStruct, frozen=True, kw_only=True):
    """A schedule of any account, without its name and message."""

    id: UUID
    owner: AccountRef | None
    kind: Literal["message", "plan"]
    thread_id: UUID | None
    status: ScheduleStateFilter
    reason: str | None
    cron: str | None
    at: datetime | None
    time_zone: str | None
    next_at: datetime | None
    last_at: datetime | None
    last_run_id: UUID | None
    last_thread_id: UUID | None
    failures: int
    created_at: datetime


class ConsoleWebhook(ConsoleStruct, frozen=True, kw_only=True):
    """A webhook of any account, by its host only: the rest of an address may be a secret."""

    id: UUID
    owner: AccountRef | None
    deployment: bool
    host: str
    events: list[str]
    enabled: bool
    disabled_reason: str | None
    failures: int
    failing_since: datetime | None
    paused_until: datetime | None
    pending: int
    created_at: datetime


class ConsoleDelivery(ConsoleStruct, frozen=True, kw_only=True):
    """An event for a webhook, without its data and without the response."""

    id: str
    seq: str
    type: str
    thread_id: UUID
    revision: int
    state: DeliveryState
    attempts: int
    status: int | None
    error: str | None
    duration_ms: int | None
    created_at: datetime
    attempted_at: datetime | None
    next_attempt_at: datetime | None


class ConsoleAuditEntry(ConsoleStruct, frozen=True, kw_only=True):
    """An entry of the audit trail. `accountId` is also that of an account that is gone."""

    id: UUID
    account: AccountRef | None
    account_id: UUID | None
    action: str
    thread_id: UUID | None
    network: str | None
    detail: dict[str, Any]
    created_at: datetime


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries to list. An `action` that ends with `*` is a beginning."""

    account: UUID | None = None
    thread: UUID | None = None
    action: str | None = None


async def read_schedules(
    driver: Driver,
    account: UUID | None,
    state: ScheduleStateFilter | None,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> list[ConsoleSchedule]:
    """Return schedules before this position, the newest first."""
    statement = Statement()
    moment, schedule_id = before or LAST_POSITION
    conditions = [f"(created_at, id) < ({statement.add(moment, 'timestamptz')}, {statement.add(schedule_id, 'uuid')})"]
    if account is not None:
        conditions.append(f"user_id = {statement.add(account, 'uuid')}")
    if state is not None:
        conditions.append(f"status = {statement.add(state, 'text')}")
    query = f"""
        SELECT page.*, {account_columns("page.user_id", "owner")} FROM (
            SELECT id, user_id, thread_id, plan_id, timing, status, reason, occurrence_at, last_at, last_run_id,
                   last_thread_id, failures, created_at
            FROM schedules WHERE {joined(conditions)} ORDER BY created_at DESC, id DESC
            LIMIT {statement.add(limit, "int")}
        ) AS page ORDER BY created_at DESC, id DESC
    """
    return [_schedule(row) for row in await driver.fetch(query, *statement.arguments)]


def _schedule(row: Record) -> ConsoleSchedule:
    timing = msgspec.json.decode(row["timing"], type=Timing)
    same = ("id", "thread_id", "status", "reason", "last_at", "last_run_id", "last_thread_id", "failures", "created_at")
    return ConsoleSchedule(
        owner=account_ref(row, "owner"),
        kind="message" if row["plan_id"] is None else "plan",
        cron=timing.cron,
        at=timing.at,
        time_zone=None if timing.cron is None else timing.time_zone,
        next_at=row["occurrence_at"],
        **{name: row[name] for name in same},
    )


async def read_webhooks(
    driver: Driver, account: UUID | None, state: WebhookStateFilter | None, before: UUID | None, limit: int
) -> list[ConsoleWebhook]:
    """Return webhooks before this id, the newest first."""
    statement = Statement()
    conditions = [f"id < {statement.add(before or LAST_ID, 'uuid')}", "deleted_at IS NULL"]
    if account is not None:
        conditions.append(f"scope_id = {statement.add(account, 'uuid')}")
    if state is not None:
        conditions.append(WEBHOOK_STATES[state])
    return await _select_webhooks(driver, statement, conditions, limit)


async def read_webhook(driver: Driver, webhook_id: UUID) -> ConsoleWebhook:
    """Return one webhook. Raises `NotFound`."""
    statement = Statement()
    conditions = [f"id = {statement.add(webhook_id, 'uuid')}", "deleted_at IS NULL"]
    found = await _select_webhooks(driver, statement, conditions, 1)
    if not found:
        raise NotFound(NO_WEBHOOK)
    return found[0]


async def _select_webhooks(
    driver: Driver, statement: Statement, conditions: list[str], limit: int
) -> list[ConsoleWebhook]:
    query = f"""
        SELECT page.*, {account_columns("page.scope_id", "owner")}, {PENDING} FROM (
            SELECT id, scope_id, url, events, is_enabled, disabled_reason, failures, failing_since, paused_until,
                   created_at
            FROM webhook_endpoints WHERE {joined(conditions)} ORDER BY id DESC LIMIT {statement.add(limit, "int")}
        ) AS page ORDER BY id DESC
    """
    return [_webhook(row) for row in await driver.fetch(query, *statement.arguments)]


def _webhook(row: Record) -> ConsoleWebhook:
    same = ("id", "disabled_reason", "failures", "failing_since", "paused_until", "pending", "created_at")
    return ConsoleWebhook(
        owner=account_ref(row, "owner"),
        deployment=row["scope_id"] == DEPLOYMENT,
        host=urlsplit(row["url"]).hostname or "",
        events=list(row["events"]),
        enabled=row["is_enabled"],
        **{name: row[name] for name in same},
    )


async def webhook_scope(driver: Driver, webhook_id: UUID) -> UUID:
    """Return the account of a webhook, or the nil UUID for the operator's. Raises `NotFound`."""
    scope: UUID | None = await driver.fetchval(FIND_WEBHOOK, webhook_id)
    if scope is None:
        raise NotFound(NO_WEBHOOK)
    return scope


async def read_deliveries(
    driver: Driver, webhook_id: UUID, state: DeliveryState | None, before: int | None, limit: int
) -> list[ConsoleDelivery]:
    """Return deliveries of the webhook before this number, the newest first. Raises `NotFound`."""
    await webhook_scope(driver, webhook_id)
    found = await deliveries.page(driver, webhook_id, before=before, state=state, limit=limit)
    return [_delivery(each) for each in found]


def _delivery(each: EventDelivery) -> ConsoleDelivery:
    waits = each.state == "pending" and each.claim_id is None and each.attempts > 0
    return ConsoleDelivery(
        id=message_id(each.id),
        seq=str(each.seq),
        type=each.type,
        thread_id=each.thread_id,
        revision=each.revision,
        state=each.state,
        attempts=each.attempts,
        status=each.response_status,
        error=each.error,
        duration_ms=each.duration_ms,
        created_at=each.created_at,
        attempted_at=each.attempted_at,
        next_attempt_at=each.due_at if waits else None,
    )


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `next` is the id before which the next page begins. `examined`: a filter without an index applied."""

    items: list[ConsoleAuditEntry]
    next: UUID | None
    examined: bool


async def read_audit(driver: Driver, wanted: AuditFilter, before: UUID | None, limit: int) -> AuditPage:
    """Return entries before this id, the newest first."""
    examined = wanted.action is not None or (wanted.account is not None and wanted.thread is not None)
    window = MAX_EXAMINED if examined else limit + 1
    statement = Statement()
    candidates = _audit_candidates(statement, wanted, before or LAST_ID, window)
    condition = "true" if wanted.action is None else _is_action(statement, wanted.action)
    query = f"""
        SELECT page.*, {account_columns("page.user_id", "account")} FROM (
            SELECT * FROM ({candidates}) AS entry WHERE {condition} ORDER BY id DESC
            LIMIT {statement.add(limit + 1, "int")}
        ) AS page ORDER BY id DESC
    """
    items = [_audit_entry(row) for row in await driver.fetch(query, *statement.arguments)]
    if len(items) > limit:
        return AuditPage(items=items[:limit], next=items[limit - 1].id, examined=examined)
    statement = Statement()
    candidates = _audit_candidates(statement, wanted, before or LAST_ID, window)
    query = f"SELECT id FROM ({candidates}) AS entry ORDER BY id DESC OFFSET {window - 1} LIMIT 1"
    last = await driver.fetchval(query, *statement.arguments) if examined else None
    return AuditPage(items=items, next=last, examined=examined)


def _audit_candidates(statement: Statement, wanted: AuditFilter, before: UUID, window: int) -> str:
    conditions = [f"id < {statement.add(before, 'uuid')}"]
    if wanted.account is not None:
        conditions.append(f"user_id = {statement.add(wanted.account, 'uuid')}")
    if wanted.thread is not None:
        conditions.append(f"thread_id = {statement.add(wanted.thread, 'uuid')}")
    return f"SELECT * FROM audit WHERE {joined(conditions)} ORDER BY id DESC LIMIT {window}"


def _is_action(statement: Statement, action: str) -> str:
    if not action.endswith("*"):
        return f"action = {statement.add(action, 'text')}"
    return f"starts_with(action, {statement.add(action[:-1], 'text')})"


def _audit_entry(row: Record) -> ConsoleAuditEntry:
    known = row["account_name"] is not None or row["account_email"] is not None
    detail = msgspec.json.decode(row["detail"], type=dict[str, Any])
    if "url" in detail:
        detail["host"] = urlsplit(detail.pop("url")).hostname or ""  # As of webhooks.
    return ConsoleAuditEntry(
        account=account_ref(row, "account") if known else None,
        account_id=row["user_id"],
        detail=detail,
        **{name: row[name] for name in ("id", "action", "thread_id", "network", "created_at")},
    )
