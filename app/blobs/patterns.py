"""Regular expressions whose search takes time linear in the text, whatever pattern somebody made up."""

from typing import Protocol

import re2

from app.domain.errors import InvalidInput

LONGEST = 1000
"""Characters of a pattern."""
MOST_MEMORY = 8 << 20
"""Bytes that one pattern's automaton may take."""


class Match(Protocol):
    """Where a pattern was found, in units of what was searched: bytes or characters."""

    def start(self) -> int:
        """Where it begins."""
        ...

    def end(self) -> int:
        """Where it ends."""
        ...


class Pattern(Protocol):
    """What is looked for. Bytes are read as UTF-8."""

    def search(self, text: bytes | str) -> Match | None:
        """The first place where it is, or None."""
        ...


def compiled(pattern: str, *, ignore_case: bool = False) -> Pattern:
    """The pattern, in RE2's syntax: no look-around, no back references. Raises `InvalidInput`."""
    if not pattern or len(pattern) > LONGEST:
        raise InvalidInput(f"A pattern has 1 to {LONGEST:,} characters.", path="pattern")
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    options.max_mem = MOST_MEMORY
    try:
        found: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidInput(f"This pattern can't be used: {_reason(error)}.", path="pattern") from error
    except UnicodeEncodeError as error:
        raise InvalidInput("This pattern is no text.", path="pattern") from error
    return found


def _reason(error: Exception) -> str:
    told = error.args[0] if error.args else error
    return told.decode(errors="replace") if isinstance(told, bytes) else str(told)
