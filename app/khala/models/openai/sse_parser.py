"""Server-sent events out of bytes, however those are cut; nothing of unbounded size is ever held.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream; only the data of events is kept.
"""

from collections.abc import Iterator

LONGEST_EVENT = 8 << 20
"""Bytes of one event: a server may send a whole tool call, with the file that it writes, as one."""
BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event is longer than any that is read."""


class SseParser:
    """Takes bytes as they come, and gives the data of each event that they complete."""

    def __init__(self, longest: int = LONGEST_EVENT) -> None:
        self._longest = longest
        self._line: list[bytes] = []
        """Pieces of the line that has begun."""
        self._data: list[bytes] = []
        """Lines of data of the event that has begun."""
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that end in `piece`; take all of them before the next piece is fed.

        Raises `EventTooLong` after the events before it.
        """
        line, *lines = self._normal(piece).split(b"\n")
        for following in lines:
            if self._line:
                line = self._joined(line)
            if self._first:
                line, self._first = line.removeprefix(BOM), False
            if line:
                self._field(line)
            elif self._data:
                yield self._event()
            line = following
        self._hold(line)

    def rest(self) -> bytes:
        """The data of the event that had begun when the bytes ended."""
        line = self._joined(b"")
        if line:
            self._field(line)
        return self._event()

    def _normal(self, piece: bytes) -> bytes:
        """The piece with line feeds only. A carriage return ends a line at once, even if its line feed is to come."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return piece

    def _field(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._grow(len(line))
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            self._grow(1)
            self._data.append(b"")

    def _event(self) -> bytes:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return data

    def _hold(self, begun: bytes) -> None:
        if begun:
            self._grow(len(begun))
            self._line.append(begun)

    def _joined(self, end: bytes) -> bytes:
        self._size -= sum(map(len, self._line))
        line = b"".join((*self._line, end))
        self._line.clear()
        return line

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._longest:
            raise EventTooLong(f"An event of more than {self._longest} bytes.")
