"""Tokens of wakes: a worker proves by one that it was given a wake. A token is of one subscription and generation."""

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import msgspec

from khala.domain.streams.subscriptions import SubscriptionError

PREFIX = "khala_wake_"
SIGNATURE_BYTES = 32
GENERATION_BYTES = 8
_TOKEN = re.compile(rf"{PREFIX}([A-Za-z0-9_-]{{75}})", re.ASCII)
_LENGTH = 16 + GENERATION_BYTES + SIGNATURE_BYTES


class WakeToken(msgspec.Struct, frozen=True):
    """A token whose signature is still to be checked."""

    subscription_id: UUID
    generation: int
    signature: bytes

    def check(self, key: bytes) -> None:
        """Raise `SubscriptionError` unless the token was signed with the subscription's key."""
        if not hmac.compare_digest(self.signature, _signature(key, self.subscription_id, self.generation)):
            raise invalid_token()


def sign(key: bytes, subscription_id: UUID, generation: int) -> str:
    """Return the token of a subscription's wake."""
    signature = _signature(key, subscription_id, generation)
    packed = subscription_id.bytes + generation.to_bytes(GENERATION_BYTES) + signature
    return PREFIX + urlsafe_b64encode(packed).rstrip(b"=").decode()


def parse(authorization: str | None) -> WakeToken:
    """Return the token of an `Authorization` header. Raises `SubscriptionError`."""
    scheme, _, token = (authorization or "").partition(" ")
    found = _TOKEN.fullmatch(token.strip()) if scheme.lower() == "bearer" else None
    if found is None:
        raise invalid_token()
    packed = urlsafe_b64decode(found[1] + "=")
    rest = packed[16:_LENGTH]
    generation = int.from_bytes(rest[:GENERATION_BYTES])
    return WakeToken(UUID(bytes=packed[:16]), generation, rest[GENERATION_BYTES:])


def invalid_token() -> SubscriptionError:
    """The error for a token that no wake of this subscription has."""
    return SubscriptionError("TOKEN_INVALID", "Send the token of the wake, as Authorization: Bearer.", status=401)


def _signature(key: bytes, subscription_id: UUID, generation: int) -> bytes:
    signed = subscription_id.bytes + generation.to_bytes(GENERATION_BYTES)
    return hmac.digest(key, signed, hashlib.sha256)
