"""Requests and responses about subscriptions, as the Durable Streams protocol has them."""

from typing import TypeVar

import msgspec

from khala.api.http.problem_details import STATUS
from khala.api.validation import check_text
from khala.domain.errors import InvalidInput, KhalaError
from khala.domain.streams import name_patterns, offsets, wake_tokens
from khala.domain.streams.stream_names import is_reserved, validated_name
from khala.domain.streams.subscriptions import (
    DEFAULT_LEASE_MS,
    MAX_EXPLICIT_STREAMS,
    MAX_LEASE_MS,
    MIN_LEASE_MS,
    SubscriptionConfig,
    SubscriptionError,
    SubscriptionKind,
)
from khala.store.streams.subscriptions import SubscriptionView, WakeRequest
from khala.stream_wakes.webhook_sender import listed_stream

MAX_NAME_CHARACTERS = 256
MAX_TEXT_CHARACTERS = 1_000
MAX_ACKS = 10_000
INVALID_REQUEST = "INVALID_REQUEST"

T = TypeVar("T")


class WebhookTarget(msgspec.Struct, frozen=True):
    """The receiver of wakes."""

    url: str


class SubscriptionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a subscription."""

    type: SubscriptionKind
    pattern: str | None = None
    streams: list[str] = []
    webhook: WebhookTarget | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = DEFAULT_LEASE_MS
    description: str | None = None

    def config(self) -> SubscriptionConfig:
        """Return the checked configuration. Raises `InvalidInput`."""
        if self.pattern is None and not self.streams:
            raise InvalidInput("A subscription has a pattern, streams or both.", path="pattern")
        if not MIN_LEASE_MS <= self.lease_ttl_ms <= MAX_LEASE_MS:
            raise InvalidInput(f"A lease has {MIN_LEASE_MS:,} to {MAX_LEASE_MS:,} milliseconds.", path="lease_ttl_ms")
        is_webhook = self.type == "webhook"
        if is_webhook and self.webhook is None:
            raise InvalidInput("A webhook subscription has a webhook.url.", path="webhook")
        if not is_webhook and self.wake_stream is None:
            raise InvalidInput("A pull-wake subscription has a wake_stream.", path="wake_stream")
        if self.description is not None and len(self.description) > MAX_TEXT_CHARACTERS:
            raise InvalidInput(f"A description has at most {MAX_TEXT_CHARACTERS:,} characters.", path="description")
        check_text(self.description or "", "description")
        return SubscriptionConfig(
            kind=self.type,
            pattern=None if self.pattern is None else name_patterns.validated_pattern(self.pattern),
            streams=named_streams(self.streams),
            webhook_url=self.webhook.url if is_webhook and self.webhook else None,
            wake_stream=stream_name(self.wake_stream) if not is_webhook and self.wake_stream else None,
            lease_ms=self.lease_ttl_ms,
            description=self.description,
        )


class StreamsBody(msgspec.Struct, frozen=True):
    """Streams to name one by one."""

    streams: list[str]


class ClaimBody(msgspec.Struct, frozen=True):
    """The worker that claims a wake."""

    worker: str


class StreamAck(msgspec.Struct, frozen=True):
    """Up to which offset a worker has processed a stream."""

    stream: str
    offset: str


class ReportBody(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report about a wake."""

    wake_id: str
    generation: int
    acks: list[StreamAck] = []
    done: bool = False

    def request(self, authorization: str | None, name: str) -> WakeRequest:
        """Return the request with its token. Raises `SubscriptionError` and `InvalidInput`."""
        token = wake_tokens.parse(authorization)
        if len(self.acks) > MAX_ACKS:
            raise InvalidInput(f"A report has at most {MAX_ACKS:,} acknowledgements.", path="acks")
        acks = {validated_name(ack.stream): _position(ack.offset) for ack in self.acks}
        return WakeRequest(
            token=token, name=name, generation=self.generation, wake_id=self.wake_id, acks=acks, done=self.done
        )


def _position(offset: str) -> int:
    if offset in (offsets.BEGINNING, offsets.NOW):
        raise SubscriptionError("INVALID_OFFSET", f"{offset} is no offset to acknowledge.", status=409)
    return offsets.parse_offset(offset)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a body. Raises `InvalidInput`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"The body is invalid: {error}.") from error


def subscription_name(name: str) -> str:
    """Return the name of a subscription. Raises `InvalidInput`."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidInput(f"A subscription has a name of 1 to {MAX_NAME_CHARACTERS} printable characters.")
    return name


def stream_name(path: str) -> str:
    """Return the name of a stream that clients may create. Raises `InvalidInput`."""
    name = validated_name(path)
    if is_reserved(name):
        raise InvalidInput("Names of streams do not begin with __ds or threads.")
    return name


def named_streams(paths: list[str]) -> tuple[str, ...]:
    """Return the names in order, without repetitions. Raises `InvalidInput`."""
    if len(paths) > MAX_EXPLICIT_STREAMS:
        raise InvalidInput(f"A subscription names at most {MAX_EXPLICIT_STREAMS:,} streams.", path="streams")
    return tuple(sorted(set(map(stream_name, paths))))


def shown_subscription(view: SubscriptionView, signing: dict[str, str]) -> dict[str, object]:
    """Return the subscription as a response has it. `signing` says how requests to webhooks are signed."""
    subscription, config = view.subscription, view.subscription.config
    return {
        "id": subscription.name,
        "subscription_id": subscription.name,
        "type": config.kind,
        "pattern": config.pattern,
        "streams": [listed_stream(cursor) for cursor in view.cursors],
        "webhook": None if config.webhook_url is None else {"url": config.webhook_url, "signing": signing},
        "wake_stream": config.wake_stream,
        "lease_ttl_ms": config.lease_ms,
        "created_at": subscription.created_at,
        "status": "failed" if subscription.state.failures else "active",
        "description": config.description,
    }


def error_body(error: KhalaError) -> tuple[int, dict[str, object]]:
    """Return the status and the body of an error."""
    if isinstance(error, SubscriptionError):
        return error.status, {"error": {"code": error.reason, "message": error.message, **error.details}}
    code = INVALID_REQUEST if isinstance(error, InvalidInput) else error.code.upper()
    return STATUS[error.code], {"error": {"code": code, "message": error.message}}
