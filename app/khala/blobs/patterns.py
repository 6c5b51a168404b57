"""Regular expressions of clients, which search in time linear in the text (RE2)."""

from typing import Protocol

import re2

from khala.domain.errors import InvalidInput

MAX_PATTERN_CHARACTERS = 1000
"""Characters of a pattern."""
MAX_PROGRAM_STEPS = 2000
"""Steps of a pattern's program. Search time grows with them, to 0.2 s for 64 KiB; `\\pL` alone takes 1,200."""
MAX_PROGRAM_BYTES = 8 << 20
"""Bytes of one pattern's automaton."""
MAX_PROBE_BYTES = 256 * 1024
"""Memory limit of a first compilation, which quickly refuses patterns that are far too large."""


class PatternMatch(Protocol):
    """A match, in units of the searched text: bytes or characters."""

    def start(self) -> int:
        """The start of the match."""
        ...

    def end(self) -> int:
        """The end of the match, exclusive."""
        ...


class LinePattern(Protocol):
    """A compiled pattern. Bytes are searched as UTF-8."""

    @property
    def programsize(self) -> int:
        """Steps of the compiled program."""
        ...

    def search(self, text: bytes | str) -> PatternMatch | None:
        """The first match, or None."""
        ...


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> LinePattern:
    """Compile a pattern in RE2 syntax, without look-around and back references. Raises `InvalidInput`."""
    if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidInput(f"A pattern must have 1 to {MAX_PATTERN_CHARACTERS:,} characters.", path="pattern")
    try:
        _program(pattern, MAX_PROBE_BYTES, ignore_case=ignore_case)
        program = _program(pattern, MAX_PROGRAM_BYTES, ignore_case=ignore_case)
    except re2.error as error:
        raise InvalidInput(f"This pattern can't be used: {_reason(error)}.", path="pattern") from error
    except UnicodeEncodeError as error:
        raise InvalidInput("This pattern is not valid text.", path="pattern") from error
    if program.programsize > MAX_PROGRAM_STEPS:
        size = f"{program.programsize:,} of at most {MAX_PROGRAM_STEPS:,} steps"
        message = f"This pattern is too large: {size}. Use fewer or shorter repetitions."
        raise InvalidInput(message, path="pattern")
    return program


def _program(pattern: str, memory: int, *, ignore_case: bool) -> LinePattern:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    options.max_mem = memory
    program: LinePattern = re2.compile(pattern, options)
    return program


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
