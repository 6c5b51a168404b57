"""Cursors of lists that are ordered by creation: opaque texts that stand for the last item of a page."""

import base64
import binascii
from datetime import UTC, datetime
from uuid import UUID

from khala.domain.errors import InvalidInput


def encode_cursor(created_at: datetime, item_id: UUID) -> str:
    """The cursor of the page after this item."""
    return base64.urlsafe_b64encode(f"{created_at.isoformat()} {item_id}".encode()).decode()


def decode_cursor(cursor: str) -> tuple[datetime, UUID]:
    """The creation time and the id of the last item. Raises `InvalidInput` for any other text."""
    try:
        created_at, item_id = base64.urlsafe_b64decode(cursor).decode().split(" ")
        return datetime.fromisoformat(created_at).astimezone(UTC), UUID(item_id)
    except (ValueError, OverflowError, binascii.Error) as error:
        raise InvalidInput("This is not a cursor of this list.", path="cursor") from error
