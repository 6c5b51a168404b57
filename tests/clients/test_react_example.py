"""The example `react-chat`, built with the packed packages, in Chromium beside a server that is killed."""

import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from infra.npm_projects import CLIENTS, NODE, environment
from tests.support.server import Server
from tests.system.browser import another_browser, new_browser, words

pytestmark = pytest.mark.timeout(180)

CALLS = '/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.'


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves the built page, as a host of static files does."""

    def log_message(self, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(installed: Path, server: Server, page_port: int) -> Iterator[str]:
    """The example as a stranger builds it, outside the repository, on an origin that `KHALA_ORIGINS` names."""
    example = installed / "react-chat"
    shutil.copytree(CLIENTS / "examples" / "react-chat", example, ignore=shutil.ignore_patterns("node_modules", "dist"))
    vite = [str(NODE), str(installed / "node_modules" / "vite" / "bin" / "vite.js"), "build"]
    env = environment() | {"VITE_KHALA_URL": server.url}
    done = subprocess.run(vite, cwd=example, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    handler = partial(Files, directory=str(example / "dist"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", page_port), handler) as files:
        thread = threading.Thread(target=files.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{page_port}/"
        files.shutdown()
        thread.join()


@pytest.fixture
def browser(site: str) -> Iterator[BrowserContext]:
    with new_browser() as context:
        yield context


def opened(browser: BrowserContext, address: str, errors: list[str]) -> Page:
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    return page


def another_person(context: BrowserContext, page: Page) -> Page:
    """Opens the chat in another browser, with the key to it and an id of its own."""
    key = page.evaluate("localStorage.getItem('khala.key')")
    context.add_init_script(f"localStorage.setItem('khala.key', '{key}')")
    return opened(context, page.url, [])


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def answers(page: Page) -> Locator:
    return page.locator("article.assistant")


def test_the_example_keeps_an_answer_exact_over_a_killed_server_and_decides_approvals(
    browser: BrowserContext, server: Server, site: str
) -> None:
    errors: list[str] = []
    page = opened(browser, site, errors)
    page.get_by_role("button", name="Start a chat").click()
    expect(page.locator("main[data-status=live]")).to_be_visible()
    send(page, "/words=150 /pace=30")
    expect(answers(page).last).to_contain_text("word20 ")
    other = opened(browser, page.url, errors)
    expect(answers(other).last).to_contain_text("word20 ")
    server.kill()
    expect(page.get_by_text("Reconnecting…")).to_be_visible()
    send(page, "/echo Sent while the server was away")
    expect(page.get_by_text("Sending…")).to_be_visible()
    server.start()
    for one in (page, other):
        expect(answers(one).last).to_contain_text("Sent while the server was away")
        first = answers(one).nth(-2).locator("p").all_inner_texts()
        assert "".join(first).split() == words(150).split()
    send(page, CALLS)
    page.get_by_role("button", name="Approve").click()
    expect(answers(page).last).to_contain_text("Over.")
    expect(other.get_by_text("Over.", exact=True)).to_be_visible()
    send(page, "/words=2000 /pace=30")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page).last).to_contain_text("Stopped")
    page.reload()
    expect(answers(page).last).to_contain_text("Stopped")
    assert errors == []


def test_two_tabs_of_one_person_are_one_person(browser: BrowserContext, site: str) -> None:
    page = opened(browser, site, [])
    page.get_by_role("button", name="Start a chat").click()
    expect(page.locator("main[data-status=live]")).to_be_visible()
    second = another_browser(browser)
    other = another_person(second, page)
    for one in (page, other):
        expect(one.locator(".people")).to_have_text("2 people")
    tab = opened(browser, page.url, [])
    third = opened(second, page.url, [])
    for one in (tab, third):
        expect(one.locator(".people")).to_have_text("2 people")
    other.close()
    third.close()
    expect(page.locator(".people")).to_have_text("")
    expect(tab.locator(".people")).to_have_text("")


def test_arguments_to_approve_are_shown_with_every_character(browser: BrowserContext, site: str) -> None:
    page = opened(browser, site, [])
    page.get_by_role("button", name="Start a chat").click()
    expect(page.locator("main[data-status=live]")).to_be_visible()
    send(page, r'/call delete_file {"path": "note\u202etxt\udb40\udc41.exe"} /say Over.')
    expect(page.locator(".decision pre")).to_contain_text(r'"path": "note\u202etxt\udb40\udc41.exe"')
    page.get_by_role("button", name="Approve").click()
    expect(answers(page).last).to_contain_text("Over.")
