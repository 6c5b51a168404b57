"""The sheets of the gallery in a real browser: their states, their images, and what axe finds in them."""

import base64
import functools
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.system.browser import new_chromium

ROOT = Path(__file__).parents[2]
GROUPS = ("messages", "tools", "composer", "sidebar", "dialogs", "settings", "plans", "panel", "console", "pages")
"""Those of `app/web/gallery/groups.ts`."""
ENGLISH_GROUPS = ("console",)
"""Groups that are in English only, so that they are never shown from right to left."""
BUILT = ROOT / ".cache" / "gallery"
AXE = ROOT / "app" / "web" / "node_modules" / "axe-core" / "axe.min.js"
WIDTH, HEIGHT = 1400, 200
PREVIEW_HEIGHTS = {"panel": 700}
"""Heights of windows that have to show previews: browsers draw a frame of another origin only where it can be seen."""
PREVIEW = ROOT / "app" / "khala" / "api" / "http" / "preview.html"
TIMEOUT_MS = 110_000
STILL_MS = 200
MOST_CHANGES = 20
"""Sheets are at rest when their states have kept their heights for `STILL_MS`."""
STILL_FONTS = ("--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb")
"""Text is drawn in shades of grey at unhinted places, on every machine."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOR_RULES = ["color-contrast", "link-in-text-block"]
WHOLE_PAGE_RULES = ["landmark-one-main", "page-has-heading-one", "region", "bypass"]
NEEDS_WHOLE_PAGE = {rule: {"enabled": False} for rule in WHOLE_PAGE_RULES}
"""A state is a part of a page."""
RUN_AXE = """async ([number, options]) => {
    const frame = document.querySelectorAll("iframe")[number].contentWindow;
    if (!frame.axe) frame.eval(window.axeSource);
    const { violations } = await frame.axe.run(frame.document, options);
    const words = (id, { html, failureSummary }) => `${id}: ${html.slice(0, 200)} (${failureSummary})`;
    return violations.flatMap(({ id, nodes }) => nodes.map((node) => words(id, node)));
}"""


@dataclass(frozen=True)
class State:
    """A state on a sheet, and the pixels of its frame."""

    name: str
    x: int
    y: int
    width: int
    height: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        return (self.x, self.y, self.x + self.width, self.y + self.height)


class Sheet:
    """All states of a group in one variant."""

    def __init__(self, page: Page, places: list[dict[str, Any]]) -> None:
        """AssertionError with the reasons if states cannot be shown."""
        self._page = page
        problems = [f"“{place['name']}”: {place['problem']}" for place in places if place["problem"]]
        assert not problems, "\n".join(problems)
        self.states = [
            State(place["name"], *(int(place[key]) for key in ("x", "y", "width", "height"))) for place in places
        ]

    def show_variant(self, variant: str) -> "Sheet":
        """The same states in another variant of the same language."""
        return Sheet(self._page, self._page.evaluate("showVariant", variant))

    def image(self) -> Image.Image:
        """The sheet as it is now."""
        width = max(state.x + state.width for state in self.states) + 20
        height = max(state.y + state.height for state in self.states) + 20
        session = self._page.context.new_cdp_session(self._page)
        shot = session.send(
            "Page.captureScreenshot",
            {
                "format": "png",
                "optimizeForSpeed": True,
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
            },
        )
        session.detach()
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def violations(self, *, only_colors: bool = False) -> list[str]:
        """What axe finds in the states."""
        self._page.evaluate("(source) => { window.axeSource = source; }", AXE.read_text())
        options: dict[str, Any] = {"runOnly": {"type": "tag", "values": RULES}, "rules": NEEDS_WHOLE_PAGE}
        if only_colors:
            options = {"runOnly": {"type": "rule", "values": COLOR_RULES}}
        options |= {"resultTypes": ["violations"], "iframes": False}
        return [
            f"{state.name}: {violation}"
            for number, state in enumerate(self.states)
            for violation in self._page.evaluate(RUN_AXE, [number, options])
        ]


class Gallery:
    """The built gallery in a browser."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._url = url
        # The service worker is part of another build, and motion would differ from run to run.
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT},
            reduced_motion="reduce",
            service_workers="block",
            timezone_id="UTC",
        )
        context.set_default_timeout(TIMEOUT_MS)
        self._page = context.new_page()

    def open(self, group: str, variant: str) -> Sheet:
        """Open a sheet. AssertionError with the reasons if states of it cannot be shown."""
        # An address that differs in its hash alone loads nothing.
        self._page.goto("about:blank")
        self._page.set_viewport_size({"width": WIDTH, "height": PREVIEW_HEIGHTS.get(group, HEIGHT)})
        self._page.goto(f"{self._url}/#{group}/{variant}")
        self._page.wait_for_function("globalThis.places !== undefined")
        places = self._page.evaluate("places")
        # A part of the page that is loaded late changes the height of its state.
        for _ in range(MOST_CHANGES):
            self._page.wait_for_timeout(STILL_MS)
            before, places = places, self._page.evaluate("showVariant", variant)
            if places == before:
                break
        return Sheet(self._page, places)


def sheets_of(gallery: Gallery, group: str) -> Iterator[tuple[str, Sheet]]:
    """The sheets of a group, each with its name. Take what you need of a sheet before the next one."""
    light = gallery.open(group, "light")
    yield f"{group}-light", light
    yield f"{group}-narrow", light.show_variant("narrow")
    if group not in ENGLISH_GROUPS:
        yield f"{group}-rtl", gallery.open(group, "rtl")


@contextmanager
def opened_gallery() -> Iterator[Gallery]:
    """The built gallery in a new Chromium: the headless shell would draw text in another way.

    Until it ends, this thread can run no event loop.
    """
    with served(0) as url, new_chromium(*STILL_FONTS, whole=True) as chromium:
        yield Gallery(chromium, url)


@contextmanager
def served(port: int) -> Iterator[str]:
    """Serve the built gallery. Returns its address."""
    with ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Files, directory=str(BUILT))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Files(SimpleHTTPRequestHandler):
    """Files that the frames of a sheet share."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a file. The page shows HTML of answers, and draws diagrams, at the server's own `/preview`."""
        if self.path == "/preview":
            body = PREVIEW.read_bytes()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=60")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""
