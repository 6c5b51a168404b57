"""The tool `fetch_url`: reads from the public internet, within limits of size and time."""

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

import httpcore
import httpx
import msgspec

from khala.domain.tools import ToolSpec
from khala.tools import readable, tool_output
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.ssrf_guard import HostResolver, IPNetwork, ResolveHost, SsrfGuardedBackend
from khala.tools.workspace_tools import schema

MIB = 1 << 20
DEFAULT_BYTES = 5 * MIB
MAX_BYTES = 100 * MIB
MAX_PAGE_BYTES = 3 * MIB
"""Bytes of a page that is converted to text."""
MAX_REDIRECTS = 5
CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 15.0
TOTAL_TIMEOUT_SECONDS = 60.0
CHUNK_BYTES = 64 * 1024
MAX_URL_CHARACTERS = 4096
REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
HEADERS = (
    (b"Accept", b"text/html, text/*;q=0.9, */*;q=0.5"),
    (b"Accept-Encoding", b"gzip, deflate"),
    (b"Connection", b"close"),
    (b"User-Agent", b"Khala"),
)
TIMEOUTS = {
    "connect": CONNECT_TIMEOUT_SECONDS,
    "read": READ_TIMEOUT_SECONDS,
    "write": READ_TIMEOUT_SECONDS,
    "pool": CONNECT_TIMEOUT_SECONDS,
}
MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,80}", re.ASCII)
CODES = {404: "not_found", 410: "not_found", 401: "forbidden", 403: "forbidden", 429: "unavailable"}


@cache
def _trust() -> ssl.SSLContext:
    """The trusted certificates: those of certifi, or of the file that SSL_CERT_FILE names."""
    return httpx.create_ssl_context()


class FetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response whose body has not been read yet."""

    url: httpx.URL
    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]

    @property
    def media_type(self) -> str:
        """The media type by the response's header."""
        match = MEDIA_TYPE.match(self.headers.get("content-type", ""))
        return match[0].lower() if match else "application/octet-stream"

    @property
    def charset(self) -> str | None:
        """The charset by the response's header."""
        match = re.search(r"charset\s*=\s*\"?([A-Za-z0-9_-]{1,40})", self.headers.get("content-type", ""))
        return match[1] if match else None


class FetchUrl:
    """`fetch_url`: get the content of a web address. It connects to public addresses only, also after redirects."""

    spec = ToolSpec(
        name="fetch_url",
        description="Get the content of a web address. Pages are returned as text without HTML unless format is raw.",
        parameters=schema(
            "url",
            url={
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_URL_CHARACTERS,
                "description": "The address, with http:// or https://.",
            },
            method={"type": "string", "enum": ["GET"], "description": "Only GET."},
            format={"type": "string", "enum": ["text", "raw"], "description": "Default: text."},
            maxBytes={
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_BYTES,
                "description": f"Fail if the content is larger. Default: {DEFAULT_BYTES}.",
            },
        ),
        permissions=frozenset({"network"}),
        timeout=TOTAL_TIMEOUT_SECONDS,
        idempotent=True,
    )

    def __init__(
        self,
        *,
        allow: Sequence[IPNetwork] = (),
        resolve: ResolveHost | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._backend = SsrfGuardedBackend(allow, resolve or HostResolver())
        self._ssl = trust

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Get the content."""
        max_bytes = int(args.get("maxBytes", DEFAULT_BYTES))
        try:
            async with asyncio.timeout(TOTAL_TIMEOUT_SECONDS), self._follow(_parse_url(args["url"])) as response:
                _check(response, max_bytes)
                if args.get("format", "text") == "text" and _is_page(response):
                    return await _page(response, max_bytes, call)
                return await _raw(response, max_bytes, call)
        except TimeoutError as error:
            raise ToolError(f"Timed out after {TOTAL_TIMEOUT_SECONDS:g} s.", code="timeout") from error
        except httpcore.TimeoutException as error:
            raise ToolError("The host took too long to respond.", code="timeout") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            raise ToolError(
                f"The connection failed: {str(error)[:200] or 'it was closed'}.", code="unavailable"
            ) from error

    @asynccontextmanager
    async def _follow(self, url: httpx.URL) -> AsyncIterator[FetchResponse]:
        """The response after all redirects. Each redirect passes the same checks as the first address."""
        for _ in range(MAX_REDIRECTS + 1):
            async with self._request(url) as response:
                location = response.headers.get("location")
                if response.status not in REDIRECT_STATUSES or location is None:
                    yield response
                    return
            url = _parse_url(location, url)
        raise ToolError(f"The address redirects more than {MAX_REDIRECTS} times.")

    @asynccontextmanager
    async def _request(self, url: httpx.URL) -> AsyncIterator[FetchResponse]:
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"Host", url.netloc), *HEADERS]
        context = await asyncio.to_thread(_trust) if self._ssl is None else self._ssl
        # One connection for each request, so that callers share no connection. No proxy is used.
        pool = httpcore.AsyncConnectionPool(
            ssl_context=context, max_connections=1, max_keepalive_connections=0, network_backend=self._backend
        )
        async with pool, pool.stream("GET", target, headers=headers, extensions={"timeout": TIMEOUTS}) as response:
            headers_by_name = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
            }
            yield FetchResponse(url=url, status=response.status, headers=headers_by_name, body=response.aiter_stream())


def _parse_url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """The address. Raises `ToolError` for one that may not be requested."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        if len(str(url)) > MAX_URL_CHARACTERS:
            raise ToolError("url: too long.", code="bad_arguments")
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError("url: not a valid address.", code="bad_arguments") from error
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise ToolError("url: must begin with http:// or https:// and a host.", code="bad_arguments")
    if url.userinfo:
        raise ToolError("url: user names and passwords are not allowed.", code="bad_arguments")
    return url.copy_with(fragment=None)


def _check(response: FetchResponse, max_bytes: int) -> None:
    if response.status != HTTPStatus.OK:
        default_code = "unavailable" if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "failed"
        message = f"{response.url.host} answered {response.status} {_phrase(response.status)}".rstrip()
        raise ToolError(f"{message}.", code=CODES.get(response.status, default_code))
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _too_large(max_bytes: int) -> ToolError:
    return ToolError(
        f"The content is larger than {max_bytes:,} bytes. Set maxBytes, up to {MAX_BYTES:,}.", code="too_large"
    )


def _is_page(response: FetchResponse) -> bool:
    return response.media_type in ("text/html", "application/xhtml+xml")


async def _page(response: FetchResponse, max_bytes: int, call: CallContext) -> CallResult:
    content = bytearray()
    async for piece in _decompressed(response, max_bytes):
        content += piece
        if len(content) > MAX_PAGE_BYTES:
            message = f"Pages of more than {MAX_PAGE_BYTES:,} bytes are not converted to text. Set format to raw."
            raise ToolError(message, code="too_large")
    title, text = await asyncio.to_thread(_read, bytes(content), response.charset)
    head = "\n".join(filter(None, (title, str(response.url))))
    return await tool_output.text_result(call.sink, f"{head}\n\n{text}", title or str(response.url))


def _read(content: bytes, charset: str | None) -> tuple[str, str]:
    return readable.extract_text(readable.decode(content, charset))


async def _raw(response: FetchResponse, max_bytes: int, call: CallContext) -> CallResult:
    size = 0
    async for piece in _decompressed(response, max_bytes):
        size += len(piece)
        await call.sink.write(piece)
    charset = f"; charset={response.charset}" if response.charset and response.media_type.startswith("text/") else ""
    summary = f"{tool_output.pluralize(size, 'byte')} of {response.media_type} from {response.url.host}"
    return CallResult(media_type=response.media_type + charset, summary=summary)


async def _decompressed(response: FetchResponse, max_bytes: int) -> AsyncIterator[bytes]:
    """The decompressed body. Raises `ToolError` past `max_bytes`, compressed or decompressed."""
    decompressor = _Decompressor(response.headers.get("content-encoding", ""))
    compressed_size = size = 0
    async for chunk in response.body:
        compressed_size += len(chunk)
        for piece in decompressor.feed(chunk):
            size += len(piece)
            if max(size, compressed_size) > max_bytes:
                raise _too_large(max_bytes)
            yield piece
    if compressed_size > max_bytes:
        raise _too_large(max_bytes)
    decompressor.finish()


class _Decompressor:
    """Decompresses in small pieces, so that a small body can't become a large one in memory."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError("The body has a content encoding that was not requested.")
        self._is_compressed = self._encoding not in ("", "identity")
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._has_begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not self._is_compressed:
            yield chunk
            return
        try:
            yield from self._inflated(chunk)
        except zlib.error as error:
            raise ToolError("The body does not match its content encoding.") from error

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        if self._inflate.eof:
            chunk = self._next_member(chunk)
        if not self._has_begun and self._encoding == "deflate" and chunk and chunk[0] & 0x0F != zlib.DEFLATED:
            # Many servers send deflate without the zlib header.
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._has_begun = self._has_begun or bool(chunk)
        while chunk and not self._inflate.eof:
            yield self._inflate.decompress(chunk, CHUNK_BYTES)
            chunk = self._rest()

    def _rest(self) -> bytes:
        ended = self._inflate.eof
        return self._next_member(self._inflate.unused_data) if ended else self._inflate.unconsumed_tail

    def _next_member(self, rest: bytes) -> bytes:
        """The data after the end of a gzip stream, if it is another gzip stream. Other data is ignored."""
        if not rest.startswith(b"\x1f") or not self._encoding.endswith("gzip"):
            return b""
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        return rest

    def finish(self) -> None:
        if self._is_compressed and self._has_begun and not self._inflate.eof:
            raise ToolError("The body is incomplete.", code="unavailable")
