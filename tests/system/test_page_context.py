"""The view of what a model was told, in a real browser."""

import re
from typing import Literal

import pytest
from playwright.sync_api import Route, expect

from tests.system.browser import Chat
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(120)

TITLE = "What was sent to the model"
DETAILS = "Details of this answer"


def test_the_view_shows_the_tokens_of_each_call_by_section_and_works_by_keyboard(chat: Chat) -> None:
    chat.with_autopilot()
    chat.send('/call write_file {"path":"a.txt","content":"hi"} /say Written.')
    chat.wait_for_end()
    chat.answer.get_by_role("button", name=DETAILS).click()
    opener = chat.answer.get_by_role("button", name=TITLE)
    opener.focus()
    chat.page.keyboard.press("Enter")
    dialog = chat.page.get_by_role("dialog", name=TITLE)
    expect(dialog.locator("details")).to_have_count(2)
    first, second = dialog.locator("details").nth(0), dialog.locator("details").nth(1)
    expect(first).not_to_have_attribute("open", "")
    expect(second.get_by_role("row", name="Messages and rounds")).to_contain_text("3 items")
    expect(second.get_by_role("row", name="Tools")).to_be_visible()
    expect(second.get_by_role("img")).to_have_accessible_name(re.compile(r"Messages and rounds .*, of 32,000\stokens"))
    first.locator("summary").press("Enter")
    expect(first.get_by_role("row", name="Messages and rounds")).to_contain_text("2 items")
    chat.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_a_view_that_fails_to_load_can_be_tried_again(chat: Chat) -> None:
    chat.send("Hello?")
    chat.wait_for_end()
    chat.page.route("**/api/runs/*/context", lambda route: route.fulfill(status=403, json={"code": "forbidden"}))
    chat.answer.get_by_role("button", name=DETAILS).click()
    chat.answer.get_by_role("button", name=TITLE).click()
    dialog = chat.page.get_by_role("dialog", name=TITLE)
    expect(dialog.get_by_role("alert")).to_contain_text("Couldn’t load this.")
    chat.page.unroute("**/api/runs/*/context")

    def answer_without_calls(route: Route) -> None:
        route.fulfill(json={"calls": []})

    chat.page.route("**/api/runs/*/context", answer_without_calls)
    dialog.get_by_role("button", name="Try again").click()
    expect(dialog).to_contain_text("There is no record of what was sent to the model.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_view(chat: Chat, scheme: Literal["light", "dark"]) -> None:
    chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    chat.send("Hello?")
    chat.wait_for_end()
    chat.answer.get_by_role("button", name=DETAILS).click()
    chat.answer.get_by_role("button", name=TITLE).click()
    expect(chat.page.get_by_role("dialog", name=TITLE).locator("details")).to_have_count(1)
    assert axe_violations(chat) == []
