"""A real browser on the page: it acts as a person does, and reads the same elements."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from tests.support import browser_program

PATIENCE_MS = 60_000
BLOCKED = "Service Worker registration blocked by Playwright"
PASSWORD = "en taro adun"
ENDED = ":is([data-state=done], [data-state=stopped], [data-state=failed])"
RECORD = """() => {
    window.written = new Set();
    const record = () => {
        const text = document.querySelector(".message:last-child[data-state=writing] .text")?.textContent;
        if (text) window.written.add(text);
    };
    new MutationObserver(record).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
AWAIT_FORECASTS = """() => {
    const later = window.setTimeout;
    window.setTimeout = (what, ms, ...more) => later(what, ms === 800 ? 60_000 : ms, ...more);
}"""
"""From now on, a message waits for its forecast for a minute: the page itself waits for 800 ms."""


class Server(Protocol):
    """A running Khala, which can be killed and started again on the same port and data."""

    url: str

    def restart(self) -> None: ...


ServiceWorkers = Literal["allow", "block"]


@contextmanager
def new_chromium(*arguments: str, whole: bool = False) -> Iterator[Browser]:
    """A new Chromium with further command-line arguments: `browser_program.path`.

    `whole`: with what the headless shell has not, such as notifications.

    Until it ends, this thread can run no event loop.
    """
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        given = [*browser_program.ARGUMENTS, *arguments]
        started = playwright.chromium.launch(executable_path=browser_program.path(whole=whole), args=given)
        yield started
        started.close()


@contextmanager
def new_profile(chromium: Browser, service_workers: ServiceWorkers = "block") -> Iterator[BrowserContext]:
    """A new profile for one person, who shares no storage, cookies or cache with others of the same Chromium.

    A test cannot change a service worker's requests, so only tests of the service worker allow it. At the end, all
    profiles close, those of `another_browser` too.
    """
    yield _profile(chromium, service_workers)
    for profile in chromium.contexts:
        profile.close()


@contextmanager
def new_browser() -> Iterator[BrowserContext]:
    """A new browser for one person, in a Chromium of its own."""
    with new_chromium() as chromium, new_profile(chromium) as profile:
        yield profile


def another_browser(context: BrowserContext) -> BrowserContext:
    """A browser of another person."""
    assert context.browser is not None
    return _profile(context.browser, "block")


def _profile(chromium: Browser, service_workers: ServiceWorkers) -> BrowserContext:
    profile = chromium.new_context(viewport={"width": 1280, "height": 800}, service_workers=service_workers)
    profile.set_default_timeout(PATIENCE_MS)
    return profile


class Chat:
    """A page with a chat on it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.asked_for: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.on("request", lambda request: self.asked_for.append(request.url))
        self.page.goto(url)
        expect(self.welcome).to_be_visible()

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning") and message.text != BLOCKED:
            self.complaints.append(message.text)

    @property
    def welcome(self) -> Locator:
        return self.page.locator(".message.assistant").first

    @property
    def answer(self) -> Locator:
        """The newest answer to a question."""
        return self.page.locator(".message.user ~ .message.assistant").last

    @property
    def url(self) -> str:
        return self.page.url

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def send(self, text: str) -> None:
        """Send a message, and wait until the page shows it, in any state."""
        mine = self.page.locator(".message.user")
        before = mine.count()
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        expect(mine).to_have_count(before + 1)

    def text(self) -> str:
        """The newest answer's text as the page shows it; empty while there is none."""
        script = """() => [...document.querySelectorAll('.message')].at(-1)?.matches('.assistant')
            ? [...document.querySelectorAll('.message:last-child .text')].map((e) => e.textContent).join('') : ''"""
        shown: str = self.page.evaluate(script)
        return shown

    def wait_for_word(self, word: str) -> None:
        expect(self.answer).to_contain_text(f"{word} ")

    def wait_for_end(self) -> None:
        # The newest message, not an earlier answer: an accepted question appears before its answer.
        expect(self.page.locator(f".message.user ~ .message.assistant{ENDED}:last-child")).to_be_visible()
        expect(self.page.locator("[data-state=writing], [data-state=sending]")).to_have_count(0)

    def record(self) -> None:
        """Record the states of the newest answer from now on, while it is written."""
        self.page.evaluate(RECORD)

    def await_forecasts(self) -> None:
        """Have messages wait for their forecast from now on, however busy the machine is."""
        self.page.evaluate(AWAIT_FORECASTS)

    def recorded(self) -> list[str]:
        """All recorded states of the answer."""
        texts: list[str] = self.page.evaluate("[...window.written]")
        return texts

    def is_writing(self) -> bool:
        return self.page.locator("[data-state=writing]").count() > 0

    def stored(self) -> dict[str, Any]:
        """The thread as the server sends it to a client with this browser's key or cookie."""
        origin, _, thread_id = self.url.partition("/t/")
        key = json.loads(self.page.evaluate(f"localStorage.getItem('khala.chat.{thread_id}')") or "{}").get("key")
        headers = {"X-Anon-Key": key} if key else {}
        answer = self.page.request.get(f"{origin}/api/threads/{thread_id}", headers=headers)
        assert answer.status == 200
        snapshot: dict[str, Any] = answer.json()
        return snapshot

    def stored_text(self) -> str:
        """The newest message's text as the server stores it."""
        blocks = self.stored()["messages"][-1]["content"]
        return "".join(block["text"] for block in blocks if block["type"] == "text")

    def register(self, email: str, name: str) -> None:
        """Create an account in the dialog."""
        self.button("Sign in").first.click()
        self.button("Create an account").click()
        self.page.get_by_label("Name", exact=True).and_(self.page.locator("#signin *")).fill(name)
        self._fill_sign_in(email, "Create account")

    def sign_in(self, email: str) -> None:
        """Sign in with the dialog."""
        self.button("Sign in").first.click()
        self._fill_sign_in(email, "Sign in")

    def _fill_sign_in(self, email: str, submit: str) -> None:
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Email").fill(email)
        dialog.get_by_label("Password").fill(PASSWORD)
        dialog.get_by_role("button", name=submit, exact=True).click()
        expect(self.page.locator("#signin")).to_be_hidden()
        expect(self.page.get_by_title("Your account")).to_be_visible()

    def sign_out(self) -> None:
        """Sign out with the account's dialog."""
        self.page.get_by_title("Your account").click()
        self.button("Sign out").click()
        expect(self.button("Sign in").first).to_be_visible()

    def open_settings(self, section: str) -> Locator:
        """Open a section of the settings; returns their dialog."""
        self.page.locator("#settings-open").click()
        self.page.get_by_role("tab", name=section, exact=True).click()
        return self.page.get_by_role("dialog", name="Settings", exact=True)

    def open_chat_settings(self) -> Locator:
        """Open the settings of the open chat; returns their dialog."""
        self.page.locator("#chat-menu").click()
        self.page.get_by_role("menuitem", name="Chat settings…").click()
        return self.page.get_by_role("dialog", name="Chat settings", exact=True)

    def share(self, may: str) -> str:
        """Create a link in the dialog; returns the URL."""
        self.button("Share").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Anyone with a link").check()
        dialog.locator("#share-form").get_by_label("Access").select_option(label=may)
        dialog.get_by_role("button", name="Copy link").click()
        url = dialog.get_by_label("Copy it now")
        expect(url).to_have_value(re.compile("#share="))
        address = url.input_value()
        dialog.get_by_role("button", name="Close").click()
        return address

    def listed(self, title: str) -> Locator:
        """The chat's entry in the list."""
        return self.page.locator("#chats").get_by_role("link", name=title)

    def search_messages(self) -> None:
        """Open the search of messages, by the search of everything."""
        self.button("Search").click()
        self.page.get_by_role("combobox", name="Search chats, messages and actions").fill("Search messages")
        self.page.get_by_role("option", name="Search messages", exact=True).click()
        expect(self.page.get_by_role("searchbox", name="Search messages")).to_be_focused()

    def act_on(self, title: str, action: str) -> None:
        """Choose an action in the menu of a chat of the list."""
        self.listed(title).hover()
        self.page.get_by_role("button", name=f"Actions for “{title}").click()
        self.page.get_by_role("menuitem", name=action, exact=True).click()

    def act(self, action: str) -> None:
        """Choose an action in the menu of the open chat."""
        self.button("Chat menu").click()
        self.page.get_by_role("menuitem", name=action, exact=True).click()

    def with_autopilot(self) -> None:
        """Switch on the autopilot."""
        self.button("Add files and more").click()
        item = self.page.get_by_role("menuitemcheckbox", name="Autopilot", exact=True)
        if item.get_attribute("aria-checked") == "true":
            self.page.keyboard.press("Escape")
        else:
            item.click()

    def add(self, action: str) -> None:
        """Choose an action in the composer's menu."""
        self.button("Add files and more").click()
        self.page.get_by_role("menuitem", name=action, exact=True).click()

    def card(self, tool: str) -> Locator:
        """The newest card of a tool."""
        return self.page.locator(".card").and_(self.page.locator(f"[data-tool={json.dumps(tool)}]")).last

    @property
    def run_bar(self) -> Locator:
        """The region that shows the run of the newest answer."""
        return self.page.get_by_role("region", name="Run", exact=True)

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        pixels: int = self.page.evaluate(
            "() => Math.max(...[document.documentElement, document.body, document.querySelector('#scroll')]"
            ".map((element) => element.scrollWidth - element.clientWidth))"
        )
        return pixels


def open_card(card: Locator) -> Locator:
    """The details of a tool's card, after a click that opens it."""
    card.locator(".card-head").click()
    expect(card.locator(".card-head")).to_have_attribute("aria-expanded", "true")
    return card.locator(".card-body")


def words(count: int) -> str:
    """The demo model's answer to `/words=count`."""
    return " ".join(f"word{number}" for number in range(1, count + 1))
