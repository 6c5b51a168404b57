"""The bare broadcast: uvicorn's `websockets-sansio`, and `await send` to one socket after the other, and nothing else.

A POST's body is a frame, which all sockets are sent; the answer comes when that is done.
"""

import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn


class Broadcast:
    """Sockets, and how many frames they were sent."""

    def __init__(self) -> None:
        self._sends: set[Callable[[dict[str, Any]], Awaitable[None]]] = set()
        self._sent = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] == "websocket":
            await self._hold(receive, send)
        else:
            await self._send((await receive())["body"].decode())
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def _send(self, text: str) -> None:
        self._sent += 1
        for send in list(self._sends):
            await send({"type": "websocket.send", "text": text})

    async def _hold(self, receive: Any, send: Any) -> None:
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
    """Serve on this port."""
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
