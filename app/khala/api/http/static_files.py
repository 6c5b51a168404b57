"""Files of a folder as HTTP answers: each with its type and its tag, and as it was compressed beforehand."""

import asyncio
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from litestar import Request, Response
from litestar.exceptions import NotFoundException

from khala.api.blobs.blob_responses import Bare

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
"""What the page is made of; anything else is bytes."""
PACKED = {"br": ".br", "gzip": ".gz"}
"""By content coding, the best first, how the name of a file's compressed copy ends."""
NOT_AT_ALL = re.compile(r"q=0(?:\.0*)?")


class Found(NamedTuple):
    """A file's bytes, their coding if they have one, and whether somebody else would get other bytes."""

    data: bytes
    coding: str | None
    varies: bool


async def answer(request: Request[Any, Any, Any], folder: Path, name: str, *, cache: str) -> Response[Any]:
    """The file of this name in the folder, or 304 where the client has it. Raises `NotFoundException`."""
    try:
        found = await asyncio.to_thread(_read, folder, name, _codings(request.headers.get("accept-encoding", "")))
    # What the file system can't take for a name (too long, a NUL in it, a file for a folder) is no file either.
    except (ValueError, OSError) as error:
        raise NotFoundException from error
    headers = {"ETag": f'"{sha256(found.data).hexdigest()[:32]}"', "Cache-Control": cache}
    if found.varies:
        headers["Vary"] = "Accept-Encoding"
    named = request.headers.get("if-none-match", "").replace("W/", "").split(",")
    if headers["ETag"] in map(str.strip, named):
        return Bare(None, status_code=304, headers=headers)
    if found.coding:
        headers["Content-Encoding"] = found.coding
    kind = TYPES.get(Path(name).suffix, "application/octet-stream")
    return Response(found.data, media_type=kind, headers=headers)


def _codings(accepted: str) -> set[str]:
    """The content codings that the client takes."""
    words = (word.partition(";") for word in accepted.lower().replace(" ", "").split(","))
    return {name for name, _, weight in words if not NOT_AT_ALL.fullmatch(weight)}


def _read(folder: Path, name: str, codings: set[str]) -> Found:
    """Raises `OSError` or `ValueError` where there is no such file; hidden ones, and those elsewhere, are none."""
    wanted = Path(name.lstrip("/"))
    path = (folder / wanted).resolve(strict=True)
    # Neither where a link leads nor by what name: "assets/../x" would be an asset that never changes.
    if any(part.startswith(".") for part in (*wanted.parts, *path.relative_to(folder.resolve()).parts)):
        raise FileNotFoundError(name)
    packed = {coding: copy for coding, end in PACKED.items() if (copy := Path(f"{path}{end}")).is_file()}
    coding = next((coding for coding in packed if coding in codings), None)
    data = packed[coding].read_bytes() if coding else path.read_bytes()
    return Found(data, coding, bool(packed))
