"""Observers that follow a thread through all faults, and write down whatever they should never see."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect

from tests.support.client import View

TERMINAL = frozenset({"final", "error", "canceled"})
PATIENCE = 8.0
"""Seconds without a frame after which a connection is asked whether it lives; after as many more it is given up."""
LATER = ("unavailable", "rate_limited")
"""Codes of errors after which the same is tried again."""


class Keys:
    """How a thread is opened: by its key until it is claimed, by a token after that."""

    def __init__(self, anon_key: str) -> None:
        self.anon_key = anon_key
        self.token = ""
        self.claiming = False
        """Whether a claim was asked for: from then on the key may open nothing any more."""

    @property
    def headers(self) -> dict[str, str]:
        """What requests bear."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {"X-Anon-Key": self.anon_key}


class Seen(View):
    """What one observer knows; raises also where a message that has ended is anything else later, or a card doubles."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.ended: dict[str, str] = {}
        self.cards: dict[str, dict[str, str]] = {}
        """By message, the states of its tool calls."""

    def _snapshot(self, frame: dict[str, Any]) -> None:
        if frame.get("reset"):
            self.ended = {}
        self.cards = {}
        super()._snapshot(frame)
        for message in frame["messages"]:
            self.cards[message["id"]] = cards_of(message)

    def _head(self, message: dict[str, Any]) -> None:
        super()._head(message)
        status = message["status"]
        before = self.ended.get(message["id"])
        assert before in (None, status), f"message {message['id']} was {before} and is {status}"
        if status in TERMINAL and message["role"] == "assistant":
            self.ended[message["id"]] = status

    def _part(self, part: dict[str, Any]) -> None:
        assert part["messageId"] not in self.ended or self.messages[part["messageId"]]["seq"] > part["seq"], (
            f"part {part['seq']} of message {part['messageId']}, which has ended"
        )
        super()._part(part)
        cards = self.cards.setdefault(part["messageId"], {})
        match part["kind"], part["data"]:
            case "tool-call", data:
                assert data["toolCallId"] not in cards, f"call {data['toolCallId']} is told twice"
                cards[data["toolCallId"]] = "queued"
            case "tool-status", data:
                cards[data["toolCallId"]] = data["state"]
            case "tool-result", data:
                cards[data["toolCallId"]] = "completed" if data["ok"] else "failed"
            case _:
                pass


def cards_of(message: dict[str, Any]) -> dict[str, str]:
    """The states of a message's tool calls."""
    blocks = [block for block in message.get("content", []) if block["type"] == "tool"]
    assert len({block["toolCallId"] for block in blocks}) == len(blocks), f"doubled cards in {message['id']}"
    return {block["toolCallId"]: block["state"] for block in blocks}


class Watcher:
    """Follows one thread by one server, for ever; `wrong` is what it should not have seen."""

    def __init__(self, name: str, port: int, thread_id: str, keys: Keys) -> None:
        self.name = name
        self.seen = Seen(thread_id)
        self.wrong: list[str] = []
        self.connects = 0
        self._url = f"ws://127.0.0.1:{port}/api/ws"
        self._keys = keys
        self._socket: ClientConnection | None = None

    def drop(self) -> None:
        """Lose the connection."""
        if self._socket is not None:
            self._socket.transport.abort()

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Watcher"]:
        """Follow for as long as this is open."""
        task = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        while True:
            with suppress(OSError, websockets.WebSocketException, TimeoutError):
                protocols = [websockets.Subprotocol("khala.v1")]
                async with connect(
                    self._url, subprotocols=protocols, max_size=None, open_timeout=PATIENCE, close_timeout=1, proxy=None
                ) as socket:
                    self._socket = socket
                    self.connects += 1
                    await self._listen(socket)
            await asyncio.sleep(0.2)

    async def _listen(self, socket: ClientConnection) -> None:
        if self._keys.token:
            await socket.send(json.dumps({"type": "authenticate", "token": self._keys.token}))
        frame: dict[str, Any] = {"type": "subscribe", "threadId": self.seen.thread_id}
        if not self._keys.token:
            frame["anonKey"] = self._keys.anon_key
        if self.seen.revision is not None:
            frame["after"] = self.seen.revision
        await socket.send(json.dumps(frame))
        while True:
            if not self._take(json.loads(await self._heard(socket))):
                return

    async def _heard(self, socket: ClientConnection) -> str | bytes:
        try:
            async with asyncio.timeout(PATIENCE):
                return await socket.recv()
        except TimeoutError:
            await socket.send('{"type":"ping"}')
            async with asyncio.timeout(PATIENCE):
                return await socket.recv()

    def _take(self, frame: dict[str, Any]) -> bool:
        """Take a frame in; whether this connection is still of use."""
        if frame["type"] == "error":
            if frame["code"] not in LATER and not self._claiming(frame["code"]):
                self.wrong.append(f"the server says {frame}")
            return False
        if frame["type"] == "gone":
            if not self._claiming(frame["code"]):
                self.wrong.append(f"the thread is gone: {frame}")
            return False
        try:
            self.seen.apply(frame)
        except AssertionError as error:
            self.wrong.append(f"{error}")
            # From here on anew, so that what follows can still be told.
            self.seen = Seen(self.seen.thread_id)
            return False
        return True

    def _claiming(self, code: str) -> bool:
        """Whether that is what a claim brings about: the key opens nothing any more, the token does soon."""
        return code in ("forbidden", "unauthorized") and self._keys.claiming
