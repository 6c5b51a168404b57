"""Request and response bodies of webhooks."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.api.types import ApiStruct, Timestamp
from khala.domain.webhooks import (
    EVENT_TYPES,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_ROTATION_SECONDS,
    MAX_URL_CHARACTERS,
    DeliveryAttempt,
    DeliveryState,
    EventType,
    message_id,
)
from khala.store.webhooks.deliveries import MAX_REPLAYED, EventDelivery
from khala.store.webhooks.endpoints import StoredEndpoint

WebhookUrl = Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARACTERS)]
WebhookDescription = Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARACTERS)]
WebhookEvents = Annotated[tuple[EventType, ...], Meta(max_length=len(EVENT_TYPES))]


class NewWebhook(ApiStruct, frozen=True, kw_only=True):
    """A webhook to create. Without `events`, it gets all. With `includeContent`, events have the text of messages."""

    url: WebhookUrl
    description: WebhookDescription = ""
    events: WebhookEvents = ()
    include_content: bool = False


class WebhookChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of a webhook. Fields that are absent stay as they are."""

    url: WebhookUrl | msgspec.UnsetType = msgspec.UNSET
    description: WebhookDescription | msgspec.UnsetType = msgspec.UNSET
    events: WebhookEvents | msgspec.UnsetType = msgspec.UNSET
    include_content: bool | msgspec.UnsetType = msgspec.UNSET
    enabled: bool | msgspec.UnsetType = msgspec.UNSET


class SecretRotation(ApiStruct, frozen=True, kw_only=True):
    """A rotation of the secret. The previous one signs, too, for `overlapSeconds`."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=MAX_ROTATION_SECONDS)] = 86_400


class NewReplay(ApiStruct, frozen=True, kw_only=True):
    """The events to deliver again: those since `since`, or those of a thread after a revision, or both.

    `after` is the `next` of a replay before, which this one continues.
    """

    since: Timestamp | None = None
    thread_id: UUID | None = None
    after_revision: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    after: Annotated[str, Meta(pattern="^[0-9]{1,18}$")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_REPLAYED)] = 1000


class Replay(ApiStruct, frozen=True, kw_only=True):
    """The number of events that will be delivered again. With `next`, there may be more."""

    replayed: int
    next: str | None = None


class Webhook(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A webhook. `disabledReason` says why Khala has disabled it; `failingSince`, when the last success ended."""

    id: UUID
    url: str
    description: str
    events: list[str]
    include_content: bool
    enabled: bool
    disabled_reason: str | None
    failing_since: datetime | None
    created_at: datetime


class CreatedWebhook(Webhook, frozen=True, kw_only=True, omit_defaults=False):
    """A webhook, and the secret that signs its events. The secret is returned only once."""

    secret: str


class WebhookAttempt(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The outcome of a request. Without a response, `status` is null. `response` is the beginning of the body."""

    delivered: bool
    status: int | None
    error: str | None
    duration_ms: int
    response: str


class WebhookDelivery(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """An event for a webhook, and the outcome of the last attempt. `id` is the `webhook-id` of its requests."""

    id: str
    type: str
    thread_id: UUID
    data: dict[str, Any]
    state: DeliveryState
    attempts: int
    status: int | None
    error: str | None
    duration_ms: int | None
    response: str | None
    created_at: datetime
    attempted_at: datetime | None
    next_attempt_at: datetime | None


def shown_webhook(endpoint: StoredEndpoint) -> Webhook:
    """Return the endpoint without its secrets."""
    return Webhook(**_fields(endpoint))


def created_webhook(endpoint: StoredEndpoint, secret: str) -> CreatedWebhook:
    """Return the endpoint with this secret."""
    return CreatedWebhook(**_fields(endpoint), secret=secret)


def _fields(endpoint: StoredEndpoint) -> dict[str, Any]:
    config, health = endpoint.config, endpoint.health
    return {
        "id": endpoint.id,
        "url": config.url,
        "description": config.description,
        "events": list(config.events),
        "include_content": config.include_content,
        "enabled": config.is_enabled,
        "disabled_reason": health.disabled_reason,
        "failing_since": health.failing_since,
        "created_at": endpoint.created_at,
    }


def shown_attempt(attempt: DeliveryAttempt) -> WebhookAttempt:
    """Return the outcome of a test."""
    return WebhookAttempt(
        delivered=attempt.succeeded,
        status=attempt.status,
        error=None if attempt.succeeded else attempt.problem,
        duration_ms=attempt.duration_ms,
        response=attempt.response,
    )


def shown_delivery(delivery: EventDelivery) -> WebhookDelivery:
    """Return the delivery. The next attempt of one that was never attempted is due at once."""
    waits = delivery.state == "pending" and delivery.claim_id is None and delivery.attempts > 0
    return WebhookDelivery(
        id=message_id(delivery.id),
        type=delivery.type,
        thread_id=delivery.thread_id,
        data=delivery.data,
        state=delivery.state,
        attempts=delivery.attempts,
        status=delivery.response_status,
        error=delivery.error,
        duration_ms=delivery.duration_ms,
        response=delivery.response,
        created_at=delivery.created_at,
        attempted_at=delivery.attempted_at,
        next_attempt_at=delivery.due_at if waits else None,
    )
