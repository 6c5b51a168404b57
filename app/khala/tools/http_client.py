"""An HTTP client behind the SSRF guard: each address and each redirect is checked, and no credentials are sent."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache

import httpcore
import httpx
import msgspec

from khala.tools.port import ToolError
from khala.tools.ssrf_guard import AddressAndPort, HostResolver, IPNetwork, ResolveHost, SsrfGuardedBackend

MAX_REDIRECTS = 5
CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 15.0
MAX_URL_CHARACTERS = 4096
DEFAULT_PORTS = {"http": 80, "https": 443}
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
HEADERS = ((b"Connection", b"close"), (b"User-Agent", b"Khala"))
"""Headers of every request, beside those of the caller."""
TIMEOUTS = {
    "connect": CONNECT_TIMEOUT_SECONDS,
    "read": READ_TIMEOUT_SECONDS,
    "write": READ_TIMEOUT_SECONDS,
    "pool": CONNECT_TIMEOUT_SECONDS,
}


@cache
def _trust() -> ssl.SSLContext:
    """The trusted certificates: those of certifi, or of the file that SSL_CERT_FILE names."""
    return httpx.create_ssl_context()


class GuardedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response whose body has not been read yet. Names of headers are in lower case."""

    url: httpx.URL
    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]


class GuardedClient:
    """Sends requests to public addresses, to the networks that the operator allows, and to single `endpoints`.

    With `needs_tls`, requests without TLS reach no public addresses.
    """

    def __init__(
        self,
        *,
        allow: Sequence[IPNetwork] = (),
        endpoints: Collection[AddressAndPort] = (),
        resolve: ResolveHost | None = None,
        trust: ssl.SSLContext | None = None,
        needs_tls: bool = False,
    ) -> None:
        resolver = resolve or HostResolver()
        self._backend = SsrfGuardedBackend(allow, resolver, endpoints)
        self._plain_backend = SsrfGuardedBackend(allow, resolver, endpoints, reaches_public=not needs_tls)
        self._ssl = trust

    @asynccontextmanager
    async def follow(
        self,
        url: httpx.URL,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        keep_tls: bool = False,
        max_redirects: int = MAX_REDIRECTS,
    ) -> AsyncIterator[GuardedResponse]:
        """The response to a GET request after all redirects. Each redirect passes the same checks as the first address.

        `keep_tls`: refuse a redirect from https to http. Raises `ToolError`, and the errors of `httpcore`.
        """
        for _ in range(max_redirects + 1):
            async with self._request("GET", url, headers) as response:
                location = response.headers.get("location")
                if response.status not in REDIRECT_STATUSES or location is None:
                    yield response
                    return
            target = parse_url(location, url)
            if keep_tls and url.scheme == "https" and target.scheme != "https":
                raise ToolError(f"{url.host} redirects to an address without TLS.", code="forbidden")
            url = target
        raise ToolError(f"The address redirects more than {max_redirects} times.")

    @asynccontextmanager
    async def get(self, url: httpx.URL, headers: Sequence[tuple[bytes, bytes]]) -> AsyncIterator[GuardedResponse]:
        """The response to a GET request, even a redirect. Raises `ToolError`, and the errors of `httpcore`."""
        async with self._request("GET", url, headers) as response:
            yield response

    @asynccontextmanager
    async def post(
        self, url: httpx.URL, headers: Sequence[tuple[bytes, bytes]], content: bytes
    ) -> AsyncIterator[GuardedResponse]:
        """The response to a POST request, even a redirect. Raises `ToolError`, and the errors of `httpcore`."""
        length = (b"Content-Length", str(len(content)).encode())
        async with self._request("POST", url, [*headers, length], content) as response:
            yield response

    async def is_in_allowed_network(self, url: httpx.URL) -> bool:
        """Whether the host is in the operator's networks. Raises `ToolError` for one that may not be reached."""
        return await self._backend.is_in_allowed_network(url.host, url.port or DEFAULT_PORTS[url.scheme])

    @asynccontextmanager
    async def _request(
        self, method: str, url: httpx.URL, headers: Sequence[tuple[bytes, bytes]], content: bytes | None = None
    ) -> AsyncIterator[GuardedResponse]:
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        sent = [(b"Host", url.netloc), *headers, *HEADERS]
        timeouts = {"timeout": TIMEOUTS}
        context = await asyncio.to_thread(_trust) if self._ssl is None else self._ssl
        # One connection for each request, so that callers share no connection. No proxy is used.
        backend = self._backend if url.scheme == "https" else self._plain_backend
        pool = httpcore.AsyncConnectionPool(
            ssl_context=context, max_connections=1, max_keepalive_connections=0, network_backend=backend
        )
        async with pool, pool.stream(method, target, headers=sent, content=content, extensions=timeouts) as response:
            headers_by_name = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
            }
            yield GuardedResponse(
                url=url, status=response.status, headers=headers_by_name, body=response.aiter_stream()
            )


@contextmanager
def tool_errors(timeout_seconds: float) -> Iterator[None]:
    """Raise the errors of a connection, and a timeout of the whole, as `ToolError`."""
    try:
        yield
    except TimeoutError as error:
        raise ToolError(f"Timed out after {timeout_seconds:g} s.", code="timeout") from error
    except httpcore.TimeoutException as error:
        raise ToolError("The host took too long to respond.", code="timeout") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
        raise ToolError(f"The connection failed: {str(error)[:200] or 'it was closed'}.", code="unavailable") from error


def parse_url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """The address. Raises `ToolError` for one that may not be requested."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        if len(str(url)) > MAX_URL_CHARACTERS:
            raise ToolError("url: too long.", code="bad_arguments")
        host = url.host  # Decodes it, and raises an error for a label that only looks like Punycode, as in `xn--`.
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError("url: not a valid address.", code="bad_arguments") from error
    if url.scheme not in ("http", "https") or not host:
        raise ToolError("url: must begin with http:// or https:// and a host.", code="bad_arguments")
    if url.userinfo:
        raise ToolError("url: user names and passwords are not allowed.", code="bad_arguments")
    return url.copy_with(fragment=None)
