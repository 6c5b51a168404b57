"""A blob as an HTTP answer: its headers, ranges of it, and its bytes as they come from the store."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import structlog
from litestar import Request, Response
from litestar.response import Stream

from khala.api.http.problem_details import Problem, problem_response
from khala.blobs.blob_service import BlobService
from khala.blobs.content_type import INLINE_MEDIA_TYPES
from khala.domain.errors import BlobNotFound, KhalaError
from khala.store.blobs.blobs import Blob

log = structlog.get_logger()

POLICY = "sandbox; default-src 'none'"
"""Whatever is in it runs nothing and loads nothing."""
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
PLAIN = re.compile(r"[^A-Za-z0-9._ -]")


class EmptyResponse(Response[None]):
    """An answer without a body, whatever its media type."""

    def render(self, content: None, media_type: str, enc_hook: Any = None) -> bytes:
        """Nothing."""
        return b""


class Unsatisfiable(Exception):
    """A range that is none of this blob's."""


def content_type(blob: Blob) -> str:
    """The blob's media type; all text is UTF-8."""
    plain = blob.media_type.startswith("text/") and "charset" not in blob.media_type
    return f"{blob.media_type}; charset=utf-8" if plain else blob.media_type


def disposition(blob: Blob) -> str:
    """Whether a browser shows it or saves it, and under which name."""
    inline = blob.media_type.partition(";")[0].strip() in INLINE_MEDIA_TYPES
    kind = "inline" if inline else "attachment"
    if blob.name is None:
        return kind
    return f"{kind}; filename=\"{PLAIN.sub('_', blob.name)}\"; filename*=UTF-8''{quote(blob.name, safe='')}"


def described(blob: Blob) -> EmptyResponse:
    """The headers alone."""
    return EmptyResponse(None, headers=_headers(blob) | _typed(blob) | {"Content-Length": str(blob.size)})


def unchanged(request: Request[Any, Any, Any], blob: Blob) -> EmptyResponse | None:
    """304, if the client has these bytes already."""
    named = request.headers.get("if-none-match", "")
    tags = {tag.strip().removeprefix("W/") for tag in named.split(",")}
    return EmptyResponse(None, status_code=304, headers=_headers(blob)) if tags & {"*", _tag(blob)} else None


def wanted(request: Request[Any, Any, Any], blob: Blob) -> tuple[int, int] | None:
    """The range that the client wants, `end` exclusive; None for all. Raises `Unsatisfiable`.

    What is no single range, or is of other bytes by `If-Range`, is for all.
    """
    found = RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", _tag(blob)) != _tag(blob):
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:
        start, end = max(0, blob.size - int(last)), blob.size
    else:
        start, end = int(first), min(int(last) + 1, blob.size) if last else blob.size
        if last and int(last) < start:
            return None
    if start >= end:
        raise Unsatisfiable
    return start, end


def unsatisfiable(blob: Blob) -> Response[Problem]:
    """416, with the size that there is."""
    headers = {"Content-Range": f"bytes */{blob.size}", "Accept-Ranges": "bytes"}
    return problem_response("range_not_satisfiable", f"This blob has {blob.size:,} bytes.", headers=headers)


async def streamed(blob_service: BlobService, blob: Blob, part: tuple[int, int] | None) -> Response[Any]:
    """The bytes, or this part of them, in as much memory as a chunk takes. Raises `BlobNotFound`, `Unavailable`."""
    start, end = part or (0, blob.size)
    chunks = read_chunks(blob_service, blob, start, end)
    # The first chunk is read before the response starts, so that an error can still be reported.
    first = await anext(chunks, b"")
    headers = _headers(blob) | _typed(blob) | {"Content-Length": str(end - start)}
    if part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size}"
    body = _joined(first, chunks)
    return Stream(body, status_code=206 if part else 200, headers=headers)


async def read_chunks(
    blob_service: BlobService, blob: Blob, start: int = 0, end: int | None = None
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
        log.warning("blob_cut_short", blob_id=str(blob.id), error=str(error.__cause__ or error))
        raise


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _tag(blob: Blob) -> str:
    return f'"{blob.key}"'


def _typed(blob: Blob) -> dict[str, str]:
    # As a header of its own: to a media type of text that is given as such, Litestar would add another charset.
    return {"Content-Type": content_type(blob)}


def _headers(blob: Blob) -> dict[str, str]:
    return {
        "ETag": _tag(blob),
        "Accept-Ranges": "bytes",
        "Content-Disposition": disposition(blob),
        "Content-Security-Policy": POLICY,
        # The bytes never change, but who may read them does: ask each time, which costs a 304.
        "Cache-Control": "private, no-cache",
    }
