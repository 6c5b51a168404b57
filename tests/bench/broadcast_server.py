"""Bare broadcast server: uvicorn with `websockets-sansio`, which awaits `send` for one socket after the other.

The body of a POST is a frame that goes to all sockets; the response is sent after that. Baseline of `fanout`.
"""

import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn


class Broadcast:
    """The ASGI application: its open sockets, and the number of frames that it has broadcast."""

    def __init__(self) -> None:
        self._sends: set[Callable[[dict[str, Any]], Awaitable[None]]] = set()
        self._sent = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a WebSocket, or broadcast the body of a request."""
        if scope["type"] == "websocket":
            await self._serve_socket(receive, send)
        else:
            await self._broadcast((await receive())["body"].decode())
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def _broadcast(self, text: str) -> None:
        self._sent += 1
        for send in list(self._sends):
            await send({"type": "websocket.send", "text": text})

    async def _serve_socket(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        await send({"type": "websocket.send", "text": f'{{"type":"snapshot","revision":{self._sent}}}'})
        self._sends.add(send)
        try:
            while (await receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self._sends.discard(send)


def main() -> None:
    """Serve on the port that the first argument names."""
    with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=2048) as bound:
        config = uvicorn.Config(
            Broadcast(),
            loop="uvloop",
            http="httptools",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            lifespan="off",
            access_log=False,
            log_level="warning",
        )
        uvicorn.Server(config).run([bound])


if __name__ == "__main__":
    main()
