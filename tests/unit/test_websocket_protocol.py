"""The WebSocket protocol: whole messages bypass the WebSocket library while the connection has buffer space."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.protocol import State

from khala.api.http.websocket_protocol import WebSocketProtocol
from khala.live.encoded_frame import EncodedFrame

MESSAGE = EncodedFrame(b"{}").websocket_message


class Transport:
    """The part of a transport that the protocol uses."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing


async def nothing(scope: object, receive: object, send: object) -> None:
    """An application that is never called."""


@pytest.fixture
async def line() -> WebSocketProtocol:
    made = WebSocketProtocol(uvicorn.Config(nothing), ServerState(), {})
    made.transport = Transport()  # type: ignore[assignment]
    made.conn.state = State.OPEN
    return made


def written(line: WebSocketProtocol) -> list[bytes]:
    assert isinstance(line.transport, Transport)
    return line.transport.written


async def test_messages_are_accepted_until_the_buffer_is_full_and_again_when_it_has_drained(
    line: WebSocketProtocol,
) -> None:
    assert line.write(MESSAGE)
    line.pause_writing()
    assert not line.write(MESSAGE)
    line.resume_writing()
    assert line.write(MESSAGE)
    assert written(line) == [MESSAGE] * 2


async def test_a_delivery_waits_for_room_also_when_another_has_filled_it_first(line: WebSocketProtocol) -> None:
    line.pause_writing()
    delivery = asyncio.create_task(line.deliver(MESSAGE))
    await asyncio.sleep(0)
    line.resume_writing()
    line.pause_writing()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not delivery.done()
    assert written(line) == []
    line.resume_writing()
    await asyncio.wait_for(delivery, 5)
    assert written(line) == [MESSAGE]


@pytest.mark.parametrize("state", [State.CONNECTING, State.CLOSING, State.CLOSED])
async def test_nothing_is_written_to_a_closed_connection_and_a_delivery_ends(
    line: WebSocketProtocol, state: State
) -> None:
    line.conn.state = state
    assert not line.write(MESSAGE)
    await asyncio.wait_for(line.deliver(MESSAGE), 5)
    assert written(line) == []


async def test_a_delivery_to_a_connection_that_is_lost_meanwhile_ends(line: WebSocketProtocol) -> None:
    line.pause_writing()
    delivery = asyncio.create_task(line.deliver(MESSAGE))
    await asyncio.sleep(0)
    assert isinstance(line.transport, Transport)
    line.transport.closing = True
    line.resume_writing()
    await asyncio.wait_for(delivery, 5)
    assert written(line) == []
