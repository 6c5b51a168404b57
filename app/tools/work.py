"""How much work the check of one call's arguments may be: counted as it is done, so that no schema makes it long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from app.blobs.patterns import Pattern, compiled
from app.domain.errors import InvalidInput

MOST_WORK = 100_000
"""Of one check, in units of half a microsecond to one: a check ends within 50 to 100 ms."""
KEYWORD = 8
"""Of looking at a keyword, or of handing on what it says."""
STEP = 3
"""Of descending to one more place."""
PATTERN = 100
"""Of having a pattern compiled."""
INSTRUCTIONS = 256
"""Steps of a pattern's program, times characters searched, that are one unit."""
CHARACTERS = 256
"""Characters compared, or put into a message, that are one unit."""

Search = Callable[[str], bool]


class TooMuch(Exception):
    """The check takes more than it may."""


class Work:
    """What is left of the work that a check may be."""

    def __init__(self, schema: bytes) -> None:
        self._left = MOST_WORK
        self._searches: dict[str, Pattern | None] = {}
        # What is referred to by name is looked for in all of the schema, each time.
        self._lookup = len(schema) // 4
        self._named = b'"$id"' in schema

    def take(self, units: int) -> None:
        """Raise `TooMuch` if this is more than is left."""
        self._left -= units
        if self._left < 0:
            raise TooMuch

    def weigh(self, value: Any) -> None:
        """Take what it costs to compare the value, or to write it out."""
        if isinstance(value, dict):
            self.take(1 + len(value) // 2)
            for key, inner in value.items():
                self.weigh(key)
                self.weigh(inner)
        elif isinstance(value, list):
            self.take(1 + len(value) // 2)
            for inner in value:
                if isinstance(inner, dict | list | str):
                    self.weigh(inner)
        elif isinstance(value, str) and len(value) >= CHARACTERS:
            self.take(len(value) // CHARACTERS)

    def refer(self, target: str) -> None:
        """Take what it costs to find what a `$ref` means."""
        by_path = not self._named and (target == "#" or target.startswith("#/"))
        self.take(4 * target.count("/") if by_path else self._lookup)

    def search(self, pattern: str) -> Search:
        """How to look for the pattern in a text. What can't be looked for in linear time is everywhere."""
        if pattern not in self._searches:
            found = self._searches[pattern] = _compiled(pattern)
            self.take(PATTERN + (found.programsize // 8 if found else 0))
        known = self._searches[pattern]

        def search(text: str) -> bool:
            self.take(2 + (len(text) * known.programsize // INSTRUCTIONS if known else 0))
            return known is None or known.search(text) is not None

        return search


_work: ContextVar[Work] = ContextVar("work")


@contextmanager
def counted(*, schema: bytes) -> Iterator[None]:
    """Count the work of what is done within, against this schema."""
    before = _work.set(Work(schema))
    try:
        yield
    finally:
        _work.reset(before)


def current() -> Work:
    """Of the check that this is called in."""
    return _work.get()


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Pattern | None:
    try:
        return compiled(pattern)
    except InvalidInput:
        return None
