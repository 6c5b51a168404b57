"""Bytes as lines: cut as they come, whatever the chunks, in memory that one piece bounds."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, TypeAlias

import msgspec

PIECE_BYTES = 64 * 1024
"""Bytes of one line that are looked at together; a longer line comes in several pieces."""
OVERLAP_BYTES = 4096
"""Bytes that a piece repeats of the one before it, so that what is looked for isn't cut."""
LineState: TypeAlias = Literal[0, 1, 2]
"""Where a line begins is 0; within one is 1 while it is still looked at, and 2 when it is done with."""


class LinePosition(msgspec.Struct, frozen=True):
    """Where to go on: the number of a line, from 1, and an offset in the blob."""

    line: int = 1
    offset: int = 0
    inside: LineState = 0


class LinePiece(msgspec.Struct, frozen=True):
    """A line, or one part of a very long one; `data` has no end of line."""

    place: LinePosition
    data: bytes
    next: LinePosition
    """Of the line after this one, or of the piece after this one."""

    @property
    def first(self) -> bool:
        """Whether the line begins here."""
        return not self.place.inside

    @property
    def last(self) -> bool:
        """Whether the line ends here."""
        return not self.next.inside


async def split_lines(chunks: AsyncIterator[bytes], place: LinePosition) -> AsyncGenerator[list[LinePiece], None]:
    """The lines of what comes, from `place` on; a list for each chunk. Lines end with LF or CRLF."""
    cutter = _LineSplitter(place)
    async for chunk in chunks:
        yield cutter.feed(chunk)
        await asyncio.sleep(0)
    yield cutter.end()


class _LineSplitter:
    def __init__(self, place: LinePosition) -> None:
        self._place = place
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[LinePiece]:
        found: list[LinePiece] = []
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            self._take(part, found)
            found.append(self._line_ends(1))
        self._take(rest, found)
        return found

    def end(self) -> list[LinePiece]:
        return [self._line_ends(0)] if self._held or self._place.inside else []

    def _take(self, part: bytes, found: list[LinePiece]) -> None:
        self._held += part
        while len(self._held) > PIECE_BYTES + OVERLAP_BYTES:
            data = bytes(self._held[:PIECE_BYTES])
            following = LinePosition(
                self._place.line, self._place.offset + PIECE_BYTES - OVERLAP_BYTES, self._place.inside or 1
            )
            found.append(LinePiece(self._place, data, following))
            del self._held[: PIECE_BYTES - OVERLAP_BYTES]
            self._place = following

    def _line_ends(self, end: int) -> LinePiece:
        data = bytes(self._held)
        following = LinePosition(self._place.line + 1, self._place.offset + len(data) + end)
        piece = LinePiece(self._place, data[:-1] if end and data.endswith(b"\r") else data, following)
        self._held.clear()
        self._place = following
        return piece
