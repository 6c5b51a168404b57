"""The pictures in the README and the documentation: a chat, plans, and the operators' console.

`KHALA_RECORD=1 pytest tests/system/test_pictures.py` takes the pictures again. Without it, the page only has to show
what those of plans show; other tests look at what the others show.
"""

import asyncio
import io
import json
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.support.providers import Call, Reply, serving
from tests.support.server import ROOT, Server, command, ended
from tests.support.wires import UseTool
from tests.system.browser import Chat, new_profile
from tests.system.test_console import Account, Console
from tests.system.test_page_plans import bar, press, row, show_steps

pytestmark = pytest.mark.timeout(120)

IMAGES = ROOT / "docs" / "images"
recorded = pytest.mark.skipif("KHALA_RECORD" not in os.environ, reason="takes pictures that other tests do not need")
CHAT: ViewportSize = {"width": 1280, "height": 872}
WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
LOOKS = "/text The page needs the routes first, so I look at them. /call list_directory {}"
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
    if "KHALA_RECORD" in os.environ:
        page.mouse.move(0, 0)
        taken = io.BytesIO(page.screenshot(animations="disabled"))
        # 256 colours look the same, and take less than half of the bytes. This method keeps rare colours, too.
        image = Image.open(taken).convert("RGB")
        image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (size["width"], size["height"])


def test_a_running_plan_shows_its_steps_and_what_they_write(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size(WIDE)
    import_plan(chat, f"{LOOKS} /hanground=2")
    show_steps(page)
    press(bar(page), "Start")
    row(page, "page-1").locator(".head").click()
    expect(row(page, "page-1").locator(".message")).to_contain_text("The page needs the routes first")
    expect(row(page, "page-1").locator(".message")).to_contain_text("List folder")
    expect(row(page, "guide-1")).to_contain_text("Waits for “Add the page”")
    expect(bar(page)).to_contain_text("2 of 4 steps")
    picture(page, "plan-running", WIDE)


def test_a_plan_that_needs_somebody_says_why_and_what_to_do_on_a_phone(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size(PHONE)
    import_plan(chat, f"{LOOKS} /failround=2", mode="step", config={"maxRetries": 0})
    press(bar(page), "Start")
    expect(bar(page).locator("strong")).to_have_text("Paused: “Add the page” failed")
    show_steps(page)
    row(page, "page-1").locator(".head").click()
    expect(bar(page)).to_contain_text("Retry the step, or edit or skip it.")
    expect(row(page, "page-1").get_by_role("button", name="Retry", exact=True)).to_be_visible()
    assert chat.overflow() == 0
    picture(page, "plan-failed-phone", PHONE)


LATENCIES = """\
endpoint,last_week_ms,this_week_ms
GET /threads,41,39
POST /send,88,142
GET /blobs,63,60
POST /claims,27,28
"""
REPORT = """\
`POST /send` **got slower:** its p95 went from 88 ms to 142 ms this week. Everything else is within 5%.

| Endpoint | Last week | This week | Change |
|---|--:|--:|--:|
| `GET /threads` | 41 ms | 39 ms | −5% |
| `POST /send` | 88 ms | **142 ms** | **+61%** |
| `GET /blobs` | 63 ms | 60 ms | −5% |
| `POST /claims` | 27 ms | 28 ms | +4% |

I saved the summary to `report.md`.
"""
STORE = "Store the latencies of this week"
QUESTION = "Which endpoint got slower this week? Look at latency.csv and write a short report."
REPLIES = {
    STORE: (
        Reply(calls=(UseTool(name="write_file", args={"path": "latency.csv", "content": LATENCIES}),)),
        Reply(tokens=("I stored them.",)),
    ),
    QUESTION: (
        Reply(
            tokens=(),
            usage=(1_640, 118),
            calls=(
                UseTool(id="use-1", name="list_directory"),
                UseTool(id="use-2", name="read_file", args={"path": "latency.csv"}),
                UseTool(id="use-3", name="grep", args={"pattern": "POST"}),
            ),
        ),
        Reply(
            tokens=(),
            usage=(1_871, 164),
            calls=(UseTool(id="use-4", name="write_file", args={"path": "report.md", "content": REPORT}),),
        ),
        Reply(tokens=tuple(REPORT.splitlines(keepends=True)), usage=(2_018, 210), pace=8),
    ),
}


def scripted(call: Call) -> Reply:
    """The reply to the call for a step of an answer."""
    replies = next(replies for question, replies in REPLIES.items() if question in call.wire.prompt(call.body))
    return replies[min(call.wire.steps(call.body), len(replies) - 1)]


@contextmanager
def model_server(replies: Callable[[Call], Reply]) -> Iterator[str]:
    """The address of a model that gives these replies, in a thread: this one can run no event loop."""
    urls: queue.Queue[str] = queue.Queue()
    ends = threading.Event()

    async def serve() -> None:
        async with serving(default=replies) as provider:
            urls.put(provider.url)
            await asyncio.to_thread(ends.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield urls.get(timeout=10)
    finally:
        ends.set()
        thread.join()


def rename(chat: Chat, title: str) -> None:
    """Rename the open chat of an account."""
    script = """async ([path, title]) => (await fetch(path, {
        method: "PATCH", body: JSON.stringify({ title }), headers: { "Content-Type": "application/json" } })).status"""
    thread_id = chat.url.partition("/t/")[2]
    assert chat.page.evaluate(script, [f"/api/threads/{thread_id}", title]) == 200
    expect(chat.listed(title)).to_be_visible()


@recorded
def test_an_answer_has_used_tools(chromium: Browser, database_url: str, tmp_path: Path) -> None:
    with model_server(scripted) as url, new_profile(chromium) as profile:
        model = {"KHALA_MODEL": "openai:gpt-5-mini", "OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{url}/v1"}
        server = Server(tmp_path / "log", {"DATABASE_URL": database_url} | model)
        with ended(server):
            server.start()
            chat = Chat(profile, server.url)
            page = chat.page
            page.set_viewport_size(CHAT)
            chat.register("ada@example.com", "Ada Lovelace")
            for question, title in ((STORE, "Explain what a cursor is"), (QUESTION, "API latency, week 47")):
                chat.button("New chat").click()
                chat.with_autopilot()
                chat.send(question)
                chat.wait_for_end()
                rename(chat, title)
            with page.expect_response("**/read"):
                chat.listed("Explain what a cursor is").click()
            chat.listed("API latency, week 47").click()
            expect(page.locator("#chats .unread")).to_have_count(0)
            expect(chat.answer).to_contain_text("I saved the summary to report.md.")
            page.evaluate("document.activeElement.blur()")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                picture(page, f"chat-{scheme}", CHAT)
            assert chat.complaints == []


ADMIN, USER = "artanis@example.com", "karax@example.com"
CONSOLE: ViewportSize = {"width": 1180, "height": 900}
TALL_CONSOLE: ViewportSize = {"width": 1180, "height": 1080}
TIDIES_UP = (
    'Tidy up the workspace. /wait=2 /call write_file {"path":"notes.md","content":"Shields first."}'
    ' /call read_file {"path":"plans.md"} /then /call glob {"pattern":"*.md"} /call read_file {"path":"notes.md"}'
    ' /then /call delete_file {"path":"notes.md"}'
)
CARRIES = (
    "The warp prism carries eight units, or two archons. It deploys a power field in which you can warp in new units."
)


@recorded
def test_the_console_shows_a_run_and_the_past_of_a_thread(chromium: Browser, server: Server) -> None:
    user = Account(server.url, USER, "Karax")
    Account(server.url, ADMIN, "Artanis")
    assert command(server.env, "accounts", "admin", ADMIN).returncode == 0
    _, blocked = user.send(TIDIES_UP, autopilot=True)
    thread_id, first = user.send(f"What can a warp prism carry? /say {CARRIES}")
    user.wait_for_run(first, "final")
    fast = user.post(f"/api/threads/{thread_id}/send", text="And how fast is it? /words=60 /pace=40")
    user.wait_for_run(fast["runId"], "final")
    user.wait_for_run(blocked, "blocked")
    with new_profile(chromium) as profile:
        console = Console(profile, server.url)
        console.page.set_viewport_size(TALL_CONSOLE)
        console.sign_in(ADMIN)
        expect(console.page.get_by_role("heading", level=1)).to_have_text("Overview")
        console.open(f"runs/{blocked}")
        expect(console.page.get_by_text("Approval of delete_file")).to_be_visible()
        picture(console.page, "console-run", TALL_CONSOLE)
        console.page.emulate_media(color_scheme="dark")
        console.page.set_viewport_size(CONSOLE)
        console.open(f"threads/{thread_id}")
        console.button("Open thread").click()
        console.confirm("Open thread")
        expect(console.page.get_by_text("word60")).to_be_visible()
        for _ in range(2):
            console.button("Back").click()
            console.wait()
        expect(console.page.get_by_text("word60")).to_have_count(0)
        picture(console.page, "console-thread", CONSOLE)
        assert console.complaints == []
