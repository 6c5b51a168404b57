"""The pictures of plans in the documentation: a plan at work in a wide window, and one that needs somebody on a phone.

`KHALA_RECORD=1 pytest tests/system/test_plan_pictures.py` takes the pictures again. Without it, the page only has to
show what they show.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.support.server import ROOT
from tests.system.browser import Chat
from tests.system.test_page_plans import bar, press, row

pytestmark = pytest.mark.timeout(120)

IMAGES = ROOT / "docs" / "images"
WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
DIRECTIVES = "/text The page needs the routes first, so I look at them. /call list_directory {} /hanground=2"
"""What the demo model does in a step. It is in the goal, which is folded on the page."""
DOCUMENT = """\
# Photo albums

{goal}

## Storage

- [x] table-1: Add the table
- [x] routes-1: Add the routes

## Page

- [ ] page-1: Add the page (after: routes-1)

  List all albums, the newest first. Link each to its photos.

  - Acceptance:
    - [ ] The page shows all albums.
    - [ ] It works with a keyboard.

- [ ] guide-1: Write the guide (after: page-1)
"""


def import_plan(chat: Chat, goal: str, **fields: Any) -> None:
    """A plan of four steps, of which two are done."""
    origin, _, thread_id = chat.url.partition("/t/")
    key = json.loads(chat.page.evaluate(f"localStorage.getItem('khala.chat.{thread_id}')"))["key"]
    body = {"format": "markdown", "document": DOCUMENT.format(goal=goal), **fields}
    path = f"{origin}/api/threads/{thread_id}/plans/import"
    answer = chat.page.request.post(path, data=body, headers={"X-Anon-Key": key})
    assert answer.ok, answer.text()


def picture(page: Page, name: str, size: ViewportSize) -> None:
    """Take the picture again if that is asked for. It exists, and has this size."""
    path: Path = IMAGES / f"{name}.png"
    if os.environ.get("KHALA_RECORD"):
        page.mouse.move(0, 0)
        page.screenshot(path=path, animations="disabled")
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (size["width"], size["height"])


def test_a_running_plan_shows_its_steps_and_what_they_write(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size(WIDE)
    import_plan(chat, DIRECTIVES)
    press(bar(page), "Show steps")
    press(bar(page), "Start")
    row(page, "page-1").locator(".head").click()
    expect(row(page, "page-1").locator(".message")).to_contain_text("The page needs the routes first")
    expect(row(page, "page-1").locator(".message")).to_contain_text("list_directory")
    expect(row(page, "guide-1")).to_contain_text("Waits for “Add the page”")
    expect(bar(page)).to_contain_text("2 of 4 steps")
    picture(page, "plan-running", WIDE)


def test_a_plan_that_needs_somebody_says_why_and_what_to_do_on_a_phone(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size(PHONE)
    import_plan(chat, "/fail=1", mode="step", config={"maxRetries": 0})
    press(bar(page), "Start")
    expect(bar(page).locator("strong")).to_have_text("Paused: “Add the page” failed")
    press(bar(page), "Show steps")
    row(page, "page-1").locator(".head").click()
    expect(bar(page)).to_contain_text("Retry, edit or skip the step, then resume.")
    expect(row(page, "page-1").get_by_role("button", name="Retry", exact=True)).to_be_visible()
    assert chat.overflow() == 0
    picture(page, "plan-failed-phone", PHONE)
