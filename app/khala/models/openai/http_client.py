"""HTTP to one server: calls that are posted once, read as they come, and dropped at once where they are left."""

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
from khala.models.openai import proxies

PIECE = 64 << 10
"""Bytes of a body that are written in one go."""
LONGEST_FIELD = 64 << 10
"""Bytes of a header."""
HELD = 64 << 10
"""Bytes of a response that may wait for a reader; at twice as many the server is made to wait."""
BROKEN = (aiohttp.ClientError, HttpProcessingError, TimeoutError)
"""What a response may break with."""

KINDS: FailureTable = (
    (TimeoutError, failures.TIMEOUT),
    (aiohttp.ClientConnectorError, failures.UNREACHABLE),
    (aiohttp.InvalidURL, failures.UNREACHABLE),
    (aiohttp.NonHttpUrlClientError, failures.UNREACHABLE),
    (aiohttp.ClientError, failures.LOST),
    (HttpProcessingError, failures.LOST),
)


class Http:
    """Connections to one server. They belong to the loop of the first call, which opens them."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
        connections: int,
        idle: float,
    ) -> None:
        """Times are seconds: `read_timeout` of silence, or of a server that takes no more; `idle` before a close.

        Raises `ValueError` for an address, or a proxy in the environment, that can't be used.
        """
        at = URL(url)
        self._url = at.with_user(None) if at.user else at
        self._headers = {**headers, **_credentials(at, "Authorization")}
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=2 * connect_timeout, sock_connect=connect_timeout, sock_read=read_timeout
        )
        self._patience = read_timeout
        self._connections = connections
        self._idle = idle
        proxy = proxies.of(at)
        self._proxy = proxy.with_user(None) if proxy and proxy.user else proxy
        self._proxy_headers = _credentials(proxy, "Proxy-Authorization") if proxy else {}
        if at.scheme == "http":  # no tunnel: the proxy reads the headers of the call itself
            self._headers |= self._proxy_headers
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def post(self, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post once, and give the response before its body has come. Redirects are responses like others.

        Leaving before the body's end closes the connection, and drops what is unsent. Raises what `KINDS` knows.
        """
        sending = _Body(body, self._patience)
        response: aiohttp.ClientResponse | None = None
        try:
            # Headers with each call: those of a session go to its proxy too, with the key.
            response = await self._opened().post(
                self._url / path,
                data=sending,
                headers=self._headers,
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
                allow_redirects=False,
            )
            with _watched(response):
                yield response
        finally:
            if response is None or not response.closed:
                sending.abort()
            if response is not None:
                response.close()

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=self._idle, ssl=_trust() if self._encrypted else True
            )
            # Told not to trust the environment: it would look there for proxies and a netrc, in a thread, each call.
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                read_bufsize=HELD,
                max_line_size=LONGEST_FIELD,
                max_field_size=LONGEST_FIELD,
            )
        return self._session

    @property
    def _encrypted(self) -> bool:
        return "https" in (self._url.scheme, self._proxy.scheme if self._proxy else "")


@contextmanager
def _watched(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Break the body when its connection closes: for bytes that are no HTTP the library closes it, and tells nobody."""
    content = response.content
    connection = response.connection
    protocol = connection.protocol if connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:
        _broken(content)
        yield
        return

    def lost(_: asyncio.Future[None]) -> None:
        _broken(content)

    closed.remove_done_callback(_seen)
    closed.add_done_callback(_seen)
    closed.add_done_callback(lost)
    try:
        yield
    finally:
        closed.remove_done_callback(lost)


def _broken(content: aiohttp.StreamReader) -> None:
    if not content.is_eof() and content.exception() is None:
        content.set_exception(aiohttp.ClientPayloadError("The connection was closed amid the body."))


def _seen(closed: asyncio.Future[None]) -> None:
    """Look at why a connection was closed, lest the loop complains that nobody has."""
    if not closed.cancelled():
        closed.exception()


async def more(response: aiohttp.ClientResponse) -> bytes:
    """All of the body that has come, once some has; nothing at its end. Raises one of `BROKEN` after the last bytes."""
    content = response.content
    try:
        return await content.readany()
    except BROKEN:
        # The library forgets what came before a break if nobody waited for it: the whole answer, at times.
        left = content._read_nowait(-1)  # noqa: SLF001
        if left:
            return left
        raise
    except RuntimeError as error:  # so it tells that the connection is closed, until `_watched` has
        raise aiohttp.ClientPayloadError(str(error)) from error


class _Body(aiohttp.Payload):
    """Bytes; the server has to take them in time."""

    def __init__(self, body: bytes, patience: float) -> None:
        super().__init__(body)
        self._body = body
        self._size = len(body)
        self._patience = patience
        self._transport: asyncio.WriteTransport | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all. Raises `TimeoutError` if the server takes nothing for `patience` seconds."""
        self._transport = writer.transport
        for start in range(0, len(self._body), PIECE):
            async with asyncio.timeout(self._patience):
                await writer.write(self._body[start : start + PIECE])

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)

    def abort(self) -> None:
        """Close the connection without sending what it holds: a server that takes nothing would keep it open."""
        if self._transport is not None:
            self._transport.abort()


def _credentials(url: URL, header: str) -> dict[str, str]:
    return {header: aiohttp.encode_basic_auth(url.user or "", url.password or "")} if url.user else {}


def _trust() -> SSLContext:
    """The authorities that the other providers' clients trust, wherever this system keeps them."""
    import httpx2

    trust = httpx2.create_ssl_context()
    trust.set_alpn_protocols(["http/1.1"])
    return trust
