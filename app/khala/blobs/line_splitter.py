"""Splits a stream of bytes into lines, independently of its chunks, in memory bounded by one piece."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, TypeAlias

import msgspec

PIECE_BYTES = 64 * 1024
"""Bytes of one piece. A longer line comes in several pieces."""
OVERLAP_BYTES = 4096
"""Bytes of the previous piece that a piece repeats, so that a match across their boundary is found."""
LineState: TypeAlias = Literal[0, 1, 2]
"""A position: 0 at the start of a line, 1 in a line that is being searched, 2 in a line that has already matched."""


class BlobPosition(msgspec.Struct, frozen=True):
    """A position to continue from: the number of a line, from 1, and an offset in the blob."""

    line: int = 1
    offset: int = 0
    inside: LineState = 0


class LinePiece(msgspec.Struct, frozen=True):
    """A line, or a part of a very long one. `data` excludes the line ending."""

    position: BlobPosition
    data: bytes
    next: BlobPosition
    """The position of the next line or piece."""

    @property
    def first(self) -> bool:
        """Whether the line starts with this piece."""
        return not self.position.inside

    @property
    def last(self) -> bool:
        """Whether the line ends with this piece."""
        return not self.next.inside


async def split_lines(chunks: AsyncIterator[bytes], position: BlobPosition) -> AsyncGenerator[list[LinePiece], None]:
    """The lines of a stream that starts at `position`, one list for each chunk. Lines end with LF or CRLF."""
    splitter = _LineSplitter(position)
    async for chunk in chunks:
        yield splitter.feed(chunk)
        await asyncio.sleep(0)
    yield splitter.end()


class _LineSplitter:
    def __init__(self, position: BlobPosition) -> None:
        self._position = position
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[LinePiece]:
        pieces: list[LinePiece] = []
        *terminated, rest = chunk.split(b"\n")
        for data in terminated:
            self._append(data, pieces)
            pieces.append(self._end_line(1))
        self._append(rest, pieces)
        return pieces

    def end(self) -> list[LinePiece]:
        return [self._end_line(0)] if self._buffer or self._position.inside else []

    def _append(self, data: bytes, pieces: list[LinePiece]) -> None:
        """Add data of the current line. A line that is too long for one piece adds pieces to the list."""
        self._buffer += data
        while len(self._buffer) > PIECE_BYTES + OVERLAP_BYTES:
            next_position = BlobPosition(
                self._position.line, self._position.offset + PIECE_BYTES - OVERLAP_BYTES, self._position.inside or 1
            )
            pieces.append(LinePiece(self._position, bytes(self._buffer[:PIECE_BYTES]), next_position))
            del self._buffer[: PIECE_BYTES - OVERLAP_BYTES]
            self._position = next_position

    def _end_line(self, terminator_bytes: int) -> LinePiece:
        data = bytes(self._buffer)
        next_position = BlobPosition(self._position.line + 1, self._position.offset + len(data) + terminator_bytes)
        piece = LinePiece(
            self._position, data[:-1] if terminator_bytes and data.endswith(b"\r") else data, next_position
        )
        self._buffer.clear()
        self._position = next_position
        return piece
