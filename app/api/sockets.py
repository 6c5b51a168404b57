"""The feed over WebSocket: subprotocol `khala.v1`, JSON text frames, specified in `docs/protocol.md`."""

import asyncio
from typing import Any, assert_never
from uuid import UUID

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from app.api.context import Context
from app.domain import frames
from app.domain.access import Caller, key_hash
from app.domain.errors import Forbidden, InvalidInput, KhalaError, PayloadTooLarge, RateLimited
from app.live.observer import Client, Out
from app.store import threads

HEARTBEAT = 25
"""Seconds within which a client should hear from the server, or ask with a ping."""
MOST_FRAME = 64 * 1024
"""Bytes of a client's frame."""
MOST_SUBSCRIPTIONS = 100
MOST_MISTAKES = 10
"""Bad frames after which the connection is closed."""

Socket = WebSocket[Any, Any, Any]

decoder: msgspec.json.Decoder[frames.ClientFrame] = msgspec.json.Decoder(frames.ClientFrame)


@websocket("/ws")
async def follow(socket: Socket, context: NamedDependency[Context]) -> None:
    """Answer the client's frames and send it what it follows, until either side ends it."""
    if not allowed_origin(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    offered = socket.headers.get("sec-websocket-protocol", "")
    chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in offered.replace(" ", "").split(",") else None
    await socket.accept(subprotocols=chosen)
    client = context.hub.client()
    try:
        await _converse(socket, context, client)
    finally:
        context.hub.close(client)


def allowed_origin(socket: Socket, origins: tuple[str, ...]) -> bool:
    """Whether the page that connects is ours or a named one; programs that are no browsers send no origin."""
    origin = socket.headers.get("origin")
    return origin is None or "*" in origins or origin in origins or _ours(origin, socket.headers.get("host", ""))


def _ours(origin: str, host: str) -> bool:
    scheme, _, rest = origin.partition("://")
    return scheme in {"http", "https"} and rest != "" and rest == host


async def _converse(socket: Socket, context: Context, client: Client) -> None:
    async def send(out: Out) -> None:
        await _say(socket, out.body)

    await _say(socket, frames.encode(frames.Hello(heartbeat_seconds=HEARTBEAT)))
    pump = asyncio.create_task(client.pump(send))
    listening = asyncio.create_task(_listen(socket, context, client))
    try:
        await asyncio.wait({pump, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pump.cancel()
        listening.cancel()
        await asyncio.wait({pump, listening})
    if not listening.cancelled() and listening.result():
        await socket.close(code=1008, reason="Too many bad frames.")
    if not pump.cancelled():
        pump.result()


async def _say(socket: Socket, body: str) -> None:
    await socket.send({"type": "websocket.send", "text": body, "bytes": None})


async def _listen(socket: Socket, context: Context, client: Client) -> bool:
    """Obey the client until it leaves, or has made too many mistakes, which is True."""
    mistakes = 0
    while mistakes < MOST_MISTAKES:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return False
        try:
            answer = await _obey(_decoded(message), context, client)
        except KhalaError as error:
            mistakes += isinstance(error, (InvalidInput, PayloadTooLarge))
            answer = frames.Error(thread_id=_thread_id(message), code=error.code, message=error.message)
        if answer is not None:
            # Past the outbox: a client that does not read its answers is not listened to.
            await _say(socket, frames.encode(answer))
    return True


def _decoded(message: Any) -> frames.ClientFrame:
    text = message.get("text")
    if text is None:
        raise InvalidInput("Frames are JSON text.")
    if len(text) > MOST_FRAME or len(text.encode()) > MOST_FRAME:
        raise PayloadTooLarge(f"A frame has at most {MOST_FRAME:,} bytes.")
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"No frame of this protocol: {error}.") from error


class _Named(msgspec.Struct, rename="camel"):
    thread_id: UUID | None = None


def _thread_id(message: Any) -> Any:
    """The thread that a failed frame was about, as far as it can be read."""
    try:
        return msgspec.json.decode(message.get("text") or "{}", type=_Named).thread_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


async def _obey(frame: frames.ClientFrame, context: Context, client: Client) -> frames.Frame | None:
    """Do as the frame says; what is to be answered."""
    match frame:
        case frames.Subscribe():
            await _subscribe(frame, context, client)
        case frames.Unsubscribe():
            context.hub.part(client, frame.thread_id)
        case frames.Ping():
            return frames.Pong()
        case _:
            assert_never(frame)
    return None


async def _subscribe(frame: frames.Subscribe, context: Context, client: Client) -> None:
    if len(client.subscriptions) >= MOST_SUBSCRIPTIONS and frame.thread_id not in client.subscriptions:
        raise RateLimited(f"A connection follows at most {MOST_SUBSCRIPTIONS} threads.")
    caller = Caller(anon_key_hash=key_hash(frame.anon_key) if frame.anon_key else None)
    async with context.db.driver() as driver:
        await threads.authorize(driver, frame.thread_id, caller)
    context.hub.join(client, frame.thread_id, frame.after)
