"""Connections to the feed of one thread: a WebSocket, or server-sent events. Each yields frames of the protocol."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import httpx
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from khala_client.credentials import Keys
from khala_client.errors import ConnectionFailed, KhalaError, ServerError, error_of
from khala_client.event_stream import EventStreamParser
from khala_client.http_core import HttpCore, pieces
from khala_client.models import Delta, Snapshot
from khala_client.wire import decode

PROTOCOL = 1
SUBPROTOCOL = websockets.Subprotocol("khala.v1")
CONNECT_TIMEOUT_SECONDS = 10.0
"""For the handshake and the first frame."""
CLOSE_TIMEOUT_SECONDS = 1.0
SSE_SILENCE_SECONDS = 45.0
"""The server sends a comment after each 15 s of silence."""
MAX_FRAME_BYTES = 32 << 20
MAX_WAITING_FRAMES = 4
"""Frames that wait for a slow consumer. With more, the socket is not read, and the server drops its queue."""
TOO_LARGE, TRY_LATER = 1009, 1008


class Silence(msgspec.Struct, frozen=True):
    """One heartbeat interval has passed in which no frame arrived."""


class Gone(msgspec.Struct, frozen=True):
    """The subscription has ended: the thread is gone, or the caller has lost access."""

    code: str
    message: str = ""


FeedFrame: TypeAlias = Snapshot | Delta | Gone | Silence


class UpgradeRefused(ConnectionFailed):
    """There is no WebSocket here: a proxy does not let it through, for example."""


class FeedConnection(Protocol):
    """An open connection that follows one thread."""

    def frames(self) -> AsyncGenerator[FeedFrame, None]:
        """The frames until the connection ends. Raises `ConnectionFailed` then."""
        ...

    async def resubscribe(self, after: int) -> bool:
        """Ask for the changes after this revision again. False if that takes a new connection."""
        ...


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    """The fields by which a frame is told from others, and those of `hello`, `gone` and `error`."""

    type: str
    thread_id: UUID | None = None
    code: str = ""
    message: str = ""
    protocol: int = PROTOCOL
    heartbeat_seconds: float = 25.0


def read_frame(data: bytes, thread_id: UUID) -> FeedFrame | None:
    """The frame of this thread, None if it is of another type. Raises `ConnectionFailed` for a transient error."""
    head = decode(data, _Head)
    if head.thread_id not in (None, thread_id):
        return None
    match head.type:
        case "snapshot":
            return decode(data, Snapshot)
        case "delta":
            return decode(data, Delta)
        case "gone":
            return Gone(code=head.code)
        case "error" if head.code in ("unavailable", "rate_limited", "internal"):
            raise ConnectionFailed(head.message or head.code, code=head.code)
        case "error":
            return Gone(code=head.code, message=head.message)
        case _:
            return None


class DirectConnect(connect):
    """Opens a WebSocket without following redirects, which would carry the token to another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Always the error: a redirect is no WebSocket."""
        return exc


class SocketConnection:
    """A WebSocket. It pings after a silence, and ends if nothing comes then either."""

    def __init__(self, socket: ClientConnection, thread_id: UUID, keys: Keys, heartbeat: float) -> None:
        self._socket = socket
        self._thread_id = thread_id
        self._keys = keys
        self._heartbeat = heartbeat

    async def resubscribe(self, after: int | None) -> bool:
        """Ask for the changes after this revision, or for a snapshot."""
        fields = {"after": after, "anonKey": self._keys.anon_key, "shareKey": self._keys.share_key}
        given = {name: value for name, value in fields.items() if value is not None}
        await self._send({"type": "subscribe", "threadId": self._thread_id, **given})
        return True

    async def frames(self) -> AsyncGenerator[FeedFrame, None]:
        """The frames until the socket ends, with a `Silence` before each ping."""
        silent = False
        while True:
            data = await self._receive(self._heartbeat)
            if data is not None:
                silent = False
                frame = read_frame(data, self._thread_id)
                if frame is not None:
                    yield frame
            elif silent:
                raise ConnectionFailed("The server does not answer pings.")
            else:
                silent = True
                yield Silence()
                await self._send({"type": "ping"})

    async def _receive(self, timeout: float) -> bytes | None:
        with _socket_errors():
            try:
                async with asyncio.timeout(timeout):
                    return await self._socket.recv(decode=False)
            except TimeoutError:
                return None

    async def _send(self, frame: dict[str, Any]) -> None:
        with _socket_errors():
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                await self._socket.send(msgspec.json.encode(frame), text=True)


@contextlib.asynccontextmanager
async def open_socket(
    core: HttpCore, thread_id: UUID, keys: Keys, after: int | None, refused: str | None
) -> AsyncIterator[FeedConnection]:
    """Follow a thread over a WebSocket. `refused` is a token that must not be used again.

    Raises `UpgradeRefused` if there is no WebSocket at the address, and the error of the server's answer.
    """
    headers = await core.headers(refused=refused)
    for name in keys.headers():
        headers.pop(name, None)  # The keys are in the frame that subscribes.
    url = "ws" + core.config.server.removeprefix("http") + "/api/ws"
    tls: dict[str, Any] = {}
    if url.startswith("wss:") and core.config.verify is not True:
        tls["ssl"] = core.tls()
    opening = DirectConnect(
        url,
        subprotocols=[SUBPROTOCOL],
        additional_headers=headers,
        open_timeout=CONNECT_TIMEOUT_SECONDS,
        close_timeout=CLOSE_TIMEOUT_SECONDS,
        ping_interval=None,
        max_size=MAX_FRAME_BYTES,
        max_queue=MAX_WAITING_FRAMES,
        **tls,
    )
    with _handshake_errors():
        socket = await opening
    with core.owning(socket):
        try:
            connection = SocketConnection(socket, thread_id, keys, await _heartbeat(socket))
            await connection.resubscribe(after)
            yield connection
        finally:
            await socket.close()


async def _heartbeat(socket: ClientConnection) -> float:
    """Wait for `hello`, and return its interval."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            head = decode(await socket.recv(decode=False), _Head)
    except (TimeoutError, websockets.ConnectionClosed, ServerError) as error:
        raise UpgradeRefused("The WebSocket has no server of Khala behind it.") from error
    if head.type != "hello" or head.protocol != PROTOCOL:
        raise KhalaError(f"The server speaks version {head.protocol} of the protocol, not {PROTOCOL}.", code="protocol")
    return min(max(head.heartbeat_seconds, 1.0), 300.0)


class EventConnection:
    """A stream of server-sent events."""

    def __init__(self, response: httpx.Response, thread_id: UUID) -> None:
        self._response = response
        self._thread_id = thread_id

    async def resubscribe(self, after: int) -> bool:
        """Always False: a stream cannot take requests."""
        return False

    async def frames(self) -> AsyncGenerator[FeedFrame, None]:
        """The frames until the stream ends."""
        parser = EventStreamParser(MAX_FRAME_BYTES)
        async with contextlib.aclosing(pieces(self._response)) as body:
            async for piece in body:
                for data in parser.feed(piece):
                    frame = read_frame(data, self._thread_id)
                    if frame is not None:
                        yield frame
        raise ConnectionFailed("The stream of events ended.")


@contextlib.asynccontextmanager
async def open_events(
    core: HttpCore, thread_id: UUID, keys: Keys, after: int | None, refused: str | None
) -> AsyncIterator[FeedConnection]:
    """Follow a thread by server-sent events. Raises the error of the server's answer."""
    timeout = httpx.Timeout(CONNECT_TIMEOUT_SECONDS, read=SSE_SILENCE_SECONDS)
    headers = {"Accept": "text/event-stream, application/problem+json"}
    if refused is not None:
        headers |= await core.headers(keys, refused=refused)
    opening = core.stream(
        "GET", f"/api/threads/{thread_id}/events", params={"after": after}, keys=keys, headers=headers, timeout=timeout
    )
    async with opening as response:
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            raise ServerError("The server's answer is no stream of events.", status=502)
        yield EventConnection(response, thread_id)


@contextlib.contextmanager
def _socket_errors() -> Iterator[None]:
    """Raise the errors of a socket as `ConnectionFailed`."""
    try:
        yield
    except websockets.ConnectionClosed as error:
        if error.sent is not None and error.sent.code == TOO_LARGE:
            raise ServerError(f"A frame has more than {MAX_FRAME_BYTES:,} bytes.") from error
        code = "rate_limited" if error.rcvd is not None and error.rcvd.code == TRY_LATER else ""
        raise ConnectionFailed("The connection was lost.", code=code) from error
    except (OSError, TimeoutError) as error:
        raise ConnectionFailed("The connection was lost.") from error


@contextlib.contextmanager
def _handshake_errors() -> Iterator[None]:
    """Raise the errors of a handshake as those of this package."""
    try:
        yield
    except websockets.InvalidStatus as error:
        answer = error.response
        if answer.status_code in (421, 429, 503):
            raise error_of(answer.status_code, bytes(answer.body or b""), answer.headers.get("Retry-After")) from error
        message = f"The server answered {answer.status_code} instead of a WebSocket."
        raise UpgradeRefused(message, status=answer.status_code) from error
    except (websockets.WebSocketException, EOFError) as error:
        raise UpgradeRefused(f"There is no WebSocket: {error}.") from error
    except (OSError, TimeoutError) as error:
        raise ConnectionFailed(f"The server does not answer: {str(error) or 'it took too long'}.") from error
