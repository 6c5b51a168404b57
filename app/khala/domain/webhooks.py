"""Webhooks: the events, the signature of a request, and what follows from the outcome of an attempt. Pure.

The requests follow the Standard Webhooks specification, version 1.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from khala.domain.backoff import Backoff

PAYLOAD_VERSION = 1
"""The version of the payload. A payload of the same version only gains fields."""
EventType: TypeAlias = Literal[
    "run.started",
    "run.finished",
    "run.failed",
    "run.cancelled",
    "approval.requested",
    "approval.decided",
    "thread.created",
    "thread.claimed",
    "thread.deleted",
    "message.created",
    "plan.stopped",
    "budget.exhausted",
]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
TEST_EVENT = "webhook.test"
"""The type of the event that a test sends. Endpoints cannot choose it, and no change causes it."""
RUN_EVENTS: Mapping[str, EventType] = {"final": "run.finished", "error": "run.failed", "canceled": "run.cancelled"}
"""The event of a run by the status with which it ends."""
DEPLOYMENT = UUID(int=0)
"""The scope of the operator's endpoints, which get the events of all threads. Any other scope is an account's id."""

SECRET_PREFIX = "whsec_"  # noqa: S105  # No secret: the prefix of all
SECRET_BYTES = 32
MAX_ROTATION_SECONDS = 7 * 86_400
"""Seconds for which the previous secret may sign, too, at most."""
MAX_URL_CHARACTERS = 2000
MAX_DESCRIPTION_CHARACTERS = 200
MAX_RESPONSE_CHARACTERS = 500
"""Characters of a response's body that are stored."""
MAX_CONTENT_CHARACTERS = 16_384
"""Characters of a message's text in an event."""

BACKOFF = Backoff(first_seconds=5, max_seconds=3 * 3600, min_factor=0.8, max_factor=1.2)
"""The delays between attempts to deliver one event."""
MAX_ATTEMPTS = 20
MAX_AGE = timedelta(days=1)
"""The time after the first attempt at which an event is given up."""
MAX_FAILING = timedelta(days=3)
"""The time without any success after which an endpoint is disabled."""
FAILURES_BEFORE_PAUSE = 3
"""Failures in a row after which an endpoint gets no request for a while."""
PAUSE = Backoff(first_seconds=5, max_seconds=300, min_factor=0.8, max_factor=1.2)
MAX_RETRY_AFTER_SECONDS = 3600.0
"""Bounds what a `Retry-After` header asks for."""
RETRY_AFTER_STATUSES = frozenset({429, 503})
GONE = 410

DeliveryState: TypeAlias = Literal["pending", "delivered", "failed"]


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened in a thread. `data` has ids and states, and no text of people."""

    type: EventType
    thread_id: UUID
    data: Mapping[str, object]


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one request. `status` is None if there was no response; `error` says why it has failed."""

    duration_ms: int
    status: int | None = None
    error: str | None = None
    response: str = ""
    """The beginning of the response's body."""
    retry_after: float | None = None
    """Seconds that the endpoint asks to wait."""

    @property
    def succeeded(self) -> bool:
        """Whether the endpoint has taken the event."""
        return self.error is None and self.status is not None and 200 <= self.status < 300

    @property
    def problem(self) -> str:
        """Why the attempt has failed."""
        return self.error or f"The endpoint answered with status {self.status}."


class EndpointHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How an endpoint takes requests. `failures` counts those in a row, without those during a pause."""

    failures: int = 0
    failing_since: datetime | None = None
    paused_until: datetime | None = None
    disabled_reason: str | None = None


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt: the state of the event, when it is due again, and the endpoint's health."""

    state: DeliveryState
    due_at: datetime | None
    health: EndpointHealth


def judge(
    attempt: DeliveryAttempt,
    health: EndpointHealth,
    *,
    attempts: int,
    first_attempt_at: datetime,
    now: datetime,
    jitter: float,
) -> Judgement:
    """Return what follows from an attempt. `attempts` counts it; `jitter` is a random number from 0 to 1."""
    if attempt.succeeded:
        # Whether the endpoint is disabled is not for this attempt to change: it began before.
        return Judgement(state="delivered", due_at=None, health=EndpointHealth(disabled_reason=health.disabled_reason))
    asked = min(attempt.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS) if attempt.status in RETRY_AFTER_STATUSES else 0.0
    after = _after_failure(attempt, health, now, asked, jitter)
    if attempt.status == GONE or attempts >= MAX_ATTEMPTS or now - first_attempt_at >= MAX_AGE:
        return Judgement(state="failed", due_at=None, health=after)
    delay = max(asked, BACKOFF.delay(attempts, jitter))
    return Judgement(state="pending", due_at=now + timedelta(seconds=delay), health=after)


def _after_failure(
    attempt: DeliveryAttempt, health: EndpointHealth, now: datetime, asked: float, jitter: float
) -> EndpointHealth:
    since = health.failing_since or now
    paused = health.paused_until is not None and health.paused_until > now
    failures = health.failures if paused else health.failures + 1
    pause = 0.0 if failures < FAILURES_BEFORE_PAUSE else PAUSE.delay(failures - FAILURES_BEFORE_PAUSE + 1, jitter)
    until = now + timedelta(seconds=max(asked, pause))
    if paused and health.paused_until is not None:
        until = max(health.paused_until, now + timedelta(seconds=asked))
    return EndpointHealth(
        failures=failures,
        failing_since=since,
        paused_until=until if until > now else None,
        disabled_reason=health.disabled_reason or _disabled_reason(attempt, since, now),
    )


def _disabled_reason(attempt: DeliveryAttempt, since: datetime, now: datetime) -> str | None:
    if attempt.status == GONE:
        return "The endpoint answered with status 410, which says that it wants no more events."
    if now - since >= MAX_FAILING:
        return f"Every request has failed since {since:%Y-%m-%d %H:%M} UTC. The last error: {attempt.problem}"
    return None


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds of a `Retry-After` header, which has seconds or a date. None if it has neither."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


def shown_secret(secret: bytes) -> str:
    """Return the secret as the specification writes it."""
    return SECRET_PREFIX + b64encode(secret).decode()


def message_id(delivery_id: UUID) -> str:
    """Return the value of `webhook-id`: the same for all attempts to deliver one event to one endpoint."""
    return f"msg_{delivery_id.hex}"


def signed_headers(message: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request at this time, in seconds since 1970, with a signature by each secret."""
    content = b"%b.%d.%b" % (message.encode(), timestamp, body)
    signatures = [b"v1," + b64encode(hmac.digest(secret, content, hashlib.sha256)) for secret in secrets]
    return [
        (b"Content-Type", b"application/json"),
        (b"webhook-id", message.encode()),
        (b"webhook-timestamp", str(timestamp).encode()),
        (b"webhook-signature", b" ".join(signatures)),
    ]


def payload(event_type: str, happened_at: datetime, data: Mapping[str, object]) -> bytes:
    """Return the body of the request for an event."""
    return msgspec.json.encode({"type": event_type, "timestamp": happened_at, "version": PAYLOAD_VERSION, "data": data})
