"""Sockets over which a client has several answers streamed: the frames of the client, and the limits of both."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from litestar import WebSocket

from khala.api.accounts.authentication import authenticate_message_token, authenticate_socket, with_keys
from khala.api.context import Context
from khala.api.http.request_origin import client_network, may_open_socket
from khala.api.http.websocket_protocol import PROTOCOL_KEY, WebSocketProtocol
from khala.domain.access import Caller, Scope, require_scope
from khala.domain.errors import Forbidden, KhalaError, RateLimited, ReachedLimit
from khala.domain.json_bodies import check_containers
from khala.domain.token_bucket import TokenBucket
from khala.live.encoded_frame import EncodedFrame

MAX_STREAMS = 20
"""Streams of one connection at the same time."""
TOO_MANY_STREAMS = f"A connection has at most {MAX_STREAMS} streams at once."
MAX_BAD_FRAMES = 10
"""After so many frames that are no request of the transport, or over the rate limit, the connection is closed."""
FRAME_RATE = (100, 10.0)
"""Frames in a burst, and per second."""
FRAME_LIMIT = ReachedLimit("frames_per_second", "connection", int(FRAME_RATE[1]))
POLICY_VIOLATION = 1008

StreamSocket: TypeAlias = WebSocket[Any, Any, Any]
Frame = TypeVar("Frame")


class StreamSocketSession(ABC, Generic[Frame]):
    """One connection, and its streams by the client's names of them."""

    def __init__(self, socket: StreamSocket, context: Context, group: asyncio.TaskGroup) -> None:
        self.socket = socket
        self.context = context
        self._group = group
        self._protocol: WebSocketProtocol = socket.scope["state"][PROTOCOL_KEY]
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._frames = TokenBucket(*FRAME_RATE)

    @abstractmethod
    def decode(self, frame: str | bytes) -> Frame:
        """Return the request in a frame."""

    @abstractmethod
    async def handle(self, request: Frame) -> None:
        """Begin or end a stream, as the client requests."""

    @abstractmethod
    async def refuse(self, frame: str | bytes, problem: Exception) -> None:
        """Answer a frame that is no request, or that is over the rate limit."""

    async def authenticate(
        self, token: str | None, scope: Scope, *, anon_key: str | None, share_key: str | None
    ) -> Caller:
        """Return the caller now: by this token, else by the handshake. Raises `Unauthorized` and `Forbidden`."""
        if token is None:
            account = await authenticate_socket(self.socket, self.context)
        else:
            account = await authenticate_message_token(token, self.context)
            account = msgspec.structs.replace(account, network=client_network(self.socket, self.context.origins))
        require_scope(account, scope)
        return with_keys(account, anon_key, share_key)

    async def listen(self) -> bool:
        """Handle frames until the client disconnects. Return False if it has sent too many bad ones."""
        bad_frames = 0
        while bad_frames < MAX_BAD_FRAMES:
            message: Any = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                return True
            frame = message.get("text") or message.get("bytes") or b""
            try:
                request = self._decode(frame)
            except (KhalaError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                bad_frames += 1
                await self.refuse(frame, error)
            else:
                await self.handle(request)
        return False

    def _decode(self, frame: str | bytes) -> Frame:
        if not self._frames.take(time.monotonic()):
            raise RateLimited("Too many frames. Send fewer.", limit=FRAME_LIMIT)
        check_containers(frame)
        return self.decode(frame)

    @property
    def is_full(self) -> bool:
        """Whether the connection has as many streams as one may have."""
        return len(self._streams) >= MAX_STREAMS

    def begin(self, name: str, stream: Coroutine[Any, Any, None]) -> None:
        """Run a stream under this name, which no running stream has."""
        task = self._group.create_task(stream)
        self._streams[name] = task
        task.add_done_callback(lambda ended: self._forget(name, ended))

    def end(self, name: str) -> None:
        """End the stream of this name, if there is one. Its run continues."""
        stream = self._streams.pop(name, None)
        if stream is not None:
            stream.cancel()

    def cancel(self) -> None:
        """End all streams. Their runs continue."""
        for stream in self._streams.values():
            stream.cancel()

    def _forget(self, name: str, ended: "asyncio.Task[None]") -> None:
        if self._streams.get(name) is ended:
            del self._streams[name]

    async def deliver(self, frame: bytes) -> None:
        """Send a text frame as soon as the client takes it."""
        await self._protocol.deliver(EncodedFrame(frame).websocket_message)


async def check_handshake(socket: StreamSocket, context: Context) -> None:
    """Raise an error unless this origin may connect now, and the handshake's own credentials are valid."""
    if not may_open_socket(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    context.limits.requests.check(socket, context.origins)
    await authenticate_socket(socket, context)


async def serve(socket: StreamSocket, open_session: Callable[[asyncio.TaskGroup], StreamSocketSession[Any]]) -> None:
    """Answer the client's requests on an accepted socket, until either side closes it."""
    async with asyncio.TaskGroup() as group:
        session = open_session(group)
        is_closed = await session.listen()
        session.cancel()
    if not is_closed:
        await socket.close(code=POLICY_VIOLATION, reason="Too many bad frames.")
