"""The import of chats on the page: exports of three products, progress, errors, and the way to what was imported."""

import io
import json
import zipfile
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Route, expect

from tests.integration.test_imports import chatgpt, claude, open_webui
from tests.support.server import Server
from tests.system.browser import Chat
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(240)

ADA = "ada@example.com"
END_OF_ANIMATIONS = """() => Promise.all(document.getAnimations()
    .filter(({ timeline, effect }) => timeline === document.timeline && effect.getTiming().iterations !== Infinity)
    .map(({ finished }) => finished))"""


def export(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def zipped(chats: list[dict[str, Any]]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps(chats))
    return packed.getvalue()


def open_import(chat: Chat) -> Locator:
    dialog = chat.open_settings("Your data")
    dialog.get_by_role("button", name="Import…").click()
    form: Locator = dialog.locator("#import-chats")
    expect(form.get_by_role("button", name="Choose export")).to_be_visible()
    return form


def choose(form: Locator, file: FilePayload) -> None:
    form.locator("#import-file").set_input_files(file)


def test_exports_of_three_products_are_imported_and_opened(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    form = open_import(chat)
    expect(form).to_contain_text("ChatGPT: Settings → Data controls → Export data.")
    assert axe_violations(chat) == []
    choose(form, export("chatgpt.zip", zipped(chatgpt())))
    done = form.locator("#import-done")
    expect(done).to_contain_text("1 chat imported")
    form.get_by_text("What was left out").click()
    expect(form).to_contain_text("Chats without messages: 1")
    chat.page.evaluate(END_OF_ANIMATIONS)
    assert axe_violations(chat) == []
    choose(form, export("claude.json", json.dumps(claude()).encode()))
    expect(form.get_by_role("list", name="Imported chats").get_by_role("link")).to_have_text([claude()[0]["name"]])
    choose(form, export("webui.json", json.dumps(open_webui()).encode()))
    expect(form.get_by_role("list", name="Imported chats").get_by_role("link")).to_have_text([open_webui()[0]["title"]])
    choose(form, export("claude.json", json.dumps(claude()).encode()))
    expect(done).to_contain_text("0 chats imported · 1 was here already")
    choose(form, export("again.json", json.dumps([claude()[0] | {"uuid": "k9", "name": "Once more"}]).encode()))
    form.get_by_role("link", name="Once more").click()
    expect(chat.page.get_by_role("heading", name="Once more")).to_be_visible()
    expect(chat.page.locator(".message.user").first).to_be_visible()
    assert chat.complaints == []


def test_a_file_that_is_no_export_is_refused_with_the_reason(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    form = open_import(chat)
    alert = form.get_by_role("alert")
    choose(form, export("empty.json", b""))
    expect(alert).to_have_text("This file is empty.")
    choose(form, export("other.json", b'[{"color": "blue"}]'))
    expect(alert).to_contain_text("This is no export of ChatGPT, Claude or Open WebUI.")
    choose(form, export("broken.zip", zipped(claude())[:-40]))
    expect(alert).to_contain_text("This file is damaged")
    expect(form.get_by_role("button", name="Choose export")).to_be_enabled()
    assert chat.complaints == []


def test_refusals_and_a_cut_connection_are_told(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    form = open_import(chat)
    alert = form.get_by_role("alert")
    answers: list[tuple[int, dict[str, Any]]] = [
        (401, {"code": "unauthorized"}), (413, {"code": "payload_too_large"}),
        (429, {"code": "rate_limited", "limit": "imports_per_hour"}),
    ]  # fmt: skip
    words = ["You’re signed out.", "This file is too large.", "ten files an hour"]

    def refuse(route: Route) -> None:
        status, problem = answers.pop(0)
        route.fulfill(status=status, json=problem)

    chat.page.route("**/api/imports", refuse)
    for expected in words:
        choose(form, export("claude.json", b"[]"))
        expect(alert).to_contain_text(expected)
    chat.page.unroute("**/api/imports")
    chat.page.route("**/api/imports", lambda route: route.abort())
    choose(form, export("claude.json", b"[]"))
    expect(alert).to_contain_text("The connection was lost.")


def test_an_import_is_canceled_and_a_dropped_file_is_no_attachment(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.page.set_viewport_size({"width": 390, "height": 800})
    chat.page.locator("#menu").click()
    chat.page.locator("#settings-open").click()
    chat.page.get_by_role("button", name="Your data").click()
    toggle = chat.page.get_by_role("button", name="Import…")
    toggle.click()
    form = chat.page.locator("#import-chats")
    zone = form.get_by_role("group", name="Import chats")
    expect(zone).to_be_visible()
    held: list[Route] = []
    chat.page.route("**/api/imports", lambda route: held.append(route))
    script = """(zone) => {
        const data = new DataTransfer();
        data.items.add(new File(["[]"], "claude.json"));
        for (const type of ["dragover", "drop"])
            zone.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    zone.evaluate(script)
    expect(form).to_contain_text("claude.json")
    expect(form.get_by_role("progressbar", name="Progress of the import")).to_be_visible()
    expect(toggle).to_be_disabled()
    assert axe_violations(chat) == []
    form.get_by_role("button", name="Cancel").click()
    expect(form.get_by_role("button", name="Choose export")).to_be_focused()
    expect(toggle).to_be_enabled()
    expect(form.get_by_role("alert")).to_have_text("Import cancelled. Chats imported so far are kept.")
    expect(chat.page.locator("#attached")).to_have_count(0)
    assert held
    assert chat.complaints == []


def test_a_guest_is_asked_to_sign_in(chat: Chat) -> None:
    dialog = chat.open_settings("Your data")
    expect(dialog.get_by_role("button", name="Sign in")).to_be_visible()
    expect(dialog.get_by_role("button", name="Import…")).to_have_count(0)
