"""Ids and secrets: the one place that makes them up."""

import secrets
from datetime import UTC, datetime
from uuid import UUID

from uuid_utils.compat import uuid7


def new() -> UUID:
    """A new id: a UUID of version 7, so that rows made together lie together."""
    return uuid7()


def created_at(made: UUID) -> datetime:
    """When an id of ours was made."""
    return datetime.fromtimestamp((made.int >> 80) / 1000, UTC)


def new_secret() -> str:
    """A new secret of 256 bits, safe in headers and URLs."""
    return secrets.token_urlsafe(32)
