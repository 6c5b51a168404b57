"""Sends notifications to push services: one encrypted and signed request for each attempt (RFC 8030)."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import structlog

from khala.domain.errors import InvalidInput
from khala.domain.push import TIME_TO_LIVE, URGENCY, PushMessage, check_endpoint
from khala.domain.webhooks import parse_retry_after
from khala.push.payload_encryption import encrypt, public_bytes
from khala.push.vapid import Vapid
from khala.store.postgres.database import Database
from khala.store.push import push_keys
from khala.store.push.push_messages import PreparedMessage
from khala.tools.port import ToolError
from khala.tools.webhook_client import WebhookClient

log = structlog.get_logger()

ATTEMPT_TIMEOUT_SECONDS = 10.0
MAX_RESPONSE_BYTES = 2000
TOPIC_CHARACTERS = 32


class PushResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a push service. `status` is None if there was none."""

    status: int | None
    retry_after: float | None = None
    """Seconds that the push service asks to wait."""


class PushSender:
    """Sends notifications to push services at these hosts, which `check_endpoint` explains.

    `contact`: the operator's address for push services, `mailto:` or `https:`.
    """

    def __init__(
        self, db: Database, client: WebhookClient, *, hosts: Sequence[str], contact: str | None = None
    ) -> None:
        self._db = db
        self._client = client
        self._hosts = hosts
        self._contact = contact
        self._vapid: Vapid | None = None

    async def public_key(self) -> str:
        """The public key with which browsers subscribe, in base64url. Raises `Unavailable`."""
        return (await self._identity()).public_key

    async def send(self, prepared: PreparedMessage) -> PushResponse | None:
        """Try to deliver the notification. Raises only `Unavailable`.

        None, and nothing is sent, if the browser's push service is not among the hosts any more.
        """
        try:
            check_endpoint(prepared.endpoint, self._hosts)
        except InvalidInput:
            return None
        payload = msgspec.json.encode(prepared.message)
        headers = [
            (b"TTL", str(round(TIME_TO_LIVE.total_seconds())).encode()),
            (b"Urgency", URGENCY[prepared.message.kind].encode()),
            (b"Topic", topic(prepared.message).encode()),
            (b"Content-Type", b"application/octet-stream"),
            (b"Content-Encoding", b"aes128gcm"),
            (b"Authorization", (await self._identity()).authorization(prepared.endpoint).encode()),
        ]
        body = encrypt(payload, prepared.public_key, prepared.auth)
        limits = {"timeout_seconds": ATTEMPT_TIMEOUT_SECONDS, "max_bytes": MAX_RESPONSE_BYTES}
        try:
            response = await self._client.post(prepared.endpoint, headers, body, **limits)  # type: ignore[arg-type]
        except ToolError as error:
            log.info("push_failed", error=error.message)
            return PushResponse(status=None)
        if not response.succeeded:
            # The body says why, as “the VAPID key differs”. It names no person.
            log.info("push_refused", status=response.status, response=response.body[:200].decode(errors="replace"))
        retry_after = parse_retry_after(response.headers.get("retry-after"), datetime.now(UTC))
        return PushResponse(status=response.status, retry_after=retry_after)

    async def _identity(self) -> Vapid:
        if self._vapid is None:
            key = await push_keys.read(self._db)
            public_key = urlsafe_b64encode(public_bytes(key.public_key())).rstrip(b"=").decode()
            self._vapid = Vapid(key, public_key, self._contact)
        return self._vapid


def topic(message: PushMessage) -> str:
    """The topic: of notifications with the same one, a push service keeps the last for a browser that is offline."""
    digest = hashlib.sha256(f"{message.kind} {message.thread_id}".encode()).digest()
    return urlsafe_b64encode(digest).decode()[:TOPIC_CHARACTERS]
