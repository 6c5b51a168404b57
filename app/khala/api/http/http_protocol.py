"""HTTP/1.1 with a bounded head and body: uvicorn's fast parser itself waits for both without a deadline."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from khala.domain.transfer_rate import MAX_BODY_SECONDS

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request line and its headers, and as much again as one read brings."""
HEAD_TIMEOUT_SECONDS = 20.0
"""Seconds from a request's first byte to the end of its head."""
BODY_TIMEOUT_SECONDS = MAX_BODY_SECONDS + 60
"""Seconds from the end of a head to the end of the body: longer than `BodyDeadline` waits where the body is read."""
UNREAD_BODY_TIMEOUT_SECONDS = 30.0
"""Seconds that a body may go on after its request was answered, so that the client comes to read the answer."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Hangs up on a head that is too long or too slow, and on a body that never ends."""

    _head = 0
    _deadline: asyncio.TimerHandle | None = None
    """For the end of a head, or of a WebSocket's handshake."""
    _body_deadline: asyncio.TimerHandle | None = None
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that says nothing is as slow as one that says little."""
        super().connection_made(transport)
        self._expect_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Its head is whole. A handshake that announces a body is not over before that has come."""
        if not (self.parser.should_upgrade() and self._should_upgrade()):
            self._forget_head()
            self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Its body is whole, if it has one."""
        self._in_body = False
        self._forget_body()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the rest of a body that nobody reads any more, but not for long."""
        super().on_response_complete()
        if self._in_body:
            self._expect_body(UNREAD_BODY_TIMEOUT_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Count what comes until the head is whole."""
        super().data_received(data)
        if self._in_body and self._body_deadline is None:
            self._expect_body(BODY_TIMEOUT_SECONDS)
        if self._deadline is not None:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self._hang_up()

    def handle_websocket_upgrade(self) -> None:
        """From here on it is another protocol's, and nothing keeps this one."""
        self._forget_head()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # as uvicorn does at the end of a connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for."""
        self._forget_head()
        self._forget_body()
        self._in_body = False
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._forget_head()
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._hang_up)

    def _forget_head(self) -> None:
        self._head = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect_body(self, seconds: float) -> None:
        self._forget_body()
        self._body_deadline = self.loop.call_later(seconds, self._hang_up)

    def _forget_body(self) -> None:
        if self._body_deadline is not None:
            self._body_deadline.cancel()
            self._body_deadline = None

    def _hang_up(self) -> None:
        self._forget_head()
        self._forget_body()
        self.transport.abort()


class UnsignalledServer(uvicorn.Server):
    """Uvicorn, with the signals left to us: runs are drained while sockets are still open."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def open_listening_socket(host: str, port: int, *, backlog: int) -> socket.socket:
    """A open_listening_socket socket; made first, so that a port that is taken is said before anything is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family, backlog=backlog)
    # For all that are accepted here: asyncio does so only for sockets that say that they are TCP, and an answer would
    # wait 40 ms for the acknowledgement of its own head.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def socket_url(bound: socket.socket) -> str:
    """The URL at which a open_listening_socket socket is."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
