"""A connection of aiohttp that can be paused: its bytes stay in the kernel until it is resumed."""

import asyncio
import fcntl
import sys
import termios

NO_BYTES = bytes(4)
MAX_DRAIN_STEPS = 4
"""Iterations of the event loop in which it reads what has arrived. TLS takes up to three."""


class PausedTransport:
    """A transport, and what is known of its socket while nobody reads from it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._is_tls = transport.get_extra_info("sslcontext") is not None

    @property
    def is_closing(self) -> bool:
        """Whether the connection was closed, or is about to be."""
        return self._transport.is_closing()

    def pause(self) -> None:
        """Leave the bytes that follow in the kernel."""
        self._transport.pause_reading()
        if self._is_tls:
            # A paused TLS transport goes on reading from its socket up to a limit, by default of 256 KiB.
            self._transport.set_read_buffer_limits(high=1)  # type: ignore[attr-defined]  # of asyncio's and uvloop's TLS

    def resume(self) -> None:
        """Read again."""
        if not self.is_closing:
            if self._is_tls:
                self._transport.set_read_buffer_limits()  # type: ignore[attr-defined]  # as above
            self._transport.resume_reading()

    def unread(self) -> int:
        """The number of bytes that have arrived and are not read; 0 if the socket is closed."""
        if self.is_closing:
            return 0
        try:
            in_kernel = fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, NO_BYTES)
        except (OSError, ValueError):
            return 0
        in_tls: int = self._transport.get_read_buffer_size() if self._is_tls else 0  # type: ignore[attr-defined]  # as above
        return int.from_bytes(in_kernel, sys.byteorder) + in_tls

    async def drain(self) -> None:
        """Let the event loop read all bytes that have arrived, so that their text is passed on in one piece."""
        for _ in range(MAX_DRAIN_STEPS):
            await asyncio.sleep(0)
            if not self.unread():
                return
