"""The WebSocket protocol: whole messages bypass the WebSocket library while the connection has buffer space."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from khala.api.http.websocket_protocol import FRAME_RATE, MAX_FRAGMENTS, WebSocketProtocol
from khala.live.encoded_frame import EncodedFrame

MESSAGE = EncodedFrame(b"{}").websocket_message


class FakeTransport:
    """The part of a transport that the protocol uses."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False
        self.is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

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
    made.conn.parser = made.conn.parse()
    next(made.conn.parser)
    made.handshake_initiated = True
    return made


def received(opcode: Opcode, data: bytes = b"", *, final: bool = True) -> bytes:
    return Frame(opcode, data, fin=final).serialize(mask=True)


def transport_of(line: WebSocketProtocol) -> FakeTransport:
    assert isinstance(line.transport, FakeTransport)
    return line.transport


def written(line: WebSocketProtocol) -> list[bytes]:
    return transport_of(line).written


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
    transport_of(protocol).closing = True
    protocol.resume_writing()
    await asyncio.wait_for(delivery, 5)
    assert written(protocol) == []


async def test_while_a_client_does_not_read_the_answers_to_its_pings_nothing_is_read_from_it(
    protocol: WebSocketProtocol,
) -> None:
    protocol.data_received(received(Opcode.TEXT, b"{}"))
    assert not transport_of(protocol).is_read
    protocol.pause_writing()
    await protocol.receive()
    assert not transport_of(protocol).is_read, "the message is handled, but its sender still does not read"
    protocol.resume_writing()
    assert transport_of(protocol).is_read


async def test_a_silent_client_that_does_not_read_is_disconnected_with_what_waits_for_it(
    protocol: WebSocketProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted: list[bool] = []
    monkeypatch.setattr(transport_of(protocol), "abort", lambda: aborted.append(True))
    protocol.pause_writing()
    protocol.keepalive_timeout()
    assert aborted


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG, Opcode.TEXT])
async def test_a_flood_of_frames_of_any_kind_closes_the_connection_at_the_limit(
    protocol: WebSocketProtocol, opcode: Opcode
) -> None:
    burst = int(FRAME_RATE[0])
    protocol.data_received(received(opcode) * (burst - 700))
    assert not transport_of(protocol).closing
    protocol.data_received(received(opcode) * 20 * burst)
    assert protocol.conn.close_sent is not None
    assert protocol.conn.close_sent.code == 1008
    assert transport_of(protocol).closing
    assert protocol.queue.qsize() <= burst + 1, "the frames after the limit are not even parsed"


async def test_a_message_of_endless_empty_fragments_is_refused(protocol: WebSocketProtocol) -> None:
    protocol.data_received(received(Opcode.TEXT, b"{", final=False))
    protocol.data_received(received(Opcode.CONT, final=False) * (MAX_FRAGMENTS - 1))
    assert not transport_of(protocol).closing
    protocol.data_received(received(Opcode.CONT, final=False))
    assert protocol.conn.close_sent is not None
    assert protocol.conn.close_sent.code == 1008
    assert len(protocol.frames) == MAX_FRAGMENTS


async def test_a_message_in_fragments_between_pings_arrives_whole(protocol: WebSocketProtocol) -> None:
    text = "{}" * 3000
    protocol.data_received(received(Opcode.TEXT, b"", final=False))
    for position in range(0, len(text), 100):
        protocol.data_received(received(Opcode.CONT, text[position : position + 100].encode(), final=False))
        protocol.data_received(received(Opcode.PING, b"x"))
    protocol.data_received(received(Opcode.CONT))
    assert await protocol.receive() == {"type": "websocket.receive", "text": text}


@pytest.mark.parametrize("closes", [False, True])
async def test_text_that_is_not_utf_8_closes_the_connection_and_logs_no_error(
    protocol: WebSocketProtocol, caplog: pytest.LogCaptureFixture, *, closes: bool
) -> None:
    following = received(Opcode.CLOSE, b"\x03\xe8") if closes else b""
    protocol.data_received(received(Opcode.TEXT, b"\xff") + following)
    assert transport_of(protocol).closing
    assert protocol.queue.get_nowait()["type"] == "websocket.disconnect"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
