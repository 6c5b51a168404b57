"""Serves the files of a folder with media type and ETag, and compressed copies where they exist."""

import asyncio
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from litestar import Request, Response
from litestar.exceptions import NotFoundException

from khala.api.blobs.blob_responses import EmptyResponse

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Media types by suffix. Anything else is `application/octet-stream`."""
COMPRESSED_SUFFIXES = {"br": ".br", "gzip": ".gz"}
"""The suffix of a compressed copy by content coding, the best coding first."""
ZERO_WEIGHT = re.compile(r"q=0(?:\.0*)?")


class StaticFile(NamedTuple):
    """The bytes of a file, their content coding, and whether the response varies by `Accept-Encoding`."""

    data: bytes
    coding: str | None
    varies: bool


async def serve_file(request: Request[Any, Any, Any], folder: Path, name: str, *, cache: str) -> Response[Any]:
    """Return the file, or 304 if the client has it. Raises `NotFoundException`."""
    try:
        file = await asyncio.to_thread(_read, folder, name, _codings(request.headers.get("accept-encoding", "")))
    # Names that the file system rejects (too long, with NUL, below a file) do not exist either.
    except (ValueError, OSError) as error:
        raise NotFoundException from error
    headers = {"ETag": f'"{sha256(file.data).hexdigest()[:32]}"', "Cache-Control": cache}
    if file.varies:
        headers["Vary"] = "Accept-Encoding"
    tags = request.headers.get("if-none-match", "").replace("W/", "").split(",")
    if headers["ETag"] in map(str.strip, tags):
        return EmptyResponse(None, status_code=304, headers=headers)
    if file.coding:
        headers["Content-Encoding"] = file.coding
    kind = TYPES.get(Path(name).suffix, "application/octet-stream")
    return Response(file.data, media_type=kind, headers=headers)


def _codings(accepted: str) -> set[str]:
    """Return the content codings that the client accepts."""
    words = (word.partition(";") for word in accepted.lower().replace(" ", "").split(","))
    return {name for name, _, weight in words if not ZERO_WEIGHT.fullmatch(weight)}


def _read(folder: Path, name: str, codings: set[str]) -> StaticFile:
    """Read a file. Raises `OSError` or `ValueError` if it does not exist, is hidden or is outside of the folder."""
    relative = Path(name.lstrip("/"))
    path = (folder / relative).resolve(strict=True)
    # Check the name and the target of links: "assets/../x" would be cached like an asset that never changes.
    if any(part.startswith(".") for part in (*relative.parts, *path.relative_to(folder.resolve()).parts)):
        raise FileNotFoundError(name)
    compressed = {
        coding: copy for coding, end in COMPRESSED_SUFFIXES.items() if (copy := Path(f"{path}{end}")).is_file()
    }
    coding = next((coding for coding in compressed if coding in codings), None)
    data = compressed[coding].read_bytes() if coding else path.read_bytes()
    return StaticFile(data, coding, bool(compressed))
