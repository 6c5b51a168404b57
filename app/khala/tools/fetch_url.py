"""The tool `fetch_url`: reads from the public internet, within limits of size and time."""

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from khala.domain.tools import ToolSpec
from khala.tools import readable, tool_output
from khala.tools.http_client import MAX_URL_CHARACTERS, GuardedClient, GuardedResponse, parse_url, tool_errors
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.ssrf_guard import IPNetwork, ResolveHost
from khala.tools.workspace_tools import schema

MIB = 1 << 20
DEFAULT_BYTES = 5 * MIB
MAX_BYTES = 100 * MIB
MAX_PAGE_BYTES = 3 * MIB
"""Bytes of a page that is converted to text."""
TOTAL_TIMEOUT_SECONDS = 60.0
CHUNK_BYTES = 64 * 1024
HEADERS = (
    (b"Accept", b"text/html, text/*;q=0.9, */*;q=0.5"),
    (b"Accept-Encoding", b"gzip, deflate"),
)
MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,80}", re.ASCII)
CODES = {404: "not_found", 410: "not_found", 401: "forbidden", 403: "forbidden", 429: "unavailable"}


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
        self._client = GuardedClient(allow=allow, resolve=resolve, trust=trust)

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Get the content."""
        max_bytes = int(args.get("maxBytes", DEFAULT_BYTES))
        with tool_errors(TOTAL_TIMEOUT_SECONDS):
            async with (
                asyncio.timeout(TOTAL_TIMEOUT_SECONDS),
                self._client.follow(parse_url(args["url"]), HEADERS) as response,
            ):
                _check(response, max_bytes)
                if args.get("format", "text") == "text" and _is_page(response):
                    return await _page(response, max_bytes, call)
                return await _raw(response, max_bytes, call)


def _check(response: GuardedResponse, max_bytes: int) -> None:
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


def _media_type(response: GuardedResponse) -> str:
    """The media type by the response's header."""
    match = MEDIA_TYPE.match(response.headers.get("content-type", ""))
    return match[0].lower() if match else "application/octet-stream"


def _charset(response: GuardedResponse) -> str | None:
    """The charset by the response's header."""
    match = re.search(r"charset\s*=\s*\"?([A-Za-z0-9_-]{1,40})", response.headers.get("content-type", ""))
    return match[1] if match else None


def _is_page(response: GuardedResponse) -> bool:
    return _media_type(response) in ("text/html", "application/xhtml+xml")


async def _page(response: GuardedResponse, max_bytes: int, call: CallContext) -> CallResult:
    content = bytearray()
    async for piece in _decompressed(response, max_bytes):
        content += piece
        if len(content) > MAX_PAGE_BYTES:
            message = f"Pages of more than {MAX_PAGE_BYTES:,} bytes are not converted to text. Set format to raw."
            raise ToolError(message, code="too_large")
    title, text = await asyncio.to_thread(_read, bytes(content), _charset(response))
    head = "\n".join(filter(None, (title, str(response.url))))
    return await tool_output.text_result(call.sink, f"{head}\n\n{text}", title or str(response.url))


def _read(content: bytes, charset: str | None) -> tuple[str, str]:
    return readable.extract_text(readable.decode(content, charset))


async def _raw(response: GuardedResponse, max_bytes: int, call: CallContext) -> CallResult:
    size = 0
    async for piece in _decompressed(response, max_bytes):
        size += len(piece)
        await call.sink.write(piece)
    media_type, charset = _media_type(response), _charset(response)
    parameter = f"; charset={charset}" if charset and media_type.startswith("text/") else ""
    summary = f"{tool_output.pluralize(size, 'byte')} of {media_type} from {response.url.host}"
    return CallResult(media_type=media_type + parameter, summary=summary)


async def _decompressed(response: GuardedResponse, max_bytes: int) -> AsyncIterator[bytes]:
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
