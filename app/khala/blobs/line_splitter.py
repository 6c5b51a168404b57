"""Splits a stream of bytes into lines, independently of its chunks, in memory bounded by one piece."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, TypeAlias

import msgspec

PIECE_BYTES = 64 * 1024
"""Bytes of one piece. A longer line comes in several pieces."""
OVERLAP_BYTES = 4096
"""Bytes that a piece repeats of the previous one, so that no match is cut in two."""
LineState: TypeAlias = Literal[0, 1, 2]
"""The position within a line: 0 at its start, 1 within a line that is being searched, 2 within one that is complete."""


class BlobPosition(msgspec.Struct, frozen=True):
    """A position to continue from: the number of a line, from 1, and an offset in the blob."""

    line: int = 1
    offset: int = 0
    inside: LineState = 0


class LinePiece(msgspec.Struct, frozen=True):
    """A line, or a part of a very long one. `data` excludes the line ending."""

    place: BlobPosition
    data: bytes
    next: BlobPosition
    """The position of the next line or piece."""

    @property
    def first(self) -> bool:
        """Whether the line starts with this piece."""
        return not self.place.inside

    @property
    def last(self) -> bool:
        """Whether the line ends with this piece."""
        return not self.next.inside


async def split_lines(chunks: AsyncIterator[bytes], place: BlobPosition) -> AsyncGenerator[list[LinePiece], None]:
    """The lines of a stream that starts at `place`, one list for each chunk. Lines end with LF or CRLF."""
    cutter = _LineSplitter(place)
    async for chunk in chunks:
        yield cutter.feed(chunk)
        await asyncio.sleep(0)
    yield cutter.end()


class _LineSplitter:
    def __init__(self, place: BlobPosition) -> None:
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
            following = BlobPosition(
                self._place.line, self._place.offset + PIECE_BYTES - OVERLAP_BYTES, self._place.inside or 1
            )
            found.append(LinePiece(self._place, data, following))
            del self._held[: PIECE_BYTES - OVERLAP_BYTES]
            self._place = following

    def _line_ends(self, end: int) -> LinePiece:
        data = bytes(self._held)
        following = BlobPosition(self._place.line + 1, self._place.offset + len(data) + end)
        piece = LinePiece(self._place, data[:-1] if end and data.endswith(b"\r") else data, following)
        self._held.clear()
        self._place = following
        return piece
