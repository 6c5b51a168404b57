"""WebSocket connections with encoded messages, and a heartbeat that knows when bytes arrived last."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from khala.live.heartbeat import Heartbeat

PROTOCOL_KEY = "websocket_protocol"
"""The key of the connection's state under which the application finds the protocol."""
PING_PAYLOAD = b"here"
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's connection. Uvicorn's own pings remain, and it closes a connection that does not answer them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heartbeat = Heartbeat(self._send_ping)

    def data_received(self, data: bytes) -> None:
        """Record a sign of life. Answer headers that are not a handshake with 400, and close the connection."""
        self.heartbeat.record()
        super().data_received(data)
        if not self.handshake_initiated:
            # The complete headers arrive at once, so no handshake can follow. Uvicorn would wait for it.
            self.transport.write(b"".join(self.conn.data_to_send()) or BAD_REQUEST)
            self.transport.close()

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

    @property
    def _open(self) -> bool:
        return self.conn.state is State.OPEN and not self.transport.is_closing()

    def _send_ping(self) -> None:
        if not self._open:
            return
        # A client may answer only the newest ping: while uvicorn waits for a pong, send the same payload.
        self.conn.send_ping(self.pending_ping_payload or PING_PAYLOAD)
        self.transport.write(b"".join(self.conn.data_to_send()))
