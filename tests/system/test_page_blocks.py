"""How text appears on the page, what it downloads for that, and blocks of answers that are more than text."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.support.server import Server
from tests.system.browser import Chat

pytestmark = pytest.mark.timeout(150)

DIST = Path(__file__).parents[2] / "app" / "web" / "dist"
MAX_FIRST_VISIT_BYTES = 156_000
"""Beside the file of the typeface. The rules of its faces take 0.7 kB of this."""
MAX_TYPEFACE_BYTES = 30_000
MAX_FIRST_ANSWER_BYTES = 40_000
MAX_FIRST_AUTOPILOT_RUN_BYTES = 1_300_000
"""It includes the tokenizer, which counts the tokens of the run while its bar is shown."""
MAX_DIAGRAM_BYTES = 1_000_000
SETTLE_MS = 3_000
"""The page loads what it needs after an answer, such as the search index, within this time."""

SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 10" onload="window.harm=1">
<script>top.harm=1</script><image href="http://elsewhere.test/a.png"/><rect width="20" height="10"/></svg>"""
DIAGRAM = """flowchart LR
  A["<img src=x onerror=top.harm=1>"] --> B[Words]
  click A call top.harm()
  click B "javascript:top.harm=1" "tip"
"""
HOSTILE = f"""/pace=0 /echo Look:

```svg
{SVG}
```

```mermaid
{DIAGRAM}```

```mermaid
flowchart LR
  A[Start --> B{{
```
"""
LIGHT_GROUND = r"background%3A%20rgb\(245%2C%20246%2C%20249\)"
DARK_GROUND = r"background%3A%20rgb\(24%2C%2027%2C%2033\)"
LONG_CODE = "/pace=0 /echo ```python\n" + "def follow(log): return [row for row in log]  # a comment\n" * 120 + "```"
RECORD_GROWTH = """() => {
    window.growth = [];
    let before = 0;
    const frame = () => {
        const text = document.querySelector(".message.user ~ .message.assistant:last-child .text")?.textContent ?? "";
        if (text.length !== before) window.growth.push(text.length - before);
        before = text.length;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
}"""


def paste(chat: Chat, text: str) -> None:
    """Send a long text. Typing it as a person does would take a minute."""
    field = chat.page.get_by_label("Message", exact=True)
    field.evaluate(
        "(field, text) => { field.value = text; field.dispatchEvent(new Event('input', { bubbles: true })) }", text
    )
    mine = chat.page.locator(".message.user")
    before = mine.count()
    field.press("Enter")
    expect(mine).to_have_count(before + 1)


def transferred(requests: list[str]) -> int:
    """The bytes of the page's files at these addresses, as the server sends them; empties the list."""
    files = {DIST / address.partition("/web/")[2] for address in requests if "/web/" in address}
    requests.clear()
    packed = [file.with_name(f"{file.name}.gz") for file in files]
    return sum((gz if gz.exists() else gz.with_suffix("")).stat().st_size for gz in packed)


def test_the_page_downloads_nothing_before_it_is_needed(browser: BrowserContext, server: Server) -> None:
    requests: list[str] = []
    browser.on("requestfinished", lambda request: requests.append(request.url))
    chat = Chat(browser, server.url)
    chat.page.wait_for_timeout(SETTLE_MS)
    typefaces = [url for url in requests if url.endswith(".woff2")]
    requests[:] = [url for url in requests if url not in typefaces]
    assert 10_000 < transferred(typefaces) < MAX_TYPEFACE_BYTES
    assert not [url for url in chat.asked_for if "geist-mono" in url]
    assert 50_000 < transferred(requests) < MAX_FIRST_VISIT_BYTES
    chat.send("/words=20")
    chat.wait_for_end()
    chat.page.wait_for_timeout(SETTLE_MS)
    later = "o200k|cl100k|katex|mermaid|ControlBar|geist-mono|Sources|AnswerEnding"
    assert not [url for url in chat.asked_for if re.search(later, url)]
    assert transferred(requests) < MAX_FIRST_ANSWER_BYTES
    chat.with_autopilot()
    chat.send("/call list_files {} /words=20")
    chat.wait_for_end()
    chat.page.wait_for_timeout(SETTLE_MS)
    assert transferred(requests) < MAX_FIRST_AUTOPILOT_RUN_BYTES
    chat.send("/pace=0 /echo ```mermaid\nflowchart LR\n  A --> B\n```")
    expect(chat.answer.locator(".picture img")).to_be_visible()
    assert transferred(requests) < MAX_DIAGRAM_BYTES
    chat.send("/pace=0 /echo Some `code`")
    expect(chat.answer.locator("code")).to_be_visible()
    chat.page.wait_for_function("document.fonts.check('16px Geist Mono Variable')")
    fonts = [url for url in chat.asked_for if "geist-mono" in url]
    assert len(fonts) == 1  # only that of Latin text
    assert "latin-wght-normal" in fonts[0]
    assert chat.complaints == []


def test_hostile_pictures_are_inert_and_endless_blocks_do_not_freeze_the_page(chat: Chat) -> None:
    chat.send(HOSTILE)
    chat.wait_for_end()
    frames = chat.answer.locator(".code")
    expect(frames.nth(2)).to_contain_text("This diagram has an error in line 2.")
    picture = frames.nth(1).locator(".picture img")
    expect(picture).to_be_visible()
    # The page is light, so the diagram is, until the theme changes. It is saved as it is shown.
    expect(picture).to_have_attribute("src", re.compile(LIGHT_GROUND))
    frames.nth(1).get_by_role("button", name="Full screen").click()
    viewer = chat.page.get_by_role("dialog", name="Diagram")
    chat.page.emulate_media(color_scheme="dark")
    expect(viewer.locator("img")).to_have_attribute("src", re.compile(DARK_GROUND))
    with chat.page.expect_download() as download:
        viewer.get_by_role("button", name="Download").click()
    assert "background: rgb(24, 27, 33)" in download.value.path().read_text()
    viewer.get_by_role("button", name="Close").click()
    expect(viewer).to_have_count(0)
    expect(picture).to_have_attribute("src", re.compile(DARK_GROUND))
    frames.nth(0).get_by_role("button", name="Preview").click()
    expect(frames.nth(0).locator(".picture img")).to_be_visible()
    frames.nth(0).get_by_role("button", name="Code").click()
    expect(frames.nth(0).locator("code")).to_contain_text("onload")
    expect(frames.locator(":is(svg, script, object, foreignObject, a)")).to_have_count(0)
    assert chat.page.evaluate("window.harm") is None
    assert not [url for url in chat.asked_for if "elsewhere" in url]
    notes = "".join(f"[^{number}]: a\n" for number in range(6000))
    for bomb in (notes, "<details>\n" * 3000, "<details><summary>a</summary>b</details>\n\n" * 1000):
        paste(chat, f"/pace=0 /echo {bomb}")
        chat.wait_for_end()
        expect(chat.answer.locator(".text")).to_be_visible()
    assert chat.page.evaluate("window.harm") is None


def test_text_grows_evenly_long_questions_are_folded_and_code_keeps_its_place(chat: Chat) -> None:
    chat.send("/words=10")
    chat.wait_for_end()
    chat.page.evaluate(RECORD_GROWTH)
    chat.send("/words=300 /pace=60")
    chat.wait_for_end()
    growth: list[int] = chat.page.evaluate("window.growth")
    assert len(growth) > 40, "the server sends about fifteen chunks"
    assert sorted(growth)[len(growth) // 2] < 30
    paste(chat, "\n".join(f"line {number}" for number in range(4000)))
    question = chat.page.locator(".message.user").last
    folded = question.bounding_box()
    assert folded is not None
    assert folded["height"] < 450
    question.get_by_role("button", name="Show more").click()
    expect(question.get_by_role("button", name="Show less")).to_have_attribute("aria-expanded", "true")
    question.get_by_role("button", name="Show less").click()
    expect(question.get_by_role("button", name="Show more")).to_be_visible()
    chat.wait_for_end()
    paste(chat, LONG_CODE)
    chat.wait_for_end()
    code = chat.answer.locator(".code")
    expect(code.locator(".hljs-keyword").first).to_be_attached()
    measures = code.evaluate(
        """(frame) => {
            const [pre, code] = [frame.querySelector("pre"), frame.querySelector("code")];
            const size = () => [frame.offsetHeight, pre.scrollWidth];
            const coloured = size();
            code.textContent = code.textContent;
            return [coloured, size()];
        }"""
    )
    assert measures[0] == measures[1]
    chat.page.locator("#scroll").evaluate("(area) => area.scrollTo(0, area.scrollHeight - area.clientHeight - 600)")
    expect(code.get_by_role("button", name="Copy")).to_be_in_viewport()
