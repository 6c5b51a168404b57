"""A client that depends on the wire protocol only: it has its own fold and its own cursor."""

import asyncio
import contextlib
import json
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import websockets
from websockets.asyncio.client import ClientConnection, connect

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate. Without it, each client would load the certificates of the machine, which takes 30 ms."""


def client(url: str = "", **options: Any) -> httpx.AsyncClient:
    """An HTTP client for servers on this machine without TLS."""
    return httpx.AsyncClient(base_url=url, timeout=30, verify=NO_TLS, **options)


class Thread:
    """One anonymous thread over REST."""

    def __init__(self, http: httpx.AsyncClient, thread_id: str, key: str) -> None:
        self.http = http
        self.id = thread_id
        self.key = key
        self.headers = {"X-Anon-Key": key}

    @classmethod
    async def create(cls, http: httpx.AsyncClient) -> "Thread":
        """A new thread."""
        made = (await http.post("/api/threads", json={})).raise_for_status().json()
        return cls(http, made["thread"]["id"], made["anonKey"])

    async def send(self, text: str, **more: Any) -> dict[str, Any]:
        """Send a message; returns the ids."""
        body = {"text": text, "messageId": str(uuid.uuid4())} | more
        return dict((await self.post("send", body)).raise_for_status().json())

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        """POST to a path beneath the thread."""
        return await self.http.post(f"/api/threads/{self.id}/{path}", json=body or {}, headers=self.headers)

    async def snapshot(self) -> dict[str, Any]:
        """The current snapshot of the thread."""
        return dict((await self._read(f"/api/threads/{self.id}")).raise_for_status().json())

    async def run(self, run_id: str) -> dict[str, Any]:
        """A run of this thread."""
        return dict((await self.http.get(f"/api/runs/{run_id}", headers=self.headers)).raise_for_status().json())

    async def ended(self, run_id: str, *, within: float = 30.0) -> dict[str, Any]:
        """Wait until the run has ended."""
        async with asyncio.timeout(within):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    run = await self.run(run_id)
                    if run["status"] in {"final", "error", "canceled"}:
                        return run
                await asyncio.sleep(0.05)

    async def parts(self, run_id: str) -> list[dict[str, Any]]:
        """All parts of a run."""
        parts: list[dict[str, Any]] = []
        while True:
            after = f"after={parts[-1]['seq']}&" if parts else ""
            found = await self._read(f"/api/runs/{run_id}/parts?{after}limit=1000")
            page = found.raise_for_status().json()["items"]
            parts += page
            if len(page) < 1000:
                return parts

    async def _read(self, path: str) -> httpx.Response:
        """GET a path, and once again if the server asks for it, as clients do.

        Postgres ends transactions that are idle for 5 s. On a busy machine, the process of the tests can stand still
        for that long.
        """
        found = await self.http.get(path, headers=self.headers)
        if found.status_code == httpx.codes.SERVICE_UNAVAILABLE and "retry-after" in found.headers:
            await asyncio.sleep(float(found.headers["retry-after"]))
            found = await self.http.get(path, headers=self.headers)
        return found


class View:
    """The state of a thread as one observer knows it.

    Raises `AssertionError` if frames do not chain, a part comes twice, or known text disappears.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.revision: int | None = None
        self.messages: dict[str, dict[str, Any]] = {}
        self.seqs: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self.finished: set[str] = set()
        self.snapshots = 0
        self.max_delta_revisions = 0
        """The largest number of revisions of one delta."""
        self.gone: str | None = None

    def text(self, message_id: str) -> str:
        """The text of a message, folded from the received frames."""
        return self.texts.get(message_id, "")

    def apply(self, frame: dict[str, Any]) -> None:
        """Apply a frame."""
        match frame["type"]:
            case "snapshot":
                self._snapshot(frame)
            case "delta":
                self._delta(frame)
            case "gone":
                self.gone = frame["code"]
            case "error":
                raise AssertionError(f"the server sent {frame}")

    def _snapshot(self, frame: dict[str, Any]) -> None:
        self.snapshots += 1
        self.revision = frame["revision"]
        seen = {} if frame.get("reset") else self.texts
        self.messages, self.texts, self.seqs = {}, {}, {}
        self.finished = set()
        for message in frame["messages"]:
            self._head(message)
            self.seqs[message["id"]] = message["seq"]
            self.texts[message["id"]] = text_of(message)
            assert self.text(message["id"]).startswith(seen.get(message["id"], "")), "known text is lost"

    def _delta(self, frame: dict[str, Any]) -> None:
        assert frame["from"] == self.revision, f"a delta from {frame['from']} after revision {self.revision}"
        assert frame["revision"] > frame["from"]
        self.max_delta_revisions = max(self.max_delta_revisions, frame["revision"] - frame["from"])
        self.revision = frame["revision"]
        for message in frame["messages"]:
            self._head(message)
            if "content" in message:
                self.texts[message["id"]] = text_of(message)
        for part in frame["parts"]:
            self._part(part)

    def _head(self, message: dict[str, Any]) -> None:
        self.messages[message["id"]] = message
        if message["status"] in {"final", "error", "canceled"}:
            self.finished.add(message["id"])

    def _part(self, part: dict[str, Any]) -> None:
        message_id = part["messageId"]
        assert part["seq"] == self.seqs.get(message_id, 0), (
            f"part {part['seq']}, expected {self.seqs.get(message_id, 0)}"
        )
        self.seqs[message_id] = part["seq"] + 1
        if part["kind"] == "text-delta":
            self.texts[message_id] = self.text(message_id) + part["data"]["text"]
        if part["kind"] == "finish":
            self.finished.add(message_id)


def text_of(message: dict[str, Any]) -> str:
    """All text of a message's content."""
    return "".join(block["text"] for block in message.get("content", []) if block["type"] == "text")


async def narrow_socket(url: str, receive_buffer: int) -> socket.socket:
    """A connection to the server at this URL: the kernel accepts about so many bytes while nothing is read from it."""
    target = urlsplit(url)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    # The packet size of a real network: with larger packets, as on loopback, Linux buffers megabytes in the sender.
    narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, (target.hostname, target.port))
    return narrow


class Observer:
    """Follows a thread over a WebSocket, and reconnects with its cursor whenever the connection is lost.

    `receive_buffer` bounds the bytes that the kernel accepts while this observer does not read.
    """

    def __init__(self, socket_url: str, thread: Thread, *, receive_buffer: int | None = None) -> None:
        self.view = View(thread.id)
        self.connects = 0
        self.arrivals: list[float] = []
        """The time of each frame by the monotonic clock."""
        self._url = socket_url
        self._key = thread.key
        self._receive_buffer = receive_buffer
        self._changed = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._socket: ClientConnection | None = None
        self._following: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator["Observer"]:
        """Follow for as long as this is open."""
        task = self._following = asyncio.create_task(self._follow())
        task.add_done_callback(lambda _: self._changed.set())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[View], bool], *, within: float = 30.0) -> View:
        """Wait until the view satisfies the condition. Raises the error of the view if it has one."""
        async with asyncio.timeout(within):
            while not condition(self.view):
                self._changed.clear()
                if self._following is not None and self._following.done():
                    self._following.result()
                await self._changed.wait()
        return self.view

    async def drop(self) -> None:
        """Abort the connection; `following` reconnects."""
        if self._socket is not None:
            self._socket.transport.abort()

    def pause(self) -> None:
        """Read nothing more from the socket until `resume`."""
        self._reading.clear()

    def resume(self) -> None:
        """Continue to read."""
        self._reading.set()

    async def _follow(self) -> None:
        while True:
            try:
                async with await self._connect() as connection:
                    self._socket = connection
                    await self._listen(connection)
            except (OSError, websockets.WebSocketException):
                await asyncio.sleep(0.05)

    async def _connect(self) -> ClientConnection:
        protocols = [websockets.Subprotocol("khala.v1")]
        if self._receive_buffer is None:
            return await connect(self._url, subprotocols=protocols, max_size=None)
        narrow = await narrow_socket(self._url, self._receive_buffer)
        # Without pings, because a paused client would miss the answers and close the connection.
        return await connect(
            self._url, subprotocols=protocols, max_size=None, sock=narrow, ping_interval=None, max_queue=1
        )

    async def _listen(self, connection: ClientConnection) -> None:
        self.connects += 1
        frame = {"type": "subscribe", "threadId": self.view.thread_id, "anonKey": self._key}
        if self.view.revision is not None:
            frame["after"] = self.view.revision  # type: ignore[assignment]
        await connection.send(json.dumps(frame))
        async for message in connection:
            await self._reading.wait()
            self.arrivals.append(time.monotonic())
            self.view.apply(json.loads(message))
            self._changed.set()
