"""The WebSocket protocol: whole messages bypass the WebSocket library while the connection has buffer space."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.protocol import State

from khala.api.http.websocket_protocol import WebSocketProtocol
from khala.live.encoded_frame import EncodedFrame

MESSAGE = EncodedFrame(b"{}").websocket_message


class FakeTransport:
    """The part of a transport that the protocol uses."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing


async def unused_application(scope: object, receive: object, send: object) -> None:
    """An application that is never called."""


@pytest.fixture
async def protocol() -> WebSocketProtocol:
    made = WebSocketProtocol(uvicorn.Config(unused_application), ServerState(), {})
    made.transport = FakeTransport()  # type: ignore[assignment]
    made.conn.state = State.OPEN
    return made


def written(line: WebSocketProtocol) -> list[bytes]:
    assert isinstance(line.transport, FakeTransport)
    return line.transport.written


async def test_messages_are_accepted_until_the_buffer_is_full_and_again_when_it_has_drained(
    protocol: WebSocketProtocol,
) -> None:
    assert protocol.write(MESSAGE)
    protocol.pause_writing()
    assert not protocol.write(MESSAGE)
    protocol.resume_writing()
    assert protocol.write(MESSAGE)
    assert written(protocol) == [MESSAGE] * 2


async def test_a_delivery_waits_for_room_also_when_another_has_filled_it_first(protocol: WebSocketProtocol) -> None:
    protocol.pause_writing()
    delivery = asyncio.create_task(protocol.deliver(MESSAGE))
    await asyncio.sleep(0)
    protocol.resume_writing()
    protocol.pause_writing()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not delivery.done()
    assert written(protocol) == []
    protocol.resume_writing()
    await asyncio.wait_for(delivery, 5)
    assert written(protocol) == [MESSAGE]


@pytest.mark.parametrize("state", [State.CONNECTING, State.CLOSING, State.CLOSED])
async def test_nothing_is_written_to_a_closed_connection_and_a_delivery_ends(
    protocol: WebSocketProtocol, state: State
) -> None:
    protocol.conn.state = state
    assert not protocol.write(MESSAGE)
    await asyncio.wait_for(protocol.deliver(MESSAGE), 5)
    assert written(protocol) == []


async def test_a_delivery_to_a_connection_that_is_lost_meanwhile_ends(protocol: WebSocketProtocol) -> None:
    protocol.pause_writing()
    delivery = asyncio.create_task(protocol.deliver(MESSAGE))
    await asyncio.sleep(0)
    assert isinstance(protocol.transport, FakeTransport)
    protocol.transport.closing = True
    protocol.resume_writing()
    await asyncio.wait_for(delivery, 5)
    assert written(protocol) == []
