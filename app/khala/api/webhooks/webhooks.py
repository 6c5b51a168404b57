"""Webhooks over REST: an account's endpoints, their deliveries, tests and replays."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter

from khala.api.accounts.authentication import BY_ACCOUNT, require_user
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.types import Items, Page
from khala.api.validation import check_text
from khala.api.webhooks.types import (
    CreatedWebhook,
    NewReplay,
    NewWebhook,
    Replay,
    SecretRotation,
    Webhook,
    WebhookAttempt,
    WebhookChanges,
    WebhookDelivery,
    created_webhook,
    shown_attempt,
    shown_delivery,
    shown_webhook,
)
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.stored_times import check_storable
from khala.domain.webhooks import DeliveryState, shown_secret
from khala.store.webhooks import deliveries, endpoints
from khala.store.webhooks.deliveries import ReplayRequest
from khala.store.webhooks.endpoints import EndpointConfig

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)

WebhookId = Annotated[UUID, PathParameter(description="The webhook's id.")]


class WebhookController(Controller):
    """Endpoints that get the events of the account's threads, by the Standard Webhooks specification."""

    path = "/webhooks"
    tags = ("Webhooks",)
    security = BY_ACCOUNT
    opt = {"scope": "account"}  # noqa: RUF012  # Litestar's own declaration

    @post(
        "/",
        operation_id="createWebhook",
        summary="Create a webhook",
        response_description="The webhook and its secret, which is returned only once.",
        responses=documented_errors(*DENIED, "conflict", *BODY),
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewWebhook,
            BodyKwarg(examples=example("Answers", url="https://8.8.8.8/hooks", events=["run.finished", "run.failed"])),
        ],
    ) -> CreatedWebhook:
        """Create a webhook, which gets the events of the threads that the account owns, from now on."""
        user_id = require_user(caller)
        config = EndpointConfig(**_checked(msgspec.structs.asdict(data)))
        await context.webhooks.sender.check(config.url)
        limit = context.webhooks.per_account
        stored = await endpoints.create(context.db, user_id, config, caller=caller, limit=limit)
        return created_webhook(stored, shown_secret(stored.secrets[0]))

    @get(
        "/",
        operation_id="listWebhooks",
        summary="List webhooks",
        response_description="Webhooks, the oldest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[Webhook]:
        """List the account's webhooks."""
        async with context.db.driver() as driver:
            found = await endpoints.of_scope(driver, require_user(caller))
        return Items(items=[shown_webhook(each) for each in found])

    @get(
        "/{webhook_id:uuid}",
        operation_id="readWebhook",
        summary="Read a webhook",
        response_description="The webhook.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], webhook_id: WebhookId
    ) -> Webhook:
        """Read a webhook of the account."""
        async with context.db.driver() as driver:
            return shown_webhook(await endpoints.read(driver, require_user(caller), webhook_id))

    @patch(
        "/{webhook_id:uuid}",
        operation_id="changeWebhook",
        summary="Change a webhook",
        response_description="The webhook.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        webhook_id: WebhookId,
        data: Annotated[WebhookChanges, BodyKwarg(examples=example("Enable it again", enabled=True))],
    ) -> Webhook:
        """Change a webhook. One that is enabled again gets the events that have waited for it."""
        user_id = require_user(caller)
        fields = msgspec.structs.asdict(data)
        changes = _checked({name: value for name, value in fields.items() if value is not msgspec.UNSET})
        if "enabled" in changes:
            changes["is_enabled"] = changes.pop("enabled")
        if "url" in changes:
            await context.webhooks.sender.check(changes["url"])
        return shown_webhook(await endpoints.change(context.db, user_id, webhook_id, changes, caller=caller))

    @delete(
        "/{webhook_id:uuid}",
        operation_id="deleteWebhook",
        summary="Delete a webhook",
        response_description="The webhook was deleted.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], webhook_id: WebhookId
    ) -> None:
        """Delete a webhook. A request that is being sent may still arrive."""
        await endpoints.remove(context.db, require_user(caller), webhook_id, caller=caller)

    @post(
        "/{webhook_id:uuid}/secret",
        operation_id="rotateWebhookSecret",
        summary="Rotate a webhook's secret",
        operation_class=OptionalBody,
        response_description="The webhook and its new secret, which is returned only once.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def rotate(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        webhook_id: WebhookId,
        data: Annotated[SecretRotation | None, BodyKwarg(examples=example("An hour", overlapSeconds=3600))] = None,
    ) -> CreatedWebhook:
        """Make a new secret. For a while, events have two signatures: one by each secret."""
        user_id = require_user(caller)
        overlap = (data or SecretRotation()).overlap_seconds
        stored = await endpoints.rotate_secret(context.db, user_id, webhook_id, overlap, caller=caller)
        return created_webhook(stored, shown_secret(stored.secrets[0]))

    @post(
        "/{webhook_id:uuid}/test",
        operation_id="testWebhook",
        summary="Test a webhook",
        status_code=200,
        response_description="The outcome.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def test(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], webhook_id: WebhookId
    ) -> WebhookAttempt:
        """Send an event of type `webhook.test` now, even to a webhook that is disabled."""
        async with context.db.driver() as driver:
            endpoint = await endpoints.read(driver, require_user(caller), webhook_id)
        return shown_attempt(await context.webhooks.sender.test(endpoint))

    @get(
        "/{webhook_id:uuid}/deliveries",
        operation_id="listWebhookDeliveries",
        summary="List a webhook's deliveries",
        response_description="Events and the outcomes of their last attempts, the newest first.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def deliveries(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        webhook_id: WebhookId,
        in_state: Annotated[
            DeliveryState | None, QueryParameter(name="state", description="Only events in this state.")
        ] = None,
        cursor: Annotated[
            str | None,
            QueryParameter(description="The `nextCursor` of the previous page.", pattern="^[0-9]{1,18}$"),
        ] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of deliveries.")] = 50,
    ) -> Page[WebhookDelivery]:
        """List the events of the last seven days for this webhook."""
        before = None if cursor is None else int(cursor)
        async with context.db.driver() as driver:
            await endpoints.read(driver, require_user(caller), webhook_id)
            found = await deliveries.page(driver, webhook_id, before=before, state=in_state, limit=limit + 1)
        shown = [shown_delivery(each) for each in found[:limit]]
        return Page(items=shown, next_cursor=str(found[limit - 1].seq) if len(found) > limit else None)

    @post(
        "/{webhook_id:uuid}/replay",
        operation_id="replayWebhook",
        summary="Deliver events again",
        status_code=200,
        response_description="The number of events that will be delivered again.",
        responses=documented_errors(*DENIED, "not_found", *BODY),
    )
    async def replay(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        webhook_id: WebhookId,
        data: Annotated[NewReplay, BodyKwarg(examples=example("Since a time", since="2026-01-31T00:00:00Z"))],
    ) -> Replay:
        """Deliver events again, with the same ids, in order: those that were delivered, and those that were given up.

        Events are stored for seven days.
        """
        user_id = require_user(caller)
        replayed, last = await deliveries.replay(context.db, user_id, webhook_id, replay_request(data))
        return Replay(replayed=replayed, next=str(last) if replayed == data.limit else None)


def replay_request(data: NewReplay) -> ReplayRequest:
    """Return the replay that a body asks for. Raises `InvalidInput`."""
    check_storable(data.since, "since")
    if data.since is None and data.thread_id is None:
        raise InvalidInput("Name the time since which to replay, or a thread.", path="since")
    if data.after_revision is not None and data.thread_id is None:
        raise InvalidInput("A revision is one of a thread: name it, too.", path="threadId")
    return ReplayRequest(
        since=data.since or BEGINNING,
        thread_id=data.thread_id,
        after_revision=-1 if data.after_revision is None else data.after_revision,
        after=0 if data.after is None else int(data.after),
        limit=data.limit,
    )


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with each event once. Raises `InvalidInput` for what cannot be stored."""
    for name in ("url", "description"):
        if name in fields:
            check_text(fields[name], name)
    if "events" in fields:
        fields["events"] = tuple(dict.fromkeys(fields["events"]))
    return fields
