"""Features that the page computes locally: agents, estimates, the progress of a run, and the search."""

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Request, Route, expect

from tests.support.server import ROOT
from tests.system.browser import PATIENCE_MS, Chat

pytestmark = pytest.mark.timeout(120)

ADA = "ada@example.com"
TEMPLATES: list[dict[str, Any]] = json.loads(Path(ROOT, "app/web/src/agent/templates.json").read_text())
REVIEWER = next(template for template in TEMPLATES if template["id"] == "reviewer")
WRITE = '/call write_file {"path":"a.txt","content":"hi"}'
DELETE = '/call delete_file {"path":"a.txt"}'

KEPT = """(store) => new Promise((resolve, reject) => {
    const open = indexedDB.open("khala-agent", 1);
    open.onupgradeneeded = () => open.transaction.abort();  // not there yet
    open.onerror = () => resolve("[]");
    open.onsuccess = () => {
        const all = open.result.transaction(store).objectStore(store).getAll();
        all.onerror = () => reject(all.error);
        all.onsuccess = () => { open.result.close(); resolve(JSON.stringify(all.result)); };
    };
})"""
"""What the agent worker has kept in this browser, as JSON."""

COLOURS = """async (png) => {
    const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
    const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
    context.drawImage(picture, 0, 0);
    const { data } = context.getImageData(0, 0, picture.width, picture.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""
"""How many colours a picture has."""


def options_of(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = json.loads(request.post_data or "").get("options", {})
    return options


def sent_options(chat: Chat, text: str) -> dict[str, Any]:
    """Send a message; returns the options in the request."""
    with chat.page.expect_request("**/send") as request_info:
        chat.send(text)
    return options_of(request_info.value)


def bar(chat: Chat) -> Locator:
    return chat.page.get_by_role("region", name="Run", exact=True)


def wait_for_kept(chat: Chat, store: str, word: str, *, present: bool = True) -> None:
    """Wait until the agent worker's store contains the word, or does not."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while (word in chat.page.evaluate(KEPT, store)) != present:
        assert time.monotonic() < deadline, f"{word!r} is {'not ' if present else ''}stored"
        chat.page.wait_for_timeout(100)


def search_results(chat: Chat, words: str) -> Locator:
    """The results of the search in messages."""
    chat.page.get_by_role("searchbox", name="Search messages").fill(words)
    expect(chat.page.locator("#search [role=status]")).to_have_text(re.compile("found$"))
    return chat.page.get_by_role("list", name="Results").get_by_role("link")


def test_an_agent_is_found_and_loaded_and_survives_a_reload(chat: Chat) -> None:
    chat.button("Agents").click()
    gallery = chat.page.get_by_role("dialog", name="Agents")
    names = gallery.get_by_role("heading", level=3)
    expect(names).to_have_count(8)
    search = gallery.get_by_label("Search agents")
    search.fill("TEST run_code")
    expect(names).to_have_text(["Test writer"])
    search.fill("zzz")
    expect(gallery).to_contain_text("No matching agents.")
    search.fill("")
    gallery.get_by_role("button", name="Code", exact=True).click()
    expect(names).to_have_text([agent["name"] for agent in TEMPLATES if agent["category"] == "Code"])
    gallery.get_by_role("button", name="Use Code reviewer").click()
    expect(gallery.get_by_role("button", name="Stop using Code reviewer")).to_be_visible()
    gallery.get_by_role("button", name="Close").click()
    chat.page.reload()
    expect(chat.button("Stop using Code reviewer")).to_be_visible()
    expect(chat.page.get_by_role("switch", name="Autopilot")).to_be_checked()
    assert chat.complaints == []


def test_a_run_has_the_instructions_and_tools_of_its_agent(chat: Chat) -> None:
    chat.button("Agents").click()
    chat.button("Use Code reviewer").click()
    chat.page.keyboard.press("Escape")
    options = sent_options(chat, f'/call glob {{"pattern":"*"}} {WRITE}')
    assert {key: options[key] for key in ("autopilot", "maxSteps", "instructions", "tools")} == {
        "autopilot": True,
        "maxSteps": REVIEWER["maxSteps"],
        "instructions": REVIEWER["instructions"],
        "tools": REVIEWER["tools"],
    }
    chat.wait_for_end()
    calls = {block["tool"]: block["state"] for block in chat.stored()["messages"][-1]["content"] if "tool" in block}
    assert calls == {"glob": "completed", "write_file": "failed"}, "a reviewer may not write"
    chat.button("Stop using Code reviewer").click()
    assert sent_options(chat, "/words=1").keys() == {"autopilot", "maxSteps"}
    chat.wait_for_end()


def test_a_run_is_previewed_before_it_starts_and_estimates_use_ended_runs(chat: Chat) -> None:
    chat.with_autopilot()
    chat.button("Options").click()
    chat.page.get_by_label("Preview before each run").check()
    chat.page.keyboard.press("Escape")
    chat.page.keyboard.press("Control+k")
    # Starts the worker, because the page waits only briefly for its estimate.
    expect(search_results(chat, "nothing yet")).to_have_count(0)
    chat.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    task = "Review the changes in this code for bugs /call todo_list {}"
    field = chat.page.get_by_label("Message", exact=True)
    dialog = chat.page.get_by_role("dialog", name="Run preview")

    def asked(answer: str) -> dict[str, Any]:
        field.fill(task)
        field.press("Enter")
        with chat.page.expect_request("**/send") as request:
            dialog.get_by_role("button", name=answer, exact=True).click()
        expect(dialog).to_have_count(0)
        chat.wait_for_end()
        return options_of(request.value)

    field.fill(task)
    field.press("Enter")
    expect(dialog.locator("dt")).to_have_text(["Steps", "Time", "Tokens", "Cost"])
    expect(dialog.locator("dd").first).to_have_text(re.compile(r"^about \d+ of 20$"))
    expect(dialog).to_contain_text("Rough estimate")
    expect(dialog.get_by_role("radio")).to_have_count(5)
    expect(dialog.locator("label").nth(1)).to_contain_text(re.compile(r"^Code reviewer\s*\d+% match"))
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    expect(field).to_have_value(task)
    expect(chat.page.locator(".message.user")).to_have_count(0)
    assert "autopilot" not in asked("Send without autopilot")
    for _ in range(2):
        assert asked("Start run")["autopilot"] is True
    wait_for_kept(chat, "runs", "todo_list")
    field.fill(task)
    field.press("Enter")
    expect(dialog).to_contain_text("Based on 3 similar runs")
    expect(dialog.locator("dd").first).to_have_text("about 2 of 20")
    assert chat.complaints == []


def test_the_bar_shows_the_state_of_a_run_and_the_graph_its_calls(chat: Chat) -> None:
    chat.page.emulate_media(reduced_motion="reduce")
    chat.with_autopilot()
    chat.send(f"{WRITE} /call todo_list {{}} /then {DELETE}")
    expect(bar(chat)).to_have_attribute("data-status", "waiting for approval")
    expect(bar(chat)).to_contain_text("Step 2 of 20")
    expect(bar(chat)).to_contain_text(re.compile(r"\d tokens"))
    bar(chat).get_by_role("button", name="Graph").click()
    expect(bar(chat).get_by_role("list", name="Run steps").get_by_role("listitem")).to_have_text(
        [
            "Step 1: 2 of 2 calls finished (write_file, todo_list), completed",
            "Step 2: 0 of 1 call finished (delete_file), waiting for approval",
        ]
    )
    canvas = bar(chat).locator("canvas")
    assert canvas.evaluate("(it) => { try { it.getContext('2d'); return false } catch { return true } }"), (
        "the canvas is drawn offscreen, by a worker"
    )
    assert colours(chat, canvas) > 3
    bar(chat).get_by_role("button", name="Stop run").click()
    expect(bar(chat)).to_have_count(0)
    expect(chat.answer).to_have_attribute("data-state", "stopped")
    assert chat.complaints == []


def test_a_run_that_ends_before_the_response_to_the_stop_shows_no_error(chat: Chat) -> None:
    chat.with_autopilot()
    chat.send(DELETE)
    expect(bar(chat)).to_have_attribute("data-status", "waiting for approval")

    def late(route: Route) -> None:
        answer = route.fetch()
        time.sleep(1)
        route.fulfill(response=answer)

    chat.page.route("**/cancel", late)
    with chat.page.expect_response("**/cancel"):
        bar(chat).get_by_role("button", name="Stop run").click()
    expect(chat.answer).to_have_attribute("data-state", "stopped")
    expect(bar(chat)).to_have_count(0)
    assert chat.complaints == []


def colours(chat: Chat, element: Locator) -> int:
    """The number of colours of the element, once it has more than one: a worker draws it asynchronously."""
    for _ in range(100):
        count: int = chat.page.evaluate(COLOURS, base64.b64encode(element.screenshot()).decode())
        if count > 1:
            return count
    return 1


def test_the_bar_counts_written_tokens_and_shows_why_a_run_stopped(chat: Chat) -> None:
    chat.button("Agents").click()
    chat.button("Use Planner").click()
    chat.page.keyboard.press("Escape")
    chat.send("/pace=20 /words=5000")
    expect(bar(chat)).to_have_attribute("data-status", "writing")
    expect(bar(chat)).to_contain_text("Planner")
    # The server reports usage after a step with tools, or at the end: until then the worker has estimated it.
    expect(bar(chat)).to_contain_text(re.compile(r"≈ [1-9][\d,]* tokens"))
    assert any("/agent" in worker.url for worker in chat.page.workers)
    bar(chat).get_by_role("button", name="Stop run").click()
    chat.wait_for_end()
    chat.page.get_by_label("Maximum steps").fill("2")
    chat.send('/loop /call glob {"pattern":"{round}*"}')
    expect(bar(chat)).to_have_attribute("data-status", "ended")
    expect(bar(chat)).to_contain_text("Reached the step limit")
    expect(bar(chat)).to_contain_text("Step 2 of 2")
    chat.send("/ratelimit=0")
    expect(bar(chat)).to_contain_text(re.compile("Failed: .*rate limited"))
    assert chat.complaints == []


def test_the_search_works_without_the_network_and_finds_nothing_after_signing_out(
    browser: BrowserContext, chat: Chat
) -> None:
    chat.register(ADA, "Ada")
    chat.send("Where do zebras drink? /words=30")
    chat.wait_for_end()
    first = chat.url
    wait_for_kept(chat, "messages", "word30")
    chat.button("New chat").click()
    chat.send("And giraffes? /words=3")
    chat.wait_for_end()
    wait_for_kept(chat, "messages", "giraffes")
    chat.page.keyboard.press("Control+k")
    expect(search_results(chat, "giraf").first).to_contain_text("And giraffes?")
    browser.set_offline(True)
    best = search_results(chat, "word30").first
    expect(best).to_contain_text("Where do zebras drink?")
    expect(best.locator("mark")).to_have_text("word30")
    best.click()
    expect(chat.page).to_have_url(first)
    expect(chat.answer).to_contain_text("word30")
    expect(chat.answer).to_be_in_viewport()
    browser.set_offline(False)
    expect(chat.page.locator("body")).to_have_attribute("data-connection", "live")
    chat.sign_out()
    wait_for_kept(chat, "messages", "giraffes", present=False)
    assert "zebras" not in chat.page.evaluate(KEPT, "messages")
    chat.page.keyboard.press("Control+k")
    for words in ("zebras", "word30", "giraffes"):
        expect(search_results(chat, words)).to_have_count(0)


def test_messages_that_a_reset_removed_unseen_are_not_found_any_more(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.send("Where do zebras drink? /words=30")
    chat.wait_for_end()
    first = chat.url
    wait_for_kept(chat, "messages", "word30")
    chat.button("New chat").click()
    expect(chat.page).not_to_have_url(first)
    path = first.replace("/t/", "/api/threads/")
    assert chat.page.request.post(f"{path}/reset").ok
    assert chat.page.request.post(f"{path}/send", data={"text": "And giraffes? /words=3"}).ok
    chat.page.goto(first)
    chat.wait_for_end()
    wait_for_kept(chat, "messages", "giraffes")
    assert "word30" not in chat.page.evaluate(KEPT, "messages")
