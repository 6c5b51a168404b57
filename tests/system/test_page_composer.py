"""The composer, the first screen and the settings of the page, in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from tests.support import postgres
from tests.support.server import Server, ended
from tests.system.browser import PATIENCE_MS, Chat, words
from tests.system.conftest import SETTINGS
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(150)

MODELS = {"KHALA_MODELS": "openai:gpt-5-mini", "OPENAI_API_KEY": "not a key"}


@pytest.fixture(scope="module")
def shared_server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that offers a second model."""
    with postgres.sync_database(postgres_url, template) as url:
        env = {"DATABASE_URL": url} | SETTINGS | MODELS
        server = Server(tmp_path_factory.mktemp("server") / "server.log", env)
        with ended(server):
            server.start()
            yield server


def choose_model(page: Page, name: str) -> None:
    page.locator("#model").click()
    page.get_by_role("menuitemradio", name=name).click()


def test_the_first_screen_and_the_settings_say_what_this_person_may_do_and_prefers(chat: Chat) -> None:
    page = chat.page
    expect(page.locator("#model")).to_have_text("Demo")
    suggestion = page.locator("#suggestions button").first
    expect(page.locator("#suggestions button")).to_have_count(4)
    expect(suggestion).to_be_visible()
    text = suggestion.locator(".line").inner_text()
    suggestion.click()
    expect(page.locator("#text")).to_have_value(text)
    page.reload()
    expect(page.locator("#text")).to_have_value(text)
    chat.send("/words=5")
    chat.wait_for_end()
    choose_model(page, "GPT-5 mini")
    expect(page.locator("#model")).to_have_text("GPT-5 mini")
    first = chat.url
    chat.button("New chat").click()
    expect(page.locator("#model")).to_have_text("Demo")
    page.locator("#settings-open").click()
    page.locator("#theme").select_option("dark")
    page.locator("#text-size").select_option("large")
    page.get_by_role("tab", name="Models and instructions").click()
    page.locator("#instructions").fill("Answer in one word.")
    page.locator("#instructions-form").get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    page.locator("#default-model").select_option("openai:gpt-5-mini")
    expect(page.locator("#model")).to_have_text("GPT-5 mini")
    page.reload()
    expect(page.locator("#model")).to_have_text("GPT-5 mini")
    root = page.locator("html")
    assert root.evaluate("(root) => getComputedStyle(root).colorScheme + getComputedStyle(root).fontSize") == "dark18px"
    choose_model(page, "Demo")
    expect(page.locator("#model")).to_have_text("Demo")
    page.goto(first)
    expect(page.locator("#model")).to_have_text("GPT-5 mini")
    assert chat.complaints == []


def test_messages_queue_behind_an_answer_and_escape_stops_the_one_that_is_written(chat: Chat) -> None:
    chat.send("/words=3000 /pace=40")
    chat.wait_for_word("word5")
    chat.send("/words=20")
    chat.send("/words=30")
    queued = chat.page.get_by_text("Queued until the previous answer is finished")
    expect(queued).to_have_count(2)
    chat.button("Cancel").last.click()
    expect(queued).to_have_count(1)
    expect(chat.page.locator("#text")).to_have_value("/words=30")
    expect(chat.page.locator(".message.user")).to_have_count(2)
    expect(chat.page.locator(".message.assistant[data-state=writing]")).to_have_count(1)
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator(".message[data-state=done]")).to_contain_text([words(20)])
    expect(chat.page.locator(".message.assistant[data-state=stopped]")).to_have_count(1)
    more = chat.page.locator(".message.assistant[data-state=done]").last.get_by_role("button", name="More actions")
    more.click()
    expect(chat.page.get_by_role("menuitemradio")).to_have_count(2)
    chat.page.get_by_role("menuitemradio", name="Demo").click()
    expect(chat.page.locator(".versions")).to_contain_text("2/2")
    chat.wait_for_end()
    assert chat.text() == words(20)
    assert chat.complaints == []


def test_a_message_sent_while_the_server_is_gone_is_answered_after_it_is_back(chat: Chat, server: Server) -> None:
    chat.send("/words=120 /pace=40")
    chat.wait_for_word("word10")
    server.kill()
    chat.send("/words=20")
    server.start()
    answers = chat.page.locator(".message.user ~ .message.assistant[data-state=done]")
    expect(answers).to_have_count(2)
    assert chat.text() == words(20)
    for answer in (answers.first, answers.last):
        answer.get_by_role("button", name="Details of this answer").click()
    expect(answers.first.locator(".facts")).to_contain_text("· ≥ ")
    expect(answers.last.locator(".facts")).to_contain_text(re.compile(r"· \d+ tokens in, 20 out"))


def test_a_picture_is_shown_before_it_is_sent_and_a_large_file_is_not_tried_again(chat: Chat) -> None:
    page = chat.page
    picture = (Path(__file__).parents[2] / "app/web/public/icon-192.png").read_bytes()
    problem = {"code": "payload_too_large", "title": "Payload too large", "status": 413}
    page.route("**/blobs?name=large*", lambda route: route.fulfill(status=413, json=problem))
    expect(chat.button("Add files and more")).to_be_enabled()
    page.locator("#attach-field").set_input_files(
        [
            FilePayload(name="icon.png", mimeType="image/png", buffer=picture),
            FilePayload(name="large.bin", mimeType="application/octet-stream", buffer=b"x"),
        ]
    )
    expect(page.get_by_text("This file is too large for the server.")).to_be_visible()
    assert page.locator(".chip img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 192
    expect(chat.button("Retry")).to_have_count(0)
    expect(chat.button("Send")).to_be_disabled()
    chat.button("Remove large.bin").click()
    expect(chat.button("Send")).to_be_enabled()


def test_a_selected_passage_of_an_answer_is_quoted_above_the_draft(chat: Chat) -> None:
    page = chat.page
    chat.send("/echo A **lease** ends.\n\nA lock does not.")
    chat.wait_for_end()
    button = chat.button("Ask about this")
    page.get_by_label("Message", exact=True).fill("Why?")
    # All of the page is no passage of one answer.
    page.evaluate("getSelection().selectAllChildren(document.body)")
    expect(button).to_have_count(0)
    page.evaluate("getSelection().selectAllChildren([...document.querySelectorAll('.message.assistant .text')].at(-1))")
    button.wait_for()
    # A triple click selects up to the beginning of what comes after the answer.
    chat.answer.locator(".text p").last.click(click_count=3)
    expect(button).to_be_visible()
    page.evaluate("getSelection().selectAllChildren([...document.querySelectorAll('.message.assistant .text')].at(-1))")
    box, shown = chat.answer.locator(".text").bounding_box(), button.bounding_box()
    assert box is not None
    assert shown is not None
    assert shown["y"] + shown["height"] <= box["y"], "the button covers nothing that is selected"
    button.click()
    field = page.get_by_label("Message", exact=True)
    expect(field).to_be_focused()
    expect(field).to_have_value("> A lease ends.\n> \n> A lock does not.\n\nWhy?")
    expect(button).to_have_count(0)
    assert chat.complaints == []


def test_the_menu_of_the_composer_turns_modes_on_by_keyboard_and_chips_turn_them_off(chat: Chat) -> None:
    page = chat.page
    opener = chat.button("Add files and more")
    expect(opener).to_be_enabled()
    opener.focus()
    page.keyboard.press("Enter")
    menu = page.get_by_role("menu", name="Add files and more")
    first = menu.get_by_role("menuitem", name="Add photos and files")
    expect(first).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_have_count(0)
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowDown")
    item = menu.get_by_role("menuitemcheckbox", name="Autopilot", exact=True)
    expect(item).to_be_focused()
    expect(item).not_to_be_checked()
    expect(item).to_have_accessible_description("Works by itself until the task is done")
    page.keyboard.press("Enter")
    chip = chat.button("Autopilot 20 rounds")
    expect(chip).to_be_visible()
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    expect(item).to_be_checked()
    expect(first).to_be_focused()
    page.keyboard.press("End")
    expect(menu.get_by_role("menuitem", name="Make a plan")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="New plan")).to_be_visible()
    chat.button("Close plans").click()
    with page.expect_file_chooser():
        chat.add("Add photos and files")
    chat.button("Turn off autopilot").press("Enter")
    expect(chip).to_have_count(0)
    expect(opener).to_be_focused()
    assert chat.complaints == []


def test_on_a_small_phone_the_field_keeps_its_line_beside_files_and_everything_can_be_pressed(
    server: Server, chromium: Browser
) -> None:
    with chromium.new_context(viewport={"width": 320, "height": 640}, has_touch=True, is_mobile=True) as phone:
        phone.set_default_timeout(PATIENCE_MS)
        chat = Chat(phone, server.url)
        page = chat.page
        field = page.get_by_label("Message", exact=True)
        expect(chat.button("Add files and more")).to_be_enabled()
        chat.with_autopilot()
        page.locator("#attach-field").set_input_files([FilePayload(name="a.txt", mimeType="text/plain", buffer=b"x")])
        expect(chat.button("Send")).to_be_enabled()
        line = field.evaluate("(field) => parseFloat(getComputedStyle(field).lineHeight)")
        box = field.bounding_box()
        assert box is not None
        assert box["width"] > 240, "the field has the width of the form"
        assert field.evaluate("(field) => field.scrollHeight") < 2 * line + 24, "the placeholder is one line"
        assert chat.overflow() <= 0
        for name in ("Add files and more", "Send later", "Send", "Autopilot 20 rounds", "Turn off autopilot"):
            place = chat.button(name).bounding_box()
            assert place is not None
            assert min(place["width"], place["height"]) >= 44, name
        chat.button("Add files and more").click()
        for item in page.get_by_role("menu").locator("[role^=menuitem]").all():
            place = item.bounding_box()
            assert place is not None
            assert place["height"] >= 44
            assert 0 <= place["x"] <= place["x"] + place["width"] <= 320


def test_only_one_button_is_filled_while_an_answer_is_written(chat: Chat) -> None:
    page = chat.page
    filled = "(button) => getComputedStyle(button).backgroundColor !== 'rgba(0, 0, 0, 0)'"
    chat.send("/words=3000 /pace=40")
    chat.wait_for_word("word5")
    expect(chat.button("Send")).to_be_hidden()
    assert chat.button("Stop").evaluate(filled)
    page.get_by_label("Message", exact=True).fill("Shorter, please.")
    expect(chat.button("Send")).to_be_enabled()
    assert chat.button("Send").evaluate(filled)
    assert not chat.button("Stop").evaluate(filled)
    chat.button("Stop").click()
    chat.wait_for_end()


def test_models_are_listed_by_what_they_are_good_for_and_many_can_be_searched(chat: Chat) -> None:
    page = chat.page
    page.locator("#model").click()
    mini = page.get_by_role("menuitemradio", name="GPT-5 mini")
    expect(mini).to_contain_text("Fast answers to simple questions")
    expect(mini).to_have_attribute("title", re.compile(r"per million tokens"))
    expect(page.get_by_role("menu", name="Model")).not_to_contain_text("$")
    expect(page.get_by_role("searchbox")).to_have_count(0)
    page.keyboard.press("Escape")
    names = ["claude-opus-5", "claude-haiku-5", *(f"house-{number}" for number in range(7))]
    items = [{"model": f"openai:{name}", "provider": "openai", "name": name} for name in names]
    items[2] |= {"title": "House letters", "description": "Writes in our tone"}
    models = {"default": "openai:claude-opus-5", "items": items}
    page.route("**/api/models", lambda route: route.fulfill(json=models))
    page.reload()
    expect(page.locator("#model")).to_have_text("Claude Opus 5")
    page.locator("#model").focus()
    page.keyboard.press("Enter")
    search = page.get_by_role("searchbox", name="Search models")
    expect(search).to_be_focused()
    expect(page.get_by_role("menuitemradio")).to_have_count(9)
    search.fill("zzz")
    expect(page.get_by_text("No matching models.")).to_be_visible()
    search.fill("tone")
    expect(page.get_by_role("menuitemradio")).to_have_count(1)
    assert axe_violations(chat) == []
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitemradio", name="House letters")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#model")).to_be_focused()
    page.keyboard.press("Enter")
    expect(search).to_have_value("")
    search.fill("haiku")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_have_text("Claude Haiku 5")
    expect(search).to_have_count(0)
