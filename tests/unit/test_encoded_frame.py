"""Encoded frames: their bytes are those that the WebSocket library would send."""

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from khala.domain import frames
from khala.live.encoded_frame import EncodedFrame
from tests.support.live import payload


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_a_message_is_the_library_s_own_text_frame(size: int) -> None:
    body = EncodedFrame(b"x" * size)
    assert body.websocket_message == Frame(Opcode.TEXT, body.data).serialize(mask=False)
    assert payload(body.websocket_message) == body.data
    assert len(body) == size


def test_a_body_has_equal_data_text_and_message_and_is_encoded_once() -> None:
    frame = frames.ErrorFrame(code="conflict", message="Schon da: ü, 🙂")
    body = EncodedFrame.encode(frame)
    assert body.text == frames.encode(frame)
    assert msgspec.json.decode(payload(body.websocket_message)) == msgspec.json.decode(body.text)
    assert body.websocket_message is body.websocket_message
