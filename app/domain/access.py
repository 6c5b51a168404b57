"""Who asks, and what opens a thread."""

import hashlib
import hmac

import msgspec

from app.domain.errors import InvalidInput

SHORTEST_KEY = 32
LONGEST_KEY = 256


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: so far whoever holds an anonymous key, known by its hash, or nobody in particular."""

    anon_key_hash: bytes | None = None


def checked_anon_key(key: str) -> str:
    """A key that a client made, if it is long enough to be one."""
    if not len(key.strip()) >= SHORTEST_KEY or len(key) > LONGEST_KEY:
        raise InvalidInput(f"An anonKey has {SHORTEST_KEY} to {LONGEST_KEY} characters.", path="anonKey")
    return key


def key_hash(key: str) -> bytes:
    """What is stored of a key. Keys carry at least 128 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def opens(stored: bytes | None, presented: bytes | None) -> bool:
    """Whether the presented key's hash is the stored one, compared in constant time."""
    return stored is not None and presented is not None and hmac.compare_digest(stored, presented)
