"""The feed over WebSocket: subprotocol `khala.v1`, JSON text frames, specified in `docs/protocol.md`."""

import asyncio
from typing import Any

from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from app.api.callers import of_socket
from app.api.context import Context
from app.api.conversation import Conversation
from app.api.line import PULSE
from app.api.origins import welcome_origin
from app.domain import frames
from app.domain.errors import Forbidden
from app.live.observer import Client, Out

HEARTBEAT = 25
"""Seconds within which a client should hear from the server, or ask with a ping."""

Socket = WebSocket[Any, Any, Any]


@websocket("/ws")
async def follow(socket: Socket, context: NamedDependency[Context]) -> None:
    """Answer the client's frames and send it what it follows, until either side ends it."""
    if not welcome_origin(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    context.limiter.check(socket, context.origins)
    account = await of_socket(socket, context)
    offered = socket.headers.get("sec-websocket-protocol", "")
    chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in offered.replace(" ", "").split(",") else None
    await socket.accept(subprotocols=chosen)
    client = context.live.client(socket.scope["state"].get(PULSE))
    try:
        await _converse(socket, client, Conversation(context, client, account))
    finally:
        context.live.close(client)


async def _converse(socket: Socket, client: Client, conversation: Conversation) -> None:
    async def send(out: Out) -> None:
        await _say(socket, out.body)

    await _say(socket, frames.encode(frames.Hello(heartbeat_seconds=HEARTBEAT)))
    pump = asyncio.create_task(client.pump(send))
    listening = asyncio.create_task(_listen(socket, conversation))
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


async def _listen(socket: Socket, conversation: Conversation) -> bool:
    """Obey the client until it leaves, or has made too many mistakes, which is True."""
    while not conversation.over:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return False
        answer = await conversation.answer(message)
        if answer is not None:
            # Past the outbox: a client that does not read its answers is not listened to.
            await _say(socket, frames.encode(answer))
    return True
