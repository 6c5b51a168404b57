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
"""Stands for the rest of a line beside a piece of it, so that `^` and `$` don't match there."""


class BlobLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A line. `line` counts from 1, or in the mode `tail` from the end: -1 is the last line.

    `match`: the line matches the pattern. `cut`: the line is longer, and `text` is its start or surrounds the match.
    """

    line: int
    text: str
    match: bool = False
    cut: bool = False


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one result: characters of a line, characters in total, and seconds."""

    line: int = 2000
    text: int = 256 * 1024
    seconds: float = 3.0


class LineCursor(msgspec.Struct, frozen=True):
    """The position to continue from, and the number of context lines still due after an earlier match."""

    place: BlobPosition = BlobPosition()
    due: int = 0

    def __str__(self) -> str:
        return f"{self.place.line}.{self.place.offset}.{self.place.inside}.{self.due}"

    @classmethod
    def read(cls, text: str | None) -> "LineCursor":
        """Parse a cursor that a client sends back. Raises `InvalidInput`."""
        found = CURSOR.fullmatch(text or str(cls()))
        if found is None:
            raise InvalidInput("`after` must be the `next` of a previous result.", path="after")
        inside: LineState = 0 if found[3] == "0" else 1 if found[3] == "1" else 2
        return cls(BlobPosition(int(found[1]), int(found[2]), inside), min(int(found[4]), MAX_CONTEXT_LINES))


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
    """A number of lines from a first one on."""

    def __init__(self, cursor: LineCursor, bounds: ReadLimits, *, first: int, lines: int) -> None:
        self.items: list[BlobLine] = []
        self.full = False
        self._began, self._next = cursor.place, cursor.place
        self._bounds, self._first, self._lines = bounds, first, lines
        self._left = bounds.text

    def take(self, piece: LinePiece) -> None:
        """Add the start of the line, and skip the rest of it."""
        self._next = piece.next
        if piece.first and piece.place.line >= self._first:
            self.items.append(line_start(piece, self._bounds.line))
            self._left -= len(self.items[-1].text)
        self.full = piece.last and bool(self.items) and (len(self.items) == self._lines or self._left <= 0)

    def cursor(self) -> LineCursor:
        """The position after the taken pieces."""
        return LineCursor(self._next)

    @property
    def moved(self) -> bool:
        """Whether any piece was taken."""
        return self._next != self._began


class GrepView:
    """The lines that match a pattern and their context, each line once."""

    def __init__(
        self, cursor: LineCursor, bounds: ReadLimits, pattern: LinePattern, *, lines: int, context: int
    ) -> None:
        self.items: list[BlobLine] = []
        self.full = False
        self._began, self._next = cursor.place, cursor.place
        self._due = cursor.due
        self._bounds, self._pattern, self._lines, self._context = bounds, pattern, lines, context
        self._left = bounds.text
        self._before: deque[tuple[BlobPosition, BlobLine]] = deque(maxlen=context)
        self._begun: tuple[BlobPosition, BlobLine] | None = None
        self._hit: BlobLine | None = None

    def take(self, piece: LinePiece) -> None:
        """Search the piece. The line is added or dropped once it has ended."""
        self._next = piece.next
        if piece.place.inside == 2:
            return
        if self._begun is None:
            self._begun = (piece.place, line_start(piece, self._bounds.line))
        if self._hit is None:
            self._hit = self._search(piece)
        if piece.last:
            self._end_line(*self._begun)
            self._begun = self._hit = None

    def cursor(self) -> LineCursor:
        """The position to continue from. It may precede skipped lines, which are context of a later match."""
        if self._next.inside:
            if self._hit is not None:
                self._show(self._hit)
                self._due = self._context
            done = self._hit is not None or self._next.inside == 2
            return LineCursor(msgspec.structs.replace(self._next, inside=2 if done else 1), self._due)
        return LineCursor(self._before[0][0] if self._before else self._next, self._due)

    @property
    def moved(self) -> bool:
        """Whether the cursor has moved. It lags behind by the lines of context."""
        lags = self._before and not self._next.inside
        return (self._before[0][0] if lags else self._next).offset > self._began.offset

    def _search(self, piece: LinePiece) -> BlobLine | None:
        data = piece.data if piece.first and piece.last else _bordered(piece)
        match = self._pattern.search(data)
        return None if match is None else line_around(piece, match, self._bounds.line)

    def _end_line(self, place: BlobPosition, line: BlobLine) -> None:
        if self._hit is not None:
            for _, earlier in self._before:
                self._show(earlier)
            self._before.clear()
            self._show(self._hit)
            self._due = self._context
            self._lines -= 1
        elif self._due:
            self._show(line)
            self._due -= 1
        else:
            self._before.append((place, line))
        self.full = self._lines == 0 or self._left <= 0

    def _show(self, line: BlobLine) -> None:
        self.items.append(line)
        self._left -= len(line.text)


def _bordered(piece: LinePiece) -> bytes:
    return (b"" if piece.first else BORDER) + piece.data + (b"" if piece.last else BORDER)


def line_start(piece: LinePiece, most: int) -> BlobLine:
    """The start of the line, truncated if it is long."""
    text = piece.data[: 4 * most].decode(errors="replace")
    cut = len(text) > most or len(piece.data) > 4 * most or not piece.last
    return BlobLine(line=piece.place.line, text=text[:most] + ELLIPSIS if cut else text, cut=cut)


def line_around(piece: LinePiece, match: PatternMatch, most: int) -> BlobLine:
    """The line, or the text around the match if the line is long."""
    whole = line_start(piece, most)
    if piece.first and not whole.cut:
        return msgspec.structs.replace(whole, match=True)
    at = match.start() - (0 if piece.first else len(BORDER))
    begin = max(0, at - most // 4)
    text = piece.data[begin : begin + 4 * most].decode(errors="replace")[:most]
    before = ELLIPSIS if begin or not piece.first else ""
    return BlobLine(line=piece.place.line, text=f"{before}{text}{ELLIPSIS}", match=True, cut=True)
