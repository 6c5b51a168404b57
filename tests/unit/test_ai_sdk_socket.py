"""The WebSocket of the AI SDK's transport, without a network."""

import asyncio
from typing import Any

import msgspec
import pytest

from khala.api.ai_sdk.socket import ChatSocketSession, SocketRequest, decoder
from khala.api.ai_sdk.types import MAX_MESSAGES
from khala.api.chats.stream_sockets import MAX_STREAMS
from khala.api.http.websocket_protocol import PROTOCOL_KEY


class FakeSocket:
    """A client that sends these requests one after another. It reads frames only while `reads` is set."""

    def __init__(self, requests: int) -> None:
        self.scope = {"state": {PROTOCOL_KEY: self}}
        self.unsent = list(range(requests))
        self.reads = asyncio.Event()
        self.frames: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not self.unsent:
            return {"type": "websocket.disconnect"}
        request = {"type": "resume", "requestId": f"r{self.unsent.pop(0)}"}
        return {"type": "websocket.receive", "bytes": msgspec.json.encode(request)}

    async def deliver(self, message: bytes) -> None:
        await self.reads.wait()
        self.frames.append(msgspec.json.decode(message[message.index(b"{") :]))


async def never(_session: ChatSocketSession, _request: SocketRequest) -> None:
    await asyncio.Event().wait()


async def test_no_request_is_read_while_a_client_does_not_read_that_it_has_too_many_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ChatSocketSession, "_serve", never)
    client = FakeSocket(MAX_STREAMS + 3)
    socket: Any = client
    context: Any = None
    async with asyncio.TaskGroup() as group:
        session = ChatSocketSession(socket, context, group)
        listening = group.create_task(session.listen())
        for _ in range(10):
            await asyncio.sleep(0)
        assert (client.unsent, client.frames) == ([MAX_STREAMS + 1, MAX_STREAMS + 2], [])
        client.reads.set()
        assert await listening
        session.cancel()
    assert [frame["requestId"] for frame in client.frames] == [f"r{MAX_STREAMS + extra}" for extra in range(3)]
    assert {frame["errorText"] for frame in client.frames} == {"A connection has at most 20 streams at once."}


def test_a_frame_has_at_most_as_many_messages_as_a_post() -> None:
    messages = [{"id": "q", "role": "user"}] * (MAX_MESSAGES + 1)
    frame = {"type": "send", "requestId": "r", "id": "c", "messages": messages}
    with pytest.raises(msgspec.ValidationError, match="length <= 1000"):
        decoder.decode(msgspec.json.encode(frame))
    assert len(decoder.decode(msgspec.json.encode(frame | {"messages": messages[1:]})).messages) == MAX_MESSAGES
