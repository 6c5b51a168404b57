"""The HTTP protocol: what is not content of a chunked body is bounded, and so is the time of a client that stalls."""

import asyncio
from typing import Any
from unittest import mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from khala.api.http import http_protocol
from khala.api.http.http_protocol import MAX_FRAMING_BYTES, BoundedHttpProtocol

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


class Received:
    """An application that reads a body, and then notes the request's headers."""

    def __init__(self) -> None:
        self.headers: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.headers.set_result([name.decode() for name, _ in scope["headers"]])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def connected(application: Any) -> tuple[BoundedHttpProtocol, mock.Mock]:
    config = uvicorn.Config(application, lifespan="off", proxy_headers=False, log_config=None)
    config.load()
    protocol = BoundedHttpProtocol(config, ServerState(), {})
    transport = mock.Mock(asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    protocol.connection_made(transport)
    return protocol, transport


async def test_trailers_become_no_headers_of_their_request() -> None:
    application = Received()
    protocol, _ = connected(application)
    protocol.data_received(HEAD + b"2\r\n{}\r\n")
    await asyncio.sleep(0)
    protocol.data_received(b"0\r\nX-Forwarded-For: 8.8.8.8\r\n\r\n")
    assert await asyncio.wait_for(application.headers, 5) == ["host", "transfer-encoding"]
    protocol.connection_lost(None)


@pytest.mark.parametrize("begin", [b"0\r\n", b"0\r\nx: ", b"2;"])
async def test_endless_trailers_and_extensions_of_chunks_close_the_connection(begin: bytes) -> None:
    protocol, transport = connected(Received())
    protocol.data_received(HEAD + b"2\r\n{}\r\n")
    protocol.data_received(begin)
    line = b"a" * 98 + b"\r\n" if begin == b"0\r\n" else b"a" * 100
    for _ in range(MAX_FRAMING_BYTES // 100 + 1):
        assert not transport.abort.called
        protocol.data_received(line.replace(b"aa", b"a:", 1) if begin == b"0\r\n" else line)
    assert transport.abort.called
    protocol.connection_lost(None)


async def test_a_large_body_of_many_chunks_is_received() -> None:
    application = Received()
    protocol, transport = connected(application)
    protocol.data_received(HEAD)
    for _ in range(20_000):
        protocol.data_received(b"1\r\nx\r\n")
    protocol.data_received(b"40000\r\n" + b"x" * 0x40000 + b"\r\n0\r\n\r\n")
    assert await asyncio.wait_for(application.headers, 5)
    assert not transport.abort.called
    protocol.connection_lost(None)


async def test_a_client_that_reads_nothing_of_its_response_is_disconnected_and_a_slow_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "STALL_TIMEOUT_SECONDS", 0.02)
    protocol, transport = connected(Received())
    waiting = iter(range(1000, 995, -1))
    transport.get_write_buffer_size.side_effect = lambda: next(waiting, 995)
    stalled = asyncio.Event()
    transport.abort.side_effect = stalled.set
    protocol.pause_writing()
    await asyncio.wait_for(stalled.wait(), 5)
    assert next(waiting, None) is None, "the client is left alone while the buffer shrinks"
    protocol.connection_lost(None)


async def test_a_client_that_has_read_its_response_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "STALL_TIMEOUT_SECONDS", 0.0)
    protocol, transport = connected(Received())
    transport.get_write_buffer_size.return_value = 1000
    protocol.pause_writing()
    protocol.resume_writing()
    await asyncio.sleep(0.01)
    assert not transport.abort.called
    protocol.connection_lost(None)
