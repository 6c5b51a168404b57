"""Generates ids and secrets. No other module does."""

import hashlib
import secrets
from datetime import UTC, datetime
from uuid import UUID

from uuid_utils.compat import uuid7

RESERVED_VERSION = 8
"""The version of ids that clients cannot give to a thread. Others could compute them from an id that they know."""


def new() -> UUID:
    """A new id: a UUID of version 7, so that rows created together are stored together."""
    return uuid7()


def derived(base: UUID, name: str, *, version: int = 7) -> UUID:
    """The id that follows from another one and a name, always the same. It has the creation time of `base`."""
    random = int.from_bytes(hashlib.sha256(base.bytes + name.encode(errors="surrogatepass")).digest()[:10])
    fixed = version << 76 | 2 << 62
    return UUID(int=base.int >> 80 << 80 | random & ~(0xF << 76 | 0x3 << 62) | fixed)


def created_at(uuid: UUID) -> datetime:
    """The creation time of an id that `new` has returned."""
    return datetime.fromtimestamp((uuid.int >> 80) / 1000, UTC)


def before(moment: datetime) -> UUID:
    """An id below all ids that `new` returns from this moment on, and above all earlier ones."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def new_secret() -> str:
    """A new secret of 256 bits, safe in headers and URLs."""
    return secrets.token_urlsafe(32)
