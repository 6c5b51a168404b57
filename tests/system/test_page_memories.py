"""Memories on the page: those of an answer, all of them, their settings, and proposals."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.server import Server
from tests.system.browser import Chat, another_browser
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(180)

ADA = "ada@example.com"
TEA = "Tassadar likes green tea"


def remember(chat: Chat, server: Server, *texts: str) -> None:
    """Store memories of the account."""
    for text in texts:
        assert chat.page.request.post(f"{server.url}/api/memories", data={"text": text}).ok


def open_memories(chat: Chat) -> Locator:
    dialog = chat.open_settings("Memory")
    expect(dialog.get_by_role("heading", name="All memories")).to_be_visible()
    return dialog


def rows(dialog: Locator) -> Locator:
    return dialog.locator("li .text")


def confirm(chat: Chat, yes: str) -> None:
    chat.page.locator("#confirm").get_by_role("button", name=yes, exact=True).click()


def test_an_answer_shows_its_memories_which_can_be_corrected_and_forgotten(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    remember(chat, server, TEA)
    chat.send("Which tea does Tassadar like?")
    chat.wait_for_end()
    expect(chat.answer.get_by_role("button", name="Used 1 memory")).to_be_visible()
    chat.page.reload()
    opener = chat.answer.get_by_role("button", name="Used 1 memory")
    opener.click()
    dialog = chat.page.get_by_role("dialog", name="Memories in this answer")
    expect(rows(dialog)).to_have_text([TEA])
    dialog.get_by_role("button", name=f"Edit: {TEA}").click()
    dialog.get_by_label("Text of the memory").fill("Tassadar likes black tea")
    dialog.get_by_role("button", name="Save").click()
    expect(rows(dialog)).to_have_text(["Tassadar likes black tea"])
    expect(dialog).to_contain_text(f"Edited later. This answer used: “{TEA}”")
    expect(dialog.get_by_role("button", name="Edit: Tassadar likes black tea")).to_be_focused()
    dialog.get_by_role("button", name="Forget: Tassadar likes black tea").click()
    confirm(chat, "Forget")
    expect(dialog).to_contain_text("Not available: it was forgotten")
    chat.page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    assert chat.page.request.get(f"{server.url}/api/memories").json()["items"] == []
    assert chat.complaints == []


def test_memories_are_found_paged_added_exported_and_all_forgotten(chat: Chat, server: Server, tmp_path: Path) -> None:
    chat.register(ADA, "Ada")
    remember(chat, server, *(f"Note number {number} of Aiur" for number in range(51)), TEA)
    dialog = open_memories(chat)
    expect(rows(dialog)).to_have_count(50)
    dialog.get_by_role("button", name="Load more").click()
    expect(rows(dialog)).to_have_count(52)
    dialog.get_by_label("Search memories").fill("tea")
    expect(rows(dialog)).to_have_text([TEA])
    expect(dialog).to_contain_text("Finds matching words only")
    dialog.get_by_label("Search memories").fill("zzz")
    expect(dialog).to_contain_text("No matching memories.")
    dialog.get_by_label("Show").select_option(label="This chat")
    dialog.get_by_label("Search memories").fill("")
    expect(dialog).to_contain_text("No memories yet.")
    dialog.get_by_role("button", name="Add", exact=True).click()
    dialog.get_by_label("Remember in this chat").fill("This chat is about Aiur.")
    dialog.get_by_role("button", name="Remember", exact=True).click()
    expect(rows(dialog)).to_have_text(["This chat is about Aiur."])
    expect(dialog).to_contain_text("This chat only")
    with chat.page.expect_download() as download:
        dialog.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "memories.json")
    assert [memory["text"] for memory in json.loads((tmp_path / "memories.json").read_text())] == [
        "This chat is about Aiur."
    ]
    dialog.get_by_label("Show").select_option(label="All chats")
    expect(rows(dialog)).to_have_count(50)
    dialog.get_by_role("button", name="Forget all…").click()
    confirm(chat, "Forget all")
    expect(dialog).to_contain_text("No memories yet.")
    assert chat.page.request.get(f"{server.url}/api/memories").json()["items"] == []
    assert chat.complaints == []


def test_a_guests_memories_stay_with_the_chat_until_they_sign_in(chat: Chat, server: Server) -> None:
    chat.send("/words=3")
    chat.wait_for_end()
    dialog = open_memories(chat)
    expect(dialog).to_contain_text("You’re not signed in, so memories stay with this chat and this browser.")
    dialog.get_by_role("button", name="Add", exact=True).click()
    dialog.get_by_label("Remember in this chat").fill(TEA)
    dialog.get_by_role("button", name="Remember", exact=True).click()
    expect(rows(dialog)).to_have_text([TEA])
    chat.page.keyboard.press("Escape")
    chat.register(ADA, "Ada")
    dialog = open_memories(chat)
    expect(rows(dialog)).to_have_text([TEA])
    expect(dialog.get_by_text("You’re not signed in")).to_have_count(0)


def test_settings_are_saved_and_proposals_are_accepted_or_rejected(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.send("/words=1")
    chat.wait_for_end()
    thread_id = chat.url.partition("/t/")[2]
    base = {"scope": "user", "kind": "fact", "threadId": thread_id, "createdAt": "2026-03-12T12:00:00Z"}
    proposals = [base | {"id": f"0000-{n}", "text": f"Fact {n}", "expiresAt": base["createdAt"]} for n in (1, 2)]
    decided: list[tuple[str, str]] = []

    def decide(route: Route) -> None:
        decided.append((route.request.method, route.request.url.partition("/proposals/")[2]))
        accepted: dict[str, Any] = proposals[0] | {"uses": 0}
        if route.request.method == "POST":
            route.fulfill(status=201, json=accepted)
        else:
            route.fulfill(status=204)

    chat.page.route("**/api/memories/proposals", lambda route: route.fulfill(json={"items": proposals}))
    chat.page.route("**/api/memories/proposals/*", decide)
    chat.page.route("**/api/memories/proposals/*/accept", decide)
    dialog = open_memories(chat)
    dialog.get_by_role("button", name="Remember: Fact 1", exact=True).click()
    dialog.get_by_role("button", name="No: Fact 2").click()
    expect(dialog.get_by_role("heading", name="Remember this?")).to_have_count(0)
    assert decided == [("POST", "0000-1/accept"), ("DELETE", "0000-2")]
    dialog.get_by_role("switch", name="Use memories in answers").uncheck()
    dialog.get_by_label("Remember facts from your messages").select_option(label="Ask me first")
    chat.page.wait_for_load_state("networkidle")
    chat.page.keyboard.press("Escape")
    dialog = open_memories(chat)
    expect(dialog.get_by_role("switch", name="Use memories in answers")).not_to_be_checked()
    expect(dialog.get_by_label("Remember facts from your messages")).to_have_value("ask")
    assert chat.complaints == []


def test_the_owner_lets_their_memories_into_a_chat_that_others_can_read(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    remember(chat, server, TEA)
    chat.send("/words=1")
    chat.wait_for_end()
    thread_id = chat.url.partition("/t/")[2]
    link = chat.page.request.post(f"{server.url}/api/threads/{thread_id}/links", data={"role": "viewer"})
    dialog = chat.open_chat_settings()
    switch = dialog.get_by_role("switch", name="Use my memories in this chat even when others can read it")
    expect(switch).not_to_be_checked()
    expect(switch).to_have_accessible_description(re.compile("Everyone who can read this chat"))
    switch.check()
    chat.page.wait_for_load_state("networkidle")
    chat.page.keyboard.press("Escape")
    chat.send("Which tea does Tassadar like?")
    expect(chat.answer.get_by_role("button", name="Used 1 memory")).to_be_visible()
    dialog = chat.open_chat_settings()
    expect(switch).to_be_checked()
    chat.page.keyboard.press("Escape")
    settings = open_memories(chat)
    settings.get_by_role("switch", name="Use memories in answers").uncheck()
    chat.page.wait_for_load_state("networkidle")
    chat.page.keyboard.press("Escape")
    dialog = chat.open_chat_settings()
    expect(dialog).to_contain_text("Memories are off")
    expect(switch).to_have_count(0)
    other = another_browser(chat.page.context)
    guest = Chat(other, link.json()["url"])
    guest.page.locator("#chat-menu").click()
    expect(guest.page.get_by_role("menuitem", name="Export as Markdown")).to_be_visible()
    expect(guest.page.get_by_role("menuitem", name="Chat settings…")).to_have_count(0)
    other.close()
    assert chat.complaints == []


def test_the_account_lists_the_costs_outside_of_answers(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    receipt = {"purpose": "extraction", "data": {"model": "gpt-5-mini", "usage": {"inputTokens": 1100}}}
    receipts = [receipt | {"id": f"00-{n}", "costUsd": "0.0125", "createdAt": "2026-03-12T12:00:00Z"} for n in range(3)]

    def page_of(route: Route) -> None:
        more = "cursor=00-1" in route.request.url
        route.fulfill(json={"items": receipts[2:]} if more else {"items": receipts[:2], "nextCursor": "00-1"})

    chat.page.route("**/api/me/usage/receipts?*", page_of)
    chat.page.get_by_title("Your account").click()
    chat.page.get_by_role("tab", name="Usage").click()
    section = chat.page.get_by_role("region", name="Other costs")
    expect(section.get_by_role("listitem")).to_have_count(2)
    section.get_by_role("button", name="Load more").click()
    expect(section.get_by_role("listitem")).to_have_count(3)
    expect(section.get_by_role("button", name="Load more")).to_have_count(0)
    expect(section.get_by_role("listitem").first).to_contain_text("Remembering facts · gpt-5-mini")
    expect(section.get_by_role("listitem").first).to_contain_text("1,100 tokens")
    assert axe_violations(chat) == []
    assert chat.complaints == []


def test_memories_that_fail_to_load_can_be_loaded_again(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.page.route("**/api/memories?*", lambda route: route.fulfill(status=403, json={"code": "forbidden"}))
    dialog = open_memories(chat)
    expect(dialog.get_by_role("alert").filter(has_text="Couldn’t load your memories.")).to_be_visible()
    chat.page.unroute("**/api/memories?*")
    dialog.get_by_role("button", name="Try again").click()
    expect(dialog).to_contain_text("No memories yet.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_dialogs_of_memories_and_agents(
    chat: Chat, server: Server, scheme: Literal["light", "dark"]
) -> None:
    chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    chat.register(ADA, "Ada")
    remember(chat, server, TEA)
    dialog = open_memories(chat)
    expect(rows(dialog)).to_have_count(1)
    dialog.get_by_role("button", name=f"Edit: {TEA}").click()
    assert axe_violations(chat) == []
    chat.page.keyboard.press("Escape")
    chat.add("Choose an agent")
    chat.button("New agent").click()
    assert axe_violations(chat) == []
