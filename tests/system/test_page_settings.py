"""The sections of the settings, and the palette, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.system.browser import Chat

pytestmark = pytest.mark.timeout(180)

SECTIONS = [
    "General",
    "Models and instructions",
    "Memory",
    "Notifications",
    "Tools and services",
    "Your account",
    "Your data",
]


def test_the_settings_have_sections_for_the_keyboard_for_a_phone_and_for_links(chat: Chat) -> None:
    page = chat.page
    settings = page.locator("#settings")
    page.keyboard.press("Control+,")
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_text(SECTIONS)
    panel = page.get_by_role("tabpanel")
    expect(page.get_by_role("tabpanel", name="General").locator("#language")).to_be_visible()
    expect(tabs.first).to_be_focused()
    height = settings.evaluate("dialog => dialog.offsetHeight")
    page.keyboard.press("ArrowDown")
    expect(tabs.nth(1)).to_be_focused()
    expect(panel).to_have_attribute("aria-labelledby", "settings-tab-answers")
    page.keyboard.press("End")
    expect(panel).to_contain_text("You’re not signed in.")
    assert settings.evaluate("dialog => dialog.offsetHeight") == height, "nothing moves when another section is shown"
    page.keyboard.press("ArrowRight")
    expect(tabs.first).to_be_focused()
    assert tabs.evaluate_all("tabs => tabs.map((tab) => tab.tabIndex)") == [0, -1, -1, -1, -1, -1, -1]
    page.keyboard.press("Escape")

    page.set_viewport_size({"width": 390, "height": 844})
    page.keyboard.press("Control+,")
    for name in SECTIONS:
        settings.get_by_role("navigation").get_by_role("button", name=name).click()
        expect(page.get_by_role("dialog", name=name).get_by_role("group", name=name)).to_be_focused()
        assert settings.evaluate("dialog => [dialog.scrollWidth, dialog.offsetHeight]") == [390, 844]
        settings.get_by_role("button", name="Back").click()
        expect(settings.get_by_role("navigation").get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Escape")

    page.set_viewport_size({"width": 1280, "height": 800})
    chat.send("/words=3")
    chat.wait_for_end()
    address = page.url
    page.goto(f"{address}?settings=memory")
    expect(page.get_by_role("tab", name="Memory")).to_have_attribute("aria-selected", "true")
    expect(panel.get_by_label("Use memories in answers")).to_be_checked()
    assert page.url == address
    expect(panel.get_by_role("heading", name="All memories")).to_be_visible()
    assert chat.complaints == []


def test_the_general_settings_lead_to_the_keyboard_shortcuts(chat: Chat) -> None:
    chat.open_settings("General").get_by_role("button", name="Show keyboard shortcuts").click()
    shortcuts = chat.page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(shortcuts).to_be_visible()
    expect(chat.page.locator("dialog[open]")).to_have_count(1)
    chat.page.keyboard.press("Escape")
    expect(shortcuts).to_have_count(0)
    assert chat.complaints == []


def test_the_palette_shows_the_best_match_first_and_says_how_many_there_are(chat: Chat) -> None:
    page = chat.page
    chat.send("Recipe for a set of soups /words=3")
    chat.wait_for_end()
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Search and commands")
    options = palette.get_by_role("option")
    new = palette.get_by_role("option", name="New chat")
    expect(new).to_have_attribute("aria-keyshortcuts", "Control+Shift+O")
    expect(new.locator("kbd")).to_have_text("Ctrl+Shift+O")
    assert options.evaluate_all("all => all.every((one) => one.querySelector('svg path')?.getAttribute('d'))")

    field = palette.get_by_role("combobox")
    field.fill("set")
    expect(options.first).to_have_text("Settings Ctrl+,")
    expect(palette.get_by_role("group").first).to_have_accessible_name("Actions")
    expect(palette.get_by_role("option", name="Chat settings…")).to_be_visible()
    expect(palette.get_by_role("option", name="Reset")).to_be_visible()
    expect(palette.get_by_role("group", name="Chats").get_by_role("option")).to_contain_text("Recipe for a set")
    expect(field).to_have_attribute("aria-activedescendant", options.first.get_attribute("id") or "")
    expect(palette.get_by_role("status")).to_have_text(re.compile("results$"))
    assert palette.get_by_role("status").inner_text() == f"{options.count()} results"
    page.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#settings")).to_have_count(0)

    page.keyboard.press("Control+k")
    field.fill("zzz-nowhere")
    expect(palette.get_by_text("Nothing found for “zzz-nowhere”")).to_be_visible()
    expect(palette.get_by_role("status")).to_have_text("Nothing found.")
    palette.get_by_role("button", name="Search messages").click()
    expect(page.get_by_role("dialog", name="Search messages")).to_be_visible()
    expect(page.get_by_role("searchbox", name="Search messages")).to_have_value("zzz-nowhere")
    assert chat.complaints == []
