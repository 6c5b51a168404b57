"""Reads the feed frame by frame, over a WebSocket or as server-sent events."""

import asyncio
import contextlib
import json
import socket as sockets
from collections.abc import AsyncIterator
from typing import Any

import httpx
from websockets import Subprotocol
from websockets.asyncio.client import ClientConnection, connect

from tests.support.client import Thread, narrow_socket
from tests.support.in_process import InProcessServer
from tests.support.server import Server

NARROW_BYTES = 8192
"""Bytes that the kernel accepts from the server while nothing is read."""
FRAME_TIMEOUT_SECONDS = 10.0
"""For an expected frame to come."""


class Socket:
    """A WebSocket connection to the feed."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, frame: Any) -> None:
        """Send a frame, or any text or bytes as they are."""
        await self.connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    async def text(self) -> str:
        """The next frame as it came."""
        async with asyncio.timeout(FRAME_TIMEOUT_SECONDS):
            return str(await self.connection.recv())

    async def next(self) -> dict[str, Any]:
        """The next frame."""
        return dict(json.loads(await self.text()))

    async def until(self, kind: str) -> dict[str, Any]:
        """The next frame of this type; earlier frames are discarded."""
        while True:
            frame = await self.next()
            if frame["type"] == kind:
                return frame

    async def subscribe(self, thread: Thread, **more: Any) -> dict[str, Any]:
        """Follow a thread; returns the first frame."""
        await self.send({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key} | more)
        return await self.next()

    async def expect_nothing(self) -> None:
        """Check that no frame is pending: the answer to a ping is the next frame."""
        await self.send({"type": "ping"})
        assert await self.next() == {"type": "pong"}

    async def closed(self) -> tuple[int | None, str | None]:
        """Wait until the server has closed; returns its code and reason."""
        async with asyncio.timeout(FRAME_TIMEOUT_SECONDS):
            await self.connection.wait_closed()
        return self.connection.close_code, self.connection.close_reason


@contextlib.asynccontextmanager
async def socket(server: InProcessServer | Server, *, greeted: bool = True, **options: Any) -> AsyncIterator[Socket]:
    """Connect for as long as this is open; with `greeted`, the `hello` frame is already read."""
    options = {"subprotocols": [Subprotocol("khala.v1")], "max_size": None} | options
    async with connect(server.socket_url, **options) as connection:
        opened = Socket(connection)
        if greeted:
            assert (await opened.next())["type"] == "hello"
        yield opened


class Events:
    """A stream of server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.ended = False
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The fields of the next event or comment, a comment's by the empty name; empty when the stream has ended."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(FRAME_TIMEOUT_SECONDS):
            async for line in self._lines:
                if not line:
                    return fields
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
        self.ended = True
        return fields

    async def frame(self) -> dict[str, Any]:
        """The frame of the next event."""
        return dict(json.loads((await self.next())["data"]))


@contextlib.asynccontextmanager
async def events(thread: Thread, *, query: str = "", **headers: str) -> AsyncIterator[Events]:
    """Follow a thread as events for as long as this is open."""
    path = f"/api/threads/{thread.id}/events{query}"
    async with thread.http.stream("GET", path, headers=thread.headers | headers) as response:
        yield Events(response)


class UnreadEvents:
    """A stream of server-sent events of which nothing is read, until all of it is."""

    def __init__(self, connection: sockets.socket) -> None:
        self._connection = connection

    async def frames(self, revision: int) -> list[dict[str, Any]]:
        """Read all frames up to this revision."""
        self._connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1 << 20)
        found: list[dict[str, Any]] = []
        rest = b""
        async with asyncio.timeout(FRAME_TIMEOUT_SECONDS):
            while not found or found[-1]["revision"] < revision:
                received = await asyncio.get_running_loop().sock_recv(self._connection, 1 << 20)
                assert received, "the server has closed the connection"
                *lines, rest = (rest + received).split(b"\n")
                found += [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
        return found


@contextlib.asynccontextmanager
async def unread_events(server: InProcessServer, thread: Thread) -> AsyncIterator[UnreadEvents]:
    """Follow a thread as events for as long as this is open, and read only the first bytes of the response."""
    head = f"GET /api/threads/{thread.id}/events HTTP/1.1\r\nHost: localhost\r\nX-Anon-Key: {thread.key}\r\n\r\n"
    loop = asyncio.get_running_loop()
    with await narrow_socket(server.url, NARROW_BYTES) as connection:
        await loop.sock_sendall(connection, head.encode())
        assert await loop.sock_recv(connection, 12) == b"HTTP/1.1 200"
        yield UnreadEvents(connection)
