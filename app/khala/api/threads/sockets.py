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

HEARTBEAT_SECONDS = 25
"""A client that receives nothing for so long should send a ping."""

Socket = WebSocket[Any, Any, Any]


@websocket("/ws")
async def follow(socket: Socket, context: NamedDependency[Context]) -> None:
    """Handle the client's frames and send the frames of its subscriptions, until either side closes the socket."""
    if not may_open_socket(socket, context.origins):
        raise Forbidden("This origin may not connect.")
    context.limits.requests.check(socket, context.origins)
    account = await authenticate_socket(socket, context)
    offered = socket.headers.get("sec-websocket-protocol", "")
    chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in offered.replace(" ", "").split(",") else None
    await socket.accept(subprotocols=chosen)
    protocol: WebSocketProtocol = socket.scope["state"][PROTOCOL_KEY]
    client = context.live.create_observer(protocol.heartbeat, protocol.write)
    try:
        await _serve(socket, protocol, client, SocketSession(context, client, account))
    finally:
        context.live.close(client)


async def _serve(socket: Socket, protocol: WebSocketProtocol, client: Observer, session: SocketSession) -> None:
    async def send(out: OutgoingFrame) -> None:
        await protocol.deliver(out.body.websocket_message)

    await protocol.deliver(EncodedFrame.encode(frames.Hello(heartbeat_seconds=HEARTBEAT_SECONDS)).websocket_message)
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(client.pump(send))
        is_closed = await _listen(socket, protocol, session)
        pump.cancel()
    if not is_closed:
        await socket.close(code=1008, reason="Too many bad frames.")


async def _listen(socket: Socket, protocol: WebSocketProtocol, session: SocketSession) -> bool:
    """Handle frames until the client disconnects. Return False if it has sent too many bad frames."""
    while not session.is_exhausted:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return True
        reply = await session.handle(message)
        if reply is not None:
            # Not through the outbox: while a client does not read its replies, the server reads none of its frames.
            await protocol.deliver(EncodedFrame.encode(reply).websocket_message)
    return False
