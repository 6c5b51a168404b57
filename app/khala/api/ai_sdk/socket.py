"""The WebSocket of the AI SDK's `WebSocketChatTransport`: streams of several chats over one connection."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
import structlog
from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from khala.api.accounts.authentication import authenticate_message_token, authenticate_socket, with_keys
from khala.api.accounts.service_tokens import USER_HEADER
from khala.api.ai_sdk.chunk_stream import ChunkStream, EncodedChunks
from khala.api.ai_sdk.submission import ChatRun, ChatSubmission, resumed
from khala.api.ai_sdk.types import MAX_MESSAGES, ChatId, ChatRequest, ChatRequestMessage, MessageId
from khala.api.chats.chat_ids import thread_id_of
from khala.api.chats.chat_runs import find_active_run
from khala.api.context import Context
from khala.api.http.request_origin import client_network, may_open_socket
from khala.api.http.websocket_protocol import PROTOCOL_KEY, WebSocketProtocol
from khala.domain.access import Action, Caller, Scope, require_scope
from khala.domain.errors import Forbidden, InvalidInput, KhalaError, RateLimited, ReachedLimit
from khala.domain.json_bodies import check_containers
from khala.domain.token_bucket import TokenBucket
from khala.live.encoded_frame import EncodedFrame

log = structlog.get_logger()

MAX_STREAMS = 20
"""Streams of one connection at the same time."""
MAX_BAD_FRAMES = 10
"""After so many frames that are no request of the transport, or over the rate limit, the connection is closed."""
FRAME_RATE = (100, 10.0)
"""Frames in a burst, and per second."""
FRAME_LIMIT = ReachedLimit("frames_per_second", "connection", int(FRAME_RATE[1]))

Socket = WebSocket[Any, Any, Any]


class SocketRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A frame of the client. `headers` are those of the transport, because browsers send none with a handshake."""

    type: Literal["send", "resume", "abort"]
    request_id: MessageId
    id: ChatId = "none"
    messages: Annotated[list[ChatRequestMessage], msgspec.Meta(max_length=MAX_MESSAGES)] = []
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: MessageId | None = None
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}


class FrameId(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The id of the request in a frame, whatever else is in it."""

    request_id: MessageId


decoder = msgspec.json.Decoder(SocketRequest)
id_decoder = msgspec.json.Decoder(FrameId)


@websocket("/chat-socket")
async def chat_socket(socket: Socket, context: NamedDependency[Context]) -> None:
    """Answer the client's requests, until either side closes the socket."""
    if not may_open_socket(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    context.limits.requests.check(socket, context.origins)
    await authenticate_socket(socket, context)
    await socket.accept()
    async with asyncio.TaskGroup() as group:
        session = ChatSocketSession(socket, context, group)
        is_closed = await session.listen()
        session.cancel()
    if not is_closed:
        await socket.close(code=1008, reason="Too many bad frames.")


class ChatSocketSession:
    """One connection, and its streams by the client's id of the request."""

    def __init__(self, socket: Socket, context: Context, group: asyncio.TaskGroup) -> None:
        self._socket = socket
        self._context = context
        self._group = group
        self._protocol: WebSocketProtocol = socket.scope["state"][PROTOCOL_KEY]
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._frames = TokenBucket(*FRAME_RATE)

    async def listen(self) -> bool:
        """Handle frames until the client disconnects. Return False if it has sent too many bad ones."""
        bad_frames = 0
        while bad_frames < MAX_BAD_FRAMES:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return True
            frame = message.get("text") or message.get("bytes") or b""
            try:
                request = self._decode(frame)
            except (KhalaError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                bad_frames += 1
                await self._refuse(frame, error)
            else:
                await self._handle(request)
        return False

    def _decode(self, frame: str | bytes) -> SocketRequest:
        if not self._frames.take(time.monotonic()):
            raise RateLimited("Too many frames. Send fewer.", limit=FRAME_LIMIT)
        check_containers(frame)
        return decoder.decode(frame)

    def cancel(self) -> None:
        """End all streams. Their runs continue."""
        for stream in self._streams.values():
            stream.cancel()

    async def _handle(self, request: SocketRequest) -> None:
        previous = self._streams.pop(request.request_id, None)
        if previous is not None:
            previous.cancel()
        if request.type == "abort":
            return
        if len(self._streams) >= MAX_STREAMS:
            # Not by a task of its own: a client that reads nothing would get any number of them.
            problem = f"A connection has at most {MAX_STREAMS} streams at once."
            await self._send(request.request_id, "error", errorText=problem)
            return
        stream = self._group.create_task(self._serve(request))
        self._streams[request.request_id] = stream
        stream.add_done_callback(lambda ended: self._forget(request.request_id, ended))

    async def _refuse(self, frame: str | bytes, problem: Exception) -> None:
        """Answer a bad frame, if it names its request: the transport would wait for an answer for ever."""
        try:
            request_id = id_decoder.decode(frame).request_id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        text = f"This is not a frame of this protocol: {problem}."
        await self._send(request_id, "error", errorText=problem.message if isinstance(problem, KhalaError) else text)

    def _forget(self, request_id: str, ended: "asyncio.Task[None]") -> None:
        if self._streams.get(request_id) is ended:
            del self._streams[request_id]

    async def _serve(self, request: SocketRequest) -> None:
        try:
            self._context.limits.requests.check(self._socket, self._context.origins)
            caller = await self._caller(request, "write" if request.type == "send" else "read")
            chat = await self._chat(request, caller)
            if chat is None:
                await self._send(request.request_id, "no-active")
                return
            await self._send(request.request_id, "start")
            await self._send_chunks(request, ChunkStream(self._context, caller, chat).chunks())
            await self._send(request.request_id, "end")
        except KhalaError as error:
            await self._send(request.request_id, "error", errorText=error.message)

    async def _caller(self, request: SocketRequest, scope: Scope) -> Caller:
        """Return the caller now: by the frame's headers, else by those of the handshake."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        if USER_HEADER.lower() in headers:
            raise Forbidden(f"{USER_HEADER} is a header of the handshake, and not of a message.")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            account = await authenticate_message_token(token.strip(), self._context)
            account = msgspec.structs.replace(account, network=client_network(self._socket, self._context.origins))
        else:
            account = await authenticate_socket(self._socket, self._context)
        require_scope(account, scope)
        return with_keys(account, headers.get("x-anon-key"), headers.get("x-share-key"))

    async def _chat(self, request: SocketRequest, caller: Caller) -> ChatRun | None:
        if request.type == "resume":
            active = await find_active_run(self._context, caller, thread_id_of(request.id, caller), Action.READ_THREAD)
            return None if active is None else await resumed(self._context, active)
        options = request.body.get("options", {})
        if not request.messages or not isinstance(options, dict):
            raise InvalidInput("Send messages, and options that are an object.", path="messages")
        chat = ChatRequest(
            id=request.id,
            messages=request.messages,
            trigger=request.trigger,
            message_id=request.message_id,
            options=options,
        )
        key = next((value for name, value in request.headers.items() if name.lower() == "x-anon-key"), None)
        return await ChatSubmission(context=self._context, caller=caller, request=chat, anon_key=key).accept()

    async def _send_chunks(self, request: SocketRequest, batches: AsyncGenerator[EncodedChunks | None]) -> None:
        sequence = 0
        head = f'{{"type":"chunk","requestId":{_json(request.request_id)},"sequence":'
        async with aclosing(batches):
            async for batch in batches:
                for chunk in batch.chunks if batch is not None else ():
                    await self._deliver(f'{head}{sequence},"chunk":{chunk}}}'.encode())
                    sequence += 1

    async def _send(self, request_id: str, kind: str, **fields: str) -> None:
        await self._deliver(msgspec.json.encode({"type": kind, "requestId": request_id, **fields}))

    async def _deliver(self, frame: bytes) -> None:
        await self._protocol.deliver(EncodedFrame(frame).websocket_message)


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
