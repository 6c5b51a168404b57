"""The end of what a step writes, bounded however much it writes."""

from collections import deque

from khala.operations.plan_client.text import clean

MAX_LINES = 200
MAX_LINE_CHARACTERS = 500
MAX_TEXT_CHARACTERS = MAX_LINES * MAX_LINE_CHARACTERS


class OutputTail:
    """The last lines of an output: at most 200 of them with at most 500 characters.

    Escape sequences are left out when their line is read, because a sequence may arrive in pieces.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._open = ""
        self.seq = -1
        """The number of the last part that was added."""

    def append(self, text: str) -> None:
        """Add text, which may end within a line."""
        first, *others = text[-MAX_TEXT_CHARACTERS:].split("\n")
        self._open = _bounded(self._open + first)
        for line in others:
            self._lines.append(self._open)
            self._open = _bounded(line)

    def append_line(self, line: str) -> None:
        """Add a line of its own."""
        self.append(f"{'' if not self._open else chr(10)}{line}\n")

    def last(self, count: int) -> list[str]:
        """The last lines, cleaned. A line that is overwritten by a carriage return has only its last text."""
        lines = [*self._lines, self._open] if self._open else list(self._lines)
        return [clean(line.rstrip("\r").rpartition("\r")[2]) for line in lines[-count:]] if count > 0 else []

    @property
    def size(self) -> int:
        """The number of characters in memory."""
        return sum(map(len, self._lines)) + len(self._open)


def _bounded(line: str) -> str:
    """The end of a long line, since progress bars write at the end."""
    return line if len(line) <= MAX_LINE_CHARACTERS else line[-MAX_LINE_CHARACTERS:]
