"""The transport to a server at an address (streamable HTTP). A failed request does not end the session."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
from mcp.client.streamable_http import streamable_http_client

from khala.tools.certificate_errors import certificate_problem
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import (
    DENIED,
    FORGOTTEN,
    LOST,
    MAX_MESSAGE_BYTES,
    REFUSED,
    TOO_LARGE,
    UNREACHABLE,
    ConnectionSignal,
)
from khala.tools.mcp.oauth import AuthorizationError, DeniedRequestError, OAuthTransport

if TYPE_CHECKING:
    from khala.tools.mcp.accounts.account_tokens import AccountTokens

CONNECT_TIMEOUT_SECONDS = 10.0
"""Time to connect, to get a connection, and to send a request."""
NOTIFY_TIMEOUT_SECONDS = 5.0
"""Time for the response to a notification."""
CLOSE_TIMEOUT_SECONDS = 1.0
"""Time for each step of closing a session."""
READ_SLACK_SECONDS = 10.0
"""Time without data, beyond a call's own timeout, after which its connection is closed."""
MAX_CONNECTIONS = 300
MAX_IDLE_CONNECTIONS = 20
LISTENING = re.compile(rb'"method"\s*:\s*"subscriptions/listen"')
NOTIFICATION = re.compile(rb'"method"\s*:\s*"notifications/')


@asynccontextmanager
async def connect(
    server: McpServerConfig, signal: ConnectionSignal, tokens: "AccountTokens | None" = None
) -> AsyncIterator[Any]:
    """The message streams of a session with the server. `tokens` are those of the account that uses it."""
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE_CONNECTIONS)
    inner: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(limits=limits)
    if tokens is not None:
        from khala.tools.mcp.accounts.account_transport import AccountTransport

        inner = AccountTransport(inner, server, tokens)
    elif server.oauth is not None:
        inner = OAuthTransport(inner, server.url or "", server.oauth)
    # Without compression, so that the limit of bytes also limits memory.
    headers = {"User-Agent": "khala", **server.headers, "Accept-Encoding": "identity"}
    async with (
        httpx2.AsyncClient(
            transport=_ReportingTransport(inner, server, signal), headers=headers, trust_env=False
        ) as client,
        streamable_http_client(server.url or "", http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


class _ReportingTransport(httpx2.AsyncBaseTransport):
    """Turns a failed request into an error response, and bounds the size of responses."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServerConfig, signal: ConnectionSignal) -> None:
        self._inner = inner
        self._timeout = server.timeout
        self._signal = signal

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request. Failures of the transport become error responses."""
        request.extensions["timeout"] = self._timeouts(request)
        try:
            response = await self._inner.handle_async_request(request)
        except AuthorizationError as error:
            return self._failed(DENIED if isinstance(error, DeniedRequestError) else REFUSED, str(error))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            problem = certificate_problem(error)
            if problem is not None:
                return self._failed(UNREACHABLE, f"The server's TLS certificate is not valid: {problem}.")
            return self._failed(UNREACHABLE, "The server does not respond at its address.")
        except (httpx2.TransportError, OSError):
            return self._failed(LOST, "The connection to the server was lost.")
        return await self._check(request, response)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()

    def _timeouts(self, request: httpx2.Request) -> dict[str, float | None]:
        timeouts: dict[str, float | None] = dict.fromkeys(("connect", "write", "pool"), CONNECT_TIMEOUT_SECONDS)
        if request.method == "GET" or LISTENING.search(request.content[:200]) is not None:
            # The stream of notifications may be silent for any time.
            return timeouts | {"read": None}
        if request.method == "DELETE":
            return dict.fromkeys(("connect", "write", "pool", "read"), CLOSE_TIMEOUT_SECONDS)
        is_notification = NOTIFICATION.search(request.content[:200]) is not None
        return timeouts | {"read": NOTIFY_TIMEOUT_SECONDS if is_notification else self._timeout + READ_SLACK_SECONDS}

    def _failed(self, code: int, message: str) -> httpx2.Response:
        """An error response. The reader adds the id of its request."""
        self._signal.request_check()
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
        return httpx2.Response(503, headers={"content-type": "application/json"}, content=msgspec.json.encode(body))

    async def _check(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._failed(TOO_LARGE, "The server compresses responses, which Khala does not accept.")
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            await response.aclose()
            return self._failed(FORGOTTEN, "The server does not know this session any more.")
        if response.status_code in (401, 403):
            await response.aclose()
            return self._failed(REFUSED, f"The server refuses the credentials ({response.status_code}).")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            stream = _MonitoredStream(response.stream, self._signal)
            return _replace_body(response, stream)
        return await self._read(response, response.stream)

    async def _read(self, response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
        body = bytearray()
        try:
            async for chunk in stream:
                body += chunk
                if len(body) > MAX_MESSAGE_BYTES:
                    return self._failed(TOO_LARGE, f"The response has more than {MAX_MESSAGE_BYTES:,} bytes.")
        except (httpx2.TransportError, OSError):
            return self._failed(LOST, "The connection to the server was lost.")
        finally:
            await stream.aclose()
        return _replace_body(response, httpx2.ByteStream(bytes(body)))


def _replace_body(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(
        response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
    )


class _MonitoredStream(httpx2.AsyncByteStream):
    """A stream of events that requests a check of the connection if it breaks off."""

    def __init__(self, stream: httpx2.AsyncByteStream, signal: ConnectionSignal) -> None:
        self._stream = stream
        self._signal = signal

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes."""
        try:
            async for chunk in self._stream:
                yield chunk
        except (httpx2.TransportError, OSError):
            self._signal.request_limited_check()
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()
