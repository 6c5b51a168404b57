"""What is shown of a blob's lines as they pass: a range of them, or those with a pattern and what is around them."""

import re
from collections import deque
from typing import Protocol

import msgspec

from khala.blobs.line_splitter import LinePiece, LinePosition, LineState
from khala.blobs.patterns import LinePattern, PatternMatch
from khala.domain.errors import InvalidInput

ELLIPSIS = "…"
"""Stands for what was cut off a long line."""
CURSOR = re.compile(r"(\d{1,15})\.(\d{1,15})\.([012])\.(\d{1,2})", re.ASCII)
MAX_CONTEXT_LINES = 20
BORDER = b"\x01"
"""Stands for the rest of a line beside one piece of it, so that `^` and `$` don't hold there."""


class BlobLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A line, counted from 1, or where the last ones were asked for from the end: -1 is the last.

    `match` says that it has the pattern, `cut` that it is longer: what is here is its beginning, or around the match.
    """

    line: int
    text: str
    match: bool = False
    cut: bool = False


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one look gives: characters of a line, and in all, and how many seconds it may take."""

    line: int = 2000
    text: int = 256 * 1024
    seconds: float = 3.0


class LineCursor(msgspec.Struct, frozen=True):
    """Where a look goes on, and how many lines are still due as the context of a match before it."""

    place: LinePosition = LinePosition()
    due: int = 0

    def __str__(self) -> str:
        return f"{self.place.line}.{self.place.offset}.{self.place.inside}.{self.due}"

    @classmethod
    def read(cls, text: str | None) -> "LineCursor":
        """The cursor as it came back. Raises `InvalidInput`."""
        found = CURSOR.fullmatch(text or str(cls()))
        if found is None:
            raise InvalidInput("This is no `next` of an answer.", path="after")
        inside: LineState = 0 if found[3] == "0" else 1 if found[3] == "1" else 2
        return cls(LinePosition(int(found[1]), int(found[2]), inside), min(int(found[4]), MAX_CONTEXT_LINES))


class LineView(Protocol):
    """Takes pieces until it is full."""

    items: list[BlobLine]
    full: bool

    def take(self, piece: LinePiece) -> None:
        """The next piece."""
        ...

    def cursor(self) -> LineCursor:
        """Where to go on after what was taken."""
        ...

    @property
    def moved(self) -> bool:
        """Whether that is further on than where it began."""
        ...


class RangeView:
    """So many lines from a first one on."""

    def __init__(self, cursor: LineCursor, bounds: ReadLimits, *, first: int, lines: int) -> None:
        self.items: list[BlobLine] = []
        self.full = False
        self._began, self._next = cursor.place, cursor.place
        self._bounds, self._first, self._lines = bounds, first, lines
        self._left = bounds.text

    def take(self, piece: LinePiece) -> None:
        """Show the line's beginning; the rest of it passes by."""
        self._next = piece.next
        if piece.first and piece.place.line >= self._first:
            self.items.append(line_start(piece, self._bounds.line))
            self._left -= len(self.items[-1].text)
        self.full = piece.last and bool(self.items) and (len(self.items) == self._lines or self._left <= 0)

    def cursor(self) -> LineCursor:
        """Where to go on."""
        return LineCursor(self._next)

    @property
    def moved(self) -> bool:
        """Whether anything was taken."""
        return self._next != self._began


class GrepView:
    """Lines with a pattern, each once, and the lines around them, each once."""

    def __init__(
        self, cursor: LineCursor, bounds: ReadLimits, pattern: LinePattern, *, lines: int, context: int
    ) -> None:
        self.items: list[BlobLine] = []
        self.full = False
        self._began, self._next = cursor.place, cursor.place
        self._due = cursor.due
        self._bounds, self._pattern, self._lines, self._context = bounds, pattern, lines, context
        self._left = bounds.text
        self._before: deque[tuple[LinePosition, BlobLine]] = deque(maxlen=context)
        self._begun: tuple[LinePosition, BlobLine] | None = None
        self._hit: BlobLine | None = None

    def take(self, piece: LinePiece) -> None:
        """Look for the pattern; what becomes of the line is decided when it has ended."""
        self._next = piece.next
        if piece.place.inside == 2:
            return
        if self._begun is None:
            self._begun = (piece.place, line_start(piece, self._bounds.line))
        if self._hit is None:
            self._hit = self._looked(piece)
        if piece.last:
            self._ended(*self._begun)
            self._begun = self._hit = None

    def cursor(self) -> LineCursor:
        """Where to go on: for the sake of the context, with lines that were passed by before."""
        if self._next.inside:
            if self._hit is not None:
                self._show(self._hit)
                self._due = self._context
            done = self._hit is not None or self._next.inside == 2
            return LineCursor(msgspec.structs.replace(self._next, inside=2 if done else 1), self._due)
        return LineCursor(self._before[0][0] if self._before else self._next, self._due)

    @property
    def moved(self) -> bool:
        """Whether the cursor has moved: with context it lags behind by so many lines."""
        lags = self._before and not self._next.inside
        return (self._before[0][0] if lags else self._next).offset > self._began.offset

    def _looked(self, piece: LinePiece) -> BlobLine | None:
        data = piece.data if piece.first and piece.last else _bordered(piece)
        match = self._pattern.search(data)
        return None if match is None else line_around(piece, match, self._bounds.line)

    def _ended(self, place: LinePosition, line: BlobLine) -> None:
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
    """The beginning of the line."""
    text = piece.data[: 4 * most].decode(errors="replace")
    cut = len(text) > most or len(piece.data) > 4 * most or not piece.last
    return BlobLine(line=piece.place.line, text=text[:most] + ELLIPSIS if cut else text, cut=cut)


def line_around(piece: LinePiece, match: PatternMatch, most: int) -> BlobLine:
    """The line, or if it is long what is around the match."""
    whole = line_start(piece, most)
    if piece.first and not whole.cut:
        return msgspec.structs.replace(whole, match=True)
    at = match.start() - (0 if piece.first else len(BORDER))
    begin = max(0, at - most // 4)
    text = piece.data[begin : begin + 4 * most].decode(errors="replace")[:most]
    before = ELLIPSIS if begin or not piece.first else ""
    return BlobLine(line=piece.place.line, text=f"{before}{text}{ELLIPSIS}", match=True, cut=True)
