"""HTTP/1.1 connections with bounded headers, bodies and trailers: uvicorn's own parser has no limits for them."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from khala.domain.transfer_rate import MAX_BODY_SECONDS
from khala.live.polling import wait_until_set

MAX_HEAD_BYTES = 64 * 1024
"""Bounds a request line and its headers. One socket read may exceed it."""
MAX_FRAMING_BYTES = 64 * 1024
"""Bounds what is not content in a chunked body: extensions of one chunk, or the trailers. One read may exceed it."""
HEAD_TIMEOUT_SECONDS = 20.0
"""From the first byte of a request to the end of its headers."""
BODY_TIMEOUT_SECONDS = MAX_BODY_SECONDS + 60
"""From the end of the headers to the end of the body. Longer than `BodyDeadline` waits if the body is read."""
PORT_PROBLEMS = {errno.EADDRINUSE: "is in use by another process", errno.EACCES: "may be used only by root"}
HOST_PROBLEMS = {errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN}
"""Errors of an address that is not this machine's, and of a name without an address."""
UNREAD_BODY_TIMEOUT_SECONDS = 30.0
"""For the rest of a body after its request was answered, so that the client can read the response."""

STALL_TIMEOUT_SECONDS = 120.0
"""For a client that takes nothing of a response that waits for it."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose headers or trailers are too long, whose headers are slow, or whose body never ends.

    It also closes one whose client does not read: what waits for it would otherwise stay in memory, and its files open.
    """

    _head_bytes = 0
    _framing_bytes = 0
    """Bytes of the body since its last content."""
    _deadline: asyncio.TimerHandle | None = None
    """The deadline for the end of the headers, or of a WebSocket handshake."""
    _body_deadline: asyncio.TimerHandle | None = None
    _in_body = False
    _stall_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline. It also applies to a client that sends nothing."""
        super().connection_made(transport)
        self._start_head_deadline()

    def on_message_begin(self) -> None:
        """Restart the deadline for the next request."""
        super().on_message_begin()
        self._start_head_deadline()

    def on_headers_complete(self) -> None:
        """Stop the deadline. A WebSocket handshake with a body continues until the body is complete."""
        if not (self.parser.should_upgrade() and self._should_upgrade()):
            self._stop_head_deadline()
            self._in_body = True
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are dropped: they would become headers of a request that is being handled."""
        if not self._in_body:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Count from here what is not content."""
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the deadline of the body."""
        self._in_body = False
        self._stop_body_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Bound the rest of a body that was not read."""
        super().on_response_complete()
        if self._in_body:
            self._start_body_deadline(UNREAD_BODY_TIMEOUT_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the headers, and those between contents of a body."""
        self._framing_bytes = self._framing_bytes + len(data) if self._in_body else 0
        super().data_received(data)
        if self._in_body and self._framing_bytes > MAX_FRAMING_BYTES:
            self._abort()
            return
        if self._in_body and self._body_deadline is None:
            self._start_body_deadline(BODY_TIMEOUT_SECONDS)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._abort()

    def pause_writing(self) -> None:
        """Watch whether the client reads, now that the buffer is full."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop watching: the client has read."""
        super().resume_writing()
        self._stop_stall_deadline()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket protocol, and drop references to this one."""
        self._stop_head_deadline()
        self._stop_stall_deadline()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # as uvicorn does at the end of a connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all deadlines."""
        self._stop_head_deadline()
        self._stop_body_deadline()
        self._in_body = False
        super().connection_lost(exc)
        self._stop_stall_deadline()

    def _start_head_deadline(self) -> None:
        self._stop_head_deadline()
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._abort)

    def _stop_head_deadline(self) -> None:
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _start_body_deadline(self, seconds: float) -> None:
        self._stop_body_deadline()
        self._body_deadline = self.loop.call_later(seconds, self._abort)

    def _stop_body_deadline(self) -> None:
        if self._body_deadline is not None:
            self._body_deadline.cancel()
            self._body_deadline = None

    def _watch_reader(self) -> None:
        self._stop_stall_deadline()
        waiting = self.transport.get_write_buffer_size()
        self._stall_deadline = self.loop.call_later(STALL_TIMEOUT_SECONDS, self._check_reader, waiting)

    def _check_reader(self, waiting: int) -> None:
        """Close the connection if the client has read nothing since `waiting` bytes waited for it."""
        if self.transport.get_write_buffer_size() >= waiting:
            self._abort()
        else:
            self._watch_reader()

    def _stop_stall_deadline(self) -> None:
        if self._stall_deadline is not None:
            self._stall_deadline.cancel()
            self._stall_deadline = None

    def _abort(self) -> None:
        self._stop_head_deadline()
        self._stop_body_deadline()
        self.transport.abort()


class UnsignalledServer(uvicorn.Server):
    """Uvicorn without its signal handlers: the caller drains runs before it calls `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Close the listening sockets and the connections, and let `serve` return."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Refresh the date of responses once a second, until the server is stopped. Uvicorn's loop wakes ten times."""
        while not await self.on_tick(0):
            await wait_until_set(self._stopped, 1)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def open_listening_socket(host: str, port: int, *, backlog: int) -> socket.socket:
    """Open a listening socket. It is opened first, so that a port in use is reported before anything is started.

    Raises `OSError` with a sentence for a port that may not be used, and for a host that is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        if reason := PORT_PROBLEMS.get(error.errno or 0):
            raise OSError(f"Port {port} of {host} {reason}. Choose another one with --port.") from error
        if error.errno in HOST_PROBLEMS:
            raise OSError(f"HOST must be an address of this machine, and not {host}.") from error
        raise
    # Accepted sockets inherit this option. asyncio sets it only on sockets whose protocol number is TCP. Without it, a
    # response waits 40 ms for the acknowledgement of its own headers.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def socket_url(bound: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
