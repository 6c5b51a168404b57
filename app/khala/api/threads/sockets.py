"""The feed over WebSocket: subprotocol `khala.v1`, JSON text frames, specified in `docs/protocol.md`."""

import asyncio
from typing import Any

from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from khala.api.accounts.authentication import authenticate_socket
from khala.api.context import Context
from khala.api.http.request_origin import may_open_socket
from khala.api.http.websocket_protocol import PROTOCOL_KEY, WebSocketProtocol
from khala.api.threads.socket_session import SocketSession
from khala.domain import frames
from khala.domain.errors import Forbidden
from khala.live.encoded_frame import EncodedFrame
from khala.live.observer import Observer, OutgoingFrame

HEARTBEAT = 25
"""Seconds within which a client should hear from the server, or ask with a ping."""

Socket = WebSocket[Any, Any, Any]


@websocket("/ws")
async def follow(socket: Socket, context: NamedDependency[Context]) -> None:
    """Answer the client's frames and send it what it follows, until either side ends it."""
    if not may_open_socket(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    context.limits.requests.check(socket, context.origins)
    account = await authenticate_socket(socket, context)
    offered = socket.headers.get("sec-websocket-protocol", "")
    chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in offered.replace(" ", "").split(",") else None
    await socket.accept(subprotocols=chosen)
    line: WebSocketProtocol = socket.scope["state"][PROTOCOL_KEY]
    client = context.live.create_observer(line.heartbeat, line.write)
    try:
        await _converse(socket, line, client, SocketSession(context, client, account))
    finally:
        context.live.close(client)


async def _converse(socket: Socket, line: WebSocketProtocol, client: Observer, session: SocketSession) -> None:
    async def send(out: OutgoingFrame) -> None:
        await line.deliver(out.body.websocket_message)

    await line.deliver(EncodedFrame.encode(frames.Hello(heartbeat_seconds=HEARTBEAT)).websocket_message)
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(client.pump(send))
        behaved = await _listen(socket, line, session)
        pump.cancel()
    if not behaved:
        await socket.close(code=1008, reason="Too many bad frames.")


async def _listen(socket: Socket, line: WebSocketProtocol, session: SocketSession) -> bool:
    """Obey the client until it leaves; False if it has made too many mistakes to be listened to."""
    while not session.over:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return True
        answer = await session.answer(message)
        if answer is not None:
            # Past the outbox: a client that does not read its answers is not listened to.
            await line.deliver(EncodedFrame.encode(answer).websocket_message)
    return False
