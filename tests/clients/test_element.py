"""`<khala-chat>` of `@khala/element`, from its packed file, in Chromium on a page of another origin."""

import gzip
import http.server
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.support.server import Server
from tests.system.browser import new_browser, words

pytestmark = pytest.mark.timeout(180)

MAX_GZIPPED_BYTES = 60_000
PAGE = """<!doctype html><html lang="{lang}"><meta charset="utf-8"><title>Shop</title>
<style>.message {{ display: none }} khala-chat {{ --khala-accent: rgb(1, 2, 3); block-size: 400px }}</style>
<script type="module" src="khala-chat.js"></script>{body}</html>"""
HOSTILE = (
    "<img src=x onerror=window.hacked=1> [go](javascript:window.hacked=1) <style>*{display:none}</style> "
    "<form action=/steal><input name=password></form> **bold**"
)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves the package's file, and pages of other sites."""

    def log_message(self, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def folder(installed: Path) -> Path:
    return installed / "node_modules" / "@khala" / "element" / "dist"


@pytest.fixture(scope="module")
def site(folder: Path, server: Server, page_port: int) -> Iterator[str]:
    handler = partial(Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", page_port), handler) as files:
        thread = threading.Thread(target=files.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{page_port}/"
        files.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(site: str) -> Iterator[BrowserContext]:
    with new_browser() as context:
        yield context


def opened(browser: BrowserContext, site: str, folder: Path, body: str, *, lang: str = "en") -> Page:
    # A name of its own: a browser keeps a page that was changed within the same second.
    name = f"{uuid.uuid4()}.html"
    (folder / name).write_text(PAGE.format(lang=lang, body=body))
    page = browser.new_page()
    page.goto(f"{site}{name}")
    return page


def send(page: Page, text: str) -> None:
    page.get_by_label("Write a message").fill(text)
    page.get_by_label("Write a message").press("Enter")


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant")


def test_the_element_fits_into_its_bound(folder: Path) -> None:
    assert len(gzip.compress((folder / "khala-chat.js").read_bytes())) <= MAX_GZIPPED_BYTES


def test_a_guest_keeps_an_exact_answer_over_a_reload_and_a_killed_server(
    browser: BrowserContext, site: str, folder: Path, server: Server
) -> None:
    page = opened(browser, site, folder, f'<khala-chat server="{server.url}"></khala-chat>')
    expect(page.locator(".chat[data-status=live]")).to_be_visible()
    # Its styles are its own: the page's `.message` hides nothing, and its variables count.
    send(page, "/words=120 /pace=40")
    expect(answers(page).last).to_contain_text("word20 ")
    assert page.locator(".send").evaluate("b => getComputedStyle(b).backgroundColor") == "rgb(1, 2, 3)"
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    server.kill()
    expect(page.get_by_text("Reconnecting…")).to_be_visible()
    server.start()
    expect(answers(page).last).to_contain_text("word119", timeout=30_000)
    page.reload()
    expect(answers(page).last).to_contain_text("word119")
    # A notice about the killed server stands between the two texts.
    texts = answers(page).last.locator(".markdown").all_inner_texts()
    assert " ".join(texts).split() == words(120).split()
    page.close()


def test_a_thread_token_opens_one_thread_and_approvals_are_decided(
    browser: BrowserContext, site: str, folder: Path, server: Server
) -> None:
    with httpx.Client(base_url=server.url) as http:
        thread = http.post("/api/threads", json={"anonKey": "k" * 40}).json()["thread"]["id"]
        owner = {"X-Anon-Key": "k" * 40}
        made = http.post(f"/api/threads/{thread}/tokens", json={"role": "editor"}, headers=owner).json()
    tag = f'<khala-chat server="{server.url}" thread="{thread}" thread-token="{made["token"]}"></khala-chat>'
    page = opened(browser, site, folder, tag)
    page.evaluate("document.querySelector('khala-chat').addEventListener('khala-ready', e => window.ready = e.detail)")
    expect(page.locator(".chat[data-status=live]")).to_be_visible()
    send(page, "/echo " + HOSTILE)
    expect(answers(page).last.locator("strong")).to_have_text("bold")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, style + style, form[action], a[href^=javascript], input").count() == 0
    send(page, "/pace=0 /echo 3. third\n\n- [x] done\n- [ ] open\n\n|a|\n|-:|\n|1|")
    expect(answers(page).last.locator("ol")).to_have_attribute("start", "3")
    expect(answers(page).last.locator("input[type=checkbox]:disabled")).to_have_count(2)
    expect(answers(page).last.locator("td")).to_have_attribute("align", "right")
    page.evaluate("document.querySelector('khala-chat').setAttribute('thread-token', 'khala_thread_wrong')")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(page.get_by_text("This chat can’t be opened.")).to_be_visible()
    expect(page.get_by_label("Write a message")).to_be_hidden()
    page.close()


def test_the_arguments_of_a_call_to_approve_hide_no_character(
    browser: BrowserContext, site: str, folder: Path, server: Server
) -> None:
    hidden = r"note\u202etxt\u200b\ufe0f\u3164\u00ad\udb40\udc41.exe"
    owner = {"X-Anon-Key": "h" * 40}
    with httpx.Client(base_url=server.url, headers=owner) as http:
        thread = http.post("/api/threads", json={"anonKey": "h" * 40}).json()["thread"]["id"]
        made = http.post(f"/api/threads/{thread}/tokens", json={"role": "editor"}).json()
        text = f'/call delete_file {{"path":"{hidden}"}} /say ❤️ 👩‍🚀'
        sent = http.post(f"/api/threads/{thread}/send", json={"text": text, "options": {"autopilot": True}})
        assert sent.status_code == httpx.codes.ACCEPTED, sent.text
    tag = f'<khala-chat server="{server.url}" thread="{thread}" thread-token="{made["token"]}"></khala-chat>'
    page = opened(browser, site, folder, tag)
    call = page.locator(".call[data-state=blocked]")
    # Nobody is offered to decide what has expired.
    page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=30))
    page.reload()
    expect(call).to_contain_text("Expired without an answer.")
    expect(call.get_by_role("button")).to_have_count(0)
    page.clock.set_fixed_time(datetime.now(UTC))
    page.reload()
    expect(call.locator("small")).to_contain_text(f'"path": "{hidden}"')
    call.get_by_role("button", name="Approve").click()
    expect(page.locator(".call[data-state=blocked]")).to_have_count(0)
    # Outside of arguments, emoji with their selectors and joiners stay as they are.
    expect(answers(page).last).to_contain_text("❤️ 👩‍🚀")
    page.close()


def test_it_speaks_the_language_of_the_page_and_says_what_is_missing(
    browser: BrowserContext, site: str, folder: Path, server: Server
) -> None:
    page = opened(browser, site, folder, f'<khala-chat server="{server.url}" name="ar"></khala-chat>', lang="ar")
    expect(page.get_by_label("اكتب رسالة")).to_be_visible()
    expect(page.locator(".chat")).to_have_attribute("dir", "rtl")
    page.get_by_label("اكتب رسالة").fill("/pace=0 /echo - واحد\n- اثنان")
    page.get_by_label("اكتب رسالة").press("Enter")
    expect(answers(page).last.locator("ul")).to_have_css("direction", "rtl")
    page.close()
    page = opened(browser, site, folder, f'<khala-chat server="{server.url}" thread-token="x"></khala-chat>')
    expect(page.get_by_role("alert")).to_contain_text("needs both")
    page.close()
