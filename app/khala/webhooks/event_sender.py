"""Sends events to endpoints: one signed request for each attempt."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from khala.domain import ids
from khala.domain.errors import InvalidInput, RateLimited, ReachedLimit
from khala.domain.webhooks import (
    MAX_RESPONSE_CHARACTERS,
    TEST_EVENT,
    DeliveryAttempt,
    message_id,
    parse_retry_after,
    payload,
    signed_headers,
)
from khala.store.postgres.database import Database
from khala.store.webhooks import deliveries
from khala.store.webhooks.deliveries import EventDelivery
from khala.store.webhooks.endpoints import StoredEndpoint
from khala.tools.port import ToolError
from khala.tools.webhook_client import WebhookClient

ATTEMPT_TIMEOUT_SECONDS = 15.0
"""Seconds for one attempt, from the lookup of the name to the end of the response."""
MAX_CONCURRENT_TESTS = 8
"""Tests that one process sends at the same time."""
TEST_RETRY_SECONDS = 5
MAX_RESPONSE_BYTES = 4 * MAX_RESPONSE_CHARACTERS
"""Bytes of a response that are read."""


class EventSender:
    """Sends events, and says which URLs may be endpoints. `timeout_seconds`: for one attempt."""

    def __init__(
        self, db: Database, client: WebhookClient, *, timeout_seconds: float = ATTEMPT_TIMEOUT_SECONDS
    ) -> None:
        self._db = db
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._tests = 0

    async def check(self, url: str) -> None:
        """Raise `InvalidInput` if events may not be sent to this URL: it takes HTTPS, except in own networks."""
        try:
            await self._client.check(url)
        except ToolError as error:
            raise InvalidInput(error.message, path="url") from error

    async def send(self, endpoint: StoredEndpoint, delivery: EventDelivery) -> DeliveryAttempt:
        """Try to deliver the event. Raises only `Unavailable`."""
        async with self._db.driver() as driver:
            text = await deliveries.read_text(driver, endpoint, delivery)
        body = payload(delivery.type, delivery.created_at, {**delivery.data, **text})
        return await self._post(endpoint.config.url, endpoint.secrets, message_id(delivery.id), body)

    async def test(self, endpoint: StoredEndpoint) -> DeliveryAttempt:
        """Send an event of type `webhook.test`, which is not stored. Raises `RateLimited` if many are being sent."""
        if self._tests >= MAX_CONCURRENT_TESTS:
            limit = ReachedLimit("webhook_tests", "deployment", MAX_CONCURRENT_TESTS)
            raise RateLimited("Too many tests are being sent.", limit=limit, retry_after=TEST_RETRY_SECONDS)
        self._tests += 1
        try:
            body = payload(TEST_EVENT, datetime.now(UTC), {"webhookId": endpoint.id})
            return await self._post(endpoint.config.url, endpoint.secrets, message_id(ids.new()), body)
        finally:
            self._tests -= 1

    async def _post(self, url: str, secrets: Sequence[bytes], message: str, body: bytes) -> DeliveryAttempt:
        began = time.monotonic()
        headers = signed_headers(message, int(time.time()), body, secrets)
        try:
            response = await self._client.post(
                url, headers, body, timeout_seconds=self._timeout_seconds, max_bytes=MAX_RESPONSE_BYTES
            )
        except ToolError as error:
            return DeliveryAttempt(duration_ms=_milliseconds_since(began), error=error.message)
        # Postgres stores no NUL.
        text = response.body.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return DeliveryAttempt(
            duration_ms=_milliseconds_since(began),
            status=response.status,
            response=text[:MAX_RESPONSE_CHARACTERS],
            retry_after=parse_retry_after(response.headers.get("retry-after"), datetime.now(UTC)),
        )


def _milliseconds_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
