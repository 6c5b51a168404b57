"""Views of a blob's lines as they stream by: a range of lines, or the matches of a pattern with context."""

import re
from collections import deque
from typing import Protocol

import msgspec

from khala.blobs.line_splitter import BlobPosition, LinePiece, LineState
from khala.blobs.patterns import LinePattern, PatternMatch
from khala.domain.errors import InvalidInput

ELLIPSIS = "…"
"""Marks a truncated end of a long line."""
CURSOR = re.compile(r"(\d{1,15})\.(\d{1,15})\.([012])\.(\d{1,2})", re.ASCII)
MAX_CONTEXT_LINES = 20
BORDER = b"\x01"
"""Replaces the rest of the line at the edges of a piece, so that `^` and `$` don't match there."""


class BlobLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A line. `line` counts from 1, or in the mode `tail` from the end: -1 is the last line.

    `match`: the line matches the pattern. `cut`: `text` is only the start of the line, or the text around the match.
    """

    line: int
    text: str
    match: bool = False
    cut: bool = False


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one result: characters of one line, characters of all lines, and seconds."""

    line: int = 2000
    text: int = 256 * 1024
    seconds: float = 3.0


class LineCursor(msgspec.Struct, frozen=True):
    """The position to continue from, and the number of context lines still due after an earlier match."""

    position: BlobPosition = BlobPosition()
    context_due: int = 0

    def __str__(self) -> str:
        return f"{self.position.line}.{self.position.offset}.{self.position.inside}.{self.context_due}"

    @classmethod
    def read(cls, text: str | None) -> "LineCursor":
        """Parse a cursor that a client sends back. Raises `InvalidInput`."""
        match = CURSOR.fullmatch(text or str(cls()))
        if match is None:
            raise InvalidInput("`after` must be the `next` of a previous result.", path="after")
        inside: LineState = 0 if match[3] == "0" else 1 if match[3] == "1" else 2
        return cls(BlobPosition(int(match[1]), int(match[2]), inside), min(int(match[4]), MAX_CONTEXT_LINES))


class LineView(Protocol):
    """Collects lines from pieces until it is full."""

    items: list[BlobLine]
    full: bool

    def take(self, piece: LinePiece) -> None:
        """Take the next piece."""
        ...

    def cursor(self) -> LineCursor:
        """The position after the taken pieces."""
        ...

    @property
    def moved(self) -> bool:
        """Whether the cursor is past its start."""
        ...


class RangeView:
    """Up to `lines` lines, from the line `first` on."""

    def __init__(self, cursor: LineCursor, limits: ReadLimits, *, first: int, lines: int) -> None:
        self.items: list[BlobLine] = []
        self.full = False
        self._start, self._next = cursor.position, cursor.position
        self._limits, self._first, self._lines = limits, first, lines
        self._remaining_characters = limits.text

    def take(self, piece: LinePiece) -> None:
        """Add the start of the line, and skip the rest of it."""
        self._next = piece.next
        if piece.first and piece.position.line >= self._first:
            self.items.append(line_start(piece, self._limits.line))
            self._remaining_characters -= len(self.items[-1].text)
        self.full = (
            piece.last and bool(self.items) and (len(self.items) == self._lines or self._remaining_characters <= 0)
        )

    def cursor(self) -> LineCursor:
        """The position after the taken pieces."""
        return LineCursor(self._next)

    @property
    def moved(self) -> bool:
        """Whether any piece was taken."""
        return self._next != self._start


class GrepView:
    """The lines that match a pattern and their context, each line once."""

    def __init__(
        self, cursor: LineCursor, limits: ReadLimits, pattern: LinePattern, *, lines: int, context: int
    ) -> None:
        self.items: list[BlobLine] = []
        self.full = False
        self._start, self._next = cursor.position, cursor.position
        self._context_due = cursor.context_due
        self._limits, self._pattern, self._lines, self._context = limits, pattern, lines, context
        self._remaining_characters = limits.text
        self._before: deque[tuple[BlobPosition, BlobLine]] = deque(maxlen=context)
        self._current: tuple[BlobPosition, BlobLine] | None = None
        self._matching: BlobLine | None = None

    def take(self, piece: LinePiece) -> None:
        """Search the piece. The line is added or dropped once it has ended."""
        self._next = piece.next
        if piece.position.inside == 2:
            return
        if self._current is None:
            self._current = (piece.position, line_start(piece, self._limits.line))
        if self._matching is None:
            self._matching = self._search(piece)
        if piece.last:
            self._end_line(*self._current)
            self._current = self._matching = None

    def cursor(self) -> LineCursor:
        """The position to continue from. Lines that may be context of a later match follow it, and are read again."""
        if self._next.inside:
            if self._matching is not None:
                self._add(self._matching)
                self._context_due = self._context
            done = self._matching is not None or self._next.inside == 2
            return LineCursor(msgspec.structs.replace(self._next, inside=2 if done else 1), self._context_due)
        return LineCursor(self._before[0][0] if self._before else self._next, self._context_due)

    @property
    def moved(self) -> bool:
        """Whether the cursor is past its start. It stays behind the taken pieces by the lines of context."""
        stays_behind = self._before and not self._next.inside
        return (self._before[0][0] if stays_behind else self._next).offset > self._start.offset

    def _search(self, piece: LinePiece) -> BlobLine | None:
        data = piece.data if piece.first and piece.last else _bordered(piece)
        match = self._pattern.search(data)
        return None if match is None else line_around(piece, match, self._limits.line)

    def _end_line(self, position: BlobPosition, line: BlobLine) -> None:
        if self._matching is not None:
            for _, earlier in self._before:
                self._add(earlier)
            self._before.clear()
            self._add(self._matching)
            self._context_due = self._context
            self._lines -= 1
        elif self._context_due:
            self._add(line)
            self._context_due -= 1
        else:
            self._before.append((position, line))
        self.full = self._lines == 0 or self._remaining_characters <= 0

    def _add(self, line: BlobLine) -> None:
        self.items.append(line)
        self._remaining_characters -= len(line.text)


def _bordered(piece: LinePiece) -> bytes:
    return (b"" if piece.first else BORDER) + piece.data + (b"" if piece.last else BORDER)


def line_start(piece: LinePiece, max_characters: int) -> BlobLine:
    """The start of the line. A long line is truncated."""
    text = piece.data[: 4 * max_characters].decode(errors="replace")
    cut = len(text) > max_characters or len(piece.data) > 4 * max_characters or not piece.last
    return BlobLine(line=piece.position.line, text=text[:max_characters] + ELLIPSIS if cut else text, cut=cut)


def line_around(piece: LinePiece, match: PatternMatch, max_characters: int) -> BlobLine:
    """The line, or the text around the match if the line is long."""
    start = line_start(piece, max_characters)
    if piece.first and not start.cut:
        return msgspec.structs.replace(start, match=True)
    offset = match.start() - (0 if piece.first else len(BORDER))
    begin = max(0, offset - max_characters // 4)
    text = piece.data[begin : begin + 4 * max_characters].decode(errors="replace")[:max_characters]
    prefix = ELLIPSIS if begin or not piece.first else ""
    return BlobLine(line=piece.position.line, text=f"{prefix}{text}{ELLIPSIS}", match=True, cut=True)
