"""A server at an address: streamable HTTP, where what fails on the way fails one request and not all of them."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
from mcp.client.streamable_http import streamable_http_client

from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import (
    FORGOTTEN,
    LOST,
    MOST_MESSAGE,
    REFUSED,
    TOO_LARGE,
    UNREACHABLE,
    ConnectionSignal,
)

CONNECTING = 10.0
"""Seconds to connect, to get a connection, and to send a request."""
ASIDE = 5.0
"""Seconds for what answers no call."""
LEAVING = 1.0
"""Seconds for each step of saying that a session is over."""
SLACK = 10.0
"""Seconds of silence beyond a call's own time-out after which its connection is closed."""
MOST_CONNECTIONS = 300
NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')


@asynccontextmanager
async def reached(server: McpServerConfig, watch: ConnectionSignal) -> AsyncIterator[Any]:
    """The streams of a session with the server."""
    limits = httpx2.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=20)
    inner = httpx2.AsyncHTTPTransport(limits=limits)
    # Uncompressed, so that what is counted is what there is.
    headers = {"User-Agent": "khala", **server.headers, "Accept-Encoding": "identity"}
    async with (
        httpx2.AsyncClient(
            transport=_ReportingTransport(inner, server, watch), headers=headers, trust_env=False
        ) as client,
        streamable_http_client(server.url or "", http_client=client, max_sse_event_size=MOST_MESSAGE) as streams,
    ):
        yield streams


class _ReportingTransport(httpx2.AsyncBaseTransport):
    """Turns what goes wrong with a request into an answer that says so, and bounds what comes."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServerConfig, watch: ConnectionSignal) -> None:
        self._inner = inner
        self._timeout = server.timeout
        self._watch = watch

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it. Raises nothing where an answer can tell of it."""
        request.extensions["timeout"] = self._timeouts(request)
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            return self._failed(UNREACHABLE, "Nobody answers at the server's address.")
        except (httpx2.TransportError, OSError):
            return self._failed(LOST, "The connection to the server was lost.")
        return await self._checked(request, response)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()

    def _timeouts(self, request: httpx2.Request) -> dict[str, float | None]:
        usual: dict[str, float | None] = dict.fromkeys(("connect", "write", "pool"), CONNECTING)
        if request.method == "GET":
            # What the server says unasked may take as long as it likes.
            return usual | {"read": None}
        if request.method == "DELETE":
            return dict.fromkeys(("connect", "write", "pool", "read"), LEAVING)
        aside = NOTIFICATION.search(request.content[:200]) is not None
        return usual | {"read": ASIDE if aside else self._timeout + SLACK}

    def _failed(self, code: int, message: str) -> httpx2.Response:
        """An answer in the server's stead; it says to which request where it is read."""
        self._watch.doubt()
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
        return httpx2.Response(503, headers={"content-type": "application/json"}, content=msgspec.json.encode(body))

    async def _checked(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._failed(TOO_LARGE, "The server compresses what was to come uncompressed.")
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            await response.aclose()
            return self._failed(FORGOTTEN, "The server has forgotten this session.")
        if response.status_code in (401, 403):
            await response.aclose()
            return self._failed(REFUSED, f"The server refuses these credentials ({response.status_code}).")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            stream = _MonitoredStream(response.stream, self._watch)
            return _with_body(response, stream)
        return await self._read(response, response.stream)

    async def _read(self, response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
        body = bytearray()
        try:
            async for chunk in stream:
                body += chunk
                if len(body) > MOST_MESSAGE:
                    return self._failed(TOO_LARGE, f"The answer has more than {MOST_MESSAGE:,} bytes.")
        except (httpx2.TransportError, OSError):
            return self._failed(LOST, "The connection to the server was lost.")
        finally:
            await stream.aclose()
        return _with_body(response, httpx2.ByteStream(bytes(body)))


def _with_body(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(
        response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
    )


class _MonitoredStream(httpx2.AsyncByteStream):
    """A stream of events, whose end by a fault makes the connection look."""

    def __init__(self, stream: httpx2.AsyncByteStream, watch: ConnectionSignal) -> None:
        self._stream = stream
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes."""
        try:
            async for chunk in self._stream:
                yield chunk
        except (httpx2.TransportError, OSError):
            self._watch.doubt()
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()
