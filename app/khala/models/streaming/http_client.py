"""An HTTP client for one server: posts once, streams the response, and closes the connection on early exit."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from ssl import SSLContext

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from khala.models import failures
from khala.models.failures import FailureTable
from khala.models.streaming import proxies
from khala.models.streaming.pause_monitor import PauseMonitor

WRITE_CHUNK_BYTES = 64 << 10
"""Bytes of a request's body in one write."""
MAX_HEADER_BYTES = 64 << 10
"""Size of one header field."""
READ_BUFFER_BYTES = 64 << 10
"""Buffer of a response. At twice as many unread bytes the client stops reading from the server."""
RESPONSE_ERRORS = (aiohttp.ClientError, HttpProcessingError, TimeoutError)
"""The errors that reading a response may raise."""

COMMON_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "khala"}
"""They ask for no compression, because compression delays tokens."""
FAILURE_KINDS: FailureTable = (
    (TimeoutError, failures.TIMEOUT),
    (aiohttp.ClientConnectorCertificateError, failures.UNTRUSTED),
    (aiohttp.ClientConnectorError, failures.UNREACHABLE),
    (aiohttp.InvalidURL, failures.UNREACHABLE),
    (aiohttp.NonHttpUrlClientError, failures.UNREACHABLE),
    (aiohttp.ClientError, failures.CONNECTION_LOST),
    (HttpProcessingError, failures.CONNECTION_LOST),
)


class HttpClient:
    """Connections to one server. They belong to the event loop of the first call."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
        max_connections: int,
        idle_seconds: float,
    ) -> None:
        """Times are seconds.

        `read_timeout`: the longest time in which the server sends no byte, or accepts none. `idle_seconds`: the time
        for which an unused connection is kept open. Raises `ValueError` for an unusable address or proxy.
        """
        address = URL(url)
        self._url = address.with_user(None) if address.user else address
        self._headers = {**COMMON_HEADERS, **headers, **_credentials(address, "Authorization")}
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=2 * connect_timeout, sock_connect=connect_timeout, sock_read=read_timeout
        )
        self._write_timeout = read_timeout
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        proxy = proxies.find_proxy(address)
        self._proxy = proxy.with_user(None) if proxy and proxy.user else proxy
        self._proxy_headers = _credentials(proxy, "Proxy-Authorization") if proxy else {}
        if address.scheme == "http":  # no tunnel: the proxy reads the headers of the request itself
            self._headers |= self._proxy_headers
        self._session: aiohttp.ClientSession | None = None
        self.pauses = PauseMonitor()
        """The responses that are not read at present."""

    @asynccontextmanager
    async def post(self, target: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post once, and return the response when its headers have arrived. Redirects are not followed.

        `target`: the path below the client's address, and the query if there is one.
        Exit before the end of the body closes the connection and drops unsent bytes. Raises the errors of
        `FAILURE_KINDS`.
        """
        request_body = _RequestBody(body, self._write_timeout)
        response: aiohttp.ClientResponse | None = None
        try:
            # Headers of each request: the headers of a session would also go to the proxy, with the key.
            response = await self._open_session().post(
                self._locate(target),
                data=request_body,
                headers=self._headers,
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
                allow_redirects=False,
            )
            with _detect_close(response):
                yield response
        finally:
            if response is None or not response.closed:
                request_body.abort()
            if response is not None:
                response.close()

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _locate(self, target: str) -> URL:
        path, _, query = target.partition("?")
        return (self._url / path).update_query(query)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._max_connections,
                keepalive_timeout=self._idle_seconds,
                ssl=_create_ssl_context() if self._uses_tls else True,
            )
            # With trust_env the session would read proxies and a netrc file in a thread, for each request.
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BUFFER_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._session

    @property
    def _uses_tls(self) -> bool:
        return "https" in (self._url.scheme, self._proxy.scheme if self._proxy else "")


@contextmanager
def _detect_close(response: aiohttp.ClientResponse) -> Iterator[None]:
    """End the body with an error when its connection closes.

    For bytes that are not HTTP, aiohttp closes the connection and does not report it to the reader of the body.
    """
    content = response.content
    connection = response.connection
    protocol = connection.protocol if connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:
        _fail(content)
        yield
        return

    def on_close(_: asyncio.Future[None]) -> None:
        _fail(content)

    closed.remove_done_callback(_retrieve_exception)
    closed.add_done_callback(_retrieve_exception)
    closed.add_done_callback(on_close)
    try:
        yield
    finally:
        closed.remove_done_callback(on_close)


def _fail(content: aiohttp.StreamReader) -> None:
    if not content.is_eof() and content.exception() is None:
        content.set_exception(aiohttp.ClientPayloadError("The connection was closed before the end of the body."))


def _retrieve_exception(closed: asyncio.Future[None]) -> None:
    """Retrieve the reason of the close, because the event loop logs an exception that was never retrieved."""
    if not closed.cancelled():
        closed.exception()


async def read_available(response: aiohttp.ClientResponse) -> bytes:
    """Wait for bytes of the body and return all that have arrived; no bytes at its end.

    Raises one of `RESPONSE_ERRORS`, after the last bytes.
    """
    content = response.content
    _join_buffered(content)
    try:
        return await content.readany()
    except RESPONSE_ERRORS:
        # `readany` raises before it returns buffered bytes, which may be the whole answer.
        buffered = content._read_nowait(-1)  # noqa: SLF001
        if buffered:
            return buffered
        raise
    except RuntimeError as error:  # a closed connection, before `_detect_close` has handled it
        raise aiohttp.ClientPayloadError(str(error)) from error


def _join_buffered(content: aiohttp.StreamReader) -> None:
    """Join the bytes that wait in the process.

    For each buffered piece that it returns, aiohttp resumes the parser and the transport. A piece is an HTTP chunk,
    which is often a single token.
    """
    if content.is_eof():
        return
    pieces = content._buffer  # noqa: SLF001
    if len(pieces) > 1:
        joined = b"".join(pieces)
        pieces.clear()
        pieces.append(joined)


class _RequestBody(aiohttp.Payload):
    """Bytes of a request, which the server must accept in time."""

    def __init__(self, body: bytes, write_timeout: float) -> None:
        super().__init__(body)
        self._body = body
        self._size = len(body)
        self._write_timeout = write_timeout
        self._transport: asyncio.WriteTransport | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all bytes. Raises `TimeoutError` if the server accepts none for `write_timeout` seconds."""
        self._transport = writer.transport
        for start in range(0, len(self._body), WRITE_CHUNK_BYTES):
            async with asyncio.timeout(self._write_timeout):
                await writer.write(self._body[start : start + WRITE_CHUNK_BYTES])

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)

    def abort(self) -> None:
        """Close the connection and drop unsent bytes, because a server that accepts none would keep it open."""
        if self._transport is not None:
            self._transport.abort()


def _credentials(url: URL, header: str) -> dict[str, str]:
    return {header: aiohttp.encode_basic_auth(url.user or "", url.password or "")} if url.user else {}


def _create_ssl_context() -> SSLContext:
    """An SSL context with the certificate authorities that the providers' own libraries trust."""
    import httpx2

    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
