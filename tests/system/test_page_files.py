"""Files on the page, in a real browser: large tool outputs and attachments."""

import json
import struct
import zlib

import pytest
from playwright.sync_api import BrowserContext, FilePayload, expect

from tests.system.browser import Chat, another_browser, open_card

pytestmark = pytest.mark.timeout(120)


def picture(width: int, height: int) -> bytes:
    """A grey PNG of this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_large_output_is_searched_and_downloaded(chat: Chat) -> None:
    chat.with_autopilot()
    lines = [f"line {number} of the file, which has words" for number in range(1, 601)]
    text = json.dumps({"path": "big.txt", "content": "\n".join(lines)})
    chat.send(f'/call write_file {text} /then /call read_file {{"path":"big.txt"}}')
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    result = open_card(chat.card("read_file")).get_by_role("group", name="Output")
    expect(result).to_contain_text("kB")
    result.get_by_role("button", name="Last lines").click()
    expect(result.locator(".blob-line").last).to_contain_text("line 600 of")
    result.get_by_role("button", name="First lines").click()
    expect(result.locator(".blob-line")).to_have_count(100)
    result.get_by_role("button", name="More").click()
    expect(result.locator(".blob-line")).to_have_count(200)
    result.get_by_label("Search lines").fill("LINE 59[0-9] ")
    result.get_by_role("button", name="Search").click()
    expect(result.locator(".found")).to_have_count(10)
    result.get_by_label("Search lines").fill("(")
    result.get_by_role("button", name="Search").click()
    expect(result.get_by_role("alert")).not_to_be_empty()
    with chat.page.expect_download() as download:
        result.get_by_role("button", name="Download").click()
    assert download.value.path().read_text().splitlines()[:600] == lines


def test_files_are_uploaded_refused_removed_sent_shown_and_downloaded(browser: BrowserContext, chat: Chat) -> None:
    field = chat.page.locator("#attach-field")
    expect(chat.button("Add files and more")).to_be_enabled()
    field.set_input_files(
        [
            FilePayload(name="dot.png", mimeType="image/png", buffer=picture(40, 30)),
            FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"remember the milk\n"),
            FilePayload(name="odd.bin", mimeType="application/octet-stream", buffer=b"\xff\xfe\x00\x01"),
        ]
    )
    chips = chat.page.locator("#attached li")
    expect(chips.filter(has_text="odd.bin")).to_contain_text("Upload failed.")
    chat.button("Remove odd.bin").click()
    expect(chips).to_have_count(2)
    expect(chips.filter(has_text="Uploading")).to_have_count(0)
    viewer = Chat(another_browser(browser), chat.share("Can view"))
    chat.page.get_by_label("Message", exact=True).focus()
    chat.page.keyboard.press("Enter")
    chat.wait_for_end()
    expect(chips).to_have_count(0)
    assert "notes.txt" in chat.stored_text()
    chat.page.reload()
    for each_chat in (chat, viewer):
        question = each_chat.page.locator(".message.user").last
        question.scroll_into_view_if_needed()  # images are loaded lazily
        expect(question.get_by_role("img", name="dot.png")).to_be_visible()
        assert question.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 40
        with each_chat.page.expect_download() as download:
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
    expect(chat.button("Add files and more")).to_be_enabled()
    assert chat.page.evaluate(script, ["drop", "#messages"])
    assert chat.page.evaluate(script, ["paste", "#text"])
    chips = chat.page.locator("#attached li")
    expect(chips.locator(".file-name")).to_have_text(["drop.txt", "paste.txt"])
    expect(chips.filter(has_text="bytes")).to_have_count(2)
    chat.send("/words=3")
    chat.wait_for_end()
    expect(chat.page.locator(".message.user .file-chip")).to_have_count(2)
    assert chat.complaints == []
