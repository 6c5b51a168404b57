"""Idempotency: decides whether two requests for a completion are the same request. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.errors import InvalidInput

KEY_HEADER = "idempotency-key"
ATTEMPT_HEADER = "x-stainless-retry-count"
"""The header in which OpenAI's own clients send the number of earlier attempts."""
MAX_KEY_CHARACTERS = 255
"""Characters of an idempotency key."""
MAX_ATTEMPT = 999
KEY_LIFETIME = timedelta(hours=24)
"""The time for which a key identifies its request."""
RETRY_WINDOW = timedelta(minutes=10)
"""The time for which a retry without a key joins the run of the same request."""


class RequestIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a request, and the id of the run that it starts if it is new.

    `attempt` is the number of earlier attempts that the client reports. `received` is the arrival time in seconds of
    the process's monotonic clock.
    """

    user_id: UUID
    key_hash: bytes | None
    fingerprint: bytes
    attempt: int
    received: float
    run_id: UUID

    @property
    def lifetime(self) -> timedelta:
        """The time for which the request stays recorded."""
        return RETRY_WINDOW if self.key_hash is None else KEY_LIFETIME

    @property
    def may_be_known(self) -> bool:
        """Whether the client reports that it may have sent the request before."""
        return self.key_hash is not None or self.attempt > 0


def identity(
    caller: Caller, body: bytes, headers: Mapping[str, str], relevant: Iterable[str], *, received: float, run_id: UUID
) -> RequestIdentity | None:
    """The request's identity; None if the client sends no retry headers. Raises `InvalidInput` for a malformed key.

    Two requests are equal if they have the same body and the same `relevant` headers.
    """
    key, attempt = headers.get(KEY_HEADER), _attempt(headers.get(ATTEMPT_HEADER))
    if caller.user_id is None or (key is None and attempt is None):
        return None
    # A key is scoped to the account. Without a key, requests match only under the same credential.
    scope = b"" if key is not None or caller.credential is None else caller.credential.bytes
    return RequestIdentity(
        user_id=caller.user_id,
        key_hash=None if key is None else hashlib.sha256(_checked(key)).digest(),
        fingerprint=_fingerprint(body, headers, relevant, scope),
        attempt=attempt or 0,
        received=received,
        run_id=run_id,
    )


def _fingerprint(body: bytes, headers: Mapping[str, str], relevant: Iterable[str], scope: bytes) -> bytes:
    parts = [f"{name}:{headers[name].strip()}" for name in sorted(relevant) if name in headers]
    # JSON keeps the headers apart, and the length prefix separates them from the body.
    head = msgspec.json.encode([scope.hex(), *parts])
    return hashlib.sha256(len(head).to_bytes(8, "big") + head + body).digest()


def _attempt(header: str | None) -> int | None:
    """The number of earlier attempts; None if the header is absent or not a number."""
    if header is None or not (header.isascii() and header.isdigit() and len(header) <= len(str(MAX_ATTEMPT))):
        return None
    return int(header)


def _checked(key: str) -> bytes:
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not (key.isascii() and key.isprintable()):
        message = f"An Idempotency-Key must have 1 to {MAX_KEY_CHARACTERS} printable ASCII characters."
        raise InvalidInput(message, path="Idempotency-Key")
    return key.encode()
