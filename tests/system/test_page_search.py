"""The search of messages in the page: on the server, which also knows chats that this browser has not loaded."""

import time

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from tests.system.browser import PATIENCE_MS, Chat, Server, another_browser

pytestmark = pytest.mark.timeout(180)

ADA = "ada@example.com"


def found_exactly(chat: Chat, words: str) -> Locator:
    """The exact matches of a search, which is repeated until there are some: the server prepares answers in seconds."""
    dialog = chat.page.get_by_role("dialog", name="Search messages")
    results = dialog.get_by_role("list", name="Exact matches").or_(dialog.get_by_role("list", name="Messages"))
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while results.count() == 0:
        assert time.monotonic() < deadline, "nothing is found"
        dialog.get_by_role("searchbox").fill("")
        dialog.get_by_role("searchbox").fill(words)
        chat.page.wait_for_timeout(500)
    return results.get_by_role("link")


def test_a_message_that_this_browser_has_not_loaded_is_found_and_opened(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    for number in (117, 42):
        chat.send(f"Answer {number} /words=2")
        chat.wait_for_end()
    chat.send("How was the negotiation? /words=400")
    chat.wait_for_end()
    elsewhere = Chat(another_browser(browser), server.url)
    elsewhere.sign_in(ADA)
    expect(elsewhere.listed("Answer 117")).to_be_visible()
    elsewhere.search_messages()
    first = found_exactly(elsewhere, "answer 42").first
    expect(first).to_contain_text("Answer 42")
    assert first.locator("mark").all_inner_texts() == ["Answer", "42"]
    similar = elsewhere.page.get_by_role("list", name="Similar messages").get_by_role("link")
    elsewhere.page.get_by_role("searchbox", name="Search messages").fill("negotiating")
    expect(similar.locator("mark").first).to_have_text("negotiation")
    first = found_exactly(elsewhere, "answer 42").first
    first.click()
    expect(elsewhere.page).to_have_url(chat.url)
    expect(elsewhere.page.get_by_text("Answer 42 /words=2")).to_be_in_viewport()
    assert elsewhere.complaints == []
