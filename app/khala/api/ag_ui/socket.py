"""The WebSocket of TanStack AI's `webSocket` connection: answers of one conversation, and runs joined at an event."""

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from typing import Literal

import msgspec
from litestar import websocket
from litestar.di import NamedDependency

from khala.api.ag_ui.event_stream import EventCursor, EventStream, as_line, parse_event_id
from khala.api.ag_ui.submission import AgentSubmission
from khala.api.ag_ui.threads import joined
from khala.api.ag_ui.types import AgentRequest, ClientId
from khala.api.chats.stream_sockets import (
    POLICY_VIOLATION,
    TOO_MANY_STREAMS,
    StreamSocket,
    StreamSocketSession,
    check_handshake,
    serve,
)
from khala.api.context import Context
from khala.domain.access import Caller, Scope
from khala.domain.errors import KhalaError

SUBPROTOCOL = "khala.ag-ui"
TOKEN, ANON_KEY, SHARE_KEY = "khala.token.", "khala.anon-key.", "khala.share-key."
"""Prefixes of subprotocols that are credentials: browsers send no headers of a page with a handshake."""
FROM_START = "-1"
JOINED_RUN = ""
"""The name of the stream that the query of the handshake asks for. No run has it."""
MAX_REASON_BYTES = 123
"""Of a close frame."""


class AbortFrame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The client has stopped reading the answer of this run."""

    type: Literal["abort"]
    run_id: ClientId


class FrameType(msgspec.Struct, frozen=True):
    """The type of a frame. A request to run an agent has none."""

    type: str | None = None


type_decoder = msgspec.json.Decoder(FrameType)
abort_decoder = msgspec.json.Decoder(AbortFrame)
request_decoder = msgspec.json.Decoder(AgentRequest)


@websocket("/ag-ui/socket")
async def agent_socket(socket: StreamSocket, context: NamedDependency[Context]) -> None:
    """Answer the client's requests, or send the rest of a run (`runId`, `offset`) and close the socket."""
    await check_handshake(socket, context)
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in _offered(socket) else None)
    await serve(socket, partial(_open, socket, context))


def _open(socket: StreamSocket, context: Context, group: asyncio.TaskGroup) -> "AgentSocketSession":
    session = AgentSocketSession(socket, context, group)
    if "offset" in socket.query_params:
        session.begin(JOINED_RUN, session.send_joined_run())
    return session


class AgentSocketSession(StreamSocketSession[AgentRequest | AbortFrame]):
    """One connection, and its streams by the client's ids of runs."""

    def decode(self, frame: str | bytes) -> AgentRequest | AbortFrame:
        """Return the request in a frame."""
        is_abort = type_decoder.decode(frame).type == "abort"
        return abort_decoder.decode(frame) if is_abort else request_decoder.decode(frame)

    async def handle(self, request: AgentRequest | AbortFrame) -> None:
        """Begin the stream of a run, or end it."""
        self.end(request.run_id)
        if isinstance(request, AbortFrame):
            return
        if self.is_full:
            await self._send_error(TOO_MANY_STREAMS, "rate_limited")
            return
        self.begin(request.run_id, self._answer(request))

    async def refuse(self, frame: str | bytes, problem: Exception) -> None:
        """Answer a frame that is no request."""
        if isinstance(problem, KhalaError):
            await self._send_error(problem.message, problem.code)
        else:
            await self._send_error(f"This is not a frame of this protocol: {problem}.", "invalid_input")

    async def send_joined_run(self) -> None:
        """Send the events of the run that the query names, after its `offset`, and close the socket."""
        query = self.socket.query_params
        code, reason = 1000, ""
        try:
            last = None if query["offset"] == FROM_START else parse_event_id(query["offset"])
            caller = await self._caller("read")
            agent_run = await joined(self.context, caller, query.get("runId", ""))
            cursor = None if last is None else EventCursor(last=last)
            await self._send_events(EventStream(self.context, caller, agent_run, cursor=cursor))
        except KhalaError as error:
            code, reason = POLICY_VIOLATION, error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        with suppress(OSError):  # The client has disconnected meanwhile.
            await self.socket.close(code=code, reason=reason)

    async def _answer(self, request: AgentRequest) -> None:
        try:
            self.context.limits.requests.check(self.socket, self.context.origins)
            caller = await self._caller("write")
            submission = AgentSubmission(self.context, caller, request, self._credential(ANON_KEY, "x-anon-key"))
            await self._send_events(EventStream(self.context, caller, await submission.accept()))
        except KhalaError as error:
            await self._send_error(error.message, error.code)

    async def _caller(self, scope: Scope) -> Caller:
        """Return the caller now: by the subprotocols of the handshake, else by its headers or cookie."""
        anon_key, share_key = self._credential(ANON_KEY, "x-anon-key"), self._credential(SHARE_KEY, "x-share-key")
        return await self.authenticate(self._credential(TOKEN, None), scope, anon_key=anon_key, share_key=share_key)

    def _credential(self, prefix: str, header: str | None) -> str | None:
        offered = (name.removeprefix(prefix) for name in _offered(self.socket) if name.startswith(prefix))
        return next(offered, None if header is None else self.socket.headers.get(header))

    async def _send_events(self, stream: EventStream) -> None:
        async with aclosing(stream.batches()) as batches:
            async for batch in batches:
                for event in () if batch is None else batch.events:
                    await self.deliver(as_line(event).rstrip("\n").encode())

    async def _send_error(self, message: str, code: str) -> None:
        await self.deliver(msgspec.json.encode({"type": "RUN_ERROR", "message": message, "code": code}))


def _offered(socket: StreamSocket) -> list[str]:
    return [str(name) for name in socket.scope.get("subprotocols", ())]
