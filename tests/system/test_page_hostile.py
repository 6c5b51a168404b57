"""Attacks on the page: hostile message content, and the next user of the same browser."""

import json
import time

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.system.browser import PASSWORD, PATIENCE_MS, Chat, another_browser
from tests.system.test_page_network import stored_data

pytestmark = pytest.mark.timeout(150)

SCRIPTS = """<img src=x onerror="window.harm=1"> <svg/onload=window.harm=1> [a](javascript:window.harm=1)
$\\href{javascript:window.harm=1}{x}$ $$\\text{</math><img src=x onerror=window.harm=1>}$$
<kbd><div/class=code-bar/role=dialog>q <math><mtext><style><!--</style><img title="--&gt;&lt;img src=1&gt;">"""
MADE = ".message :is(img, script, style, iframe, div.code-bar, [onerror], [onload], [role=dialog])"
UNSENT = """() => {
    const ask = window.fetch;
    const isSend = (to) => String(to.url ?? to).endsWith("/send");
    window.fetch = (to, ...more) => (isSend(to) ? Promise.reject(new TypeError("no network")) : ask(to, ...more));
}"""
"""From now on, the page sends no message. A route of Playwright's lets go of what it holds when the page is closed."""
NEXT_ONE = """async (password) => {
    const headers = { "Content-Type": "application/json" };
    const ask = (path, body) => fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    await ask("/api/auth/logout", {});
    const answer = await ask("/api/auth/register", { email: "bob@example.com", password, name: "Bob" });
    const { id, name, email } = await answer.json();
    localStorage.setItem("khala.user", JSON.stringify({ id, name, email }));
}"""


def wait_until_kept(page: Page, text: str) -> None:
    """Wait until the browser has stored the text of a message that the page shows already."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while text not in stored_data(page):
        assert time.monotonic() < deadline, f"{text!r} was not stored"
        page.wait_for_timeout(100)


def test_hostile_messages_run_no_code_and_do_not_freeze_the_page(chat: Chat) -> None:
    chat.send(f"/echo {SCRIPTS}")
    chat.wait_for_end()
    expect(chat.answer).to_contain_text("onerror")
    expect(chat.page.locator(MADE)).to_have_count(0)
    assert chat.page.evaluate("window.harm") is None
    chat.send(f"/pace=0 /echo $1{',' * 4000}(x$ {'**a_' * 2000}")
    chat.wait_for_end()
    expect(chat.answer).to_contain_text("**a_**a_")


def test_an_unsent_message_of_one_account_is_not_sent_by_the_next_one(browser: BrowserContext, chat: Chat) -> None:
    chat.send("/words=5")
    chat.wait_for_end()
    chat.register("owner@example.com", "Owner")
    link = chat.share("Can edit")
    ada_browser = another_browser(browser)
    ada = Chat(ada_browser, link)
    ada.register("ada@example.com", "Ada")
    ada.page.evaluate(UNSENT)
    ada.send("a word of Ada's")
    expect(ada.page.locator(".message.user").last).to_have_attribute("data-state", "sending")
    wait_until_kept(ada.page, "a word of Ada's")
    ada.page.close()
    other = ada_browser.new_page()
    other.goto(f"{link.partition('/t/')[0]}/web/icon.svg")
    assert "a word of Ada's" in stored_data(other)
    other.evaluate(NEXT_ONE, PASSWORD)
    bob = Chat(ada_browser, link)
    expect(bob.page.get_by_title("Your account")).to_be_visible()
    bob.send("a word of Bob's")
    bob.wait_for_end()
    stored = json.dumps(chat.stored())
    assert "a word of Bob's" in stored
    assert "a word of Ada's" not in stored
    assert "a word of Ada's" not in stored_data(bob.page)
