"""A client that knows the wire protocol and nothing else of the program: its own fold, its own cursor."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import websockets
from websockets.asyncio.client import ClientConnection, connect


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
        """The thread as it is."""
        return dict((await self.http.get(f"/api/threads/{self.id}", headers=self.headers)).raise_for_status().json())

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
        found = await self.http.get(f"/api/runs/{run_id}/parts?limit=1000", headers=self.headers)
        return list(found.raise_for_status().json()["items"])


class View:
    """What an observer of one thread has come to know; raises where frames don't chain or a part comes twice."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.revision: int | None = None
        self.messages: dict[str, dict[str, Any]] = {}
        self.seqs: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self.finished: set[str] = set()
        self.snapshots = 0
        self.gone: str | None = None

    def text(self, message_id: str) -> str:
        """The text of a message, folded from what has come."""
        return self.texts.get(message_id, "")

    def apply(self, frame: dict[str, Any]) -> None:
        """Take a frame in."""
        match frame["type"]:
            case "snapshot":
                self._snapshot(frame)
            case "delta":
                self._delta(frame)
            case "gone":
                self.gone = frame["code"]
            case "error":
                raise AssertionError(f"the server says {frame}")

    def _snapshot(self, frame: dict[str, Any]) -> None:
        self.snapshots += 1
        self.revision = frame["revision"]
        self.messages, self.texts, self.seqs = {}, {}, {}
        self.finished = set()
        for message in frame["messages"]:
            self._head(message)
            self.seqs[message["id"]] = message["seq"]
            self.texts[message["id"]] = text_of(message)

    def _delta(self, frame: dict[str, Any]) -> None:
        assert frame["from"] == self.revision, f"a delta from {frame['from']} after revision {self.revision}"
        assert frame["revision"] > frame["from"]
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


class Observer:
    """Follows a thread over a WebSocket, and comes back with its cursor whenever the connection is lost."""

    def __init__(self, socket_url: str, thread: Thread) -> None:
        self.view = View(thread.id)
        self.connects = 0
        self._url = socket_url
        self._key = thread.key
        self._changed = asyncio.Event()
        self._socket: ClientConnection | None = None

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator["Observer"]:
        """Follow for as long as this is open."""
        task = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[View], bool], *, within: float = 30.0) -> View:
        """Wait until what was seen satisfies the condition."""
        async with asyncio.timeout(within):
            while not condition(self.view):
                self._changed.clear()
                await self._changed.wait()
        return self.view

    async def drop(self) -> None:
        """Cut the connection; `following` comes back."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def _follow(self) -> None:
        while True:
            try:
                async with connect(
                    self._url, subprotocols=[websockets.Subprotocol("khala.v1")], max_size=None
                ) as socket:
                    self._socket = socket
                    await self._listen(socket)
            except (OSError, websockets.WebSocketException):
                await asyncio.sleep(0.05)

    async def _listen(self, socket: ClientConnection) -> None:
        self.connects += 1
        frame = {"type": "subscribe", "threadId": self.view.thread_id, "anonKey": self._key}
        if self.view.revision is not None:
            frame["after"] = self.view.revision  # type: ignore[assignment]
        await socket.send(json.dumps(frame))
        async for message in socket:
            self.view.apply(json.loads(message))
            self._changed.set()
