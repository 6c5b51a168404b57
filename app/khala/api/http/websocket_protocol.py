"""WebSocket connections that take whole messages at once, and whose pulse can be felt: when bytes came last."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from khala.live.heartbeat import Heartbeat

PROTOCOL_KEY = "line"
"""Where in the connection's state the application finds its line."""
SIGN = b"here"
NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's connection, which keeps its own pings and what it does if they aren't answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heartbeat = Heartbeat(self._ask)

    def data_received(self, data: bytes) -> None:
        """Something was heard. A head that is no handshake is answered and the connection closed."""
        self.heartbeat.record()
        super().data_received(data)
        if not self.handshake_initiated:
            # The head comes here at once and whole, so nothing makes a handshake of it any more; uvicorn would wait.
            self.transport.write(b"".join(self.conn.data_to_send()) or NO_HANDSHAKE)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing here keeps itself any more, so all of it goes with the socket and does not wait for the collector."""
        super().connection_lost(exc)
        self.heartbeat.close()
        self.conn.parser.close()
        self.conn.parser_exc = None

    async def run_asgi(self) -> None:
        """Give the application the line."""
        self.scope["state"][PROTOCOL_KEY] = self
        await super().run_asgi()

    def write(self, message: bytes) -> bool:
        """Send a whole text message, as `Body` makes it; False if the client takes none now, or is gone.

        Past uvicorn and websockets, which would make the same bytes again for each client.
        """
        if not self.writable.is_set() or not self._open:
            return False
        self.transport.write(message)
        return True

    async def deliver(self, message: bytes) -> None:
        """Send it as soon as the client takes it. Who is gone is sent nothing; `receive` will say so."""
        while self._open and not self.write(message):
            await self.writable.wait()

    @property
    def _open(self) -> bool:
        return self.conn.state is State.OPEN and not self.transport.is_closing()

    def _ask(self) -> None:
        if not self._open:
            return
        # A client may answer only the newest ping: while uvicorn waits for an answer, this asks for the same one.
        self.conn.send_ping(self.pending_ping_payload or SIGN)
        self.transport.write(b"".join(self.conn.data_to_send()))
