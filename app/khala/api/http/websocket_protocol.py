"""WebSocket connections with encoded messages, limits of frames, and a heartbeat that knows when bytes arrived last."""

import time
from typing import Any

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from khala.domain.token_bucket import TokenBucket
from khala.live.heartbeat import Heartbeat

PROTOCOL_KEY = "websocket_protocol"
"""The key of the connection's state under which the application finds the protocol."""
PING_PAYLOAD = b"here"
FRAME_RATE = (2_000, 1_000.0)
"""Frames of any kind in a burst, and per second. The routes limit messages; this also limits pings and fragments."""
MAX_FRAGMENTS = 1_024
"""The maximum number of frames of one message. Empty ones do not count as bytes, but each occupies memory."""
SLICE_BYTES = 4096
"""The limits are checked after so many bytes, so that a flood of tiny frames blocks the event loop for milliseconds."""
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's connection. Uvicorn's own pings remain, and it closes a connection that does not answer them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heartbeat = Heartbeat(self._send_ping)
        self._frames = TokenBucket(*FRAME_RATE)

    def data_received(self, data: bytes) -> None:
        """Record a sign of life. Answer headers that are not a handshake with 400, and close the connection."""
        self.heartbeat.record()
        if self.handshake_initiated:
            self._receive_frames(data)
            return
        super().data_received(data)
        if not self.handshake_initiated:
            # The complete headers arrive at once, so no handshake can follow. Uvicorn would wait for it.
            self.transport.write(b"".join(self.conn.data_to_send()) or BAD_REQUEST)
            self.transport.close()

    def handle_events(self) -> None:
        """Handle the frames that were received, unless they are too many."""
        frames = sum(isinstance(event, Frame) for event in self.conn.events)
        if frames and not self._frames.take(time.monotonic(), frames):
            self.conn.events.clear()
            self._refuse("Too many frames. Send fewer.")
        super().handle_events()

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to its message, unless it has too many."""
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self._refuse(f"A message has at most {MAX_FRAGMENTS:,} fragments.")

    def send_receive_event_to_app(self) -> None:
        """Pass on a message. Refuse text that is not UTF-8: uvicorn would log a stranger's mistake as an error."""
        try:
            if self.curr_msg_data_type == "text":
                b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self._refuse("Text must be UTF-8.", CloseCode.INVALID_DATA)
        else:
            super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        """Read nothing while the client does not read: each ping is answered, so the answers would accumulate."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again, unless the application still has messages to handle."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message. It does not make the connection readable while the client does not read."""
        message = await super().receive()
        if not self.writable.is_set():
            self.transport.pause_reading()
        return message

    def keepalive_timeout(self) -> None:
        """Close a connection whose client is silent. If it reads nothing either, its buffer would never be empty."""
        super().keepalive_timeout()
        if not self.writable.is_set():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Break reference cycles, so that memory is freed without the garbage collector."""
        super().connection_lost(exc)
        self.heartbeat.close()
        self.conn.parser.close()
        self.conn.parser_exc = None

    async def run_asgi(self) -> None:
        """Give the application access to this protocol."""
        self.scope["state"][PROTOCOL_KEY] = self
        await super().run_asgi()

    def write(self, message: bytes) -> bool:
        """Send an encoded text message. Return False if the client cannot take it now, or has disconnected.

        It bypasses uvicorn and websockets, which would encode the same message again for each client.
        """
        if not self.writable.is_set() or not self._open:
            return False
        self.transport.write(message)
        return True

    async def deliver(self, message: bytes) -> None:
        """Send a message as soon as the client takes it. If the client has disconnected, `receive` reports that."""
        while self._open and not self.write(message):
            await self.writable.wait()

    def _receive_frames(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE_BYTES])

    def _refuse(self, reason: str, code: CloseCode = CloseCode.POLICY_VIOLATION) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        if not self.writable.is_set():
            self.transport.abort()

    @property
    def _open(self) -> bool:
        return self.conn.state is State.OPEN and not self.transport.is_closing()

    def _send_ping(self) -> None:
        if not self._open:
            return
        # A client may answer only the newest ping: while uvicorn waits for a pong, send the same payload.
        self.conn.send_ping(self.pending_ping_payload or PING_PAYLOAD)
        self.transport.write(b"".join(self.conn.data_to_send()))
