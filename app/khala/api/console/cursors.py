"""Opaque cursors of the console's lists: of the id, or of the number and id, of the last item of a page."""

import base64
import binascii
from uuid import UUID

from khala.domain.errors import InvalidInput

MAX_CURSOR_CHARACTERS = 200
MAX_NUMBER = 2**63 - 1


def encode_id(item_id: UUID | None) -> str | None:
    """Return the cursor of the page after this item; None if there is none."""
    return None if item_id is None else base64.urlsafe_b64encode(item_id.bytes).decode().rstrip("=")


def decode_id(cursor: str | None) -> UUID | None:
    """Return the id of the last item; None without a cursor. Raises `InvalidInput` for any other text."""
    if cursor is None:
        return None
    try:
        return UUID(bytes=_bytes(cursor))
    except ValueError as error:
        raise _invalid() from error


def encode_number(number: int, item_id: UUID) -> str:
    """Return the cursor of the page after the item with this number, which is not negative."""
    return base64.urlsafe_b64encode(number.to_bytes(8) + item_id.bytes).decode().rstrip("=")


def decode_number(cursor: str | None) -> tuple[int, UUID] | None:
    """Return the number and the id of the last item. Raises `InvalidInput` for any other text."""
    if cursor is None:
        return None
    content = _bytes(cursor)
    number = int.from_bytes(content[:8])
    if len(content) != 24 or number > MAX_NUMBER:
        raise _invalid()
    return number, UUID(bytes=content[8:])


def _bytes(cursor: str) -> bytes:
    try:
        if len(cursor) > MAX_CURSOR_CHARACTERS or not cursor.isascii():
            raise _invalid()
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise _invalid() from error


def _invalid() -> InvalidInput:
    return InvalidInput("This is not a cursor of this list.", path="cursor")
