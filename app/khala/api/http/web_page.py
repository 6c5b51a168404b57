"""Serves the web page, the operators' console and their files, and the frame that previews documents of a model."""

from pathlib import Path
from typing import Annotated, Any

from litestar import HttpMethod, MediaType, Request, Response, get, route
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter
from litestar.types import ControllerRouterHandler

from khala.api.context import context_of
from khala.api.http import static_files

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page may load from this server only. It may compile WebAssembly, but not evaluate text."""
PREVIEW_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""A model's document may run scripts in an origin of its own. It may not load anything or connect anywhere."""
PREVIEW = (Path(__file__).parent / "preview.html").read_bytes()
REVALIDATE = "no-cache"
IMMUTABLE = "public, max-age=31536000, immutable"
"""For files whose names contain a hash of their content."""
HASHED_PREFIXES = ("assets/", "console/assets/")
NOT_BUILT = "The page has not been built. Run `make web`.\n"

FilePath = Annotated[str, PathParameter(description="A file's name within the folder.")]


def routes(web: Path) -> list[ControllerRouterHandler]:
    """Return the routes of the page (`/`, `/t/{thread_id}`), the console (`/console`), their files, and `/preview`.

    Pages of the frame ancestors of the context's origins may show the page in a frame, but not the console.
    """

    @get(["/", "/t/{thread_id:uuid}"], media_type=MediaType.HTML, include_in_schema=False)
    async def page(request: Request[Any, Any, Any]) -> Response[Any]:
        response = await _serve_document(request, web, "index.html")
        # Browsers that know `frame-ancestors` ignore `X-Frame-Options`.
        ancestors = _frame_ancestors(request)
        response.headers["Content-Security-Policy"] = (
            POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {ancestors}") if ancestors else POLICY
        )
        return response

    @get(["/console", "/console/{view:path}"], media_type=MediaType.HTML, include_in_schema=False)
    async def console(request: Request[Any, Any, Any]) -> Response[Any]:
        # The document is the same for every view and person. What it may show, the API decides.
        return await _serve_document(request, web, "console/console.html")

    @get("/sw.js", include_in_schema=False)
    async def service_worker(request: Request[Any, Any, Any]) -> Response[Any]:
        # Not under /web: a service worker controls only pages below its own path.
        return await static_files.serve_file(request, web, "sw.js", cache=REVALIDATE)

    @route("/web/{file_path:path}", http_method=[HttpMethod.GET, HttpMethod.HEAD], include_in_schema=False)
    async def file(request: Request[Any, Any, Any], file_path: FilePath) -> Response[Any]:
        name = file_path.removeprefix("/")
        return await static_files.serve_file(
            request, web, name, cache=IMMUTABLE if name.startswith(HASHED_PREFIXES) else REVALIDATE
        )

    @get("/preview", media_type=MediaType.HTML, include_in_schema=False)
    async def preview(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Serve an empty page that shows the document which its parent page posts to it."""
        headers = {
            "Content-Security-Policy": f"{PREVIEW_POLICY} {_frame_ancestors(request)}".rstrip(),
            "X-Frame-Options": "SAMEORIGIN",
            "X-DNS-Prefetch-Control": "off",
            "Cache-Control": REVALIDATE,
        }
        return Response(PREVIEW, media_type=MediaType.HTML, headers=headers)

    return [page, console, service_worker, file, preview]


def _frame_ancestors(request: Request[Any, Any, Any]) -> str:
    return " ".join(context_of(request.scope).origins.frame_ancestors)


async def _serve_document(request: Request[Any, Any, Any], web: Path, name: str) -> Response[Any]:
    try:
        return await static_files.serve_file(request, web, name, cache=REVALIDATE)
    except NotFoundException:
        return Response(NOT_BUILT, status_code=503, media_type=MediaType.TEXT, headers={"Cache-Control": REVALIDATE})
