"""Bounds of JSON that clients send. Pure.

The decoder works on the event loop. A megabyte of empty arrays takes it 50 ms, and a megabyte of text less than 1 ms.
"""

from collections.abc import Iterable
from typing import Any

from khala.domain.errors import PayloadTooLarge

MAX_JSON_CONTAINERS = 200_000
"""Objects and arrays of one body or frame. Decoding so many takes about 30 ms."""


def check_containers(body: bytes | str) -> None:
    """Raise `PayloadTooLarge` if the JSON may have more objects and arrays. Brackets in texts count, too."""
    count = body.count("[") + body.count("{") if isinstance(body, str) else body.count(b"[") + body.count(b"{")
    if count > MAX_JSON_CONTAINERS:
        raise PayloadTooLarge(f"JSON has at most {MAX_JSON_CONTAINERS:,} objects and arrays.")


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
