"""Decodes the arguments of a tool call from the JSON that a model wrote."""

from typing import Any

import msgspec


def decode(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments, and the problem if they are invalid. Empty text and `null` are no arguments."""
    if text.strip() in ("", "null"):
        return {}, None
    try:
        args = msgspec.json.decode(text)
        msgspec.json.encode(args)  # some numbers can be decoded but not encoded, and all arguments are stored
    except RecursionError:
        return {}, "The arguments are nested too deeply."
    except (ValueError, OverflowError) as error:
        return {}, f"The arguments are not valid JSON: {error}"
    if not isinstance(args, dict):
        return {}, "The arguments must be a JSON object."
    return args, None


def decode_any(value: object) -> tuple[dict[str, Any], str | None]:
    """As `decode`, for a value that is JSON text or already decoded."""
    try:
        return decode(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    except ValueError as error:
        return {}, f"The arguments are not valid JSON: {error}"
