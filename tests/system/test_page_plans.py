"""Plans on the page: made, executed, watched, edited, approved and exported, with one server for all tests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.support import postgres
from tests.support.server import Server, ended
from tests.system.browser import Chat
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(120)

COMPLETES = '/call complete_step {"summary": "It is done"}'
COMMANDS = {
    "limited": {
        "title": "Claude Code",
        "argv": ["sh", "-c", "echo 'HTTP 429 Too Many Requests' >&2; exit 1"],
        "guests": True,
    }
}
NOTIFICATIONS = """() => {
    window.notified = [];
    window.Notification = class {
        static permission = "default";
        static requestPermission() { Notification.permission = "granted"; return Promise.resolve("granted"); }
        constructor(title, { body }) { window.notified.push(`${title}: ${body}`); }
        close() {}
    };
    Object.defineProperty(document, "hidden", { get: () => window.isAway === true });
}"""


@pytest.fixture(scope="module")
def server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the whole module: every test has a chat of its own."""
    with postgres.sync_database(postgres_url, template) as url:
        folder = tmp_path_factory.mktemp("plans")
        (folder / "commands.json").write_text(json.dumps({"commands": COMMANDS}))
        env = {
            "DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_COOLDOWN_MS": "0",
            "KHALA_COMMANDS": str(folder / "commands.json"),
        }  # fmt: skip
        server = Server(folder / "server.log", env)
        with ended(server):
            server.start()
            yield server


def new_plan(chat: Chat, *steps: dict[str, Any], **fields: Any) -> str:
    """Create a plan by a request; the page hears of it in its feed."""
    origin, _, thread_id = chat.url.partition("/t/")
    key = json.loads(chat.page.evaluate(f"localStorage.getItem('khala.chat.{thread_id}')"))["key"]
    config = {"stepDelayMs": 0, "retryBaseMs": 1, **fields.pop("config", {})}
    body = {"title": "Open the shop", "mode": "all", "config": config, "steps": steps, **fields}
    answer = chat.page.request.post(f"{origin}/api/threads/{thread_id}/plans", data=body, headers={"X-Anon-Key": key})
    assert answer.ok, answer.text()
    plan_id: str = answer.json()["id"]
    return plan_id


def bar(page: Page) -> Locator:
    """The bar above the composer; while that is hidden, because the card in the conversation is in sight, the card."""
    return page.get_by_role("region", name=re.compile("^Plan: ")).last


def row(page: Page, step_id: str) -> Locator:
    return page.locator(f"[data-step={step_id}]")


def press(place: Locator | Page, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def choose(place: Locator, action: str) -> None:
    """Choose one of the rare actions on a plan or a step, with the keyboard alone."""
    place.get_by_role("button", name="More actions").first.press("Enter")
    place.get_by_role("menuitem", name=action, exact=True).press("Enter")


def show_steps(page: Page) -> None:
    bar(page).get_by_title("Show steps").click()


def test_a_chat_whose_plan_waits_is_marked_in_the_list_until_it_goes_on(chat: Chat) -> None:
    page = chat.page
    chat.register("selendis@example.com", "Selendis")
    chat.send("Open the shop /words=3")
    chat.wait_for_end()
    origin, _, thread_id = chat.url.partition("/t/")
    steps = [{"id": "a", "instructions": COMPLETES}, {"id": "b", "instructions": "/hang=1"}]
    plan = {"title": "Shop", "mode": "step", "steps": [{"title": step["id"]} | step for step in steps]}
    assert page.request.post(f"{origin}/api/threads/{thread_id}/plans", data=plan).ok
    press(bar(page), "Start")
    chat.button("New chat").click()
    listed = chat.listed("Open the shop")
    expect(listed).to_contain_text("Needs you")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    listed.click()
    press(bar(page), "Approve and continue")
    expect(listed).not_to_contain_text("Needs you")
    assert chat.complaints == []


def test_a_plan_made_by_hand_is_edited_executed_step_by_step_and_exported(chat: Chat) -> None:
    page = chat.page
    chat.add("Make a plan")
    panel = page.get_by_role("dialog")
    panel.get_by_text("List steps").click()
    panel.get_by_label("Title").fill("Open the shop")
    panel.get_by_label("Steps (one per line)").fill("- Rent a room\n- Buy tea")
    panel.get_by_label("Mode").select_option("step")
    press(panel, "Create plan")
    expect(bar(page)).to_contain_text("Not started")
    expect(page.locator("#messages .message"), "the plan takes the place of the welcome").to_have_count(0)
    expect(chat.listed("Open the shop")).to_be_visible()
    expect(page).to_have_title("Open the shop · Khala")
    for step_id in ("step-1", "step-2"):
        row(page, step_id).locator(".head").click()
        press(row(page, step_id), "Edit")
        form = panel.get_by_role("form", name="Edit step")
        form.get_by_label("Instructions").fill(f"/wait=0.2 {COMPLETES}")
        if step_id == "step-1":
            form.get_by_label("Buy tea").check()
        press(form, "Save step")
        expect(form).to_have_count(0)
    expect(row(page, "step-1")).to_contain_text("Waits for “Buy tea”")
    press(row(page, "step-2"), "Edit")
    panel.get_by_role("form").get_by_label("Rent a room").check()
    press(panel, "Save step")
    expect(panel.get_by_role("form").locator("fieldset")).to_contain_text("These steps depend on each other")
    press(panel.get_by_role("form"), "Cancel")

    row(page, "step-2").locator(".head").focus()
    page.keyboard.press("Alt+ArrowUp")
    expect(panel.locator("article .title")).to_have_text(["1. Buy tea", "2. Rent a room"])
    expect(row(page, "step-2").locator(".head")).to_be_focused()
    assert axe_violations(chat) == []

    press(bar(page), "Start")
    expect(bar(page)).to_contain_text("Paused for your review of “Buy tea”")
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    expect(row(page, "step-2")).to_contain_text("Result: It is done")
    expect(row(page, "step-2").locator(".message")).to_have_attribute("data-state", "done")
    press(bar(page), "Approve and continue")
    expect(bar(page)).to_contain_text("Paused for your review of “Rent a room”")
    press(bar(page), "Approve and continue")
    expect(bar(page)).to_contain_text("Finished")
    expect(bar(page)).to_contain_text("2 of 2 steps")
    expect(page).to_have_title(re.compile(r"^[^(]"))
    expect(page.locator("#messages .message"), "steps and the welcome are not in the conversation").to_have_count(0)

    panel.get_by_text("Settings and export").click()
    with page.expect_download() as download:
        press(panel, "Export as Markdown")
    assert download.value.suggested_filename == "open-the-shop.md"
    assert "- [x]" in Path(download.value.path()).read_text()
    page.reload()
    press(page, "Plans")
    row(page, "step-1").locator(".head").click()
    expect(row(page, "step-1").locator(".message .card-name")).to_have_text("Complete step")
    refused = [text for text in chat.complaints if "400 (Bad Request)" in text]
    assert chat.complaints == refused[:1], "only the cycle was refused"


def test_all_tries_of_a_step_are_shown_after_a_reload_and_a_stopped_plan_is_continued_in_a_new_one(
    chat: Chat,
) -> None:
    page = chat.page
    new_plan(
        chat,
        {"id": "a", "title": "Write", "instructions": "/words=3"},
        {"id": "b", "title": "Print", "instructions": COMPLETES},
        mode="autopilot",
        config={"noProgress": 2},
    )
    press(bar(page), "Start")
    expect(bar(page)).to_contain_text("Paused: the last tries completed no step")
    expect(bar(page)).to_contain_text("Edit the step or choose another agent, then resume.")
    page.reload()
    show_steps(page)
    row(page, "a").locator(".head").click()
    first = row(page, "a").get_by_text("Try 1 · Default agent · Ended without completing the step")
    expect(row(page, "a").locator(".message")).to_have_count(1)
    first.click()
    expect(row(page, "a").locator(".message")).to_have_count(2)
    expect(row(page, "a").locator("details .message")).to_contain_text("word1 word2 word3")
    assert axe_violations(chat) == []

    press(row(page, "a"), "Edit")
    form = page.get_by_role("form", name="Edit step")
    expect(form).to_be_visible()
    origin, _, thread_id = chat.url.partition("/t/")
    key = json.loads(page.evaluate(f"localStorage.getItem('khala.chat.{thread_id}')"))["key"]
    plan_id = page.request.get(f"{origin}/api/threads/{thread_id}/plans", headers={"X-Anon-Key": key}).json()["items"][
        0
    ]["id"]
    theirs = {"change": [{"id": "a", "title": "Theirs"}]}
    page.request.post(f"{origin}/api/plans/{plan_id}/edit", data=theirs, headers={"X-Anon-Key": key})
    expect(row(page, "a").locator(".title")).to_have_text("1. Theirs")
    form.get_by_label("Title").fill("Mine")
    press(form, "Save step")
    expect(form).to_contain_text("Someone else has edited this plan.")
    press(form, "Save step")
    expect(row(page, "a").locator(".title")).to_have_text("1. Mine")
    press(row(page, "a"), "Skip")
    press(bar(page), "Resume")
    expect(bar(page)).to_contain_text("Finished")
    press(bar(page), "Continue in a new plan")
    expect(bar(page)).to_contain_text("Not started")
    expect(bar(page)).to_contain_text("1 of 2 steps")
    assert all("409 (Conflict)" in text for text in chat.complaints)


def test_a_request_for_approval_is_answered_in_the_plan_and_an_absent_person_is_notified(chat: Chat) -> None:
    page = chat.page
    page.evaluate(NOTIFICATIONS)
    new_plan(
        chat, {"id": "a", "title": "Clean up", "instructions": '/call delete_file {"path":"a.txt"} /then ' + COMPLETES}
    )
    show_steps(page)
    panel = page.get_by_role("dialog")
    panel.get_by_text("Settings and export").click()
    press(panel, "Notifications")
    page.locator("#settings").get_by_label("Notify me when a plan needs me").check()
    press(page.locator("#settings"), "Close")
    page.evaluate("window.isAway = true")
    press(bar(page), "Start")
    expect(bar(page)).to_contain_text("Waiting for approval")
    expect(row(page, "a")).to_contain_text("Waiting for approval")
    page.wait_for_function("window.notified.length === 1")
    assert page.evaluate("window.notified") == ["Open the shop: A step needs your approval."]
    page.evaluate("window.isAway = false")
    for width, close in ((390, "Back"), (1280, "Close plans")):
        page.set_viewport_size({"width": width, "height": 844})
        press(page, close)
        assert chat.overflow() == 0
        press(bar(page), "Review request")
        expect(row(page, "a").get_by_role("button", name="Allow", exact=True)).to_be_in_viewport()
        assert axe_violations(chat) == []
    expect(chat.button("Stop").and_(page.locator("form button")), "the conversation is idle").to_have_count(0)
    press(row(page, "a"), "Allow")
    expect(bar(page)).to_contain_text("Finished")
    assert chat.complaints == []


def test_a_running_plan_shows_its_output_and_is_paused_changed_resumed_and_stopped(chat: Chat) -> None:
    page = chat.page
    new_plan(
        chat,
        {"id": "a", "title": "Write", "instructions": "/words=5000 /pace=20", "phase": "Draft"},
        {"id": "b", "title": "Publish", "instructions": COMPLETES, "dependsOn": ["a"], "phase": "Release"},
        config={"budget": {"usd": 5}},
    )
    press(bar(page), "Start")
    show_steps(page)
    expect(bar(page)).to_contain_text("of $5.00")
    panel = page.get_by_role("dialog")
    expect(row(page, "a").locator(".preview")).to_contain_text("word")
    expect(panel.get_by_role("heading", level=3)).to_have_text(["Draft", "Release"])
    expect(row(page, "b")).to_contain_text("Waits for “Write”")
    press(bar(page), "Pause")
    expect(bar(page)).to_contain_text("Pausing after the running steps")
    choose(bar(page), "Pause now")
    expect(bar(page).locator("strong")).to_have_text("Paused")
    expect(row(page, "a")).to_contain_text("Not finished · 1 try so far")
    row(page, "b").locator(".head").click()
    choose(row(page, "b"), "Cancel step")
    expect(row(page, "b")).to_contain_text("Cancelled")
    press(row(page, "b"), "Retry")
    expect(row(page, "b")).to_contain_text("Waits for “Write”")
    press(row(page, "b"), "Skip")
    expect(row(page, "b")).to_contain_text("Skipped")
    skipped = bar(page).locator(".left-out").bounding_box()
    assert skipped is not None
    assert skipped["width"] > 10
    panel.get_by_text("Settings and export").click()
    panel.get_by_label("Mode").select_option("autopilot")
    panel.get_by_label("Budget (USD)").fill("7")
    panel.get_by_label("Limit of tries").fill("2")
    press(panel, "Save settings")
    expect(bar(page)).to_contain_text("of $7.00")
    expect(bar(page), "half of the limit is left").not_to_contain_text("Tries")
    press(bar(page), "Resume")
    expect(row(page, "a")).to_contain_text("Running · try 2")
    expect(bar(page)).to_contain_text("Tries: 2 of 2")
    choose(bar(page), "Stop plan")
    page.locator("#confirm").get_by_role("button", name="Stop plan").click()
    expect(bar(page).locator("strong")).to_have_text("Stopped")
    expect(bar(page).get_by_role("button")).to_have_text(["Continue in a new plan"])
    panel.get_by_text("Activity").click()
    expect(panel.get_by_text("“Write” was interrupted.").first).to_be_visible()


def test_a_fallback_agent_and_a_step_that_failed_are_named_with_the_error(chat: Chat) -> None:
    page = chat.page
    error = "The connection to the model was lost. Try again."
    page.set_viewport_size({"width": 390, "height": 844})
    new_plan(
        chat,
        {"id": "a", "title": "Write", "instructions": COMPLETES},
        {"id": "b", "title": "Print", "instructions": "/fail=1", "dependsOn": ["a"]},
        {"id": "c", "title": "Sell", "dependsOn": ["b"]},
        config={"agents": ["command:limited", "default"], "rateLimitRetries": 0, "maxRetries": 0},
    )
    press(bar(page), "Start")
    expect(bar(page).locator("strong")).to_have_text("Stopped: “Print” failed")
    expect(bar(page)).to_contain_text("Fallback for Claude Code, which has reached its rate limit.")
    expect(bar(page).locator(".problem")).to_have_text(error)
    expect(bar(page)).to_contain_text("1 of 3 steps")
    expect(bar(page)).to_contain_text("1 failed · 1 blocked")
    assert chat.overflow() == 0
    show_steps(page)
    expect(bar(page)).to_contain_text("Continue in a new plan. Completed steps are not repeated.")
    expect(row(page, "b").locator(".preview")).to_have_text(error)
    expect(row(page, "c")).to_contain_text("Blocked by “Print”")
    assert (chat.overflow(), axe_violations(chat), chat.complaints) == (0, [], [])


def test_the_bar_names_the_primary_agent_while_a_fallback_works(chat: Chat) -> None:
    new_plan(
        chat,
        {"id": "a", "title": "Write", "instructions": "/hang=1"},
        config={"agents": ["command:limited", "default"], "rateLimitRetries": 0},
    )
    press(bar(chat.page), "Start")
    expect(bar(chat.page)).to_contain_text("Fallback for Claude Code, which has reached its rate limit.")
    expect(bar(chat.page).locator("strong")).to_have_text("Running")


def test_a_new_plan_is_in_autopilot_unless_another_mode_is_chosen(chat: Chat) -> None:
    page = chat.page
    chat.add("Make a plan")
    panel = page.get_by_role("dialog")
    for way in ("Describe a goal", "List steps", "Import"):
        panel.get_by_text(way, exact=True).click()
        expect(panel.get_by_label("Mode")).to_have_value("autopilot")


def test_a_goal_is_sent_to_the_model_and_a_checklist_imported_with_the_errors_of_the_document(chat: Chat) -> None:
    page = chat.page
    chat.add("Make a plan")
    panel = page.get_by_role("dialog")
    panel.get_by_label("Goal", exact=True).fill("A trip to Aiur")
    press(panel, "Create plan")
    expect(page.locator(".message.user")).to_have_text(re.compile("A trip to Aiur"))
    expect(bar(page)).to_contain_text("Not started")
    expect(bar(page)).to_contain_text("0 of 3 steps")
    press(page, "Plans")
    press(panel, "New plan")
    panel.get_by_text("Import", exact=True).click()
    document = panel.get_by_label("Markdown checklist or prd.json")
    document.fill('{"name": 3}')
    press(panel, "Import plan")
    expect(panel.get_by_role("alert").first).not_to_be_empty()
    checklist = FilePayload(name="plan.md", mimeType="text/markdown", buffer=b"# Trip\n\n- [x] Pack\n- [ ] Leave\n")
    panel.get_by_label("Or choose a file").set_input_files(checklist)
    expect(document).to_have_value(re.compile("Leave"))
    press(panel, "Import plan")
    expect(panel.get_by_role("heading", name="Trip")).to_be_visible()
    expect(bar(page)).to_contain_text("1 of 2 steps")
    expect(panel.locator("article .title")).to_have_text(["1. Pack", "2. Leave"])


def test_a_step_that_failed_is_retried_edited_or_skipped_from_the_bar_and_the_plan_goes_on(chat: Chat) -> None:
    page = chat.page
    error = "The connection to the model was lost. Try again."
    new_plan(
        chat,
        {"id": "a", "title": "Write", "instructions": "/fail=1"},
        {"id": "b", "title": "Print", "instructions": "/fail=1"},
        {"id": "c", "title": "Sell", "instructions": COMPLETES},
        mode="step",
        config={"maxRetries": 0},
    )
    press(bar(page), "Start")
    expect(bar(page).locator("strong")).to_have_text("Paused: “Write” failed")
    expect(bar(page)).to_contain_text(error)
    expect(bar(page)).to_contain_text("Retry the step, or edit or skip it.")
    press(bar(page), "Retry step")
    show_steps(page)
    expect(bar(page).locator("strong")).to_have_text("Paused: “Write” failed")
    expect(row(page, "a").locator(".preview")).to_have_text(error)
    expect(bar(page), "the panel has the error at its step only").not_to_contain_text(error)
    press(bar(page), "Show step")
    expect(row(page, "a")).to_contain_text("2 tries, last by Default agent")

    choose(bar(page), "Edit step")
    form = page.get_by_role("form", name="Edit step")
    form.get_by_label("Instructions").fill(COMPLETES)
    # Until the page has read the event of the edit, it does not know why the plan has paused, and offers no retry.
    with page.expect_response("**/events?after=*"):
        press(form, "Save step")
    expect(form).to_have_count(0)
    press(bar(page), "Retry step")
    expect(bar(page)).to_contain_text("Paused for your review of “Write”")
    press(bar(page), "Approve and continue")

    expect(bar(page).locator("strong")).to_have_text("Paused: “Print” failed")
    choose(bar(page), "Skip step")
    expect(row(page, "b")).to_contain_text("Skipped")
    expect(bar(page)).to_contain_text("Paused for your review of “Sell”")
    assert (axe_violations(chat), chat.complaints) == ([], [])


def test_if_only_the_retry_of_a_step_succeeds_the_error_is_shown_and_resume_is_left_to_do(chat: Chat) -> None:
    page = chat.page
    new_plan(chat, {"id": "a", "title": "Write", "instructions": "/fail=1"}, mode="step", config={"maxRetries": 0})
    press(bar(page), "Start")
    expect(bar(page).locator("strong")).to_have_text("Paused: “Write” failed")
    refusal = {"type": "about:blank", "status": 409, "code": "conflict", "title": "Conflict", "detail": "Not now."}
    page.route("**/resume", lambda route: route.fulfill(status=409, json=refusal))
    press(bar(page), "Retry step")
    expect(bar(page).get_by_role("alert")).to_have_text("Not now.")
    expect(bar(page).locator("strong")).to_have_text("Paused")
    expect(bar(page)).to_contain_text("Resume to go on with the plan.")
    page.unroute("**/resume")
    press(bar(page), "Resume")
    expect(bar(page).locator("strong")).to_have_text("Paused: “Write” failed")
    assert all("409 (Conflict)" in text for text in chat.complaints)


def test_between_two_runs_the_bar_says_what_the_plan_waits_for(chat: Chat) -> None:
    page = chat.page
    config = {"retryBaseMs": 45_000, "stepDelayMs": 600_000}
    new_plan(
        chat,
        {"id": "a", "title": "Write", "instructions": "/fail=1"},
        {"id": "b", "title": "Print", "instructions": COMPLETES, "dependsOn": ["a"]},
        mode="autopilot",
        config=config,
    )
    press(bar(page), "Start")
    expect(bar(page).locator("strong")).to_have_text(re.compile(r"^Retrying “Write” in \d+\ss$"))
    show_steps(page)
    expect(row(page, "a")).to_contain_text("Retrying in")
    row(page, "a").locator(".head").click()
    press(row(page, "a"), "Skip")
    expect(bar(page).locator("strong")).to_have_text("Waiting to start the next step")
    assert chat.complaints == []
