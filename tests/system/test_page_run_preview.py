"""The preview of a run: what the server says of it, and without the server what the browser knows."""

import re
import time
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, expect

from tests.support.server import Server
from tests.system.browser import PATIENCE_MS, Chat
from tests.system.test_page_agents import ADA, search_results

pytestmark = pytest.mark.timeout(120)

POET = {
    "name": "poet",
    "title": "Café poet",
    "description": "Writes poems.",
    "examples": ["A poem about the stormy sea"],
}
TASK = "Write a poem about the stormy sea"


def api(chat: Chat, path: str, data: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request with the account's cookie."""
    origin, _, _ = chat.url.partition("/t/")
    response = chat.page.request.post(f"{origin}/api{path}", data=data)
    assert response.ok, response.text()
    answer: dict[str, Any] = response.json()
    return answer


def preview_after_runs(chat: Chat, count: int) -> dict[str, Any]:
    """Have runs of the poet that the page does not see; returns the server's preview once they have ended."""
    for _ in range(count):
        thread_id = str(uuid4())
        api(chat, "/threads", {"id": thread_id})
        api(chat, f"/threads/{thread_id}/send", {"text": TASK, "options": {"agent": "poet"}})
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while (preview := api(chat, "/route", {"text": TASK}))["estimate"]["of"] < count:
        assert time.monotonic() < deadline, "the runs do not end"
        chat.page.wait_for_timeout(100)
    return preview


def warm(chat: Chat) -> None:
    """Start the worker, because the page waits only briefly for its estimate, and let it wait for the forecast."""
    chat.await_forecasts()
    chat.search_messages()
    search_results(chat, "zebras")
    chat.page.get_by_role("dialog").get_by_role("button", name="Close").click()


def opened(chat: Chat) -> Locator:
    """The preview of the task."""
    field = chat.page.get_by_label("Message", exact=True)
    field.fill(TASK)
    field.press("Enter")
    dialog = chat.page.get_by_role("dialog", name="Run preview")
    expect(dialog).to_be_visible()
    return dialog


def choice(dialog: Locator, title: str) -> Locator:
    return dialog.locator("label").filter(has_text=title)


def test_the_preview_shows_the_servers_choice_and_estimate_and_without_the_server_the_browsers(
    server: Server, chat: Chat
) -> None:
    chat.register(ADA, "Ada")
    api(chat, "/agents", POET)
    said = preview_after_runs(chat, 2)
    assert (said["agent"], said["abstained"]) == ("poet", False)
    chat.with_autopilot()
    chat.button("Autopilot 20 rounds").click()
    chat.page.get_by_label("Preview each run before it starts").check()
    chat.page.keyboard.press("Escape")
    warm(chat)
    dialog = opened(chat)
    expect(dialog).to_contain_text("Based on 2 similar runs")
    expect(dialog.locator("dd").first).to_have_text(f"about {max(1, said['estimate']['steps'])}, at most 20")
    expect(dialog).to_contain_text(f"Suggested: Café poet. {said['why']}")
    expect(choice(dialog, "Café poet")).to_contain_text(f"{round(100 * said['confidence'])}% match")
    expect(choice(dialog, "Café poet").get_by_role("radio")).to_be_checked()
    expect(dialog.get_by_role("radio")).to_have_count(5)
    assert chat.complaints == []

    for path in ("agents", "route"):
        chat.page.route(f"**/api/{path}", lambda route: route.abort())
    chat.page.reload()
    expect(chat.button("Turn off autopilot")).to_be_visible()
    warm(chat)
    dialog = opened(chat)
    expect(dialog).to_contain_text("Rough estimate")
    expect(dialog).not_to_contain_text("Suggested")
    expect(dialog.get_by_role("radio")).to_have_count(5)
    expect(dialog.locator("label").nth(1)).to_contain_text(re.compile(r"^Café poet\s*\d+% match$"))
