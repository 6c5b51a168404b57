"""Bytes as lines: cut as they come, whatever the chunks, in memory that one piece bounds."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, TypeAlias

import msgspec

PIECE = 64 * 1024
"""Bytes of one line that are looked at together; a longer line comes in several pieces."""
OVERLAP = 4096
"""Bytes that a piece repeats of the one before it, so that what is looked for isn't cut."""
Inside: TypeAlias = Literal[0, 1, 2]
"""Where a line begins is 0; within one is 1 while it is still looked at, and 2 when it is done with."""


class Place(msgspec.Struct, frozen=True):
    """Where to go on: the number of a line, from 1, and an offset in the blob."""

    line: int = 1
    offset: int = 0
    inside: Inside = 0


class Piece(msgspec.Struct, frozen=True):
    """A line, or one part of a very long one; `data` has no end of line."""

    place: Place
    data: bytes
    next: Place
    """Of the line after this one, or of the piece after this one."""

    @property
    def first(self) -> bool:
        """Whether the line begins here."""
        return not self.place.inside

    @property
    def last(self) -> bool:
        """Whether the line ends here."""
        return not self.next.inside


async def pieces(chunks: AsyncIterator[bytes], place: Place) -> AsyncGenerator[list[Piece], None]:
    """The lines of what comes, from `place` on; a list for each chunk. Lines end with LF or CRLF."""
    cutter = _Cutter(place)
    async for chunk in chunks:
        yield cutter.feed(chunk)
        await asyncio.sleep(0)
    yield cutter.end()


class _Cutter:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[Piece]:
        found: list[Piece] = []
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            self._take(part, found)
            found.append(self._line_ends(1))
        self._take(rest, found)
        return found

    def end(self) -> list[Piece]:
        return [self._line_ends(0)] if self._held or self._place.inside else []

    def _take(self, part: bytes, found: list[Piece]) -> None:
        self._held += part
        while len(self._held) > PIECE + OVERLAP:
            data = bytes(self._held[:PIECE])
            following = Place(self._place.line, self._place.offset + PIECE - OVERLAP, self._place.inside or 1)
            found.append(Piece(self._place, data, following))
            del self._held[: PIECE - OVERLAP]
            self._place = following

    def _line_ends(self, end: int) -> Piece:
        data = bytes(self._held)
        following = Place(self._place.line + 1, self._place.offset + len(data) + end)
        piece = Piece(self._place, data[:-1] if end and data.endswith(b"\r") else data, following)
        self._held.clear()
        self._place = following
        return piece
