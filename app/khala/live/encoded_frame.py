"""Frames as bytes: each is encoded once for all sockets and event streams."""

import struct
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import msgspec

TEXT_FRAME = 0x81
"""First byte of a WebSocket message that is one whole text frame (RFC 6455, 5.2)."""

T = TypeVar("T")


class EncodedFrame:
    """One frame as JSON."""

    __slots__ = ("_derived", "_message", "content", "data")

    def __init__(self, data: bytes, content: msgspec.Struct | None = None) -> None:
        self.data = data
        self.content = content
        """The frame that was encoded, for observers that send it in another form."""
        self._message: bytes | None = None
        self._derived: dict[Hashable, Any] | None = None

    @classmethod
    def encode(cls, frame: msgspec.Struct) -> "EncodedFrame":
        """Encode the frame."""
        return cls(msgspec.json.encode(frame), frame)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def text(self) -> str:
        """The frame as the data of a server-sent event."""
        return self.data.decode()

    def derive(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of `compute`, which is called once for all observers of the frame that use the same key."""
        if self._derived is None:
            self._derived = {}
        if key not in self._derived:
            self._derived[key] = compute()
        result: T = self._derived[key]
        return result

    @property
    def websocket_message(self) -> bytes:
        """The frame as a WebSocket text message. Servers don't mask messages, so all sockets get the same bytes."""
        if self._message is None:
            self._message = _head(len(self.data)) + self.data
        return self._message


def _head(size: int) -> bytes:
    if size < 126:
        return struct.pack("!BB", TEXT_FRAME, size)
    if size < 1 << 16:
        return struct.pack("!BBH", TEXT_FRAME, 126, size)
    return struct.pack("!BBQ", TEXT_FRAME, 127, size)
