"""The languages of the page: their choice, their messages and the direction of text."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.server import Server
from tests.system.browser import Chat, new_browser

pytestmark = pytest.mark.timeout(120)

MESSAGES = re.compile(r"/web/assets/(?:en|de|es|fr|zh|ja|ar)-[^/]*\.js$")
PLACES = """() => {
    const box = (selector) => document.querySelector(selector).getBoundingClientRect();
    const middle = ({ left, right, top, bottom }) => ({ x: (left + right) / 2, y: (top + bottom) / 2 });
    return {
        bubble: box(".message.user .content").left,
        column: box("#messages").left,
        send: middle(box("#send")),
        add: middle(box("#add")),
    };
}"""
ARABIC = "عنوان"


def test_the_chosen_language_is_the_only_one_that_is_loaded_and_arabic_runs_from_right_to_left(server: Server) -> None:
    with new_browser() as context:
        loaded: list[str] = []
        context.on("request", lambda request: loaded.extend(MESSAGES.findall(request.url)))
        chat = Chat(context, server.url)
        page = chat.page
        root = page.locator("html")
        expect(root).to_have_attribute("lang", "en")
        assert len(loaded) == 1
        chat.send(f"/echo {ARABIC}\n\nEnglish.\n\n```\nx = 1\n```")
        chat.wait_for_end()
        chat.with_autopilot()
        chat.button("Settings").click()
        page.get_by_label("Language").select_option(label="العربية")
        expect(root).to_have_attribute("dir", "rtl")
        expect(root).to_have_attribute("lang", "ar")
        assert len(loaded) == 2
        expect(page.locator("#send")).to_have_attribute("aria-label", "إرسال")
        drawer, main = page.locator("#drawer").bounding_box(), page.locator("main").bounding_box()
        assert drawer is not None
        assert main is not None
        assert drawer["x"] > main["x"]
        expect(page.locator(".text pre")).to_be_visible()
        directions = page.locator(".text").last.evaluate(
            "(text) => [...text.querySelectorAll('p, pre')].map((block) => getComputedStyle(block).direction)"
        )
        assert directions == ["rtl", "ltr", "ltr"]
        page.keyboard.press("Escape")
        expect(page.locator("#model")).to_be_visible()
        for width in (1280, 390, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert chat.overflow() <= 0
            # A short question in another direction stands at the end of the column, and Send beyond Add in its row.
            places = page.evaluate(PLACES)
            assert places["bubble"] == pytest.approx(places["column"], abs=1)
            assert places["send"]["x"] < places["add"]["x"]
            assert places["send"]["y"] == pytest.approx(places["add"]["y"], abs=1)
        page.locator("#menu").click()
        page.locator("#settings-open").click()
        page.locator("#settings-open-general").click()
        page.locator("#language").select_option("de")
        expect(root).to_have_attribute("dir", "ltr")
        expect(page.get_by_placeholder("Stelle eine Frage")).to_be_visible()
