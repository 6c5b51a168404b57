"""HTTP/1.1 with a bounded head: uvicorn's fast parser takes headers for as long as somebody cares to send them."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 * 1024
"""Bytes of a request line and its headers, and as much again as one read brings."""
SLOWEST_HEAD = 20.0
"""Seconds from a request's first byte to the end of its head."""


class BoundedHttp(HttpToolsProtocol):
    """Hangs up on a head that is too long or too slow."""

    _head = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that says nothing is as slow as one that says little."""
        super().connection_made(transport)
        self._expect_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._forget_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Count what comes until the head is whole."""
        super().data_received(data)
        if self._deadline is not None:
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._hang_up()

    def handle_websocket_upgrade(self) -> None:
        """From here on it is another protocol's, and nothing keeps this one."""
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # as uvicorn does at the end of a connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for."""
        self._forget_head()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._forget_head()
        self._deadline = self.loop.call_later(SLOWEST_HEAD, self._hang_up)

    def _forget_head(self) -> None:
        self._head = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _hang_up(self) -> None:
        self._forget_head()
        self.transport.abort()


class UnsignalledServer(uvicorn.Server):
    """Uvicorn, with the signals left to us: runs are drained while sockets are still open."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listening(host: str, port: int, *, backlog: int) -> socket.socket:
    """A listening socket; made first, so that a port that is taken is said before anything is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family, backlog=backlog)
    # For all that are accepted here: asyncio does so only for sockets that say that they are TCP, and an answer would
    # wait 40 ms for the acknowledgement of its own head.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL at which a listening socket is."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
