"""The WebSocket of the AI SDK's `WebSocketChatTransport`: streams of several chats over one connection."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from litestar import websocket
from litestar.di import NamedDependency

from khala.api.accounts.service_tokens import USER_HEADER
from khala.api.ai_sdk.chunk_stream import ChunkStream, EncodedChunks
from khala.api.ai_sdk.submission import ChatRun, ChatSubmission, resumed
from khala.api.ai_sdk.types import MAX_MESSAGES, ChatId, ChatRequest, ChatRequestMessage, MessageId
from khala.api.chats.chat_ids import thread_id_of
from khala.api.chats.chat_runs import find_active_run
from khala.api.chats.stream_sockets import TOO_MANY_STREAMS, StreamSocket, StreamSocketSession, check_handshake, serve
from khala.api.context import Context
from khala.domain.access import Action, Caller, Scope
from khala.domain.errors import Forbidden, InvalidInput, KhalaError


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
async def chat_socket(socket: StreamSocket, context: NamedDependency[Context]) -> None:
    """Answer the client's requests, until either side closes the socket."""
    await check_handshake(socket, context)
    await socket.accept()
    await serve(socket, lambda group: ChatSocketSession(socket, context, group))


class ChatSocketSession(StreamSocketSession[SocketRequest]):
    """One connection, and its streams by the client's id of the request."""

    def decode(self, frame: str | bytes) -> SocketRequest:
        """Return the request in a frame."""
        return decoder.decode(frame)

    async def handle(self, request: SocketRequest) -> None:
        """Begin the stream that the client requests, or end it."""
        self.end(request.request_id)
        if request.type == "abort":
            return
        if self.is_full:
            # Not by a task of its own: a client that reads nothing would get any number of them.
            await self._send(request.request_id, "error", errorText=TOO_MANY_STREAMS)
            return
        self.begin(request.request_id, self._serve(request))

    async def refuse(self, frame: str | bytes, problem: Exception) -> None:
        """Answer a bad frame, if it names its request: the transport would wait for an answer for ever."""
        try:
            request_id = id_decoder.decode(frame).request_id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        text = f"This is not a frame of this protocol: {problem}."
        await self._send(request_id, "error", errorText=problem.message if isinstance(problem, KhalaError) else text)

    async def _serve(self, request: SocketRequest) -> None:
        try:
            self.context.limits.requests.check(self.socket, self.context.origins)
            caller = await self._caller(request, "write" if request.type == "send" else "read")
            chat = await self._chat(request, caller)
            if chat is None:
                await self._send(request.request_id, "no-active")
                return
            await self._send(request.request_id, "start")
            await self._send_chunks(request, ChunkStream(self.context, caller, chat).chunks())
            await self._send(request.request_id, "end")
        except KhalaError as error:
            await self._send(request.request_id, "error", errorText=error.message)

    async def _caller(self, request: SocketRequest, scope: Scope) -> Caller:
        """Return the caller now: by the frame's headers, else by those of the handshake."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        if USER_HEADER.lower() in headers:
            raise Forbidden(f"{USER_HEADER} is a header of the handshake, and not of a message.")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else None
        anon_key, share_key = headers.get("x-anon-key"), headers.get("x-share-key")
        return await self.authenticate(bearer, scope, anon_key=anon_key, share_key=share_key)

    async def _chat(self, request: SocketRequest, caller: Caller) -> ChatRun | None:
        if request.type == "resume":
            active = await find_active_run(self.context, caller, thread_id_of(request.id, caller), Action.READ_THREAD)
            return None if active is None else await resumed(self.context, active)
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
        return await ChatSubmission(context=self.context, caller=caller, request=chat, anon_key=key).accept()

    async def _send_chunks(self, request: SocketRequest, batches: AsyncGenerator[EncodedChunks | None]) -> None:
        sequence = 0
        head = f'{{"type":"chunk","requestId":{_json(request.request_id)},"sequence":'
        async with aclosing(batches):
            async for batch in batches:
                for chunk in batch.chunks if batch is not None else ():
                    await self.deliver(f'{head}{sequence},"chunk":{chunk}}}'.encode())
                    sequence += 1

    async def _send(self, request_id: str, kind: str, **fields: str) -> None:
        await self.deliver(msgspec.json.encode({"type": kind, "requestId": request_id, **fields}))


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
