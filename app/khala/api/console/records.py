"""The console's blobs, webhooks, schedules and audit trail."""

from typing import Annotated
from uuid import UUID

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter

from khala.api.console.access import Reason
from khala.api.console.cursors import decode_id, decode_number, encode_id, encode_number
from khala.api.console.types import (
    BODY,
    DENIED,
    ConsoleController,
    ConsolePage,
    Cursor,
    ExaminedPage,
    Limit,
    page_of,
)
from khala.api.context import Context
from khala.api.http.page_cursors import decode_cursor, encode_cursor
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.validation import check_text
from khala.api.webhooks.types import NewReplay, Replay
from khala.api.webhooks.webhooks import replay_request
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.webhooks import DeliveryState
from khala.store.console import blob_list, record_lists
from khala.store.console.blob_list import BlobUsage, ConsoleBlob
from khala.store.console.record_lists import (
    AuditFilter,
    ConsoleAuditEntry,
    ConsoleDelivery,
    ConsoleSchedule,
    ConsoleWebhook,
    ScheduleStateFilter,
    WebhookStateFilter,
)
from khala.store.webhooks import deliveries

Account = Annotated[UUID | None, QueryParameter(description="Only of this account.")]
WebhookId = Annotated[UUID, PathParameter(description="The webhook's id.")]


class ConsoleReplay(NewReplay, frozen=True, kw_only=True):
    """The events to deliver again, as in a replay by the owner."""

    reason: Reason | None = None


class ConsoleRecordController(ConsoleController):
    """Blobs, webhooks, schedules and the audit trail."""

    path = "/console"

    @get(
        "/blobs",
        operation_id="listConsoleBlobs",
        summary="List blobs",
        response_description="Blobs, the largest first.",
        responses=documented_errors(*DENIED),
    )
    async def blobs(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account: Account = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[ConsoleBlob]:
        """List the largest blobs, without their names."""
        async with context.db.snapshot() as driver:
            found = await blob_list.read_page(driver, account, decode_number(cursor), limit + 1)
        return page_of(found, limit, lambda blob: encode_number(blob.size, blob.id))

    @get(
        "/blobs/usage",
        operation_id="readBlobUsage",
        summary="Read the usage of blobs",
        response_description="The owners with the most bytes, and all objects.",
        responses=documented_errors(*DENIED),
    )
    async def blob_usage(self, context: NamedDependency[Context], admin: NamedDependency[Caller]) -> BlobUsage:
        """Read the usage as it was counted last, at most some hours ago."""
        async with context.db.snapshot() as driver:
            return await blob_list.read_usage(driver)

    @get(
        "/webhooks",
        operation_id="listConsoleWebhooks",
        summary="List webhooks",
        response_description="Webhooks, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def webhooks(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account: Account = None,
        in_state: Annotated[
            WebhookStateFilter | None, QueryParameter(name="state", description="Only these webhooks.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[ConsoleWebhook]:
        """List the webhooks of all accounts and of the operator, by their hosts."""
        async with context.db.snapshot() as driver:
            found = await record_lists.read_webhooks(driver, account, in_state, decode_id(cursor), limit + 1)
        return page_of(found, limit, lambda webhook: encode_id(webhook.id))

    @get(
        "/webhooks/{webhook_id:uuid}",
        operation_id="readConsoleWebhook",
        summary="Read a webhook",
        response_description="The webhook.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def webhook(
        self, context: NamedDependency[Context], admin: NamedDependency[Caller], webhook_id: WebhookId
    ) -> ConsoleWebhook:
        """Read a webhook of any account or of the operator, by its host."""
        async with context.db.snapshot() as driver:
            return await record_lists.read_webhook(driver, webhook_id)

    @get(
        "/webhooks/{webhook_id:uuid}/deliveries",
        operation_id="listConsoleDeliveries",
        summary="List a webhook's deliveries",
        response_description="Deliveries, the newest first.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def deliveries(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        webhook_id: WebhookId,
        in_state: Annotated[
            DeliveryState | None, QueryParameter(name="state", description="Only events in this state.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[ConsoleDelivery]:
        """List the events of the last seven days for a webhook, without their data."""
        before = decode_number(cursor)
        async with context.db.snapshot() as driver:
            found = await record_lists.read_deliveries(
                driver, webhook_id, in_state, None if before is None else before[0], limit + 1
            )
        return page_of(found, limit, lambda delivery: encode_number(int(delivery.seq), webhook_id))

    @post(
        "/webhooks/{webhook_id:uuid}/replay",
        operation_id="replayConsoleWebhook",
        summary="Deliver events again",
        status_code=200,
        response_description="The number of events that will be delivered again.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def replay(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        webhook_id: WebhookId,
        data: Annotated[ConsoleReplay, BodyKwarg(examples=example("Since a time", since="2026-01-31T00:00:00Z"))],
    ) -> Replay:
        """Deliver events of any webhook again, as its owner could."""
        reason = None if data.reason is None else check_text(data.reason, "reason")
        request = replay_request(data)
        async with context.db.driver() as driver:
            scope = await record_lists.webhook_scope(driver, webhook_id)
        replayed, last = await deliveries.replay(context.db, scope, webhook_id, request, admin=admin, reason=reason)
        return Replay(replayed=replayed, next=str(last) if replayed == data.limit else None)

    @get(
        "/schedules",
        operation_id="listConsoleSchedules",
        summary="List schedules",
        response_description="Schedules, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def schedules(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account: Account = None,
        in_state: Annotated[
            ScheduleStateFilter | None, QueryParameter(name="state", description="Only schedules in this state.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[ConsoleSchedule]:
        """List the schedules of all accounts, without their names and messages."""
        before = None if cursor is None else decode_cursor(cursor)
        async with context.db.snapshot() as driver:
            found = await record_lists.read_schedules(driver, account, in_state, before, limit + 1)
        return page_of(found, limit, lambda schedule: encode_cursor(schedule.created_at, schedule.id))

    @get(
        "/audit",
        operation_id="listConsoleAudit",
        summary="List the audit trail",
        response_description="Entries, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def audit(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account: Account = None,
        thread: Annotated[UUID | None, QueryParameter(description="Only about this thread.")] = None,
        action: Annotated[
            str | None, QueryParameter(max_length=100, description="An action, or a beginning as `console_*`.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ExaminedPage[ConsoleAuditEntry]:
        """List changes of identities and access, and what administrators have done, of all accounts."""
        named = check_text(action, "action") if action else None
        wanted = AuditFilter(account=account, thread=thread, action=named)
        async with context.db.snapshot() as driver:
            found = await record_lists.read_audit(driver, wanted, decode_id(cursor), limit)
        until = ids.created_at(found.next) if found.next is not None and found.examined else None
        return ExaminedPage(items=found.items, next_cursor=encode_id(found.next), examined_until=until)
