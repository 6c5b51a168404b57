"""The page: its files with their media types and cache headers, and the frame for previews."""

import gzip
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from khala.api.application import application
from khala.api.context import Context, LimitContext
from khala.api.http.rate_limits import RateLimiter
from khala.api.http.request_origin import OriginPolicy
from khala.store.threads.sends import SendLimits
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

THREAD = "/t/01a1fbf2-37c2-7506-a120-9f98121662b0"
FRESH = "no-cache"
FOR_EVER = "public, max-age=31536000, immutable"
FILES = {
    "index.html": (b"<!doctype html><title>Khala</title>", "text/html; charset=utf-8", FRESH),
    "icon.svg": (b"<svg/>", "image/svg+xml", FRESH),
    "sw.js": (b"self", "text/javascript; charset=utf-8", FRESH),
    "manifest.webmanifest": (b"{}", "application/manifest+json", FRESH),
    "console/console.html": (b"<!doctype html><title>Console</title>", "text/html; charset=utf-8", FRESH),
    "console/assets/console-e5f6.js": (b"import 2;", "text/javascript; charset=utf-8", FOR_EVER),
    "assets/main-a1b2.js": (b"import 1;" * 100, "text/javascript; charset=utf-8", FOR_EVER),
    "assets/main-a1b2.css": (b"a {}", "text/css; charset=utf-8", FOR_EVER),
    "assets/add-c3d4.wasm": (b"\0asm", "application/wasm", FOR_EVER),
    "assets/odd.bin": (b"\x00\xff", "application/octet-stream", FOR_EVER),
}
SCRIPT = "/web/assets/main-a1b2.js"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PREVIEW_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page, as a build leaves it."""
    made = tmp_path_factory.mktemp("page") / "dist"
    for name, (data, _, _) in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(data)
    (made / ".built").write_text("a stamp")
    (made.parent / "secret.txt").write_text("a secret")
    (made / "assets" / "away.js").symlink_to(made.parent / "secret.txt")
    return made


def serving(folder: Path, origins: OriginPolicy | None = None) -> httpx.AsyncClient:
    """The application with this folder, without the services that its other routes need."""
    nothing = dict.fromkeys(Context.__struct_fields__)
    limits = LimitContext(sends=SendLimits(), requests=RateLimiter(0, count_loopback=False))
    context = Context(**(nothing | {"origins": origins or OriginPolicy(), "limits": limits}))  # type: ignore[arg-type]
    # Litestar types ASGI messages, httpx does not.
    transport = httpx.ASGITransport(application(context, web=folder, version="0"))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://khala", headers={"Accept-Encoding": "identity"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(folder) as client:
        yield client


server = server_fixture(with_executor=False)


@pytest.mark.parametrize("name", FILES)
async def test_each_file_has_its_media_type_and_the_caching_that_its_name_allows(
    page: httpx.AsyncClient, name: str
) -> None:
    data, kind, kept = FILES[name]
    response = await page.get(f"/web/{name}")
    assert (response.status_code, response.content) == (200, data)
    assert (response.headers["content-type"], response.headers["cache-control"]) == (kind, kept)
    assert response.headers["content-security-policy"] == POLICY
    assert "vary" not in response.headers


@pytest.mark.parametrize("path", ["/", THREAD])
async def test_the_page_is_revalidated_each_time(page: httpx.AsyncClient, path: str) -> None:
    response = await page.get(path)
    assert (response.content, response.headers["cache-control"]) == (FILES["index.html"][0], FRESH)
    again = await page.get(path, headers={"If-None-Match": f'"other", W/{response.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == response.headers["etag"]
    assert (await page.get(path, headers={"If-None-Match": '"other"'})).status_code == 200


async def test_only_the_page_and_its_preview_may_be_framed_by_the_origins_that_the_operator_names(folder: Path) -> None:
    named = ("https://shop.example.com", "https://*.example.org")
    async with serving(folder, OriginPolicy(frame_ancestors=named)) as client:
        for path in ("/", THREAD):
            policy = (await client.get(path)).headers["content-security-policy"]
            assert policy == POLICY.replace(
                "ancestors 'none'", "ancestors https://shop.example.com https://*.example.org"
            )
        preview = (await client.get("/preview")).headers["content-security-policy"]
        assert preview == PREVIEW_POLICY + " https://shop.example.com https://*.example.org"
        for path in ("/sw.js", "/nowhere", "/console", "/console/runs", SCRIPT):
            assert (await client.get(path)).headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("path", ["/console", "/console/runs", "/console/runs/01a1fbf2-37c2-7506-a120-9f98121662b0"])
async def test_the_console_is_one_document_for_all_its_addresses(page: httpx.AsyncClient, path: str) -> None:
    response = await page.get(path)
    assert (response.content, response.headers["cache-control"]) == (FILES["console/console.html"][0], FRESH)
    assert response.headers["content-security-policy"] == POLICY
    assert response.headers["x-frame-options"] == "DENY"


async def test_the_service_worker_is_served_at_the_root(page: httpx.AsyncClient) -> None:
    response = await page.get("/sw.js")
    assert (response.status_code, response.content) == (200, FILES["sw.js"][0])
    assert response.headers["content-type"] == "text/javascript; charset=utf-8"
    assert response.headers["cache-control"] == FRESH


@pytest.mark.parametrize(
    "name",
    ["../secret.txt", "%2e%2e/secret.txt", "assets/%2e%2e/index.html", "assets/away.js", ".built", "assets", "none"],
)
async def test_hidden_files_and_files_outside_the_folder_are_not_found(page: httpx.AsyncClient, name: str) -> None:
    response = await page.get(f"/web/{name}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_a_compressed_copy_is_sent_if_the_client_accepts_it(folder: Path) -> None:
    data = FILES["assets/main-a1b2.js"][0]
    (folder / "assets" / "main-a1b2.js.gz").write_bytes(gzip.compress(data))
    (folder / "assets" / "main-a1b2.js.br").write_bytes(b"as brotli")
    tags = {}
    async with serving(folder) as page:
        for accepted, coding in (
            ("gzip, deflate, br", "br"), ("br;q=0.5,gzip", "br"), ("gzip", "gzip"), ("br;q=0, GZIP;q=1", "gzip"),
            ("br; q=0.000", None), ("identity", None), (";;;", None), ("", None),
        ):  # fmt: skip
            request = page.build_request("GET", SCRIPT, headers={"Accept-Encoding": accepted})
            response = await page.send(request, stream=True)
            body = b"".join([chunk async for chunk in response.aiter_raw()])
            assert response.headers.get("content-encoding") == coding, accepted
            assert response.headers["vary"] == "Accept-Encoding"
            assert response.headers["content-type"] == "text/javascript; charset=utf-8"
            assert (zlib.decompress(body, 31) if coding == "gzip" else body) == (
                b"as brotli" if coding == "br" else data
            )
            tags[coding] = response.headers["etag"]
    assert len(set(tags.values())) == 3, "each encoding has its own ETag"
    for end in (".gz", ".br"):
        (folder / "assets" / f"main-a1b2.js{end}").unlink()


async def test_a_page_that_is_not_built_names_the_build_command(tmp_path: Path) -> None:
    async with serving(tmp_path / "nowhere") as page:
        for path in ("/", THREAD):
            response = await page.get(path)
            assert (response.status_code, response.headers["content-type"]) == (503, "text/plain; charset=utf-8")
            assert "make web" in response.text
        for path in ("/sw.js", "/web/index.html"):
            assert (await page.get(path)).status_code == 404


async def test_a_head_has_no_body(server: InProcessServer) -> None:
    whole = await server.http.get("/web/index.html")
    head = await server.http.head("/web/index.html")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "content-type", "etag", "cache-control"):
        assert head.headers[name] == whole.headers[name]


async def test_a_preview_may_run_scripts_and_nothing_else(server: InProcessServer) -> None:
    response = await server.http.get("/preview", headers={"Cookie": "khala_session=nobody"})
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["content-security-policy"] == PREVIEW_POLICY
    assert response.headers["x-frame-options"] == "SAMEORIGIN"
    assert response.headers["x-dns-prefetch-control"] == "off"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in response.headers
    assert "src=" not in response.text, "it loads nothing"
