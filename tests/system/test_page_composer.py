"""The composer, the first screen and the settings of the page, in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.support import postgres
from tests.support.server import Server, ended
from tests.system.browser import Chat, words
from tests.system.conftest import SETTINGS

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
    expect(page.locator("#model")).to_have_text("demo")
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
    choose_model(page, "gpt-5-mini")
    expect(page.locator("#model")).to_have_text("gpt-5-mini")
    first = chat.url
    chat.button("New chat").click()
    expect(page.locator("#model")).to_have_text("demo")
    page.locator("#settings-open").click()
    page.locator("#theme").select_option("dark")
    page.locator("#text-size").select_option("large")
    page.get_by_role("tab", name="Models and instructions").click()
    page.locator("#instructions").fill("Answer in one word.")
    page.locator("#instructions-form").get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    page.locator("#default-model").select_option("openai:gpt-5-mini")
    expect(page.locator("#model")).to_have_text("gpt-5-mini")
    page.reload()
    expect(page.locator("#model")).to_have_text("gpt-5-mini")
    root = page.locator("html")
    assert root.evaluate("(root) => getComputedStyle(root).colorScheme + getComputedStyle(root).fontSize") == "dark18px"
    choose_model(page, "demo")
    expect(page.locator("#model")).to_have_text("demo")
    page.goto(first)
    expect(page.locator("#model")).to_have_text("gpt-5-mini")
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
    chat.page.get_by_role("menuitemradio", name="demo").click()
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
    expect(chat.button("Attach files")).to_be_enabled()
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
