"""Parses server-sent events from bytes in chunks of any size, with bounded memory.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream; only the data of events is kept.
"""

from collections.abc import Iterator

MAX_EVENT_BYTES = 8 << 20
"""Size of one event. A server may send a whole tool call, with a file in its arguments, as one event."""
BOM = b"\xef\xbb\xbf"


class EventTooLongError(ValueError):
    """An event is longer than the limit."""


class SseParser:
    """Takes bytes in chunks and returns the data of each event that they complete."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line: list[bytes] = []
        """The incomplete line, in pieces."""
        self._data: list[bytes] = []
        """The data lines of the incomplete event."""
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of the events that end in `chunk`. Consume the iterator before the next call.

        Raises `EventTooLongError` after the events before it.
        """
        *events, rest = self._with_line_feeds(chunk).split(b"\n\n")
        for event in events:
            if self._is_whole(event):
                yield event[6:]
            else:
                yield from self._read_lines(event + b"\n\n")
        yield from self._read_lines(rest)

    def rest(self) -> bytes:
        """The data of an event that is incomplete at the end of the bytes."""
        line = self._take_line(b"")
        if line:
            self._read_field(line)
        return self._take_event()

    def _is_whole(self, event: bytes) -> bool:
        """Whether this is all of an event, with its data in one line, as nearly all events are."""
        is_data = event.startswith(b"data: ") and b"\n" not in event and len(event) <= self._max_event_bytes
        return is_data and not (self._line or self._data or self._first)

    def _read_lines(self, text: bytes) -> Iterator[bytes]:
        """The data of the events that end in this text."""
        line, *lines = text.split(b"\n")
        for following in lines:
            if self._line:
                line = self._take_line(line)
            if self._first:
                line, self._first = line.removeprefix(BOM), False
            if line:
                self._read_field(line)
            elif self._data:
                yield self._take_event()
            line = following
        self._buffer(line)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """The chunk with line feeds only. A carriage return ends a line at once, before its line feed has arrived."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _read_field(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._grow(len(line))
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            self._grow(1)
            self._data.append(b"")

    def _take_event(self) -> bytes:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return data

    def _buffer(self, incomplete: bytes) -> None:
        if incomplete:
            self._grow(len(incomplete))
            self._line.append(incomplete)

    def _take_line(self, end: bytes) -> bytes:
        self._size -= sum(map(len, self._line))
        line = b"".join((*self._line, end))
        self._line.clear()
        return line

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max_event_bytes:
            raise EventTooLongError(f"An event of more than {self._max_event_bytes} bytes.")
