"""The page at `/`, used in a real browser as a person does."""

import re

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from tests.system.browser import Chat, Server, words

pytestmark = pytest.mark.timeout(120)


def test_the_page_shows_the_welcome_until_a_question_and_then_the_exact_answer(chat: Chat) -> None:
    welcome = chat.welcome.inner_text().strip()
    assert welcome
    chat.record()
    chat.send("Please count. /words=200 /pace=100")
    chat.wait_for_end()
    assert 0 < len(chat.recorded()[0]) < len(words(200)), "it was shown while it was written"
    assert chat.text() == chat.stored_text() == words(200)
    expect(chat.page.get_by_text(welcome)).to_have_count(0)
    expect(chat.answer).to_have_attribute("data-state", "done")
    chat.answer.hover()
    expect(chat.answer.locator("time")).to_have_text(re.compile(r"\d{4}, \d"))
    chat.answer.get_by_role("button", name="Details of this answer").click()
    expect(chat.answer.locator(".facts")).to_contain_text("tokens")


def test_two_pages_on_one_thread_show_the_same_text_while_it_streams_and_after(
    browser: BrowserContext, chat: Chat
) -> None:
    other = Chat(browser, chat.url)
    for each_chat in (chat, other):
        each_chat.record()
    chat.send("/words=200 /pace=100")
    chat.wait_for_end()
    other.wait_for_end()
    for each_chat in (chat, other):
        assert len(each_chat.recorded()) > 2
        assert all(words(200).startswith(text) for text in each_chat.recorded())
    assert chat.text() == other.text() == words(200)


def test_a_page_reloaded_in_mid_stream_continues_and_ends_with_the_exact_text(chat: Chat) -> None:
    chat.send("/words=5000 /pace=50")
    chat.wait_for_word("word30")
    chat.page.reload()
    chat.wait_for_word("word30")
    chat.wait_for_word(f"word{len(chat.text().split()) + 1}")
    assert chat.is_writing()
    chat.button("Stop").click()
    chat.wait_for_end()
    assert chat.text() == chat.stored_text()
    assert words(5000).startswith(chat.text())


def test_the_page_opened_again_at_its_root_shows_the_last_chat(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.send("/words=20")
    chat.wait_for_end()
    again = Chat(browser, server.url)
    assert again.url == chat.url
    assert again.text() == words(20)


def test_after_a_server_is_killed_in_mid_stream_pages_miss_and_repeat_no_word(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    other = Chat(browser, chat.url)
    chat.send("/words=300 /pace=60")
    other.wait_for_word("word30")
    server.restart()
    chat.wait_for_end()
    other.wait_for_end()
    assert chat.text().startswith(words(30))
    assert chat.text() == other.text() == chat.stored_text()


def test_a_message_whose_response_was_lost_is_stored_once(chat: Chat) -> None:
    lost: list[int] = []

    def lose_the_first(route: Route) -> None:
        if lost:
            return route.continue_()
        lost.append(route.fetch().status)
        return route.abort()

    chat.page.route("**/send", lose_the_first)
    chat.send("/words=20")
    chat.wait_for_end()
    assert lost == [202]
    assert [message["role"] for message in chat.stored()["messages"]] == ["assistant", "user", "assistant"]
    assert chat.page.locator(".message").count() == 2


def test_a_refused_message_stays_visible_with_the_reason_and_can_be_sent_again(chat: Chat) -> None:
    problem = {"code": "rate_limited", "title": "Too many requests", "status": 429}
    chat.page.route("**/send", lambda route: route.fulfill(status=429, json=problem, headers={"Retry-After": "1"}))
    chat.send("/words=20")
    expect(chat.page.get_by_text("Not sent. Too many requests. Try again in a moment.")).to_be_visible()
    chat.page.unroute("**/send")
    chat.button("Retry").click()
    chat.wait_for_end()
    assert chat.text() == words(20)


def test_stop_ends_the_answer_as_stopped_and_keeps_what_was_written(chat: Chat) -> None:
    chat.send("/words=2000 /pace=50")
    chat.wait_for_word("word10")
    chat.button("Stop").click()
    chat.wait_for_end()
    expect(chat.answer).to_have_attribute("data-state", "stopped")
    expect(chat.answer.get_by_text("Stopped")).to_be_visible()
    assert chat.text() == chat.stored_text()
    assert words(2000).startswith(chat.text())
    expect(chat.button("Send")).to_be_visible()


def test_an_answer_that_ended_early_says_why_once_and_offers_the_next_step(chat: Chat) -> None:
    chat.send("/pace=0 /fail=3 /words=20")
    chat.wait_for_end()
    reason = "The demo model was told to lose the connection."
    expect(chat.answer.get_by_text("The connection to the model was lost. Try again.")).to_have_count(1)
    expect(chat.answer.get_by_text(reason)).to_have_count(0)
    chat.button("Show details").click()
    expect(chat.answer.get_by_text(reason)).to_have_count(1)
    chat.button("Hide details").click()
    assert chat.text() == words(3).rstrip()
    chat.button("Try again").click()
    expect(chat.page.get_by_text("2/2")).to_be_visible()
    chat.send("/ratelimit=60")
    chat.wait_for_end()
    expect(chat.answer.get_by_role("button", name=re.compile(r"^Try again in \d+ s$"))).to_be_disabled()
    expect(chat.button("Try again")).to_have_count(0)  # the earlier answer keeps its reason only
    expect(chat.page.get_by_text("The connection to the model was lost.")).to_have_count(1)
    chat.with_autopilot()
    chat.button("Autopilot 20 rounds").click()
    chat.page.get_by_label("Maximum rounds").fill("1")
    chat.page.get_by_label("Budget (tokens)").fill("1")
    chat.page.keyboard.press("Escape")
    chat.send("/words=2000 /pace=0")
    chat.wait_for_end()
    chat.button("Raise the budget").click()
    chat.page.get_by_label("Budget (tokens)").fill("")
    chat.page.keyboard.press("Escape")
    chat.send('/loop /call glob {"pattern":"{round}*"}')
    chat.wait_for_end()
    expect(chat.answer.locator(".ending")).to_contain_text("Reached the limit of rounds")
    expect(chat.answer.get_by_text("the limit of this run")).to_have_count(0)
    chat.button("Continue").click()
    expect(chat.page.locator(".message.user").last).to_contain_text("Continue")
    assert chat.complaints == []


def test_reset_asks_first_and_then_leaves_only_the_welcome_on_every_page(browser: BrowserContext, chat: Chat) -> None:
    other = Chat(browser, chat.url)
    chat.send("/words=20")
    other.wait_for_end()
    chat.wait_for_end()
    chat.act("Reset…")
    chat.button("Cancel").click()
    assert chat.page.locator(".message").count() == 2
    chat.act("Reset…")
    chat.button("Reset").click()
    expect(chat.page.locator(".message")).to_have_count(1)
    expect(other.page.locator(".message")).to_have_count(1)
    assert other.welcome.inner_text() == chat.welcome.inner_text()


def test_new_chat_starts_another_chat_and_the_list_opens_the_first_one(chat: Chat) -> None:
    first = chat.url
    chat.send("Count for me /words=20")
    chat.wait_for_end()
    chat.button("New chat").click()
    expect(chat.page.locator(".message")).to_have_count(1)
    assert chat.url != first
    chat.page.get_by_role("link", name="Count for me").click()
    expect(chat.page.locator(".message")).to_have_count(2)
    assert chat.url == first
    assert chat.text() == words(20)


def test_a_window_of_320_pixels_is_never_scrolled_sideways(browser: BrowserContext, chat: Chat) -> None:
    chat.page.set_viewport_size({"width": 320, "height": 640})
    assert chat.overflow() == 0
    chat.send("/words=40 " + "unbroken" * 40)
    chat.wait_for_end()
    assert chat.overflow() == 0
    expect(chat.button("Send")).to_be_in_viewport()
    chat.page.locator("#menu").click()
    expect(chat.page.get_by_role("link").first).to_be_in_viewport()
    assert chat.overflow() == 0


def test_the_page_contacts_no_other_host_and_violates_no_policy(chat: Chat, server: Server) -> None:
    chat.send("/words=5000 /pace=100")
    chat.wait_for_word("word10")
    chat.button("Stop").click()
    chat.wait_for_end()
    chat.send("/words=20")
    chat.wait_for_end()
    chat.page.reload()
    expect(chat.answer).to_be_visible()
    policy = chat.page.request.get(server.url).headers["content-security-policy"]
    assert "default-src" in policy
    assert "unsafe" not in policy.replace("'wasm-unsafe-eval'", "")
    assert {url for url in chat.asked_for if not url.startswith(server.url)} == set()
    assert chat.complaints == []
