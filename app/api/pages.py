"""The page and its files."""

from pathlib import Path

from litestar import MediaType, Response, get
from litestar.datastructures import CacheControlHeader
from litestar.static_files import create_static_files_router
from litestar.types import ControllerRouterHandler

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
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
        sync_to_thread=True,
    )
    def page() -> Response[str]:
        return Response((web / "index.html").read_text(), media_type=MediaType.HTML)

    files = create_static_files_router(path="/web", directories=[web], include_in_schema=False, cache_control=FRESH)
    return [page, files]
