"""Parses server-sent events, by the specification of the HTML standard."""

from collections.abc import Iterator

from khala_client.errors import ServerError


class EventStreamParser:
    """Takes the bytes of a stream in pieces, and yields the data of each complete event.

    Comments, and fields other than `data`, are ignored. An event without data is none.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()
        self._searched = 0
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that end in this piece. Raises `ServerError` if one is too large."""
        if self._after_cr and piece[:1] == b"\n":
            piece = piece[1:]
        if piece:
            self._after_cr = piece.endswith(b"\r")
        self._pending += piece
        begin = 0
        for end, following in self._line_ends():
            data = self._line(bytes(self._pending[begin:end]))
            begin = following
            if data is not None:
                yield data
        del self._pending[:begin]
        self._searched = len(self._pending)
        if len(self._pending) + self._size > self._limit:
            raise ServerError(f"An event has more than {self._limit:,} bytes.")

    def _line_ends(self) -> Iterator[tuple[int, int]]:
        """The end of each line, and the beginning of the next one. A line ends with CR, LF or both."""
        at = self._searched
        while True:
            ends = [found for mark in (b"\n", b"\r") if (found := self._pending.find(mark, at)) >= 0]
            if not ends:
                return
            end = min(ends)
            at = end + (2 if self._pending[end : end + 2] == b"\r\n" else 1)
            yield end, at

    def _line(self, line: bytes) -> bytes | None:
        """Take a line. Returns the data of the event that it ends."""
        if not line:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            return data or None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
        return None
