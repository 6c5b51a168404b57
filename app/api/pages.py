"""The page and its files."""

import asyncio
from pathlib import Path
from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.datastructures import CacheControlHeader
from litestar.exceptions import InternalServerException
from litestar.static_files import create_static_files_router
from litestar.types import ControllerRouterHandler

from app.api.problems import DETAILS, Problem, respond

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page of ours may load, and from where: from here alone."""
FRESH = CacheControlHeader(no_cache=True)


def routes(web: Path) -> list[ControllerRouterHandler]:
    """The page at `/` and at `/t/{thread id}`, and its files under `/web`."""

    @get(
        ["/", "/t/{thread_id:uuid}"],
        media_type=MediaType.HTML,
        cache_control=FRESH,
        include_in_schema=False,
    )
    async def page() -> Response[bytes]:
        return Response(await asyncio.to_thread((web / "index.html").read_bytes), media_type=MediaType.HTML)

    # What the file system can't take for a name (too long, a NUL in it, a file for a folder) is no file either.
    missing: dict[Any, Any] = dict.fromkeys((ValueError, OSError, InternalServerException), _no_such_file)
    files = create_static_files_router(
        path="/web",
        directories=[web],
        include_in_schema=False,
        cache_control=FRESH,
        exception_handlers=missing,
    )
    return [page, files]


def _no_such_file(_: Request[Any, Any, Any], __: Exception) -> Response[Problem]:
    return respond("not_found", DETAILS["not_found"])
