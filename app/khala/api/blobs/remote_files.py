"""Fetches the images of a message from web addresses, through the SSRF guard, within limits of size and time."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

import msgspec

from khala.api.blobs.attached_files import AttachedFile
from khala.blobs.content_type import ContentSniffer
from khala.domain.errors import InvalidInput, RateLimited, ReachedLimit
from khala.tools.http_client import GuardedClient, GuardedResponse, parse_url, tool_errors
from khala.tools.port import ToolError

MAX_FILES = 10
"""Files of one request."""
MAX_BYTES = 8 << 20
"""Bytes of one file."""
MAX_TOTAL_BYTES = 32 << 20
"""Bytes of all files of one request."""
TIMEOUT_SECONDS = 30.0
"""Time for all files of one request."""
MAX_CONCURRENT_REQUESTS = 16
"""Requests of one process whose files are fetched at the same time: it holds all files of a request in memory."""
HEADERS = ((b"Accept", b"image/*"), (b"Accept-Encoding", b"identity"))


_fetching: set[object] = set()


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image at a web address. `path` is its place in the request."""

    url: str
    path: str


async def fetch(client: GuardedClient | None, files: Sequence[RemoteFile]) -> dict[str, AttachedFile]:
    """Return the files by their paths. Without a client, the operator allows no fetching.

    Raises `InvalidInput` with the path of the file that cannot be fetched, and `RateLimited` if those of too many
    requests are being fetched.
    """
    if len(files) > MAX_FILES:
        raise InvalidInput(f"A request has at most {MAX_FILES} files at web addresses.", path=files[MAX_FILES].path)
    if not files:
        return {}
    with _slot():
        return await _fetch_all(client, files)


@contextmanager
def _slot() -> Iterator[None]:
    if len(_fetching) >= MAX_CONCURRENT_REQUESTS:
        limit = ReachedLimit("remote_files", "deployment", MAX_CONCURRENT_REQUESTS)
        message = "Files of too many requests are being fetched. Try again in a moment."
        raise RateLimited(message, limit=limit, retry_after=1)
    slot = object()
    _fetching.add(slot)
    try:
        yield
    finally:
        _fetching.remove(slot)


async def _fetch_all(client: GuardedClient | None, files: Sequence[RemoteFile]) -> dict[str, AttachedFile]:
    fetched: dict[str, AttachedFile] = {}
    deadline = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
    left = MAX_TOTAL_BYTES
    for file in files:
        if client is None:
            raise InvalidInput("This server fetches no files. Send the file itself, as a data: URL.", path=file.path)
        try:
            with tool_errors(TIMEOUT_SECONDS):
                async with asyncio.timeout_at(deadline):
                    fetched[file.path] = await _fetch(client, file, min(MAX_BYTES, left))
        except ToolError as error:
            raise InvalidInput(f"The file could not be fetched. {error.message}", path=file.path) from error
        left -= len(fetched[file.path].data)
    return fetched


async def _fetch(client: GuardedClient, file: RemoteFile, max_bytes: int) -> AttachedFile:
    async with client.follow(parse_url(file.url), HEADERS, keep_tls=True) as response:
        if response.status != HTTPStatus.OK:
            raise ToolError(f"{response.url.host} answered {response.status}.")
        data = await _body(response, max_bytes)
    sniffer = ContentSniffer()
    sniffer.feed(data)
    media_type = sniffer.media_type("application/octet-stream") or ""
    if not media_type.startswith("image/"):
        raise ToolError("It is no PNG, JPEG, GIF or WebP image.")
    return AttachedFile(data=data, claimed_type=media_type, name=None, path=file.path)


async def _body(response: GuardedResponse, max_bytes: int) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ToolError("The host sent it compressed, which was not requested.")
    data = bytearray()
    async for piece in response.body:
        data += piece
        if len(data) > max_bytes:
            raise ToolError(f"It is larger than {max_bytes:,} bytes.")
    if not data:
        raise ToolError("It is empty.")
    return bytes(data)
