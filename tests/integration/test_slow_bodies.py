"""Request bodies that are silent, trickle or never end: the server rejects each in time, and frees its resources."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio

from khala.api.http import http_protocol as heads
from tests.support.client import client
from tests.support.homes import home
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAUSE = 1.0
"""Seconds that a body may pause, at these servers."""
WITHIN = 10.0

server = server_fixture(with_executor=False, KHALA_BODY_SECONDS=f"{PAUSE:g}")


class RawConnection:
    """A raw connection, on which a test sends any bytes at any speed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def head(self, target: str, **headers: str) -> None:
        lines = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.send(f"{target} HTTP/1.1\r\n{text}\r\n".encode())

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def trickle(self, every: float = 0.05) -> None:
        """Send a byte at each interval, until the server closes the connection."""
        with contextlib.suppress(ConnectionError):
            while not self._writer.is_closing():
                self.send(b" ")
                await self._writer.drain()
                await asyncio.sleep(every)

    async def rest(self) -> bytes:
        """The server's response until it closes the connection."""
        received = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WITHIN):
                while more := await self._reader.read(65536):
                    received += more
        return received


@contextlib.asynccontextmanager
async def raw_connection(server: InProcessServer) -> AsyncIterator[RawConnection]:
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def parsed_response(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """A response's status, headers and JSON."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


def check_timed_out(answer: bytes) -> None:
    status, headers, body = parsed_response(answer)
    assert (status, body["code"], body["status"]) == (408, "request_timeout", 408)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"


def spooled() -> list[Path]:
    """The spool files of the processes of this home."""
    return [path for path in (home() / "spool").rglob("*") if path.is_file()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def token(server: InProcessServer) -> str:
    async with client(server.url) as http:
        person = {"email": f"{uuid4().hex}@example.com", "password": "en taro adun"}
        (await http.post("/api/auth/register", json=person)).raise_for_status()
        made = await http.post("/api/tokens", json={"name": "slow", "scopes": ["read", "write"]})
        return str(made.json()["token"])


@pytest.mark.parametrize("size", ["content_length", "transfer_encoding"])
async def test_a_body_that_never_arrives_gets_a_408_and_the_connection_is_closed(
    server: InProcessServer, size: str
) -> None:
    announced = {size: "100" if size == "content_length" else "chunked"}
    async with raw_connection(server) as slow:
        slow.head("POST /api/threads", content_type="application/json", **announced)
        check_timed_out(await slow.rest())


async def test_a_trickling_body_times_out_as_soon_as_a_silent_one(server: InProcessServer) -> None:
    async with raw_connection(server) as slow:
        began = time.monotonic()
        slow.head("POST /api/threads", content_type="application/json", content_length="100000")
        trickling = asyncio.create_task(slow.trickle())
        check_timed_out(await slow.rest())
        assert time.monotonic() - began < PAUSE + 3
        trickling.cancel()


async def test_an_upload_that_stops_half_way_times_out_and_its_bytes_are_deleted(server: InProcessServer) -> None:
    thread = await server.thread()
    async with raw_connection(server) as slow:
        key = thread.headers["X-Anon-Key"]
        slow.head(f"POST /api/threads/{thread.id}/blobs", x_anon_key=key, content_length=str(5 << 20))
        slow.send(b"x" * (1 << 20))
        async with asyncio.timeout(WITHIN):
            while not spooled():
                await asyncio.sleep(0.01)
        check_timed_out(await slow.rest())
    async with asyncio.timeout(WITHIN):
        while spooled():
            await asyncio.sleep(0.01)


async def test_a_trickling_upload_times_out(server: InProcessServer) -> None:
    thread = await server.thread()
    async with raw_connection(server) as slow:
        key = thread.headers["X-Anon-Key"]
        slow.head(f"POST /api/threads/{thread.id}/blobs", x_anon_key=key, content_length=str(5 << 20))
        trickling = asyncio.create_task(slow.trickle())
        check_timed_out(await slow.rest())
        trickling.cancel()


async def test_a_slow_but_steady_upload_succeeds_although_it_takes_longer_than_the_pause_limit(
    server: InProcessServer,
) -> None:
    thread = await server.thread()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"slow and steady\n" * 4096
            await asyncio.sleep(PAUSE / 3)

    path = f"/api/threads/{thread.id}/blobs"
    answer = await thread.http.post(path, headers=thread.headers, content=pieces())
    assert (answer.status_code, answer.json()["size"]) == (201, 8 * 65536)


async def test_openais_clients_get_the_timeout_of_a_body_in_openais_format(server: InProcessServer, token: str) -> None:
    async with raw_connection(server) as slow:
        slow.head("POST /v1/chat/completions", authorization=f"Bearer {token}", content_type="application/json",
                  content_length="100")  # fmt: skip
        status, headers, body = parsed_response(await slow.rest())
        assert (status, body["error"]["code"], headers["connection"]) == (408, "request_timeout", "close")


async def test_the_body_of_an_mcp_client_times_out(server: InProcessServer, token: str) -> None:
    async with raw_connection(server) as slow:
        slow.head("POST /mcp", authorization=f"Bearer {token}", content_type="application/json",
                  accept="application/json, text/event-stream", content_length="100")  # fmt: skip
        check_timed_out(await slow.rest())


async def test_an_unread_body_is_not_received_for_ever(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "UNREAD_BODY_TIMEOUT_SECONDS", 0.3)
    async with raw_connection(server) as slow:
        slow.head("POST /nothing/here", content_length="100000")
        trickling = asyncio.create_task(slow.trickle())
        assert (await slow.rest()).startswith(b"HTTP/1.1 404 ")
        trickling.cancel()


async def test_a_connection_ends_with_its_body_while_the_application_waits(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "BODY_TIMEOUT_SECONDS", PAUSE / 4)
    async with raw_connection(server) as slow:
        slow.head("POST /api/threads", content_type="application/json", content_length="100")
        assert await slow.rest() == b""


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"content_length": "100"}, id="a body"),
        pytest.param({"transfer_encoding": "chunked"}, id="a chunked body"),
        pytest.param({"x_long": "a" * 9000}, id="a long line"),
        pytest.param({f"x_{number}": "1" for number in range(200)}, id="many headers"),
    ],
)
async def test_an_invalid_handshake_is_refused_and_the_connection_closed(
    server: InProcessServer, odd: dict[str, str]
) -> None:
    async with raw_connection(server) as slow:
        slow.head("GET /api/ws", connection="Upgrade", upgrade="websocket", sec_websocket_version="13",
                  sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==", **odd)  # fmt: skip
        assert (await slow.rest()).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))


async def test_half_a_handshake_times_out(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "HEAD_TIMEOUT_SECONDS", 0.3)
    async with raw_connection(server) as slow:
        slow.send(b"GET /api/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
        assert await slow.rest() == b""


async def test_a_stream_may_be_silent_for_longer_than_a_body(server: InProcessServer) -> None:
    thread = await server.thread()
    async with raw_connection(server) as stream:
        stream.head(f"GET /api/threads/{thread.id}/events", x_anon_key=thread.headers["X-Anon-Key"])
        listening = asyncio.create_task(stream.rest())
        await asyncio.sleep(2 * PAUSE)
        assert not listening.done()
        listening.cancel()
