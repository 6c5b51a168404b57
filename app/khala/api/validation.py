"""Checks of request values that types cannot express. All raise `InvalidInput` with the path of the value."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.errors import InvalidInput, PayloadTooLarge

MAX_MESSAGE_CHARACTERS = 100_000
MAX_EXPIRY_DAYS = 3660

NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in JSON. An escaped backslash before `u0000` is not one."""


def check_message_text(text: str, *, may_be_empty: bool = False) -> str:
    """Return the text of a message if it can be stored.

    Raises `PayloadTooLarge` if it is too long, and `InvalidInput` if it is blank and may not be empty.
    """
    if len(text) > MAX_MESSAGE_CHARACTERS:
        raise PayloadTooLarge(f"A message has at most {MAX_MESSAGE_CHARACTERS:,} characters.")
    if not may_be_empty and not text.strip():
        raise InvalidInput("A message needs text.", path="text")
    return check_text(text, "text")


def check_new_id(message_id: UUID | None, path: str) -> UUID | None:
    """Return the id that a client gives to a message. Raises `InvalidInput` for one that only the server gives."""
    if message_id is not None and message_id.version == ids.RESERVED_VERSION:
        raise InvalidInput("The server makes UUIDs of version 8. Use one of version 4 or 7.", path=path)
    return message_id


def check_text(text: str, path: str) -> str:
    """Return the text. Raises `InvalidInput` if it contains a NUL character: Postgres cannot store it."""
    if "\0" in text:
        raise InvalidInput("NUL characters can't be stored.", path=path)
    return text


def check_json(value: Any, path: str) -> None:
    """Raise `InvalidInput` if the value, encoded as JSON, contains a NUL character: Postgres cannot store it."""
    try:
        encoded = msgspec.json.encode(value)
    except RecursionError as error:
        raise InvalidInput("This is nested too deeply.", path=path) from error
    if NUL.search(encoded):
        raise InvalidInput("NUL characters can't be stored.", path=path)


def check_expiry(moment: datetime | None) -> datetime | None:
    """Return the time at which something expires. Raises `InvalidInput` unless it is within the next ten years."""
    now = datetime.now(UTC)
    if moment is not None and not now < moment < now + timedelta(days=MAX_EXPIRY_DAYS):
        raise InvalidInput("This must be in the future, and within ten years.", path="expiresAt")
    return moment
