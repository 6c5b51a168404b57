"""A tool call's arguments, read from the JSON that a model wrote."""

from typing import Any

import msgspec


def read(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments, and why they can't be read where they can't; nothing written, or `null`, is no arguments."""
    if text.strip() in ("", "null"):
        return {}, None
    try:
        found = msgspec.json.decode(text)
        msgspec.json.encode(found)  # a number may be read that can't be written, and all of it will be stored
    except RecursionError:
        return {}, "The arguments are nested too deeply."
    except (ValueError, OverflowError) as error:
        return {}, f"The arguments are no JSON: {error}"
    if not isinstance(found, dict):
        return {}, "The arguments must be a JSON object."
    return found, None


def of(given: object) -> tuple[dict[str, Any], str | None]:
    """The same of what a library has left as text, or read already."""
    try:
        return read(given if isinstance(given, str) else msgspec.json.encode(given).decode())
    except ValueError as error:
        return {}, f"The arguments are no JSON: {error}"
