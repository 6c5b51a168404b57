"""Approvals on the page, in a real browser: a call waits, a person decides, and others see it."""

import re

import pytest
from playwright.sync_api import BrowserContext, Locator, Route, expect

from tests.system.browser import Chat, another_browser, open_card

pytestmark = pytest.mark.timeout(180)

DELETE = '/call delete_file {"path":"a.txt"}'
ASKS = f'/call write_file {{"path":"a.txt","content":"hi"}} /then {DELETE}'


def blocked_card(chat: Chat) -> Locator:
    """A card of the newest answer that waits for approval; the file that the call deletes exists."""
    chat.with_autopilot()
    chat.send(ASKS)
    waiting = chat.card("delete_file")
    expect(waiting).to_have_attribute("data-state", "blocked")
    return waiting


def test_a_tool_that_is_allowed_in_the_chat_is_not_asked_for_again_until_that_is_revoked(chat: Chat) -> None:
    waiting = blocked_card(chat)
    waiting.get_by_role("button", name="More ways to allow").click()
    chat.page.get_by_role("menuitem", name="Always allow “Delete file” in this chat").click()
    chat.wait_for_end()
    chat.send(ASKS)
    chat.wait_for_end()
    assert "Deleted a.txt." in chat.stored_text()
    allowed = chat.open_chat_settings().locator("#allowed")
    expect(allowed).to_contain_text("delete_file")
    allowed.get_by_role("button", name="Revoke Delete file").click()
    expect(allowed).to_contain_text("No tools yet.")
    chat.page.keyboard.press("Escape")
    chat.answer.get_by_role("button", name="Good answer").click()
    chat.answer.get_by_label("What was good? (optional)").fill("It was quick.")
    chat.page.keyboard.press("Enter")
    expect(chat.answer.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")
    chat.page.reload()
    expect(chat.answer.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")
    chat.send(ASKS)
    expect(chat.card("delete_file")).to_have_attribute("data-state", "blocked")
    assert chat.complaints == []


def test_an_approved_call_is_made(chat: Chat) -> None:
    waiting = blocked_card(chat)
    request = waiting.get_by_role("group", name="Delete a.txt?")
    expect(waiting.locator(".card-head"), "the request stands in place of the line of the call").to_have_count(0)
    request.get_by_role("button", name="Details").click()
    request.get_by_role("button", name="Show JSON").click()
    expect(request).to_contain_text('"path": "a.txt"')
    expect(chat.page.get_by_role("status").filter(has_text="“Delete file” needs approval.")).to_have_count(1)
    expect(chat.run_bar).to_contain_text("waiting for approval")
    expect(chat.run_bar).to_contain_text("Round 2 of 20")
    expect(chat.page).to_have_title(re.compile(r"^\(1\) "))
    waiting.get_by_role("button", name="Allow", exact=True).click()
    expect(waiting.get_by_role("button", name="Allow", exact=True)).to_have_count(0)
    expect(waiting.locator(".card-head")).to_be_focused()
    chat.wait_for_end()
    expect(chat.card("delete_file")).to_have_attribute("data-state", "completed")
    assert "Deleted a.txt." in chat.stored_text()
    assert chat.complaints == []


def test_a_denied_call_is_not_made_and_the_reason_is_shown(chat: Chat) -> None:
    waiting = blocked_card(chat)
    expect(waiting.get_by_role("button")).to_have_text(["Allow", "", "Deny", "Details"])
    waiting.get_by_role("button", name="Details").click()
    waiting.get_by_role("button", name="Add a reason").click()
    expect(waiting.get_by_label("Reason")).to_be_focused()
    waiting.get_by_label("Reason").fill("it is mine")
    waiting.get_by_role("button", name="Deny").click()
    expect(waiting).to_have_attribute("data-refused", "true")
    expect(waiting).to_contain_text("it is mine")
    expect(waiting.locator(".card-time")).to_have_text("denied")
    chat.wait_for_end()


def test_arguments_are_checked_and_edited_before_a_call_is_approved(chat: Chat) -> None:
    waiting = blocked_card(chat)
    waiting.get_by_role("button", name="Details").click()
    waiting.get_by_role("button", name="Edit input").click()
    field = waiting.get_by_label("Input (JSON)")
    approve = waiting.get_by_role("button", name="Allow with changes")
    field.fill('{"path": ')
    approve.click()
    expect(waiting.get_by_role("alert")).to_contain_text("This is not valid JSON. Check line 1, column 10.")
    waiting.get_by_role("button", name="Cancel editing").click()
    expect(waiting.get_by_role("alert")).to_be_hidden()
    waiting.get_by_role("button", name="Edit input").click()
    field.fill('{"path": 7}')
    approve.click()
    expect(waiting.get_by_role("alert")).to_contain_text("Invalid input: ")
    field.fill('{"path": "b.txt"}')
    approve.click()
    expect(waiting).to_have_attribute("data-state", "failed")
    expect(waiting.locator(".card-edited")).to_have_text("edited")
    expect(open_card(waiting).get_by_role("group", name="Input")).to_contain_text('"path": "b.txt"')
    expect(waiting.get_by_role("group", name="Edited before approval")).to_contain_text('"path": "a.txt"')
    chat.wait_for_end()
    block = next(block for block in chat.stored()["messages"][-1]["content"] if block.get("tool") == "delete_file")
    assert block["args"] == {"path": "b.txt"}


FAST_CLOCK = "window.realNow = Date.now; Date.now = () => window.realNow() + 864e5"

HIDDEN = r"note\u202etxt\u200b\ufe0f\u3164\u00ad\udb40\udc41.exe"
"""The name of a file as JSON, with a character of each class that a person would not see."""
MARKED = "note⟨U+202E⟩txt⟨U+200B⟩⟨U+FE0F⟩⟨U+3164⟩⟨U+00AD⟩⟨U+E0041⟩.exe"


def test_arguments_to_approve_and_their_changes_hide_no_character(chat: Chat) -> None:
    chat.with_autopilot()
    chat.send(f'/call delete_file {{"path":"{HIDDEN}"}}')
    waiting = chat.card("delete_file")
    expect(waiting.get_by_role("group").locator("code")).to_have_text(MARKED)
    waiting.get_by_role("button", name="Details").click()
    waiting.get_by_role("button", name="Show JSON").click()
    expect(waiting.get_by_role("group").locator("pre")).to_contain_text(f'"path": "{HIDDEN}"')
    waiting.get_by_role("button", name="Edit input").click()
    field = waiting.get_by_label("Input (JSON)")
    assert f'"path": "{HIDDEN}"' in field.input_value()
    field.fill('{"path": "note\u2066.exe"}')
    expect(waiting).to_contain_text("Hidden characters: ⟨U+2066⟩")
    changes = waiting.get_by_role("region", name="Changes")
    expect(changes.locator(".gone")).to_contain_text(f'"path": "{HIDDEN}"')
    expect(changes.locator(".new")).to_contain_text(r'"path": "note\u2066.exe"')
    waiting.get_by_role("button", name="Allow with changes").click()
    edited = open_card(waiting).get_by_role("group", name="Edited before approval")
    expect(edited).to_contain_text(r'"path": "note\u2066.exe"')
    chat.wait_for_end()
    block = next(block for block in chat.stored()["messages"][-1]["content"] if block.get("tool") == "delete_file")
    assert block["args"] == {"path": "note\u2066.exe"}
    # Outside of calls, emoji with their selectors and joiners stay as they are.
    chat.send("/echo ❤️ 👩‍🚀")
    chat.wait_for_end()
    assert "❤️ 👩‍🚀" in (chat.answer.text_content() or "")


@pytest.mark.parametrize(
    ("status", "code", "detail", "says"),
    [
        (
            409,
            "already_decided",
            "This call was denied before.",
            "Someone else answered first. This call was denied before.",
        ),
        (403, "forbidden", "Only an owner may.", "Only an owner may."),
    ],
)
def test_the_servers_response_to_a_decision_is_shown_on_the_card(
    chat: Chat, status: int, code: str, detail: str, says: str
) -> None:
    waiting = blocked_card(chat)

    def refuse(route: Route) -> None:
        route.fulfill(status=status, json={"code": code, "detail": detail, "status": status})

    chat.page.route("**/approvals/*", refuse)
    waiting.get_by_role("button", name="Allow", exact=True).click()
    expect(waiting.get_by_role("alert")).to_have_text(says)
    chat.page.unroute("**/approvals/*")
    waiting.get_by_role("button", name="Allow", exact=True).click()
    expect(waiting).to_have_attribute("data-state", "completed")
    chat.wait_for_end()


def test_a_viewer_sees_that_a_call_waits_but_no_buttons(browser: BrowserContext, chat: Chat) -> None:
    viewer = Chat(another_browser(browser), chat.share("Can view"))
    waiting = blocked_card(chat)
    seen = viewer.card("delete_file")
    expect(seen).to_contain_text("“Delete file” is waiting for approval.")
    seen.get_by_role("button", name="Details").click()
    expect(seen.get_by_role("button", name="Show JSON")).to_be_visible()
    for action in ("Allow", "Deny", "Edit input", "Add a reason"):
        expect(seen.get_by_role("button", name=action, exact=True)).to_have_count(0)
    expect(seen.get_by_label("Reason")).to_have_count(0)
    # An approval expires while its card is open. Here the clock of the page is fast, so the server still waits.
    waiting.get_by_role("button", name="Details").click()
    waiting.get_by_role("button", name="Edit input").click()
    chat.page.evaluate(FAST_CLOCK)
    expect(waiting).to_contain_text("Approval expired")
    expect(waiting.get_by_role("button")).to_have_count(1)
    expect(waiting.get_by_role("textbox")).to_have_count(0)
    expect(waiting.locator(".card-state")).to_contain_text("expired")
    expect(chat.run_bar).to_have_attribute("data-status", "thinking")
    expect(chat.page).not_to_have_title(re.compile(r"^\("))
    chat.page.evaluate("Date.now = window.realNow")
    waiting.get_by_role("button", name="Cancel editing").click()
    waiting.get_by_role("button", name="Allow", exact=True).click()
    expect(seen).to_have_attribute("data-state", "completed")
    viewer.wait_for_end()
    assert chat.complaints == viewer.complaints == []


def test_a_chat_with_a_call_that_waits_is_marked_in_the_list(chat: Chat) -> None:
    chat.register("ada@example.com", "Ada")
    chat.with_autopilot()
    chat.send(f"Tidy up {DELETE}")
    expect(chat.listed("Tidy up")).to_contain_text("Needs approval")
    chat.card("delete_file").get_by_role("button", name="Deny").click()
    chat.wait_for_end()
    expect(chat.listed("Tidy up")).not_to_contain_text("Needs approval")


def test_calls_that_wait_together_are_approved_together(chat: Chat) -> None:
    chat.with_autopilot()
    chat.send(
        '/call write_file {"path":"b.txt","content":"hi"} /then ' + DELETE + ' /call delete_file {"path":"b.txt"}'
    )
    pending = chat.page.get_by_role("group", name="2 tool calls need your approval.")
    expect(pending).to_contain_text("Delete file ×2")
    pending.get_by_role("button", name="Allow all 2").click()
    expect(pending).to_have_count(0)
    chat.wait_for_end()
    assert "Deleted b.txt." in chat.stored_text()
    assert chat.complaints == []
