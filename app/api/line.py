"""WebSocket connections whose pulse can be felt: when bytes came last, and a ping for whoever wants to know."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from app.live.pulse import Pulse

PULSE = "pulse"
"""Where in the connection's state the application finds its pulse."""
SIGN = b"here"


class Line(WebSocketsSansIOProtocol):
    """Uvicorn's connection, which keeps its own pings and what it does if they aren't answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pulse = Pulse(self._ask)

    def data_received(self, data: bytes) -> None:
        """Something was heard."""
        self._pulse.beat()
        super().data_received(data)

    async def run_asgi(self) -> None:
        """Give the application the pulse."""
        self.scope["state"][PULSE] = self._pulse
        await super().run_asgi()

    def _ask(self) -> None:
        if self.conn.state is not State.OPEN or self.transport.is_closing():
            return
        # A client may answer only the newest ping: while uvicorn waits for an answer, this asks for the same one.
        self.conn.send_ping(self.pending_ping_payload or SIGN)
        self.transport.write(b"".join(self.conn.data_to_send()))
