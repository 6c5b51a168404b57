"""Branches of a conversation on the page: other answers, edited questions, and the choice between branches."""

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from tests.system.browser import Chat, another_browser, words

pytestmark = pytest.mark.timeout(120)


def questions(chat: Chat) -> Locator:
    return chat.page.locator(".message.user .content")


def edit(chat: Chat, question: Locator, text: str) -> None:
    question.hover()
    question.get_by_role("button", name="Edit message").click()
    question.get_by_role("textbox").fill(text)
    question.get_by_role("button", name="Send").click()


def test_a_regenerated_answer_is_beside_the_first_and_both_can_be_shown(chat: Chat) -> None:
    chat.send("/words=20")
    chat.wait_for_end()
    chat.answer.hover()
    chat.answer.get_by_role("button", name="Regenerate").click()
    expect(chat.answer).to_contain_text("2/2")
    chat.wait_for_end()
    assert chat.text() == words(20)
    assert chat.page.locator(".message").count() == 2
    stored = chat.stored()["messages"]
    assert [message["role"] for message in stored] == ["assistant", "user", "assistant", "assistant"]
    assert stored[2]["parentId"] == stored[3]["parentId"] == stored[1]["id"]
    chat.answer.get_by_role("button", name="Previous version").click()
    expect(chat.answer).to_contain_text("1/2")
    expect(chat.answer).to_have_attribute("data-id", stored[2]["id"])


def test_the_buttons_of_a_question_end_at_its_edge_and_its_versions_keep_off_the_answer(chat: Chat) -> None:
    chat.send("first /words=10")
    chat.wait_for_end()
    question = chat.page.locator(".message.user").first
    question.hover()
    bubble, button = question.locator(".content"), question.get_by_role("button", name="Edit message")
    assert abs(_end(bubble) - _end(button)) <= 8
    edit(chat, question, "other /words=10")
    chat.wait_for_end()
    versions, answer = chat.page.locator(".message.user .versions").bounding_box(), chat.answer.bounding_box()
    assert versions is not None
    assert answer is not None
    assert versions["y"] + versions["height"] <= answer["y"]


def _end(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["x"] + box["width"]


def test_an_edited_question_starts_a_branch_that_survives_a_reload(browser: BrowserContext, chat: Chat) -> None:
    chat.send("first /words=10")
    chat.wait_for_end()
    chat.send("second /words=20")
    chat.wait_for_end()
    edit(chat, chat.page.locator(".message.user").first, "other /words=30")
    expect(questions(chat)).to_have_text(["other /words=30"])
    chat.wait_for_end()
    assert chat.text() == words(30)
    chat.page.locator(".message.user").first.get_by_role("button", name="Previous version").click()
    expect(questions(chat)).to_have_text(["first /words=10", "second /words=20"])
    chat.page.wait_for_function("() => document.querySelectorAll('.message').length === 4")
    viewer = Chat(another_browser(browser), chat.share("Can view"))
    for each_chat in (chat, viewer):
        each_chat.page.reload()
        expect(questions(each_chat)).to_have_text(["first /words=10", "second /words=20"])
    chat.send("third /words=5")
    chat.wait_for_end()
    expect(questions(chat)).to_have_text(["first /words=10", "second /words=20", "third /words=5"])
    expect(questions(viewer)).to_have_text(["first /words=10", "second /words=20", "third /words=5"])
    assert chat.complaints == viewer.complaints == []


def test_the_model_gets_only_the_messages_of_the_current_branch(chat: Chat) -> None:
    chat.send("apple /words=5")
    chat.wait_for_end()
    edit(chat, chat.page.locator(".message.user").first, "pear /words=5")
    chat.wait_for_end()
    stored = {message["id"]: message for message in chat.stored()["messages"]}
    leaf = stored[chat.stored()["thread"]["activeLeaf"]]
    path = [leaf]
    while "parentId" in path[-1]:
        path.append(stored[path[-1]["parentId"]])
    assert [message["role"] for message in path] == ["assistant", "user", "assistant"]
    assert path[1]["content"][0]["text"] == "pear /words=5"
