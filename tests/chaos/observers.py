"""Observers that follow a thread through all faults, and record violations of the protocol."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect

from tests.support.client import View

TERMINAL = frozenset({"final", "error", "canceled"})
IDLE_TIMEOUT_SECONDS = 8.0
"""Time without a frame after which the observer sends a ping; after as much again it drops the connection."""
RETRIED_CODES = ("unavailable", "rate_limited")
"""Error codes after which the observer connects again."""


class Credentials:
    """The credentials of a user: the anonymous key of the thread until it is claimed, then a token."""

    def __init__(self, anon_key: str) -> None:
        self.anon_key = anon_key
        self.token = ""
        self.claiming = False
        """Whether a claim was requested; the key may be invalid from then on."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of requests."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {"X-Anon-Key": self.anon_key}


class ObserverView(View):
    """The view of one observer. It also raises if an ended message changes, or if a tool call comes twice."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.ended: dict[str, str] = {}
        self.tool_states: dict[str, dict[str, str]] = {}
        """The states of tool calls, by message and call."""
        self.plans: dict[str, dict[str, Any]] = {}
        self.event_seqs: dict[str, int] = {}
        """The number of the last event of each plan."""
        self.unlisted: set[str] = set()
        """Active answers that the last snapshot left out, because it has only the newest messages."""
        self._has_older = False

    def _snapshot(self, frame: dict[str, Any]) -> None:
        if frame.get("reset"):
            self.ended = {}
        self.tool_states = {}
        self.unlisted, self._has_older = set(), frame.get("hasMore", False)
        super()._snapshot(frame)
        self.plans = {plan["id"]: plan for plan in frame.get("plans", ())}
        self.event_seqs = {plan["id"]: plan["eventSeq"] for plan in frame.get("plans", ())}
        for message in frame["messages"]:
            self.tool_states[message["id"]] = tool_states_of(message)

    def apply(self, frame: dict[str, Any]) -> None:
        """Apply a frame. The events of plans have to come without gaps."""
        super().apply(frame)
        if frame["type"] != "delta":
            return
        self.plans |= {plan["id"]: plan for plan in frame.get("plans", ())}
        for event in frame.get("planEvents", ()) or ():
            last = self.event_seqs.get(event["planId"], 0)
            assert event["seq"] == last + 1, f"event {event['seq']} of plan {event['planId']} came after {last}"
            self.event_seqs[event["planId"]] = event["seq"]

    def _head(self, message: dict[str, Any]) -> None:
        super()._head(message)
        status = message["status"]
        if status == "streaming":
            self.seqs.setdefault(message["id"], 0)
        before = self.ended.get(message["id"])
        assert before in (None, status), f"message {message['id']} was {before} and is {status}"
        if status in TERMINAL and message["role"] == "assistant":
            self.ended[message["id"]] = status

    def _part(self, part: dict[str, Any]) -> None:
        if self._has_older and part["messageId"] not in self.seqs and part["seq"]:
            self.unlisted.add(part["messageId"])
        if part["messageId"] in self.unlisted:
            return
        assert part["messageId"] not in self.ended or self.messages[part["messageId"]]["seq"] > part["seq"], (
            f"part {part['seq']} of message {part['messageId']}, which has ended"
        )
        super()._part(part)
        states = self.tool_states.setdefault(part["messageId"], {})
        match part["kind"], part["data"]:
            case "tool-call", data:
                assert data["toolCallId"] not in states, f"call {data['toolCallId']} came twice"
                states[data["toolCallId"]] = "queued"
            case "tool-status", data:
                states[data["toolCallId"]] = data["state"]
            case "tool-result", data:
                states[data["toolCallId"]] = "completed" if data["ok"] else "failed"
            case _:
                pass


def tool_states_of(message: dict[str, Any]) -> dict[str, str]:
    """The states of a message's tool calls."""
    blocks = [block for block in message.get("content", []) if block["type"] == "tool"]
    assert len({block["toolCallId"] for block in blocks}) == len(blocks), f"duplicate tool calls in {message['id']}"
    return {block["toolCallId"]: block["state"] for block in blocks}


class ThreadObserver:
    """Follows one thread through one server until cancelled; `problems` has what it must not see."""

    def __init__(self, name: str, port: int, thread_id: str, credentials: Credentials) -> None:
        self.name = name
        self.view = ObserverView(thread_id)
        self.problems: list[str] = []
        self.connects = 0
        self._url = f"ws://127.0.0.1:{port}/api/ws"
        self._credentials = credentials
        self._socket: ClientConnection | None = None

    def drop(self) -> None:
        """Abort the connection."""
        if self._socket is not None:
            self._socket.transport.abort()

    @asynccontextmanager
    async def following(self) -> AsyncIterator["ThreadObserver"]:
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
                    self._url,
                    subprotocols=protocols,
                    max_size=None,
                    open_timeout=IDLE_TIMEOUT_SECONDS,
                    close_timeout=1,
                    proxy=None,
                ) as socket:
                    self._socket = socket
                    self.connects += 1
                    await self._listen(socket)
            await asyncio.sleep(0.2)

    async def _listen(self, socket: ClientConnection) -> None:
        if self._credentials.token:
            await socket.send(json.dumps({"type": "authenticate", "token": self._credentials.token}))
        frame: dict[str, Any] = {"type": "subscribe", "threadId": self.view.thread_id}
        if not self._credentials.token:
            frame["anonKey"] = self._credentials.anon_key
        if self.view.revision is not None:
            frame["after"] = self.view.revision
        await socket.send(json.dumps(frame))
        while True:
            if not self._apply(json.loads(await self._receive(socket))):
                return

    async def _receive(self, socket: ClientConnection) -> str | bytes:
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
                return await socket.recv()
        except TimeoutError:
            await socket.send('{"type":"ping"}')
            async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
                return await socket.recv()

    def _apply(self, frame: dict[str, Any]) -> bool:
        """Apply a frame; returns whether to keep the connection."""
        if frame["type"] == "error":
            if frame["code"] not in RETRIED_CODES and not self._is_caused_by_claim(frame["code"]):
                self.problems.append(f"the server sent {frame}")
            return False
        if frame["type"] == "gone":
            if not self._is_caused_by_claim(frame["code"]):
                self.problems.append(f"the thread is gone: {frame}")
            return False
        try:
            self.view.apply(frame)
        except AssertionError as error:
            self.problems.append(f"{error}")
            # Start again from a snapshot, to find later problems too.
            self.view = ObserverView(self.view.thread_id)
            return False
        return True

    def _is_caused_by_claim(self, code: str) -> bool:
        """Whether a claim explains this error: the key is invalid, and the token is not yet known."""
        return code in ("forbidden", "unauthorized") and self._credentials.claiming
