"""Tools on the page, in a real browser: their cards, the autopilot, and services that tools call."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Locator, expect

from tests.support import postgres
from tests.support.delayed_server import delayed_server
from tests.support.ports import free_port
from tests.support.server import ROOT, ended
from tests.support.server import Server as Process
from tests.system.browser import PATIENCE_MS, Chat, Server, open_card
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(180)

ADA = "ada@example.com"
DELETE = '/call delete_file {"path":"a.txt"}'
WRITE = '/call write_file {"path":"a.txt","content":"hi"}'
SETTLING_MS = 250
SETTLED_BYTES = 10_000
"""Less than a fifth of the text of one card."""


@pytest.fixture(scope="module")
def shared_server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """As in the other tests of the page, but tools can fetch from this machine, and those of an MCP server may ask."""
    folder = tmp_path_factory.mktemp("server")
    asking: dict[str, Any] = {
        "command": sys.executable,
        "args": ["-m", "tests.support.mcp_server", "stdio", str(folder / "journal")],
    }
    asking |= {"cwd": str(ROOT), "anonymous": True, "elicitation": True, "readOnly": ["question"]}
    notes_ports = free_port(), free_port()
    issuer, url = (f"http://127.0.0.1:{port}" for port in notes_ports)
    notes = {"url": f"{url}/mcp", "oauth": {"flow": "authorization_code", "issuer": issuer}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"peculiar": asking, "notes": notes}}))
    with postgres.sync_database(postgres_url, template) as url, _notes(notes_ports):
        env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
        env |= {"KHALA_MCP_CONFIG": str(folder / "mcp.json"), "KHALA_SECRET_KEYS": "a" * 43 + "="}
        process = Process(folder / "server.log", env)
        with ended(process):
            process.start()
            yield process


@contextmanager
def _notes(ports: tuple[int, int]) -> Iterator[None]:
    """An MCP server of people's accounts, in a process of its own."""
    command = [sys.executable, "-m", "tests.support.mcp_accounts", *map(str, ports)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()


def test_cards_follow_their_calls_live_and_a_finished_group_folds_away(chat: Chat) -> None:
    chat.register(ADA, "Ada")  # guests have no tools that reach the network
    with delayed_server() as (url, go):
        chat.send(f'{WRITE} /call fetch_url {{"url":"{url}"}} /call nonsense {{"a":1}}')
        expect(chat.card("write_file")).to_have_attribute("data-state", "completed")
        expect(chat.card("nonsense")).to_have_attribute("data-state", "failed")
        late = chat.card("fetch_url")
        expect(late).to_have_attribute("data-state", "running")
        expect(late.locator(".card-time")).to_have_text(re.compile(r"^([2-9]|\d\d)\ss$"))
        head = chat.page.locator(".group-head")
        expect(head).to_have_text(re.compile(r"^Opening 127\.0\.0\.1:\d+… 1 of 3 done, 1 failed\s*$"))
        expect(chat.card("write_file").locator(".card-summary")).to_have_text("Wrote 2 bytes to a.txt.")
        expect(late.locator(".card-args")).to_have_text(url)
        go.set()
        expect(late).to_have_attribute("data-state", "completed")
        chat.wait_for_end()
    expect(head).to_have_text(re.compile(r"^Wrote a\.txt and opened 127\.0\.0\.1:\d+ 1 failed · [\d.]+\ss\s*$"))
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(chat.page.locator(".card")).to_have_count(0)
    assert chat.complaints == []


def test_an_answer_shows_the_pages_that_it_read_as_sources_also_after_a_reload(chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    page = f"{server.url}/?{{i}}"
    chat.send(f'/times=5 /call fetch_url {{"url":"{page}"}} /say See {server.url}/?4')
    chat.wait_for_end()
    chat.page.reload()
    sources = chat.answer.get_by_role("region", name="Sources")
    links = sources.get_by_role("link")
    expect(links).to_have_count(3)
    expect(links.first).to_have_attribute("href", f"{server.url}/?4")  # the answer links to it
    expect(links.first).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(links.first).to_contain_text("Khala")
    sources.get_by_role("button", name="+2 Show all 5 sources").click()
    expect(links).to_have_count(5)
    assert axe_violations(chat) == []
    sources.get_by_role("button", name="Show less").click()
    expect(links).to_have_count(3)
    assert chat.complaints == []


def test_a_group_that_the_person_opened_again_stays_open_and_a_card_opens_by_keyboard(chat: Chat) -> None:
    chat.send(f"{WRITE} /call todo_list {{}}")
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    chat.card("write_file").locator(".card-head").focus()
    chat.page.keyboard.press("Enter")
    body = chat.card("write_file").locator(".card-body")
    expect(body.get_by_role("group", name="Input")).to_contain_text('"path": "a.txt"')
    expect(body.get_by_role("group", name="Output")).to_contain_text("Wrote 2 bytes to a.txt.")
    expect(open_card(chat.card("todo_list")).get_by_role("group", name="Output")).to_contain_text('"todos": []')
    chat.page.wait_for_timeout(2500)
    expect(head).to_have_attribute("aria-expanded", "true")
    expect(body).to_be_visible()


def test_the_autopilot_is_remembered_and_shows_its_steps_its_cost_and_why_it_stopped(chat: Chat) -> None:
    steps = chat.page.get_by_label("Maximum rounds")
    expect(chat.button("Autopilot 20 rounds")).to_be_hidden()
    chat.with_autopilot()
    expect(steps).to_be_hidden()
    chat.button("Autopilot 20 rounds").click()
    steps.fill("99")
    steps.blur()
    expect(steps).to_have_value("50")
    steps.fill("4")
    steps.blur()
    chat.page.reload()
    expect(chat.button("Turn off autopilot")).to_be_visible()
    chat.button("Autopilot 4 rounds").click()
    expect(steps).to_have_value("4")
    chat.page.keyboard.press("Escape")
    expect(steps).to_be_hidden()
    chat.send('/hanground=3 /loop /call glob {"pattern":"{round}*"}')
    foot = chat.answer.locator(".foot")
    expect(chat.run_bar).to_contain_text("Round 2 of 4")
    expect(chat.run_bar).to_contain_text(re.compile(r"[1-9][\d,]*\stokens"))
    chat.page.reload()
    expect(chat.run_bar).to_contain_text("Round 2 of 4")
    expect(chat.page.get_by_role("button", name=re.compile("^Stop"))).to_have_count(1)
    chat.button("Stop").click()
    chat.wait_for_end()
    chat.send('/loop /call glob {"pattern":"{round}*"}')
    chat.wait_for_end()
    expect(foot).to_contain_text("Reached the limit of rounds")
    expect(chat.answer.locator(".group-head")).to_have_text(re.compile(r"^Searched the files 4 times\b"))
    chat.send('/loop /call glob {"pattern":"*"}')
    chat.wait_for_end()
    expect(foot).to_contain_text("Stopped because it kept repeating the same steps")


def test_a_person_answers_the_question_of_a_tool_in_a_form(chat: Chat) -> None:
    url = '{"mode":"url","message":"Sign in.","url":"https://auth.example.com/x","elicitationId":"e"}'
    chat.with_autopilot()
    chat.send(f'/call peculiar__question {{}} /then /call peculiar__question {{"params":{url}}} /say Done.')
    form = chat.page.get_by_role("form", name="“Question” (peculiar) asks")
    expect(form).to_contain_text("peculiar asks: Which pylon?")
    form.get_by_role("button", name="Send").click()
    expect(form.get_by_label("Name")).to_be_focused()  # The field is required.
    form.get_by_label("Name").fill("Nexus")
    form.get_by_label("count").fill("3")
    form.get_by_label("warp").check()
    form.get_by_label("side").select_option("right")
    form.get_by_role("button", name="Send").click()
    expect(form).to_contain_text("Opens auth.example.com in a new tab.")
    expect(form.get_by_role("link", name="Open auth.example.com")).to_have_attribute("rel", "noopener noreferrer")
    form.get_by_role("button", name="Decline").click()
    chat.wait_for_end()
    result = open_card(chat.page.locator(".card").first).get_by_role("group", name="Output")
    for field in ('"name": "Nexus"', '"side": "right"', '"warp": true', '"count": 3'):
        expect(result).to_contain_text(field)
    assert chat.complaints == []


def test_a_person_connects_a_service_in_the_settings_and_disconnects_it(chat: Chat) -> None:
    page = chat.page
    services = page.locator("#connected-services")
    page.goto(f"{page.url}?connection=unauthorized")
    expect(page.locator("#connection-outcome")).to_have_text("Sign in to connect a service.")
    expect(services).to_have_count(0)
    page.keyboard.press("Escape")
    chat.register(ADA, "Ada")
    chat.with_autopilot()
    page.locator("#settings-open").click()
    page.get_by_role("tab", name="Tools and services").click()
    expect(services).to_contain_text("Not connected")
    services.get_by_role("button", name="Connect notes").click()
    expect(page.locator("#connection-outcome")).to_have_text("notes is connected.")
    expect(services).to_contain_text("Connected since")
    assert "connection=" not in page.url
    page.keyboard.press("Escape")
    chat.send("/call notes__whoami {} /say Done.")
    chat.wait_for_end()
    result = open_card(page.locator(".card")).get_by_role("group", name="Output")
    expect(result).to_contain_text("whoami for alice")
    page.locator("#settings-open").click()
    page.get_by_role("tab", name="Tools and services").click()
    services.get_by_role("button", name="Disconnect notes").click()
    expect(services).to_contain_text("Not connected")
    assert chat.complaints == []


def test_stop_cancels_running_and_blocked_calls(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    with delayed_server() as (url, _):
        chat.send(f'/call fetch_url {{"url":"{url}"}} {DELETE}')
        late, waiting = chat.card("fetch_url"), chat.card("delete_file")
        expect(late).to_have_attribute("data-state", "running")
        expect(waiting).to_have_attribute("data-state", "blocked")
        chat.button("Stop").click()
        for card in (late, waiting):
            expect(card).to_have_attribute("data-state", "cancelled")
        expect(waiting.get_by_role("button", name="Allow", exact=True)).to_have_count(0)
        expect(chat.answer).to_have_attribute("data-state", "stopped")
    chat.page.set_viewport_size({"width": 390, "height": 844})
    assert chat.overflow() == 0
    assert chat.complaints == []


def test_thirty_cards_of_one_step_are_in_order_and_fit_a_narrow_window(chat: Chat) -> None:
    chat.page.set_viewport_size({"width": 390, "height": 844})
    chat.send('/times=30 /call todo_add {"text":"n {i}"}')
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(head).to_have_text(re.compile(r"^Added 30 to-dos(?: [\d.]+\ss)?\s*$"))
    head.click()
    expect(chat.page.locator(".card")).to_have_count(30)
    expect(chat.page.locator(".card-args")).to_have_text([f"n {number}" for number in range(1, 31)])
    assert chat.overflow() == 0


def test_output_of_tools_and_models_is_never_markup(chat: Chat) -> None:
    bad = "<img src=x onerror=alert(1)>"
    chat.send(f"/call write_file {json.dumps({'path': 'x.txt', 'content': bad})} /call {bad} {{}} /say {bad}")
    chat.wait_for_end()
    head = chat.page.locator(".group-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    for card in chat.page.locator(".card").all():
        open_card(card)
    expect(chat.page.locator("#messages img")).to_have_count(0)
    expect(chat.page.locator(".card-body").first).to_contain_text(bad)
    assert chat.complaints == []


def test_closed_cards_free_their_details(chat: Chat) -> None:
    """R18: neither the elements nor the texts of 20 closed cards stay in the page's memory."""
    count, size = 20, 50_000
    text = "0123456789" * (size // 10)
    chat.send(f"/call write_file {json.dumps({'path': 'big', 'content': text})}")
    chat.wait_for_end()
    chat.send(f'/times={count} /call read_file {{"path":"big"}} /say Read.')
    chat.wait_for_end()
    chat.page.locator(".group").last.scroll_into_view_if_needed()
    head = chat.page.locator(".group-head").last
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    cards = chat.page.locator(".group").last.locator(".card")
    expect(cards).to_have_count(count)
    session = chat.page.context.new_cdp_session(chat.page)
    _toggle(cards.all()[:1], opens=True)  # loads everything that is loaded once, such as code
    _toggle(cards.all()[:1], opens=False)
    before = _settled_heap(chat, session)
    _toggle(cards.all(), opens=True)
    chat.page.evaluate("window.details = [...document.querySelectorAll('.card-body .blob')].map((e) => new WeakRef(e))")
    assert chat.page.evaluate("window.details.filter((one) => one.deref()).length") == count
    shown = _settled_heap(chat, session)
    assert shown - before > count * size // 2
    _toggle(cards.all(), opens=False)
    head.focus()
    after = _settled_heap(chat, session)
    assert after - before < (shown - before) / 4
    assert chat.page.evaluate("window.details.filter((one) => one.deref()).length") == 0


def _toggle(cards: list[Locator], *, opens: bool) -> None:
    """Open or close cards by keyboard: each moves all that follow, perhaps between the aim and the click of a mouse."""
    for card in cards:
        card.locator(".card-head").press("Enter")
        if opens:
            expect(card.get_by_role("group", name="Output")).to_contain_text("0123456789")
    if not opens:
        for card in cards:
            expect(card.locator(".card-body")).to_have_count(0)


def _settled_heap(chat: Chat, session: CDPSession) -> int:
    """The size of the JavaScript heap in bytes after garbage collection, once it no longer shrinks.

    Tasks and animations that have not ended, and the browser's own lists of what was painted, hold elements for a
    moment.
    """
    deadline = time.monotonic() + PATIENCE_MS / 1000
    heap = _heap(session)
    while True:
        chat.page.wait_for_timeout(SETTLING_MS)
        before, heap = heap, _heap(session)
        if heap > before - SETTLED_BYTES:
            return heap
        assert time.monotonic() < deadline, f"the heap shrinks from {before} to {heap} bytes and goes on"


def _heap(session: CDPSession) -> int:
    """The size of the JavaScript heap in bytes, after garbage collection."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    used: int = session.send("Runtime.getHeapUsage")["usedSize"]
    return used
