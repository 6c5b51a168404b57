"""Bounds of JSON that clients send. Pure.

The decoder works on the event loop. A megabyte of empty arrays takes it 50 ms, and a megabyte of text less than 1 ms.
"""

from collections.abc import Iterable
from typing import Any

from khala.domain.errors import PayloadTooLarge

MAX_JSON_CONTAINERS = 200_000
"""Objects and arrays of one body or frame. Decoding so many takes about 30 ms."""
MAX_JSON_FIELDS = 300_000
"""Fields of all objects of one body or frame. Decoding so many takes about 100 ms."""


def check_containers(body: bytes | str, max_containers: int = MAX_JSON_CONTAINERS) -> None:
    """Raise `PayloadTooLarge` if the JSON may have more objects and arrays, or fields. Those in texts count, too."""
    if _count(body, "[") + _count(body, "{") > max_containers:
        raise PayloadTooLarge(f"JSON has at most {max_containers:,} objects and arrays here.")
    if _count(body, '":') > MAX_JSON_FIELDS:
        raise PayloadTooLarge(f"JSON has at most {MAX_JSON_FIELDS:,} fields.")


def _count(body: bytes | str, text: str) -> int:
    return body.count(text) if isinstance(body, str) else body.count(text.encode())


def is_deeper(value: Any, max_depth: int) -> bool:
    """Whether objects and arrays of the decoded JSON are nested more deeply."""
    level = [value]
    for _ in range(max_depth + 1):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _values(outer)]
        if not level:
            return False
    return True


def _values(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer
