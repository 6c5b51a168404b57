"""The tool `fetch_url`: reads from the open internet, within bounds of size and time."""

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
USUAL = 5 * MIB
MOST = 100 * MIB
MOST_PAGE = 3 * MIB
"""Bytes of a page that is made into text."""
REDIRECTS = 5
CONNECT = 5.0
READ = 15.0
TOTAL = 60.0
"""Seconds."""
CHUNK = 64 * 1024
LONGEST_URL = 4096
WHERE = frozenset({301, 302, 303, 307, 308})
HEADERS = (
    (b"Accept", b"text/html, text/*;q=0.9, */*;q=0.5"),
    (b"Accept-Encoding", b"gzip, deflate"),
    (b"Connection", b"close"),
    (b"User-Agent", b"Khala"),
)
TIMEOUTS = {"connect": CONNECT, "read": READ, "write": READ, "pool": CONNECT}
MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,80}", re.ASCII)
CODES = {404: "not_found", 410: "not_found", 401: "forbidden", 403: "forbidden", 429: "unavailable"}


@cache
def _trust() -> ssl.SSLContext:
    """Whose certificates are believed: those of certifi, or what SSL_CERT_FILE names."""
    return httpx.create_ssl_context()


class FetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer whose body is to come."""

    url: httpx.URL
    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]

    @property
    def media_type(self) -> str:
        """What the body is said to be."""
        found = MEDIA_TYPE.match(self.headers.get("content-type", ""))
        return found[0].lower() if found else "application/octet-stream"

    @property
    def charset(self) -> str | None:
        """How text in it is said to be encoded."""
        found = re.search(r"charset\s*=\s*\"?([A-Za-z0-9_-]{1,40})", self.headers.get("content-type", ""))
        return found[1] if found else None


class FetchUrl:
    """`fetch_url`. Goes nowhere but to the open internet, wherever names and redirects lead."""

    spec = ToolSpec(
        name="fetch_url",
        description="Get what is at a web address. Pages come as text without HTML unless format is raw.",
        parameters=schema(
            "url",
            url={
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_URL,
                "description": "The address, with http:// or https://.",
            },
            method={"type": "string", "enum": ["GET"], "description": "Only GET."},
            format={"type": "string", "enum": ["text", "raw"], "description": "text unless given."},
            maxBytes={
                "type": "integer",
                "minimum": 1,
                "maximum": MOST,
                "description": f"Fail if it is larger; {USUAL} unless given.",
            },
        ),
        permissions=frozenset({"network"}),
        timeout=TOTAL,
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
        """What is there."""
        most = int(args.get("maxBytes", USUAL))
        try:
            async with asyncio.timeout(TOTAL), self._final(_url(args["url"])) as answer:
                _check(answer, most)
                if args.get("format", "text") == "text" and _is_page(answer):
                    return await _page(answer, most, call)
                return await _raw(answer, most, call)
        except TimeoutError as error:
            raise ToolError(f"Timed out after {TOTAL:g} s.", code="timeout") from error
        except httpcore.TimeoutException as error:
            raise ToolError("The host takes too long to answer.", code="timeout") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            raise ToolError(f"The connection failed: {str(error)[:200] or 'it ended'}.", code="unavailable") from error

    @asynccontextmanager
    async def _final(self, url: httpx.URL) -> AsyncIterator[FetchResponse]:
        """The answer behind all redirects; each leads through the same checks as the first address."""
        for _ in range(REDIRECTS + 1):
            async with self._answer(url) as answer:
                where = answer.headers.get("location")
                if answer.status not in WHERE or where is None:
                    yield answer
                    return
            url = _url(where, url)
        raise ToolError(f"It redirects more than {REDIRECTS} times.")

    @asynccontextmanager
    async def _answer(self, url: httpx.URL) -> AsyncIterator[FetchResponse]:
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"Host", url.netloc), *HEADERS]
        context = await asyncio.to_thread(_trust) if self._ssl is None else self._ssl
        # One connection for each address, of its own: none is shared with another caller, and no proxy is asked.
        pool = httpcore.AsyncConnectionPool(
            ssl_context=context, max_connections=1, max_keepalive_connections=0, network_backend=self._backend
        )
        async with pool, pool.stream("GET", target, headers=headers, extensions={"timeout": TIMEOUTS}) as response:
            told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            yield FetchResponse(url=url, status=response.status, headers=told, body=response.aiter_stream())


def _url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """The address, if it is one that may be asked. Raises `ToolError`."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        if len(str(url)) > LONGEST_URL:
            raise ToolError("url: it is too long.", code="bad_arguments")
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError("url: this is no address.", code="bad_arguments") from error
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise ToolError("url: it must begin with http:// or https:// and a host.", code="bad_arguments")
    if url.userinfo:
        raise ToolError("url: it may have no user name or password in it.", code="bad_arguments")
    return url.copy_with(fragment=None)


def _check(answer: FetchResponse, most: int) -> None:
    if answer.status != HTTPStatus.OK:
        fault = "unavailable" if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "failed"
        message = f"{answer.url.host} answered {answer.status} {_phrase(answer.status)}".rstrip()
        raise ToolError(f"{message}.", code=CODES.get(answer.status, fault))
    length = answer.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise _too_large(most)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _too_large(most: int) -> ToolError:
    return ToolError(f"It is larger than {most:,} bytes. Ask with maxBytes, up to {MOST:,}.", code="too_large")


def _is_page(answer: FetchResponse) -> bool:
    return answer.media_type in ("text/html", "application/xhtml+xml")


async def _page(answer: FetchResponse, most: int, call: CallContext) -> CallResult:
    content = bytearray()
    async for piece in _plain(answer, most):
        content += piece
        if len(content) > MOST_PAGE:
            message = f"A page of more than {MOST_PAGE:,} bytes is not made into text: ask with format raw."
            raise ToolError(message, code="too_large")
    title, text = await asyncio.to_thread(_read, bytes(content), answer.charset)
    head = "\n".join(filter(None, (title, str(answer.url))))
    return await tool_output.text_result(call.sink, f"{head}\n\n{text}", title or str(answer.url))


def _read(content: bytes, charset: str | None) -> tuple[str, str]:
    return readable.text(readable.decoded(content, charset))


async def _raw(answer: FetchResponse, most: int, call: CallContext) -> CallResult:
    size = 0
    async for piece in _plain(answer, most):
        size += len(piece)
        await call.sink.write(piece)
    charset = f"; charset={answer.charset}" if answer.charset and answer.media_type.startswith("text/") else ""
    summary = f"{tool_output.pluralize(size, 'byte')} of {answer.media_type} from {answer.url.host}"
    return CallResult(media_type=answer.media_type + charset, summary=summary)


async def _plain(answer: FetchResponse, most: int) -> AsyncIterator[bytes]:
    """The body, decompressed, as long as it has at most so many bytes, both before and after that."""
    unpack = _Decompressor(answer.headers.get("content-encoding", ""))
    packed = size = 0
    async for chunk in answer.body:
        packed += len(chunk)
        for piece in unpack.feed(chunk):
            size += len(piece)
            if max(size, packed) > most:
                raise _too_large(most)
            yield piece
    if packed > most:
        raise _too_large(most)
    unpack.finish()


class _Decompressor:
    """Decompresses a little at a time, so that a small body can't become a large one at once."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError("The body is encoded in a way that was not asked for.")
        self._packed = self._encoding not in ("", "identity")
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not self._packed:
            yield chunk
            return
        try:
            yield from self._inflated(chunk)
        except zlib.error as error:
            raise ToolError("The body is not compressed as it says.") from error

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        if self._inflate.eof:
            chunk = self._next_member(chunk)
        if not self._begun and self._encoding == "deflate" and chunk and chunk[0] & 0x0F != zlib.DEFLATED:
            # Many send deflate without its wrapping.
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._begun = self._begun or bool(chunk)
        while chunk and not self._inflate.eof:
            yield self._inflate.decompress(chunk, CHUNK)
            chunk = self._rest()

    def _rest(self) -> bytes:
        ended = self._inflate.eof
        return self._next_member(self._inflate.unused_data) if ended else self._inflate.unconsumed_tail

    def _next_member(self, rest: bytes) -> bytes:
        """What is to be read on where one gzip stream has ended: another one, but nothing else."""
        if not rest.startswith(b"\x1f") or not self._encoding.endswith("gzip"):
            return b""
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        return rest

    def finish(self) -> None:
        if self._packed and self._begun and not self._inflate.eof:
            raise ToolError("The body ended too soon.", code="unavailable")
