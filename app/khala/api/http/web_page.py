"""The page and its files, and the frame in which it shows what a model has made."""

from pathlib import Path
from typing import Annotated, Any

from litestar import HttpMethod, MediaType, Request, Response, get, route
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter
from litestar.types import ControllerRouterHandler

from khala.api.http import static_files

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page of ours may load, and from where: from here alone; WebAssembly may be compiled, but no text be run."""
PREVIEW_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""What a document that a model made may do: run, with nothing to load, nobody to ask and an origin of its own."""
PREVIEW = (Path(__file__).parent / "preview.html").read_bytes()
FRESH = "no-cache"
FOR_EVER = "public, max-age=31536000, immutable"
"""Of files whose names change with what is in them."""
HASHED = "assets/"
NOT_BUILT = "The page has not been built. Run `make web`.\n"

FilePath = Annotated[str, PathParameter(description="A file's name within the folder.")]


def routes(web: Path) -> list[ControllerRouterHandler]:
    """The page at `/` and at `/t/{thread id}`, its files under `/web`, its service worker, and `/preview`."""

    @get(["/", "/t/{thread_id:uuid}"], media_type=MediaType.HTML, include_in_schema=False)
    async def page(request: Request[Any, Any, Any]) -> Response[Any]:
        try:
            return await static_files.answer(request, web, "index.html", cache=FRESH)
        except NotFoundException:
            return Response(NOT_BUILT, status_code=503, media_type=MediaType.TEXT, headers={"Cache-Control": FRESH})

    @get("/sw.js", include_in_schema=False)
    async def service_worker(request: Request[Any, Any, Any]) -> Response[Any]:
        # Here and not under /web: a service worker sees to no more than what lies beneath it.
        return await static_files.answer(request, web, "sw.js", cache=FRESH)

    @route("/web/{file_path:path}", http_method=[HttpMethod.GET, HttpMethod.HEAD], include_in_schema=False)
    async def file(request: Request[Any, Any, Any], file_path: FilePath) -> Response[Any]:
        name = file_path.removeprefix("/")
        return await static_files.answer(request, web, name, cache=FOR_EVER if name.startswith(HASHED) else FRESH)

    return [page, service_worker, file, preview]


@get("/preview", media_type=MediaType.HTML, include_in_schema=False)
async def preview() -> Response[bytes]:
    """An empty page that shows the document which the page around it hands over."""
    headers = {
        "Content-Security-Policy": PREVIEW_POLICY,
        "X-Frame-Options": "SAMEORIGIN",
        "X-DNS-Prefetch-Control": "off",
        "Cache-Control": FRESH,
    }
    return Response(PREVIEW, media_type=MediaType.HTML, headers=headers)
