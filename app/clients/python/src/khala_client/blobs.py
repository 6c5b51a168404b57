"""Uploads and downloads of files, as streams."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import UUID

import httpx

from khala_client.content import BlobRef
from khala_client.credentials import Keys
from khala_client.errors import KhalaError, ServerError
from khala_client.http_core import FILE_TIMEOUT, MAX_ERROR_BYTES, HttpCore, Params, pieces, read_bounded
from khala_client.wire import decode


@runtime_checkable
class Readable(Protocol):
    """An open binary file."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        ...


UploadSource: TypeAlias = bytes | os.PathLike[str] | Readable | Iterable[bytes] | AsyncIterable[bytes]
"""The content of an upload: bytes, the path of a file, an open binary file, or pieces."""
PIECE_BYTES = 256 << 10


async def upload(
    core: HttpCore, thread_id: UUID, source: UploadSource, name: str | None, media_type: str, keys: Keys
) -> BlobRef:
    """Upload a file, which is read piece by piece. It is sent once, because its content may not come again."""
    opening = core.stream(
        "POST",
        f"/api/threads/{thread_id}/blobs",
        params={"name": name},
        content=source if isinstance(source, bytes) else pieces_of(source),
        keys=keys,
        headers={"Content-Type": media_type, "Accept": "application/json"},
        timeout=FILE_TIMEOUT,
    )
    async with opening as response:
        return decode(await read_bounded(response, MAX_ERROR_BYTES), BlobRef)


async def pieces_of(source: UploadSource) -> AsyncIterator[bytes]:
    """The content in pieces. What may block is read in a thread."""
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    elif isinstance(source, os.PathLike):
        with await asyncio.to_thread(Path(source).open, "rb") as file:
            async for piece in _read(file):
                yield piece
    elif isinstance(source, Readable):
        async for piece in _read(source):
            yield piece
    else:
        iterator: Iterator[bytes] = iter(source)
        while (next_piece := await asyncio.to_thread(_next_piece, iterator)) is not None:
            yield next_piece


def _next_piece(pieces_left: Iterator[bytes]) -> bytes | None:
    return next(pieces_left, None)


async def _read(file: Readable) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece


async def download(
    core: HttpCore, blob: BlobRef | UUID, keys: Keys, *, path: str | None = None, params: Params | None = None
) -> AsyncGenerator[bytes, None]:
    """The bytes of a blob. After a lost connection the download continues where it was.

    `path` and `params` are where the server has it for this caller, by default `/api/blobs/{id}`. If a `BlobRef` is
    given, raises `ServerError` at the end if size or SHA-256 differ from it.
    """
    blob_id, expected = (blob.blob_id, blob) if isinstance(blob, BlobRef) else (blob, None)
    digest, position, attempt = sha256(), 0, 0
    while expected is None or position < expected.size or position == 0:
        try:
            async with _open(core, path or f"/api/blobs/{blob_id}", params, keys, position) as response:
                if position and response.status_code != 206:
                    raise ServerError("The server cannot continue this download.")
                async for piece in pieces(response):
                    digest.update(piece)
                    position, attempt = position + len(piece), 0
                    yield piece
            break
        except KhalaError as error:
            if not error.is_transient or attempt + 1 >= core.config.retry.max_attempts:
                raise
            await core.pause_after(error, core.config.retry.delay(attempt, error))
            attempt += 1
    if expected is not None and (position != expected.size or digest.hexdigest() != expected.sha256):
        raise ServerError("The downloaded bytes are not those of the blob.")


@contextlib.asynccontextmanager
async def _open(
    core: HttpCore, path: str, params: Params | None, keys: Keys, position: int
) -> AsyncIterator[httpx.Response]:
    headers: Mapping[str, str] = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={position}-"} if position else {})
    async with core.stream("GET", path, params=params, keys=keys, headers=headers, timeout=FILE_TIMEOUT) as response:
        if response.status_code != 302:
            yield response
            return
        address = response.headers.get("Location", "")
    # The address is one of the file's store, which gets no credentials of Khala.
    async with core.stream_elsewhere(address, headers) as response:
        yield response
