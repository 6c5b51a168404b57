"""The page on a bad network: dropped connections, an unavailable server, and offline use."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.forwarder import Forwarder, forwarder
from tests.support.server import Server
from tests.system.browser import PATIENCE_MS, Chat, new_profile, words

pytestmark = pytest.mark.timeout(150)


KEPT = """async (only) => {
    const found = [];
    for (const { name } of await indexedDB.databases()) {
        if (only !== null && name !== only) continue;
        const db = await new Promise((done, fail) => {
            const asked = indexedDB.open(name);
            asked.onsuccess = () => done(asked.result);
            asked.onerror = () => fail(asked.error);
        });
        for (const store of db.objectStoreNames) {
            const all = await new Promise((done, fail) => {
                const asked = db.transaction(store).objectStore(store).getAll();
                asked.onsuccess = () => done(asked.result);
                asked.onerror = () => fail(asked.error);
            });
            found.push(JSON.stringify(all));
        }
        db.close();
    }
    return found.join("");
}"""


OVERHEAR = """() => {
    window.told = [];
    const tell = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (message, ...more) {
        window.told.push(message?.type);
        return tell.call(this, message, ...more);
    };
}"""
"""From now on, remember what the page tells its workers."""


def stored_data(page: Page, database: str | None = None) -> str:
    """All content of the browser's databases, or of one of them."""
    text: str = page.evaluate(KEPT, database)
    return text


def wait_until_stored(page: Page, text: str) -> None:
    """Wait until the page has stored a thread with this text and can be opened without its server.

    The search index, a database of its own, may have the text earlier.
    """
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while text not in stored_data(page, "khala-threads"):
        assert time.monotonic() < deadline, f"{text!r} was not stored"
        page.wait_for_timeout(100)
    # Asked again and again from here: the policy of the page allows no function that is polled in it.
    while page.evaluate("navigator.serviceWorker.controller === null"):
        assert time.monotonic() < deadline, "no service worker controls the page"
        page.wait_for_timeout(100)


def drop_connections(page: Page, way: Forwarder) -> None:
    """Drop the page's connections, once it has any."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while way.cut() == 0:
        assert time.monotonic() < deadline, "the page did not connect again"
        page.wait_for_timeout(20)


@pytest.fixture
def network(server: Server) -> Iterator[Forwarder]:
    with forwarder(server.port) as way:
        yield way


@pytest.fixture
def browser(network: Forwarder, chromium: Browser) -> Iterator[BrowserContext]:
    """As in `test_page`: a new profile for each test, but with the service worker."""
    with new_profile(chromium, service_workers="allow") as profile:
        yield profile


@pytest.fixture
def chat(browser: BrowserContext, network: Forwarder) -> Chat:
    return Chat(browser, network.url)


def test_three_lost_connections_and_a_restart_in_mid_stream_keep_the_text_exact(
    chat: Chat, network: Forwarder, server: Server
) -> None:
    chat.send("/words=400 /pace=50")
    for word in (20, 60, 100):
        chat.wait_for_word(f"word{word}")
        drop_connections(chat.page, network)
    chat.wait_for_word("word140")
    server.restart()
    chat.wait_for_end()
    assert chat.text().startswith(words(140))
    assert chat.text() == chat.stored_text()


def test_an_interrupted_answer_is_shown_as_such_and_continues_later(chat: Chat, network: Forwarder) -> None:
    chat.send("/words=5000 /pace=40")
    chat.wait_for_word("word20")
    network.down()
    expect(chat.answer).to_have_attribute("data-state", "interrupted")
    expect(chat.answer.get_by_text("Interrupted")).to_be_visible()
    shown = len(chat.text().split())
    network.up()
    chat.wait_for_word(f"word{shown + 1}")
    chat.button("Stop").click()
    chat.wait_for_end()
    assert chat.text() == chat.stored_text()
    assert words(5000).startswith(chat.text())


def test_a_message_written_during_an_outage_is_sent_once_after_it(chat: Chat, network: Forwarder) -> None:
    chat.send("/words=10")
    chat.wait_for_end()
    network.down()
    chat.send("later /words=20")
    expect(chat.page.locator(".message.user").last).to_have_attribute("data-state", re.compile("sending|queued"))
    network.up()
    chat.wait_for_end()
    assert chat.text() == words(20)
    assert [message["role"] for message in chat.stored()["messages"]] == ["assistant"] + ["user", "assistant"] * 2


def test_a_message_that_waits_survives_the_closing_of_its_tab(
    browser: BrowserContext, chat: Chat, network: Forwarder
) -> None:
    chat.send("/words=10")
    chat.wait_for_end()
    wait_until_stored(chat.page, "word10")
    network.down()
    chat.send("later /words=20")
    chat.page.close()
    again = browser.new_page()
    again.goto(chat.url)
    expect(again.locator(".message.user .content")).to_have_text(["/words=10", "later /words=20"])
    network.up()
    expect(again.locator(".message.assistant").last).to_contain_text("word20")
    expect(again.locator(".message")).to_have_count(4)


def test_the_page_opens_without_its_server_and_shows_stored_messages(
    browser: BrowserContext, chat: Chat, network: Forwarder
) -> None:
    chat.send("/words=40")
    chat.wait_for_end()
    wait_until_stored(chat.page, "word40")
    network.down()
    chat.page.reload()
    expect(chat.answer).to_contain_text("word40")
    assert chat.text() == words(40)
    expect(chat.page.locator("body")).to_have_attribute("data-connection", re.compile("waiting|offline"))
    chat.page.evaluate(OVERHEAR)
    chat.button("Retry now").click()
    assert "wake" in chat.page.evaluate("window.told")
    network.up()
    expect(chat.page.locator("body")).to_have_attribute("data-connection", "live")


def test_signing_out_deletes_the_offline_data(chat: Chat) -> None:
    chat.register("ada@example.com", "Ada")
    chat.send("secret /words=10")
    chat.wait_for_end()
    wait_until_stored(chat.page, "secret")
    chat.sign_out()
    assert "secret" not in stored_data(chat.page)
