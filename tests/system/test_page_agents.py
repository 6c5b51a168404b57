"""Features that the page computes locally: agents, estimates, the progress of a run, and the search."""

import json
import re
import time
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Request, Route, expect

from khala.domain.agent_seeds import BUILT_IN
from tests.support.server import Server
from tests.system.browser import PATIENCE_MS, Chat, another_browser

pytestmark = pytest.mark.timeout(120)

ADA = "ada@example.com"
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

"""How many colours a picture has."""


def options_of(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = json.loads(request.post_data or "").get("options", {})
    return options


def sent_options(chat: Chat, text: str) -> dict[str, Any]:
    """Send a message; returns the options in the request, without that to wait for an answer that is being written."""
    with chat.page.expect_request("**/send") as request_info:
        chat.send(text)
    options = options_of(request_info.value)
    assert options.pop("ifBusy") == "queue"
    return options


def wait_for_kept(chat: Chat, store: str, word: str, *, times: int = 1) -> None:
    """Wait until the agent worker's store contains the word at least `times` times, or not at all if that is 0."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while min(found := chat.page.evaluate(KEPT, store).count(word), times or 1) != times:
        assert time.monotonic() < deadline, f"{word!r} is stored {found} times"
        chat.page.wait_for_timeout(100)


def search_results(chat: Chat, words: str) -> Locator:
    """The results of the search in messages."""
    chat.page.get_by_role("searchbox", name="Search messages").fill(words)
    expect(chat.page.locator("#search [role=status]")).to_have_text(re.compile("found$"))
    return chat.page.get_by_role("list", name="Results").get_by_role("link")


def gallery_of(chat: Chat) -> Locator:
    """The open gallery of agents."""
    return chat.page.get_by_role("dialog", name="Agents")


def test_an_agent_is_found_and_loaded_and_survives_a_reload(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.page.locator("#agents-open").click()
    gallery = gallery_of(chat)
    titles = gallery.get_by_role("heading", level=3)
    expect(titles).to_have_count(len(BUILT_IN))
    search = gallery.get_by_label("Search agents")
    search.fill("TEST run_code")
    expect(titles).to_have_text(["Test writer"])
    search.fill("zzz")
    expect(gallery).to_contain_text("No matching agents.")
    search.fill("")
    gallery.get_by_role("button", name="Use Code reviewer").click()
    expect(gallery).to_have_count(0)
    chat.page.reload()
    expect(chat.button("Stop using Code reviewer")).to_be_visible()
    expect(chat.button("Autopilot 20 rounds")).to_be_visible()
    assert chat.complaints == []


def test_a_run_names_its_agent_and_has_that_agents_tools(chat: Chat) -> None:
    chat.add("Choose an agent")
    chat.button("Use Code reviewer").click()
    options = sent_options(chat, f'/call glob {{"pattern":"*"}} {WRITE}')
    assert options == {"agent": "reviewer", "autopilot": True, "maxSteps": 20}
    chat.wait_for_end()
    calls = {block["tool"]: block["state"] for block in chat.stored()["messages"][-1]["content"] if "tool" in block}
    assert calls == {"glob": "completed", "write_file": "failed"}, "a reviewer may not write"
    chat.button("Stop using Code reviewer").click()
    assert sent_options(chat, "/words=1").keys() == {"autopilot", "maxSteps"}
    chat.wait_for_end()


def test_a_person_makes_changes_tries_and_deletes_an_agent(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.send("/words=1")
    chat.wait_for_end()
    chat.add("Choose an agent")
    chat.button("New agent").click()
    form = chat.page.get_by_role("dialog", name="New agent")
    form.get_by_label("Title").fill("Café Poët")
    expect(form.get_by_label("Name", exact=False).and_(form.locator("[name=name]"))).to_have_value("cafe-poet")
    form.get_by_label("Instructions").fill("Answer in rhyme.")
    form.get_by_label("Only these").check()
    form.get_by_role("checkbox", name="Find files glob").check()
    form.get_by_label("Names or patterns of tools").fill("todo_*")
    form.get_by_role("button", name="Create agent").click()
    gallery = gallery_of(chat)
    card = gallery.get_by_role("listitem").filter(has=chat.page.get_by_role("heading", name="Café Poët"))
    expect(card).to_contain_text("Yours · version 1")
    expect(card).to_contain_text("Find files · Tools that begin with todo_")
    card.get_by_role("button", name="Edit Café Poët").click()
    edited = chat.page.get_by_role("dialog", name="Edit Café Poët")
    expect(edited.get_by_role("checkbox", checked=True)).to_have_count(1)
    expect(edited.get_by_role("checkbox", name="Find files glob")).to_be_checked()
    expect(edited.get_by_label("Names or patterns of tools")).to_have_value("todo_*")
    edited.get_by_label("Instructions").fill("Answer in haiku.")
    edited.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("Yours · version 2")
    expect(card).to_contain_text("Find files · Tools that begin with todo_")
    first = chat.url
    card.get_by_role("button", name="Try in a new chat: Café Poët").click()
    expect(chat.page).not_to_have_url(first)
    options = sent_options(chat, WRITE)
    assert options["agent"] == "cafe-poet"
    chat.wait_for_end()
    (call,) = [block for block in chat.stored()["messages"][-1]["content"] if "tool" in block]
    assert call["state"] == "failed", "its runs have no other tools"
    chat.button("Café Poët").click()
    card.get_by_role("button", name="Delete Café Poët").click()
    chat.page.get_by_role("dialog", name="Delete Café Poët?").get_by_role("button", name="Delete agent").click()
    expect(card).to_have_count(0)
    gallery.get_by_role("button", name="Close").click()
    expect(chat.button("Café Poët")).to_have_count(0)
    assert chat.complaints == []


def test_somebody_with_the_link_uses_and_copies_an_agent_and_a_revoked_link_says_so(
    browser: BrowserContext, server: Server, chat: Chat
) -> None:
    chat.register(ADA, "Ada")
    poet = {"name": "poet", "title": "Poet", "instructions": "Answer in rhyme.", "tools": ["glob"]}
    assert chat.page.request.post(f"{server.url}/api/agents", data=poet).ok
    chat.add("Choose an agent")
    chat.button("Share Poet").click()
    dialog = chat.page.get_by_role("dialog", name="Share agent")
    dialog.get_by_role("button", name="Create link").click()
    address = dialog.get_by_label("Copy it now").input_value()
    assert re.fullmatch(r"http://[\w.:]+/#agent=~[\w-]{43}", address)
    expect(dialog.get_by_role("status")).to_have_text("Shared by a link.")

    guest = Chat(another_browser(browser), address)
    shared = guest.page.get_by_role("dialog", name="Shared agent")
    expect(shared.get_by_role("heading", name="Poet")).to_be_visible()
    assert "#agent" not in guest.url
    shared.get_by_role("button", name="Use Poet").click()
    guest.page.keyboard.press("Escape")
    options = sent_options(guest, "/words=3")
    assert options["agent"].startswith("~")
    guest.wait_for_end()
    guest.page.reload()
    expect(guest.button("Stop using Poet")).to_be_visible()
    guest.register("zeratul@example.com", "Zeratul")
    guest.page.goto(address)
    shared.get_by_role("button", name="Copy to your agents").click()
    guest.page.get_by_role("dialog", name="Copy agent").get_by_role("button", name="Create agent").click()
    expect(gallery_of(guest).get_by_role("button", name="Edit Poet")).to_be_visible()

    dialog.get_by_role("button", name="Stop sharing").click()
    expect(dialog.get_by_role("status")).to_have_text("Not shared.")
    guest.page.goto("about:blank")
    guest.page.goto(address)
    expect(shared.get_by_role("alert")).to_have_text("This link no longer works.")


def test_the_gallery_shows_the_last_known_agents_offline(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.add("Choose an agent")
    titles = gallery_of(chat).get_by_role("heading", level=3)
    expect(titles).to_have_count(len(BUILT_IN))
    chat.page.keyboard.press("Escape")
    chat.page.reload()
    expect(chat.welcome).to_be_visible()
    chat.page.route("**/api/agents", lambda route: route.abort())
    chat.add("Choose an agent")
    expect(gallery_of(chat).get_by_role("alert")).to_contain_text("These are the agents from your last visit.")
    expect(titles).to_have_count(len(BUILT_IN))
    chat.page.unroute("**/api/agents")
    gallery_of(chat).get_by_role("button", name="Try again").click()
    expect(gallery_of(chat).get_by_role("alert")).to_have_count(0)


def test_an_agent_that_does_not_exist_any_more_is_no_longer_used(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    assert chat.page.request.post(
        f"{chat.url.partition('/t/')[0]}/api/agents", data={"name": "poet", "title": "Poet"}
    ).ok
    chat.add("Choose an agent")
    chat.button("Use Poet").click()
    chat.page.keyboard.press("Escape")
    chat.sign_out()
    expect(chat.page.get_by_text("The agent poet is no longer available.")).to_be_visible()
    assert "agent" not in sent_options(chat, "/words=1")


def test_a_run_is_previewed_before_it_starts_and_estimates_use_ended_runs(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.with_autopilot()
    chat.button("Autopilot 20 rounds").click()
    chat.page.get_by_label("Preview each run before it starts").check()
    chat.page.keyboard.press("Escape")
    chat.await_forecasts()
    chat.search_messages()
    # Starts the worker, because the page waits only briefly for its estimate.
    expect(search_results(chat, "nothing yet")).to_have_count(0)
    chat.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    task = "Review the code under src/ for security problems /call todo_list {}"
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
    expect(dialog.locator("dt")).to_have_text(["Rounds", "Time", "Tokens", "Cost"])
    expect(dialog.locator("dd").first).to_have_text(re.compile(r"^about \d+, at most 20$"))
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
    wait_for_kept(chat, "runs", "todo_list", times=3)
    field.fill(task)
    field.press("Enter")
    expect(dialog).to_contain_text("Based on 3 similar runs")
    expect(dialog.locator("dd").first).to_have_text("about 2, at most 20")
    assert chat.complaints == []


def test_the_bar_shows_the_state_of_a_run_and_the_graph_its_calls(chat: Chat) -> None:
    chat.page.emulate_media(reduced_motion="reduce")
    chat.with_autopilot()
    chat.send(f"{WRITE} /call todo_list {{}} /then {DELETE}")
    expect(chat.run_bar).to_have_attribute("data-status", "waiting for approval")
    expect(chat.run_bar).to_contain_text("Round 2 of 20")
    expect(chat.run_bar).to_contain_text(re.compile(r"\d\stokens"))
    chat.run_bar.get_by_role("button", name="Rounds").click()
    steps = chat.run_bar.get_by_role("list", name="Rounds of this run")
    expect(steps.locator(".head")).to_have_text(["Round 1 2 of 2 done", "Round 2 waiting for approval"])
    calls = steps.get_by_role("button")
    done = [re.compile(rf"{name}\s+done$") for name in ("Write file", "List to-dos")]
    expect(calls).to_have_text([*done, re.compile(r"Delete file\s+needs approval")])
    # One stop of the Tab key, and arrow keys from call to call. A call opens to what it was called with.
    expect(steps.locator("[tabindex='0']")).to_have_count(1)
    calls.first.focus()
    chat.page.keyboard.press("End")
    expect(calls.last).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(calls.last).to_have_attribute("aria-expanded", "true")
    chat.button("Stop").click()
    expect(chat.run_bar).to_have_count(0)
    expect(chat.answer).to_have_attribute("data-state", "stopped")
    assert chat.complaints == []


def test_a_run_that_ends_before_the_response_to_the_stop_shows_no_error(chat: Chat) -> None:
    chat.with_autopilot()
    chat.send(DELETE)
    expect(chat.run_bar).to_have_attribute("data-status", "waiting for approval")

    def late(route: Route) -> None:
        answer = route.fetch()
        expect(chat.answer).to_have_attribute("data-state", "stopped")
        route.fulfill(response=answer)

    chat.page.route("**/cancel", late)
    with chat.page.expect_response("**/cancel"):
        chat.button("Stop").click()
    expect(chat.answer).to_have_attribute("data-state", "stopped")
    expect(chat.run_bar).to_have_count(0)
    assert chat.complaints == []


def test_the_bar_counts_written_tokens_and_shows_why_a_run_stopped(chat: Chat) -> None:
    chat.add("Choose an agent")
    chat.button("Use Planner").click()
    chat.page.keyboard.press("Escape")
    chat.send("/pace=20 /words=5000")
    expect(chat.run_bar).to_have_attribute("data-status", "writing")
    expect(chat.run_bar).to_contain_text("Planner")
    # The server reports usage after a step with tools, or at the end: until then the worker has estimated it.
    expect(chat.run_bar).to_contain_text(re.compile(r"≈ [1-9][\d,]*\stokens"))
    assert any("/agent" in worker.url for worker in chat.page.workers)
    chat.button("Stop").click()
    chat.wait_for_end()
    chat.button("Autopilot 20 rounds").click()
    chat.page.get_by_label("Maximum rounds").fill("2")
    chat.send('/loop /call glob {"pattern":"{round}*"}')
    chat.wait_for_end()
    expect(chat.run_bar).to_have_count(0)
    expect(chat.answer.locator(".ending")).to_contain_text("Reached the limit of rounds")
    chat.send("/ratelimit=0")
    expect(chat.answer.locator(".ending")).to_contain_text("The model is getting too many requests.")
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
    chat.search_messages()
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
    wait_for_kept(chat, "messages", "giraffes", times=0)
    assert "zebras" not in chat.page.evaluate(KEPT, "messages")
    chat.search_messages()
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
