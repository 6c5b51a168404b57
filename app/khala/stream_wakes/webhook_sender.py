"""Delivers wakes to webhooks: signed POST requests behind the SSRF guard."""

import time

import msgspec
import structlog

from khala.domain.streams.offsets import format_offset
from khala.domain.streams.subscriptions import StreamCursor, SubscriptionError
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.store.streams import signing_keys
from khala.store.streams.signing_keys import SigningKey
from khala.store.streams.wakes import DeliveryOutcome, Wake
from khala.tools.port import ToolError
from khala.tools.webhook_client import WebhookClient, WebhookResponse

log = structlog.get_logger()

DELIVERY_TIMEOUT_SECONDS = 15.0
MAX_RESPONSE_BYTES = 64 * 1024
"""Bytes of a response that are read."""


class _Response(msgspec.Struct):
    done: bool = False


class WebhookSender:
    """Sends wakes to webhooks, and says which URLs may be webhooks."""

    def __init__(self, db: Database, client: WebhookClient) -> None:
        self._db = db
        self._client = client
        self._key: SigningKey | None = None

    async def check(self, url: str) -> None:
        """Raise `SubscriptionError` if requests may not be sent to this URL: it takes HTTPS, except in own networks."""
        try:
            await self._client.check(url)
        except ToolError as error:
            raise SubscriptionError("WEBHOOK_URL_REJECTED", error.message, status=400) from error

    async def read_key(self) -> SigningKey:
        """Return the key with which requests are signed."""
        if self._key is None:
            self._key = await signing_keys.read(self._db)
        return self._key

    async def deliver(self, wake: Wake) -> DeliveryOutcome:
        """Send the wake, and return what the webhook has answered."""
        body = msgspec.json.encode(_body(wake))
        key = await self.read_key()
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Webhook-Signature", key.signature(body, int(time.time())).encode()),
        ]
        try:
            outcome = await self._post(wake.subscription.config.webhook_url or "", headers, body)
        except ToolError as error:
            log.info("wake_not_delivered", subscription=wake.subscription.name, error=error.message)
            outcome = "failed"
        metrics.STREAM_WAKES.labels(outcome).inc()
        return outcome

    async def _post(self, url: str, headers: list[tuple[bytes, bytes]], body: bytes) -> DeliveryOutcome:
        response = await self._client.post(
            url, headers, body, timeout_seconds=DELIVERY_TIMEOUT_SECONDS, max_bytes=MAX_RESPONSE_BYTES
        )
        return read_outcome(response)


def read_outcome(response: WebhookResponse) -> DeliveryOutcome:
    """Return what the webhook has answered: any body but `{"done": true}` means `taken`. Raises `ToolError`."""
    if not response.succeeded:
        raise ToolError(f"The webhook answered with status {response.status}.")
    if response.timed_out:
        raise ToolError("The webhook took too long to answer.", code="timeout")
    if not response.is_complete:
        return "taken"
    try:
        return "done" if msgspec.json.decode(response.body, type=_Response).done else "taken"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "taken"


def _body(wake: Wake) -> dict[str, object]:
    subscription = wake.subscription
    return {
        "subscription_id": subscription.name,
        "wake_id": subscription.state.wake_id,
        "generation": subscription.state.generation,
        "streams": [listed_stream(cursor) for cursor in wake.cursors],
        "callback_url": f"{subscription.url}/callback",
        "callback_token": wake.token,
    }


def listed_stream(cursor: StreamCursor) -> dict[str, object]:
    """Return a stream of a subscription as the protocol lists it."""
    listed: dict[str, object] = {
        "path": cursor.name,
        "link_type": cursor.link_type,
        "acked_offset": format_offset(cursor.acked),
    }
    if cursor.tail is not None:
        listed |= {"tail_offset": format_offset(cursor.tail), "has_pending": cursor.is_pending}
    return listed
