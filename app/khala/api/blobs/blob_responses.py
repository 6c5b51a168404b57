"""Responses with blobs: headers, byte ranges, and streams from the blob store."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import structlog
from litestar import Request, Response
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream

from khala.api.http.problem_details import Problem, problem_response
from khala.blobs.blob_service import BlobService
from khala.blobs.content_type import INLINE_MEDIA_TYPES
from khala.domain.errors import BlobNotFound, KhalaError
from khala.store.blobs.blobs import StoredFile

log = structlog.get_logger()

POLICY = "sandbox; default-src 'none'"
"""The content may not run scripts or load anything."""
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
UNSAFE_IN_FILENAME = re.compile(r"[^A-Za-z0-9._ -]")
CONTENT_RESPONSES = {
    200: ResponseSpec(bytes, media_type="*/*", description="The whole content.", generate_examples=False),
    206: ResponseSpec(bytes, media_type="*/*", description="The requested range.", generate_examples=False),
    304: ResponseSpec(None, description="The client has the content already.", generate_examples=False),
}
"""Responses of operations that read a blob, for the OpenAPI document."""


class EmptyResponse(Response[None]):
    """A response without a body, whatever its media type."""

    def render(self, content: None, media_type: str, enc_hook: Any = None) -> bytes:
        """Return no bytes."""
        return b""


class RangeNotSatisfiableError(Exception):
    """The requested range is not within the blob."""


def content_type(blob: StoredFile) -> str:
    """Return the blob's media type. All text is UTF-8."""
    is_text = blob.media_type.startswith("text/") and "charset" not in blob.media_type
    return f"{blob.media_type}; charset=utf-8" if is_text else blob.media_type


def disposition(blob: StoredFile) -> str:
    """Return the `Content-Disposition`: whether a browser displays or saves the blob, and its file name."""
    inline = blob.media_type.partition(";")[0].strip() in INLINE_MEDIA_TYPES
    kind = "inline" if inline else "attachment"
    if blob.name is None:
        return kind
    return (
        f"{kind}; filename=\"{UNSAFE_IN_FILENAME.sub('_', blob.name)}\"; filename*=UTF-8''{quote(blob.name, safe='')}"
    )


def head_response(blob: StoredFile) -> EmptyResponse:
    """Return a response with the headers only."""
    return EmptyResponse(None, headers=_headers(blob) | _content_type_header(blob) | {"Content-Length": str(blob.size)})


def not_modified(request: Request[Any, Any, Any], blob: StoredFile) -> EmptyResponse | None:
    """Return a 304 response if the client has this content, else None."""
    header = request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return EmptyResponse(None, status_code=304, headers=_headers(blob)) if tags & {"*", _tag(blob)} else None


def requested_range(request: Request[Any, Any, Any], blob: StoredFile) -> tuple[int, int] | None:
    """Return the requested range with an exclusive end, or None for the whole blob. Raises `RangeNotSatisfiableError`.

    A header with several ranges, or with an `If-Range` of other content, requests the whole blob.
    """
    match = RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or request.headers.get("if-range", _tag(blob)) != _tag(blob):
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    if not first:
        start, end = max(0, blob.size - int(last)), blob.size
    else:
        start, end = int(first), min(int(last) + 1, blob.size) if last else blob.size
        if last and int(last) < start:
            return None
    if start >= end:
        raise RangeNotSatisfiableError
    return start, end


def range_error(blob: StoredFile) -> Response[Problem]:
    """Return a 416 response with the blob's size."""
    headers = {"Content-Range": f"bytes */{blob.size}", "Accept-Ranges": "bytes"}
    return problem_response("range_not_satisfiable", f"This blob has {blob.size:,} bytes.", headers=headers)


async def stream_blob(blob_service: BlobService, blob: StoredFile, byte_range: tuple[int, int] | None) -> Response[Any]:
    """Return the blob or a range of it as a stream, in memory of one chunk. Raises `BlobNotFound`, `Unavailable`."""
    start, end = byte_range or (0, blob.size)
    chunks = read_chunks(blob_service, blob, start, end)
    # The first chunk is read before the response starts, so that an error can still be reported.
    first = await anext(chunks, b"")
    headers = _headers(blob) | _content_type_header(blob) | {"Content-Length": str(end - start)}
    if byte_range:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size}"
    body = _joined(first, chunks)
    return Stream(body, status_code=206 if byte_range else 200, headers=headers)


async def read_chunks(
    blob_service: BlobService, blob: StoredFile, start: int = 0, end: int | None = None
) -> AsyncIterator[bytes]:
    """Yield the bytes from `start` up to `end`. Raises `BlobNotFound` and records the loss, or `Unavailable`."""
    try:
        async with blob_service.read(blob, start, end) as chunks:
            async for chunk in chunks:
                yield chunk
    except BlobNotFound:
        await blob_service.mark_missing(blob)
        raise
    except KhalaError as error:
        log.warning("blob_response_truncated", blob_id=str(blob.id), error=str(error.__cause__ or error))
        raise


async def read_whole(blob_service: BlobService, blob: StoredFile) -> bytes:
    """Return all bytes: only for a blob whose size is bounded. Raises the errors of `read_chunks`."""
    return b"".join([chunk async for chunk in read_chunks(blob_service, blob)])


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _tag(blob: StoredFile) -> str:
    return f'"{blob.key}"'


def _content_type_header(blob: StoredFile) -> dict[str, str]:
    # Set as a header, because Litestar would add another charset to a text media type.
    return {"Content-Type": content_type(blob)}


def _headers(blob: StoredFile) -> dict[str, str]:
    return {
        "ETag": _tag(blob),
        "Accept-Ranges": "bytes",
        "Content-Disposition": disposition(blob),
        "Content-Security-Policy": POLICY,
        # The content never changes, but access to it does: revalidate each time, which costs a 304.
        "Cache-Control": "private, no-cache",
    }
