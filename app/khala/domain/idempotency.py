"""Idempotency: when two requests for a completion are one. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.errors import InvalidInput

KEY_HEADER = "idempotency-key"
ATTEMPT_HEADER = "x-stainless-retry-count"
"""In this header OpenAI's own clients say how often they have sent a request before."""
MAX_KEY_CHARACTERS = 255
"""Characters of an idempotency key."""
MAX_ATTEMPT = 999
KEY_LIFETIME = timedelta(hours=24)
"""For this long a key stands for the request that it came with."""
RETRY_WINDOW = timedelta(minutes=10)
"""For this long a retry without a key joins the run of the same request."""


class RequestIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What tells whether a request was made before, and the id of the run that it begins if it was not.

    `attempt` counts the times that the client says it has sent it before. `received` is when this one came, in seconds
    of the process's monotonic clock.
    """

    user_id: UUID
    key_hash: bytes | None
    fingerprint: bytes
    attempt: int
    received: float
    run_id: UUID

    @property
    def lifetime(self) -> timedelta:
        """How long the request is remembered."""
        return RETRY_WINDOW if self.key_hash is None else KEY_LIFETIME

    @property
    def may_be_known(self) -> bool:
        """Whether the client says that it may have sent the request before."""
        return self.key_hash is not None or self.attempt > 0


def identity(
    caller: Caller, body: bytes, headers: Mapping[str, str], relevant: Iterable[str], *, received: float, run_id: UUID
) -> RequestIdentity | None:
    """The request's identity; None for one whose client says nothing of retries. Raises `InvalidInput` for a bad key.

    `relevant` are the headers that say what is asked for, as the body does.
    """
    key, attempt = headers.get(KEY_HEADER), _attempt(headers.get(ATTEMPT_HEADER))
    if caller.user_id is None or (key is None and attempt is None):
        return None
    # A key is its account's. Without one, only the same credential's requests are taken for each other.
    of = b"" if key is not None or caller.credential is None else caller.credential.bytes
    return RequestIdentity(
        user_id=caller.user_id,
        key_hash=None if key is None else hashlib.sha256(_checked(key)).digest(),
        fingerprint=_fingerprint(body, headers, relevant, of),
        attempt=attempt or 0,
        received=received,
        run_id=run_id,
    )


def _fingerprint(body: bytes, headers: Mapping[str, str], relevant: Iterable[str], of: bytes) -> bytes:
    said = [f"{name}:{headers[name].strip()}" for name in sorted(relevant) if name in headers]
    # As JSON the headers can't be mistaken for one another, and what is before the body has a length of its own.
    head = msgspec.json.encode([of.hex(), *said])
    return hashlib.sha256(len(head).to_bytes(8, "big") + head + body).digest()


def _attempt(said: str | None) -> int | None:
    """The number of earlier attempts; None where the header is absent or is no number."""
    if said is None or not (said.isascii() and said.isdigit() and len(said) <= len(str(MAX_ATTEMPT))):
        return None
    return int(said)


def _checked(key: str) -> bytes:
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not (key.isascii() and key.isprintable()):
        message = f"An Idempotency-Key has 1 to {MAX_KEY_CHARACTERS} printable ASCII characters."
        raise InvalidInput(message, path="Idempotency-Key")
    return key.encode()
