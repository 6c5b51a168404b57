"""Scheduled messages on the page: sent later from the composer, and regularly from the dialog."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.server import Server
from tests.system.browser import Chat
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(240)

ADA = "ada@example.com"


def schedules(chat: Chat, server: Server) -> list[dict[str, Any]]:
    """The account's schedules as the server has them, newest first."""
    items: list[dict[str, Any]] = chat.page.request.get(f"{server.url}/api/schedules").json()["items"]
    return items


def later(chat: Chat, text: str) -> Locator:
    """Write a message, and open the menu of later times."""
    chat.page.get_by_label("Message", exact=True).fill(text)
    chat.button("Send later").click()
    menu = chat.page.get_by_role("menu", name="Send later")
    expect(menu).to_be_visible()
    return menu


def waiting(chat: Chat) -> Locator:
    return chat.page.locator("#waiting > li")


def open_dialog(chat: Chat) -> Locator:
    chat.button("Schedules").click()
    dialog = chat.page.get_by_role("dialog", name="Schedules")
    expect(dialog).to_be_visible()
    return dialog


def act_on(row: Locator, name: str, action: str) -> None:
    """Choose an action in the menu of a schedule."""
    row.get_by_role("button", name=f"Actions for “{name}”").click()
    row.get_by_role("menuitem", name=action, exact=True).click()


def test_a_message_is_sent_later_changed_taken_back_and_sent_now(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    chat.send("/words=1")
    chat.wait_for_end()
    menu = later(chat, "/words=2 /pace=0")
    expect(menu.get_by_role("menuitem").first).to_be_focused()
    menu.get_by_role("menuitem", name="Tomorrow morning").click()
    expect(waiting(chat)).to_have_count(1)
    expect(waiting(chat)).to_contain_text("Will be sent tomorrow at 08:00")
    expect(chat.page.get_by_label("Message", exact=True)).to_have_value("")
    assert [one["status"] for one in schedules(chat, server)] == ["active"]
    chat.page.reload()  # the server has it, not this page
    waiting(chat).get_by_role("button", name="Edit: /words=2 /pace=0").click()
    waiting(chat).get_by_label("Message", exact=True).fill("/words=3 /pace=0")
    waiting(chat).get_by_label("Date and time").fill("2020-01-01T08:00")
    waiting(chat).get_by_role("button", name="Save").click()
    expect(waiting(chat).get_by_role("alert")).to_contain_text("This time has passed.")
    waiting(chat).get_by_label("Date and time").fill(f"{datetime.now().year + 2}-01-02T09:30")
    waiting(chat).get_by_role("button", name="Save").click()
    expect(waiting(chat)).to_contain_text(f"{datetime.now().year + 2} at 09:30")
    expect(waiting(chat).get_by_role("button", name="Edit")).to_be_focused()
    assert [one["text"] for one in schedules(chat, server)] == ["/words=3 /pace=0"]
    assert axe_violations(chat) == []
    waiting(chat).get_by_role("button", name="Cancel").click()
    expect(waiting(chat)).to_have_count(0)
    expect(chat.page.get_by_label("Message", exact=True)).to_have_value("/words=3 /pace=0")
    assert schedules(chat, server) == []
    later(chat, "/words=4 /pace=0").get_by_role("menuitem", name="In one hour").click()
    waiting(chat).get_by_role("button", name="Send now").click()
    expect(waiting(chat)).to_have_count(0)
    chat.wait_for_end()
    expect(chat.page.locator(".message.user")).to_have_count(2)
    assert schedules(chat, server) == []
    assert chat.complaints == []


def test_a_waiting_message_becomes_a_question_at_its_time(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    chat.send("/words=1")
    chat.wait_for_end()
    thread = chat.url.rpartition("/")[2]
    body = {"text": "/words=2 /pace=0", "sendAt": (datetime.now(UTC) + timedelta(seconds=6)).isoformat()}
    chat.page.reload()
    assert chat.page.request.post(f"{server.url}/api/threads/{thread}/send", data=body).status == 202
    chat.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(waiting(chat)).to_contain_text("Will be sent today at")
    expect(chat.page.locator(".message.user")).to_have_count(2)
    expect(waiting(chat)).to_have_count(0)
    chat.wait_for_end()
    assert chat.complaints == []


def test_a_time_is_chosen_in_a_dialog_and_files_are_refused(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    later(chat, "Remind me of Aiur").get_by_role("menuitem", name="Date and time…").click()
    dialog = chat.page.get_by_role("dialog", name="Send later")
    expect(dialog.get_by_label("Date and time")).to_be_focused()
    expect(dialog).to_contain_text("Will be sent tomorrow at 08:00")
    assert axe_violations(chat) == []
    dialog.get_by_label("Date and time").fill(f"{datetime.now().year + 1}-02-03T04:05")
    dialog.get_by_role("button", name="Schedule", exact=True).click()
    expect(dialog).to_be_hidden()
    expect(waiting(chat)).to_contain_text("Remind me of Aiur")
    expect(waiting(chat)).to_contain_text(f"3 Feb {datetime.now().year + 1} at 04:05")
    file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Aiur"}
    chat.page.locator("#attach-field").set_input_files(file)  # type: ignore[arg-type]
    expect(chat.page.get_by_label("Remove notes.txt")).to_be_visible()
    refused = later(chat, "With a file").get_by_role("menuitem", name="Messages with files can’t be sent later.")
    expect(refused).to_be_disabled()
    assert chat.complaints == []


def test_a_schedule_is_made_run_paused_changed_and_deleted(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    dialog = open_dialog(chat)
    expect(dialog).to_contain_text("Nothing is scheduled.")
    dialog.get_by_role("button", name="New schedule").click()
    form = chat.page.get_by_role("dialog", name="New schedule")
    form.get_by_label("Message", exact=True).fill("/words=3 /pace=0")
    form.get_by_label("Name (optional)").fill("Morning report")
    form.get_by_label("Repeat").select_option(label="Every week")
    form.get_by_role("checkbox", name="Monday").uncheck()
    expect(form.locator("#schedule-preview")).to_contain_text("Choose at least one day")
    form.get_by_role("checkbox", name="Monday").check()
    form.get_by_role("checkbox", name="Thursday").check()
    form.get_by_label("Time", exact=True).fill("07:30")
    form.get_by_label("Time zone").select_option("Asia/Tokyo")
    expect(form.locator("#schedule-preview li")).to_have_count(3)
    expect(form.locator("#schedule-preview li").first).to_contain_text("at 07:30")
    assert axe_violations(chat) == []
    form.get_by_role("button", name="Save").click()
    dialog = chat.page.get_by_role("dialog", name="Schedules")
    row = dialog.locator("#schedule-list > li")
    expect(row).to_contain_text("Every week on Monday and Thursday at 07:30 (Japan Standard Time)")
    expect(dialog.get_by_role("button", name="New schedule")).to_be_focused()
    (made,) = schedules(chat, server)
    assert (made["cron"], made["timeZone"], made["name"]) == ("30 7 * * 1,4", "Asia/Tokyo", "Morning report")
    act_on(row, "Morning report", "Pause")
    expect(row).to_contain_text("Paused")
    act_on(row, "Morning report", "Continue")
    expect(row).to_contain_text("Next:")
    act_on(row, "Morning report", "Edit")
    form = chat.page.get_by_role("dialog", name="Edit schedule")
    expect(form.get_by_role("checkbox", name="Thursday")).to_be_checked()
    form.get_by_label("Repeat").select_option(label="Custom (cron)")
    form.get_by_label("Cron expression").fill("99 * * * *")
    expect(form.locator("#schedule-preview")).to_contain_text("This is not a cron expression.")
    assert [complaint for complaint in chat.complaints if "400 (Bad Request)" not in complaint] == []
    chat.complaints.clear()  # the browser's own line about the answer
    form.get_by_label("Cron expression").fill("*/30 * * * *")
    form.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("By cron expression: */30 * * * *")
    expect(row.get_by_role("button", name="Actions for “Morning report”")).to_be_focused()
    assert axe_violations(chat) == []
    act_on(row, "Morning report", "Run now")
    expect(row).to_contain_text("The message was sent.")
    row.get_by_role("link", name="Open chat: Morning report").click()
    expect(dialog).to_be_hidden()
    chat.wait_for_end()
    expect(chat.page.get_by_role("heading", name="Morning report")).to_be_visible()
    dialog = open_dialog(chat)
    act_on(row, "Morning report", "Delete")
    undo = row.get_by_role("button", name="Undo the deletion: Morning report")
    expect(undo).to_be_focused()
    assert [one["status"] for one in schedules(chat, server)] == ["paused"]
    assert axe_violations(chat) == []
    undo.click()
    expect(row).to_contain_text("By cron expression: */30 * * * *")
    expect(row.get_by_role("button", name="Actions for “Morning report”")).to_be_focused()
    assert [one["status"] for one in schedules(chat, server)] == ["active"]
    act_on(row, "Morning report", "Delete")
    expect(row).to_contain_text("Schedule deleted.")
    chat.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    with chat.page.expect_response(lambda response: "/api/schedules?" in response.url):
        dialog = open_dialog(chat)
    expect(dialog).to_contain_text("Nothing is scheduled.")
    assert schedules(chat, server) == []
    assert chat.complaints == []


def test_closing_the_dialog_during_an_undo_keeps_the_schedule_and_a_failed_deletion_is_shown(
    chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    body = {"text": "/words=2", "name": "Report", "cron": "0 7 * * *", "timeZone": "UTC"}
    assert chat.page.request.post(f"{server.url}/api/schedules", data=body).status == 201
    dialog = open_dialog(chat)
    row = dialog.locator("#schedule-list > li")
    act_on(row, "Report", "Delete")
    undo = row.get_by_role("button", name="Undo the deletion: Report")
    expect(undo).to_be_visible()
    held: list[Route] = []
    deletions: list[Route] = []

    def hold(route: Route) -> None:
        (held if route.request.method == "PATCH" else deletions).append(route)

    chat.page.route("**/api/schedules/*", hold)
    undo.click()
    expect(row.get_by_role("button", name="Actions for “Report”")).to_be_disabled()
    chat.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert (len(held), deletions) == (1, [])
    with chat.page.expect_response(lambda response: response.request.method == "PATCH"):
        held[0].continue_()
    assert [one["status"] for one in schedules(chat, server)] == ["active"]
    chat.page.unroute("**/api/schedules/*")

    open_dialog(chat)
    act_on(row, "Report", "Delete")
    expect(row).to_contain_text("Schedule deleted.")
    refusal = {"code": "forbidden", "detail": "No."}
    chat.page.route("**/api/schedules/*", lambda route: route.fulfill(status=403, json=refusal))
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator(".toasts")).to_contain_text("“Report” could not be deleted.")
    assert [one["status"] for one in schedules(chat, server)] == ["paused"]


def test_a_new_chat_with_a_waiting_message_stays_listed(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    later(chat, "Water the plants").get_by_role("menuitem", name="Tomorrow morning").click()
    expect(waiting(chat)).to_have_count(1)
    expect(chat.page.get_by_role("heading", name="Water the plants")).to_be_visible()
    chat.button("New chat").click()
    chat.page.reload()
    expect(chat.listed("Water the plants")).to_be_visible()
    assert chat.complaints == []


def test_a_schedule_fires_at_its_time_and_links_to_its_chat(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    at = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    body = {"text": "/words=2 /pace=0", "name": "Soon", "at": at}
    assert chat.page.request.post(f"{server.url}/api/schedules", data=body).status == 201
    dialog = open_dialog(chat)
    expect(dialog.locator("#schedule-list > li")).to_contain_text("Once, today at")
    dialog.get_by_text("Ended in the last 7 days (1)").click()
    expect(dialog).to_contain_text("Ended: it was sent for the last time.")
    dialog.get_by_role("link", name="Open chat: Soon").click()
    chat.wait_for_end()
    assert chat.complaints == []


def test_schedules_are_listed_in_pages_and_a_paused_one_says_why(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    for number in range(25):
        body = {"text": f"Number {number}", "cron": "0 8 1 1 *"}
        assert chat.page.request.post(f"{server.url}/api/schedules", data=body).ok
    reasons = {"status": "paused", "reason": "failed", "error": "The queue is full."}

    def tell(route: Any) -> None:
        answer = route.fetch()
        items = answer.json()
        items["items"][0].update(reasons)
        route.fulfill(response=answer, body=json.dumps(items))

    chat.page.route(re.compile(r"/api/schedules\?limit=20$"), tell)
    dialog = open_dialog(chat)
    expect(dialog.locator("#schedule-list > li")).to_have_count(20)
    expect(dialog).to_contain_text("Paused: it could not be sent several times. The queue is full.")
    dialog.get_by_role("button", name="Show more").click()
    expect(dialog.locator("#schedule-list > li")).to_have_count(25)


def test_a_guest_learns_that_scheduled_messages_need_an_account(chat: Chat) -> None:
    menu = later(chat, "Later")
    menu.get_by_role("menuitem", name="Sign in").click()
    expect(chat.page.locator("#signin")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(open_dialog(chat)).to_contain_text("Scheduled messages are sent as your account, so they need one.")
    chat.page.set_viewport_size({"width": 390, "height": 800})
    assert axe_violations(chat) == []
    assert chat.complaints == []
