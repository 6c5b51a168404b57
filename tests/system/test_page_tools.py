"""Tools on the page, in a real browser: cards, approvals, the autopilot, large outputs and attached files."""

import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import BrowserContext, Locator, Route, expect

from app.domain.fold import fold
from app.domain.parts import read
from tests.support.server import Server as Process
from tests.support.server import ended
from tests.system.browser import Chat, Server, a_browser, another

pytestmark = pytest.mark.timeout(180)

ADA = "ada@example.com"
DELETE = '/call delete_file {"path":"a.txt"}'
WRITE = '/call write_file {"path":"a.txt","content":"hi"}'
ASKS = f"{WRITE} /then {DELETE}"


def picture(width: int, height: int) -> bytes:
    """A PNG, all of it grey."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Process]:
    """As for the other tests of the page, but tools may fetch from this machine."""
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
    process = Process(tmp_path / "server.log", env)
    with ended(process):
        process.start()
        yield process


@pytest.fixture
def browser(server: Server) -> Iterator[BrowserContext]:
    """As in `test_page`: started for each test."""
    with a_browser() as context:
        yield context


@pytest.fixture
def chat(browser: BrowserContext, server: Server) -> Chat:
    return Chat(browser, server.url)


@contextmanager
def an_address_that_answers_late() -> Iterator[tuple[str, threading.Event]]:
    """Its address, and the event that lets it answer."""
    go = threading.Event()

    class Late(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            go.wait(30)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"at last")

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as late:
        thread = threading.Thread(target=late.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{late.server_port}/", go
        finally:
            go.set()
            late.shutdown()
            thread.join()


def card(chat: Chat, tool: str) -> Locator:
    """The newest card of a tool."""
    return chat.page.locator(".card").filter(has=chat.page.locator(".card-name", has_text=tool)).last


def opened(card: Locator) -> Locator:
    """The card with all that is known of its call."""
    card.locator(".card-head").click()
    expect(card.locator(".card-head")).to_have_attribute("aria-expanded", "true")
    return card.locator(".card-body")


def with_autopilot(chat: Chat) -> None:
    chat.page.get_by_role("switch", name="Autopilot").check()


def asked(chat: Chat) -> Locator:
    """A card that waits for approval, of the newest answer; the file that it is about is there."""
    with_autopilot(chat)
    chat.send(ASKS)
    waiting = card(chat, "delete_file")
    expect(waiting).to_have_attribute("data-state", "blocked")
    return waiting


def test_the_page_folds_parts_as_the_server_does(chat: Chat) -> None:
    blob = {"blobId": "01a1fd48-8ea9-76f3-a1e8-36949b09d871", "size": 9, "sha256": "ab", "mediaType": "text/plain"}
    approval = {"reason": "Why?", "digest": "d", "expiresAt": "2026-11-22T08:00:00Z"}
    told: list[tuple[str, dict[str, Any]]] = [
        ("text-delta", {"text": "Let me see."}),
        ("step", {"step": 1, "maxSteps": 20, "toolCount": 3}),
        ("tool-call", {"toolCallId": "a", "step": 1, "tool": "grep", "args": {"pattern": "x"}}),
        ("tool-call", {"toolCallId": "b", "step": 1, "tool": "write_file", "argsBlob": blob}),
        ("tool-status", {"toolCallId": "a", "state": "blocked", **approval}),
        ("tool-status", {"toolCallId": "b", "state": "running"}),
        ("tool-status", {"toolCallId": "a", "state": "running", "reason": "Approved.", "args": {"pattern": "y"}}),
        ("tool-result", {"toolCallId": "b", "ok": True, "summary": "Done", "durationMs": 3, "blob": blob}),
        ("tool-result", {"toolCallId": "a", "ok": False, "summary": "No", "durationMs": 1, "output": {"lines": []}}),
        ("tool-result", {"toolCallId": "orphan", "ok": True, "summary": "Whose?", "durationMs": 1}),
        ("tool-status", {"toolCallId": "b", "state": "cancelled", "args": {"path": "z"}}),
        ("compaction", {"summary": "Earlier …", "messageId": blob["blobId"], "step": 1}),
        ("notice", {"code": "resumed", "message": "It goes on."}),
        ("something-new", {"text": "?"}),
        ("text-delta", {"text": "There "}),
        ("text-delta", {"text": "it is."}),
    ]
    here = fold((), [read(kind, json.dumps(data).encode()) for kind, data in told])
    parts = [{"kind": kind, "data": data} for kind, data in told]
    script = "async (parts) => JSON.stringify((await import('/web/khala.js')).fold([], parts))"
    assert json.loads(chat.page.evaluate(script, parts)) == json.loads(msgspec.json.encode(here))


def test_the_six_states_of_a_card_differ_in_shape_and_in_words(chat: Chat) -> None:
    script = """async (states) => {
        const { Group } = await import("/web/tools.js");
        const group = new Group({ blobs: {} });
        const tools = states.map((state) => ({ type: "tool", toolCallId: state, tool: "grep", state }));
        group.update({ step: 1, tools }, { began: {}, lag: 0, mayWrite: false });
        return [...group.element.querySelectorAll(".card")].map((card) =>
            [card.querySelector(".card-state path").getAttribute("d"), card.querySelector(".card-head").textContent]);
    }"""
    states = ["queued", "running", "completed", "failed", "blocked", "cancelled"]
    found = chat.page.evaluate(script, states)
    assert len({shape for shape, _ in found}) == len({words for _, words in found}) == 6


def test_cards_follow_their_calls_live_and_a_finished_group_folds_away(chat: Chat) -> None:
    chat.register(ADA, "Ada")  # who is nobody has no tools that reach the network
    with an_address_that_answers_late() as (url, go):
        chat.send(f'{WRITE} /call fetch_url {{"url":"{url}"}} /call nonsense {{"a":1}}')
        expect(card(chat, "write_file")).to_have_attribute("data-state", "completed")
        expect(card(chat, "nonsense")).to_have_attribute("data-state", "failed")
        late = card(chat, "fetch_url")
        expect(late).to_have_attribute("data-state", "running")
        expect(late).to_contain_text(re.compile(r"running [2-9] s"))
        expect(chat.page.locator(".group-head")).to_contain_text("Step 1 · 1 of 3 done, 1 failed")
        expect(chat.page.locator(".card-args").first).to_have_text("path: a.txt, content: hi")
        go.set()
        expect(late).to_have_attribute("data-state", "completed")
        chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_text(re.compile(r"^Step 1 · 2 of 3 done, 1 failed · [\d.]+ s"))
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(chat.page.locator(".card")).to_have_count(0)
    assert chat.complaints == []


def test_a_group_that_the_person_opened_again_stays_open_and_a_card_opens_by_keyboard(chat: Chat) -> None:
    chat.send(f"{WRITE} /call todo_list {{}}")
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    card(chat, "write_file").locator(".card-head").focus()
    chat.page.keyboard.press("Enter")
    body = card(chat, "write_file").locator(".card-body")
    expect(body.get_by_label("Arguments")).to_contain_text('"path": "a.txt"')
    expect(body.get_by_label("Result")).to_contain_text("Wrote 2 bytes to a.txt.")
    expect(opened(card(chat, "todo_list")).get_by_label("Result")).to_contain_text('"todos": []')
    chat.page.wait_for_timeout(2500)
    expect(head).to_have_attribute("aria-expanded", "true")
    expect(body).to_be_visible()


def test_an_approved_call_is_made(chat: Chat) -> None:
    waiting = asked(chat)
    expect(waiting.get_by_role("group")).to_contain_text('"path": "a.txt"')
    expect(chat.page.get_by_role("status").filter(has_text="delete_file needs approval.")).to_have_count(1)
    expect(chat.answer.locator(".foot")).to_contain_text("Step 2/20 · waits for approval")
    waiting.get_by_role("button", name="Approve").click()
    expect(waiting).to_have_attribute("data-state", "completed")
    expect(waiting.get_by_role("button", name="Approve")).to_have_count(0)
    chat.wait_for_end()
    assert "Deleted a.txt." in chat.stored_text()
    assert chat.complaints == []


def test_a_denied_call_is_not_made_and_the_reason_is_told(chat: Chat) -> None:
    waiting = asked(chat)
    waiting.get_by_label("Reason").fill("it is mine")
    waiting.get_by_role("button", name="Deny").click()
    expect(waiting).to_have_attribute("data-state", "failed")
    expect(waiting).to_contain_text("it is mine")
    chat.wait_for_end()


def test_arguments_are_checked_and_edited_before_a_call_is_approved(chat: Chat) -> None:
    waiting = asked(chat)
    waiting.get_by_role("button", name="Edit arguments").click()
    field = waiting.get_by_label("Arguments, as JSON")
    approve = waiting.get_by_role("button", name="Approve with these")
    field.fill('{"path": ')
    approve.click()
    expect(waiting.get_by_role("alert")).to_contain_text("This is no JSON.")
    field.fill('{"path": 7}')
    approve.click()
    expect(waiting.get_by_role("alert")).to_contain_text("The tool can’t be called with this")
    field.fill('{"path": "b.txt"}')
    approve.click()
    expect(waiting).to_have_attribute("data-state", "failed")
    expect(opened(waiting).get_by_label("Arguments")).to_contain_text('"path": "b.txt"')
    chat.wait_for_end()
    block = next(block for block in chat.stored()["messages"][-1]["content"] if block.get("tool") == "delete_file")
    assert block["args"] == {"path": "b.txt"}


@pytest.mark.parametrize(
    ("status", "code", "detail", "says"),
    [
        (409, "already_decided", "This call was denied before.", "Somebody was faster. This call was denied before."),
        (403, "forbidden", "Only an owner may.", "Only an owner may."),
    ],
)
def test_what_the_server_answers_to_a_decision_is_said_on_the_card(
    chat: Chat, status: int, code: str, detail: str, says: str
) -> None:
    waiting = asked(chat)

    def refuse(route: Route) -> None:
        route.fulfill(status=status, json={"code": code, "detail": detail, "status": status})

    chat.page.route("**/approvals/*", refuse)
    waiting.get_by_role("button", name="Approve").click()
    expect(waiting.get_by_role("alert")).to_have_text(says)
    chat.page.unroute("**/approvals/*")
    waiting.get_by_role("button", name="Approve").click()
    expect(waiting).to_have_attribute("data-state", "completed")
    chat.wait_for_end()


def test_a_viewer_sees_that_a_call_waits_but_no_buttons(browser: BrowserContext, chat: Chat) -> None:
    viewer = Chat(another(browser), chat.share("may look on"))
    waiting = asked(chat)
    seen = card(viewer, "delete_file")
    expect(seen).to_contain_text("delete_file waits for somebody’s approval.")
    expect(seen.get_by_role("button")).to_have_count(1)
    expect(seen.get_by_label("Reason")).to_have_count(0)
    waiting.get_by_role("button", name="Approve").click()
    expect(seen).to_have_attribute("data-state", "completed")
    viewer.wait_for_end()
    assert chat.complaints == viewer.complaints == []


def test_a_chat_with_a_call_that_waits_is_marked_in_the_list(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    with_autopilot(chat)
    chat.send(f"Tidy up {DELETE}")
    expect(chat.listed("Tidy up")).to_contain_text("needs approval")
    card(chat, "delete_file").get_by_role("button", name="Deny").click()
    chat.wait_for_end()
    expect(chat.listed("Tidy up")).not_to_contain_text("needs approval")


def test_the_autopilot_is_remembered_and_tells_its_steps_its_cost_and_why_it_stopped(chat: Chat) -> None:
    steps = chat.page.get_by_label("Most steps")
    expect(steps).to_be_hidden()
    with_autopilot(chat)
    steps.fill("99")
    steps.blur()
    expect(steps).to_have_value("50")
    steps.fill("4")
    steps.blur()
    chat.page.reload()
    expect(chat.page.get_by_role("switch", name="Autopilot")).to_be_checked()
    expect(steps).to_have_value("4")
    chat.send('/wait=0.5 /loop /call glob {"pattern":"{round}*"}')
    foot = chat.answer.locator(".foot")
    expect(foot).to_contain_text("Step 2/4")
    expect(foot).to_contain_text(re.compile(r"[\d,]+ tokens · \$\d\S* so far"))
    chat.page.reload()
    expect(foot).to_contain_text(re.compile(r"Step [234]/4"))
    chat.wait_for_end()
    expect(foot).to_contain_text("Stopped at the step limit")
    expect(chat.page.locator(".group")).to_have_count(4)
    chat.send('/loop /call glob {"pattern":"*"}')
    chat.wait_for_end()
    expect(foot).to_contain_text("Stopped: no progress")


def test_stop_cancels_what_runs_and_what_waits(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    with an_address_that_answers_late() as (url, _):
        chat.send(f'/call fetch_url {{"url":"{url}"}} {DELETE}')
        late, waiting = card(chat, "fetch_url"), card(chat, "delete_file")
        expect(late).to_have_attribute("data-state", "running")
        expect(waiting).to_have_attribute("data-state", "blocked")
        chat.button("Stop").click()
        for one in (late, waiting):
            expect(one).to_have_attribute("data-state", "cancelled")
        expect(waiting.get_by_role("button", name="Approve")).to_have_count(0)
        expect(chat.answer).to_have_attribute("data-state", "stopped")
    assert chat.complaints == []


def test_thirty_cards_of_one_step_are_in_order_and_fit_a_narrow_window(chat: Chat) -> None:
    chat.page.set_viewport_size({"width": 390, "height": 844})
    chat.send('/times=30 /call todo_add {"text":"n {i}"}')
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(head).to_contain_text("Step 1 · 30 of 30 done")
    head.click()
    expect(chat.page.locator(".card")).to_have_count(30)
    expect(chat.page.locator(".card-args")).to_have_text([f"n {number}" for number in range(1, 31)])
    assert chat.overflow() == 0


def test_a_large_output_is_looked_into_and_downloaded(chat: Chat) -> None:
    with_autopilot(chat)
    lines = [f"line {number} of the file, which has words" for number in range(1, 601)]
    text = json.dumps({"path": "big.txt", "content": "\n".join(lines)})
    chat.send(f'/call write_file {text} /then /call read_file {{"path":"big.txt"}}')
    chat.wait_for_end()
    heads = chat.page.locator(".group-head")
    expect(heads.last).to_have_attribute("aria-expanded", "false")
    heads.last.click()
    result = opened(card(chat, "read_file")).get_by_label("Result")
    expect(result).to_contain_text("kB")
    result.get_by_role("button", name="Last lines").click()
    expect(result.locator(".blob-line").last).to_contain_text("line 600 of")
    result.get_by_role("button", name="First lines").click()
    expect(result.locator(".blob-line")).to_have_count(100)
    result.get_by_role("button", name="More").click()
    expect(result.locator(".blob-line")).to_have_count(200)
    result.get_by_label("Search in this").fill("LINE 59[0-9] ")
    result.get_by_role("button", name="Search").click()
    expect(result.locator(".found")).to_have_count(10)
    result.get_by_label("Search in this").fill("(")
    result.get_by_role("button", name="Search").click()
    expect(result.get_by_role("alert")).not_to_be_empty()
    with chat.page.expect_download() as download:
        result.get_by_role("button", name="Download").click()
    assert download.value.path().read_text().splitlines()[:600] == lines


def test_what_a_tool_or_a_model_says_is_never_markup(chat: Chat) -> None:
    bad = "<img src=x onerror=alert(1)>"
    chat.send(f"/call write_file {json.dumps({'path': 'x.txt', 'content': bad})} /call {bad} {{}} /say {bad}")
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    for one in chat.page.locator(".card").all():
        opened(one)
    expect(chat.page.locator("#messages img")).to_have_count(0)
    expect(chat.page.locator(".card-body").first).to_contain_text(bad)
    assert chat.complaints == []


def test_files_are_uploaded_refused_removed_sent_shown_and_downloaded(browser: BrowserContext, chat: Chat) -> None:
    field = chat.page.locator("#attach-field")
    expect(chat.button("Attach files")).to_be_enabled()
    field.set_input_files(
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": picture(40, 30)},
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"remember the milk\n"},
            {"name": "odd.bin", "mimeType": "application/octet-stream", "buffer": b"\xff\xfe\x00\x01"},
        ]
    )
    chips = chat.page.locator("#attached li")
    expect(chips.filter(has_text="odd.bin")).to_contain_text("Not uploaded. This is no file that is taken.")
    chat.button("Remove odd.bin").click()
    expect(chips).to_have_count(2)
    expect(chips.filter(has_text="Uploading")).to_have_count(0)
    viewer = Chat(another(browser), chat.share("may look on"))
    chat.page.get_by_label("Message", exact=True).focus()
    chat.page.keyboard.press("Enter")
    chat.wait_for_end()
    expect(chips).to_have_count(0)
    assert "notes.txt" in chat.stored_text()
    chat.page.reload()
    for one in (chat, viewer):
        question = one.page.locator(".message.user").last
        question.scroll_into_view_if_needed()  # images are asked for when they are about to be seen
        expect(question.get_by_role("img", name="dot.png")).to_be_visible()
        assert question.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 40
        with one.page.expect_download() as download:
            question.get_by_role("button", name="notes.txt").click()
        assert download.value.suggested_filename == "notes.txt"
        assert download.value.path().read_bytes() == b"remember the milk\n"
    assert viewer.complaints == []


def test_a_file_can_be_dropped_and_pasted(chat: Chat) -> None:
    script = """([kind, selector]) => {
        const data = new DataTransfer();
        data.items.add(new File(["of " + kind], kind + ".txt", { type: "text/plain" }));
        const Kind = kind === "paste" ? ClipboardEvent : DragEvent;
        const given = kind === "paste" ? { clipboardData: data } : { dataTransfer: data };
        const event = new Kind(kind, { ...given, bubbles: true, cancelable: true });
        document.querySelector(selector).dispatchEvent(event);
        return event.defaultPrevented;
    }"""
    expect(chat.button("Attach files")).to_be_enabled()
    assert chat.page.evaluate(script, ["drop", "#messages"])
    assert chat.page.evaluate(script, ["paste", "#text"])
    chips = chat.page.locator("#attached li")
    expect(chips.locator(".file-name")).to_have_text(["drop.txt", "paste.txt"])
    expect(chips.filter(has_text="bytes")).to_have_count(2)
    chat.send("/words=3")
    chat.wait_for_end()
    expect(chat.page.locator(".message.user .file-chip")).to_have_count(2)
    assert chat.complaints == []
