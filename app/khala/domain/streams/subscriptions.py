"""Subscriptions to streams: which streams one names, and how its wakes, leases and acknowledgements follow each other.

A subscription wakes a worker when one of its streams has contents that no worker has acknowledged. Each wake has the
next generation. It ends by an acknowledgement, a release, or a lapsed lease; requests of an earlier wake are refused.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.backoff import Backoff
from khala.domain.errors import KhalaError
from khala.domain.streams import name_patterns
from khala.domain.streams.offsets import format_offset

MIN_LEASE_MS = 1_000
MAX_LEASE_MS = 600_000
DEFAULT_LEASE_MS = 30_000
MAX_EXPLICIT_STREAMS = 1_000
"""Streams that a subscription names one by one."""
MAX_LISTED_STREAMS = 1_000
"""Streams in one wake or response. Those with pending contents come first."""
MAX_SUBSCRIPTIONS = 100
"""Subscriptions of one account, and of all people without one together."""
DELIVERY_BACKOFF = Backoff(first_seconds=1, max_seconds=60, min_factor=0.8, max_factor=1.2)
"""Delays between attempts to deliver to a webhook."""

SubscriptionKind: TypeAlias = Literal["webhook", "pull-wake"]
LinkType: TypeAlias = Literal["glob", "explicit"]


class SubscriptionError(KhalaError):
    """A request about a subscription is refused. `reason` is the protocol's code of the error."""

    code = "conflict"

    def __init__(self, reason: str, message: str, *, status: int, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.details = details or {}


class SubscriptionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a subscription. `streams` are in order, without repetitions."""

    kind: SubscriptionKind
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ms: int = DEFAULT_LEASE_MS
    description: str | None = None

    @property
    def digest(self) -> bytes:
        """Equal for equal configurations."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).digest()

    @property
    def lease(self) -> timedelta:
        """The time that a worker has until it acknowledges or asks for more time."""
        return timedelta(milliseconds=self.lease_ms)

    def link_type(self, name: str, *, explicit: bool) -> LinkType | None:
        """How the subscription names this stream, if it does."""
        if explicit:
            return "explicit"
        is_matched = self.pattern is not None and name_patterns.matches(self.pattern, name)
        return "glob" if is_matched else None


class StreamCursor(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a subscription: up to where its contents are acknowledged, and its end. A missing stream has none."""

    name: str
    link_type: LinkType
    stream_id: UUID | None
    acked: int
    tail: int | None

    @property
    def is_pending(self) -> bool:
        """Whether the stream has contents that are not acknowledged."""
        return self.tail is not None and self.tail > self.acked


class WakeState(msgspec.Struct, frozen=True, kw_only=True):
    """The wake of a subscription, if one is in flight.

    `due_at` is the end of the lease of a wake; without a wake, the time of the next attempt to deliver.
    """

    generation: int = 0
    wake_id: str | None = None
    holder: str | None = None
    due_at: datetime | None = None
    failures: int = 0

    @property
    def may_wake(self) -> bool:
        """Whether pending contents begin a wake now."""
        return self.wake_id is None and self.due_at is None

    def at(self, now: datetime) -> "WakeState":
        """The state at this time: a lease that has lapsed ends its wake."""
        if self.due_at is None or self.due_at > now:
            return self
        return self.ended()

    def ended(self) -> "WakeState":
        """The state after the wake, whose requests are refused from now on."""
        return msgspec.structs.replace(self, wake_id=None, holder=None, due_at=None)

    def woken(self, wake_id: str, lease_until: datetime | None) -> "WakeState":
        """The state in the next wake. A wake that a worker has to claim has no lease yet."""
        return WakeState(generation=self.generation + 1, wake_id=wake_id, due_at=lease_until, failures=self.failures)

    def claimed(self, worker: str, lease_until: datetime) -> "WakeState":
        """The state while this worker has the wake."""
        return msgspec.structs.replace(self, holder=worker, due_at=lease_until)

    def extended(self, lease_until: datetime) -> "WakeState":
        """The state after the worker has asked for more time."""
        return msgspec.structs.replace(self, due_at=lease_until)

    def delivered(self) -> "WakeState":
        """The state after the webhook has taken the wake."""
        return msgspec.structs.replace(self, failures=0)

    def undelivered(self, now: datetime, jitter: float) -> "WakeState":
        """The state after an attempt to deliver has failed: a later attempt is a new wake."""
        failures = self.failures + 1
        next_attempt = now + timedelta(seconds=DELIVERY_BACKOFF.delay(failures, jitter))
        return msgspec.structs.replace(self.ended(), failures=failures, due_at=next_attempt)

    def check(self, generation: int, wake_id: str, signed_generation: int) -> None:
        """Raise `SubscriptionError` if a request is not of the wake in flight."""
        if self.wake_id is None or (generation, signed_generation, wake_id) != (
            self.generation,
            self.generation,
            self.wake_id,
        ):
            raise SubscriptionError("FENCED", "This wake has ended.", status=409)


def acknowledged(cursors: Sequence[StreamCursor], acks: Mapping[str, int]) -> list[StreamCursor]:
    """Return the cursors that these acknowledgements change: positions by stream. Raises `SubscriptionError`."""
    by_name = {cursor.name: cursor for cursor in cursors}
    changed = []
    for name, position in acks.items():
        cursor = by_name.get(name)
        if cursor is None or cursor.tail is None:
            raise SubscriptionError("INVALID_OFFSET", f"The subscription has no stream {name}.", status=409)
        if not cursor.acked <= position <= cursor.tail:
            message = f"The offset for {name} must be from {format_offset(cursor.acked)} to the stream's end."
            raise SubscriptionError("INVALID_OFFSET", message, status=409)
        changed.append(msgspec.structs.replace(cursor, acked=position))
    return changed
