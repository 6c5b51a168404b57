"""The chat list and the header of the page: menus, folders, archive, undo and palette, and the names of guests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, FilePayload, Page, Route, expect

from tests.support import postgres
from tests.support.server import Server, ended
from tests.system.browser import Chat, another_browser
from tests.system.test_page_accessibility import axe_violations

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def shared_server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`khala serve` with the demo model, on which a deletion can be undone."""
    settings = {"KHALA_MODEL": "demo", "KHALA_UNDO_SECONDS": "30"}
    with postgres.sync_database(postgres_url, template) as url:
        server = Server(tmp_path_factory.mktemp("server") / "server.log", {"DATABASE_URL": url} | settings)
        with ended(server):
            server.start()
            yield server


def test_chats_are_pinned_filed_archived_deleted_and_restored(chat: Chat, tmp_path: Path) -> None:
    page = chat.page
    chat.send("Recipe for soup /words=5")
    chat.wait_for_end()
    chat.button("New chat").click()
    expect(page.locator(".message")).to_have_count(1)
    chat.send("Budget for May /words=5")
    chat.wait_for_end()
    chat.act_on("Recipe for soup", "Pin")
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    chat.act_on("Budget for May", "Move to folder…")
    page.get_by_label("New folder").fill("Work")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Work 1").click()
    expect(chat.listed("Budget for May")).to_have_count(0)
    page.get_by_role("button", name="Work 1").click()
    chat.act_on("Recipe for soup", "Archive")
    expect(chat.listed("Recipe for soup")).to_have_count(0)
    page.get_by_role("button", name="Archived (1)").click()
    expect(page.get_by_role("heading", name="Archived", exact=True)).to_be_visible()
    expect(chat.listed("Recipe for soup")).to_be_visible()
    page.get_by_role("button", name="Back to all chats").click()
    with page.expect_download() as download:
        chat.act_on("Budget for May", "Export as Markdown")
    download.value.save_as(tmp_path / "chat.md")
    assert download.value.suggested_filename == "Budget for May words=5.md"
    assert "word5" in (tmp_path / "chat.md").read_text()
    chat.act_on("Budget for May", "Delete")
    expect(chat.listed("Budget for May")).to_have_count(0)
    chat.button("Undo").last.click()
    expect(chat.listed("Budget for May")).to_be_visible()
    expect(chat.answer).to_contain_text("word5")
    expect(page.get_by_role("button", name="Work 1")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search chats, messages and actions").fill("soup")
    expect(page.get_by_role("option", name="Recipe for soup")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Recipe for soup")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("x")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert chat.complaints == []


def test_a_folder_has_instructions_an_agent_and_new_chats(chat: Chat) -> None:
    page = chat.page
    chat.register("folders@example.com", "Ada")
    chat.send("Hotels in Lisbon /words=5")
    chat.wait_for_end()
    chat.act_on("Hotels in Lisbon", "Move to folder…")
    page.get_by_label("New folder").fill("Travel")
    page.keyboard.press("Enter")
    act_on_folder(page, "Travel", "Files and instructions…")
    dialog = page.get_by_role("dialog", name="Travel")
    expect(dialog.get_by_role("link", name="Hotels in Lisbon")).to_be_visible()
    dialog.get_by_label("Instructions").fill("We go by train.")
    dialog.get_by_label("Agent").select_option("Web researcher")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("status")).to_have_text("Saved.")
    dialog.get_by_role("button", name="New chat in this folder").click()
    expect(page.get_by_role("button", name="Travel 1")).to_be_visible()
    expect(page.locator("#folder-open")).to_have_text("Travel")
    expect(page.get_by_role("button", name="Web researcher", exact=True)).to_be_visible()
    with page.expect_request(lambda request: request.url.endswith("/send")) as sent:
        chat.send("Trains to Porto /words=5")
    assert '"agent":"researcher"' in (sent.value.post_data or "")
    chat.wait_for_end()
    page.get_by_role("button", name="Stop using Web researcher").click()
    expect(page.get_by_role("button", name="Web researcher")).to_have_count(0)
    page.reload()
    expect(chat.answer).to_contain_text("word5")
    with page.expect_request(lambda request: request.url.endswith("/send")) as sent:
        chat.send("Which one is faster? /words=5")
    assert '"agent"' not in (sent.value.post_data or "")
    chat.wait_for_end()
    act_on_folder(page, "Travel", "Rename…")
    page.get_by_role("dialog").get_by_label("Name").fill("Portugal")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Portugal 2")).to_be_visible()
    expect(page.locator("#folder-open")).to_have_text("Portugal")
    page.reload()
    page.locator("#folder-open").click()
    dialog = page.get_by_role("dialog", name="Portugal")
    expect(dialog.get_by_label("Instructions")).to_have_value("We go by train.")
    expect(dialog.get_by_label("Agent")).to_have_value("researcher")
    dialog.get_by_role("link", name="Hotels in Lisbon").click()
    expect(page.get_by_role("heading", name="Hotels in Lisbon")).to_be_visible()
    for title in ("Hotels in Lisbon", "Trains to Porto"):
        chat.act_on(title, "Move to folder…")
        page.get_by_role("button", name="Take out of the folder").click()
    expect(page.locator("#folder-open")).to_have_count(0)
    expect(page.get_by_role("button", name="Portugal", exact=True)).to_be_visible()
    act_on_folder(page, "Portugal", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Portugal")).to_have_count(0)
    expect(chat.listed("Trains to Porto")).to_be_visible()
    assert chat.complaints == []


def test_files_of_a_folder_are_added_used_and_removed(chat: Chat) -> None:
    page = chat.page
    chat.register("folder-files@example.com", "Ada")
    chat.send("Hotels in Lisbon /words=5")
    chat.wait_for_end()
    chat.act_on("Hotels in Lisbon", "Move to folder…")
    page.get_by_label("New folder").fill("Travel")
    page.keyboard.press("Enter")
    act_on_folder(page, "Travel", "Files and instructions…")
    dialog = page.get_by_role("dialog", name="Travel")
    expect(dialog.get_by_text("that every chat in this folder can use")).to_be_visible()
    plan: FilePayload = {"name": "plan.md", "mimeType": "text/markdown", "buffer": b"The train leaves at 07:42."}
    program: FilePayload = {"name": "program", "mimeType": "application/octet-stream", "buffer": b"\x7fELF\0"}
    dialog.locator("#folder-file").set_input_files([plan, program])
    files = dialog.get_by_role("list", name="Files").get_by_role("listitem")
    expect(files.filter(has=page.get_by_role("link", name="plan.md"))).to_contain_text("26 bytes")
    expect(files.filter(has_text="program").get_by_role("alert")).to_contain_text("PDFs and images")
    dialog.get_by_role("button", name="Remove program").click()
    expect(files).to_have_count(1)
    dialog.get_by_role("button", name="Close").click()
    page.reload()
    expect(chat.answer).to_contain_text("word5")
    chat.send("When does it leave? /words=5")
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Details of this answer").click()
    chat.answer.get_by_role("button", name="What was sent to the model").click()
    expect(page.get_by_role("dialog").get_by_role("row", name="Files of the folder")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("#folder-open").click()
    dialog.get_by_role("button", name="Remove plan.md").click()
    page.get_by_role("dialog", name="Remove “plan.md” from the folder?").get_by_role("button", name="Remove").click()
    expect(dialog.get_by_text("that every chat in this folder can use")).to_be_visible()
    page.reload()
    page.locator("#folder-open").click()
    expect(dialog.get_by_text("that every chat in this folder can use")).to_be_visible()
    complaints = [text for text in chat.complaints if "415" not in text]
    assert complaints == []


def test_a_folder_is_loaded_once_and_changed_while_the_list_of_folders_is_missing(chat: Chat) -> None:
    page = chat.page
    chat.register("missing-folders@example.com", "Ada")
    chat.send("Hotels in Lisbon /words=5")
    chat.wait_for_end()
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"items": []})

    page.route("**/api/me/folders", answer)
    chat.act_on("Hotels in Lisbon", "Move to folder…")
    page.get_by_label("New folder").fill("Travel")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Travel 1")).to_be_visible()
    act_on_folder(page, "Travel", "Files and instructions…")
    field = page.get_by_role("dialog", name="Travel").get_by_label("Instructions")
    field.fill("We go by train.")
    before = len(asked)
    page.wait_for_timeout(500)
    assert len(asked) == before
    expect(field).to_have_value("We go by train.")
    page.keyboard.press("Escape")
    page.unroute("**/api/me/folders")
    page.route(
        "**/api/me/folders", lambda route: route.fulfill(status=403, json={"code": "forbidden", "detail": "No."})
    )
    page.reload()
    act_on_folder(page, "Travel", "Rename…")
    page.get_by_role("dialog").get_by_label("Name").fill("Portugal")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Portugal 1")).to_be_visible()
    act_on_folder(page, "Portugal", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Portugal")).to_have_count(0)
    expect(chat.listed("Hotels in Lisbon")).to_be_visible()


def test_a_guest_begins_chats_in_a_folder_renames_and_deletes_it(chat: Chat) -> None:
    page = chat.page
    chat.send("Hotels in Lisbon /words=5")
    chat.wait_for_end()
    chat.act_on("Hotels in Lisbon", "Move to folder…")
    page.get_by_label("New folder").fill("Travel")
    page.keyboard.press("Enter")
    act_on_folder(page, "Travel", "New chat in this folder")
    expect(page.locator("#folder-open")).to_have_text("Travel")
    chat.send("Trains to Porto /words=5")
    chat.wait_for_end()
    chat.button("New chat").click()
    expect(page.locator("#folder-open")).to_have_count(0)
    act_on_folder(page, "Travel", "Rename…")
    page.get_by_role("dialog").get_by_label("Name").fill("Portugal")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Portugal 2")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Portugal 2")).to_be_visible()
    act_on_folder(page, "Portugal", "Files and instructions…")
    expect(page.get_by_role("dialog", name="Portugal").get_by_role("button", name="Sign in")).to_be_visible()
    page.keyboard.press("Escape")
    act_on_folder(page, "Portugal", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Portugal")).to_have_count(0)
    expect(chat.listed("Hotels in Lisbon")).to_be_visible()
    assert chat.complaints == []


def test_a_folder_is_made_by_the_button_beside_the_heading(chat: Chat) -> None:
    page = chat.page
    chat.register("new-folder@example.com", "Ada")
    expect(page.get_by_role("heading", name="Folders")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("new folder")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="New folder")
    dialog.get_by_label("Name").fill("Travel")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="Travel")).to_be_visible()
    page.locator("#drawer").get_by_role("button", name="New folder").click()
    dialog.get_by_label("Name").fill("Travel")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("You have a folder of this name already.")
    dialog.get_by_label("Name").fill("Work")
    dialog.get_by_role("button", name="Create folder").click()
    expect(page.get_by_role("heading", name="Work")).to_be_visible()
    expect(page.locator("#folder-add")).to_be_focused()
    page.reload()
    expect(page.locator("#chats h3")).to_have_count(2)
    assert axe_violations(chat) == []
    assert chat.complaints == []


def test_a_folder_of_a_guest_begins_with_a_new_chat(chat: Chat) -> None:
    page = chat.page
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("new folder")
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="New folder").get_by_label("Name").fill("Travel")
    page.keyboard.press("Enter")
    expect(page.locator("#folder-open")).to_have_text("Travel")
    expect(page.get_by_role("heading", name="Travel")).to_be_visible()
    expect(page.locator("#chats a")).to_have_count(0)
    chat.send("Hotels in Lisbon /words=5")
    expect(page.get_by_role("button", name="Travel 1")).to_be_visible()
    chat.wait_for_end()
    assert chat.complaints == []


def test_a_new_chat_is_listed_with_its_first_message_or_a_draft(chat: Chat) -> None:
    page = chat.page
    chat.register("unused@example.com", "Ada")
    chat.send("Recipe for soup /words=5")
    chat.wait_for_end()
    with page.expect_response(lambda response: response.url.endswith("/api/threads") and response.ok):
        chat.button("New chat").click()
    expect(chat.welcome).to_be_visible()
    expect(page.locator("#chats a")).to_have_count(1)
    chat.listed("Recipe for soup").click()
    expect(chat.answer).to_contain_text("word5")
    expect(page.locator("#chats a")).to_have_count(1)
    page.reload()
    expect(chat.answer).to_contain_text("word5")
    expect(page.locator("#chats a")).to_have_count(1)
    chat.button("New chat").click()
    expect(chat.welcome).to_be_visible()
    page.get_by_label("Message", exact=True).fill("A draft")
    chat.listed("Recipe for soup").click()
    expect(chat.listed("New chat")).to_be_visible()
    assert chat.complaints == []


def test_agents_and_schedules_are_at_the_top_of_the_list(chat: Chat) -> None:
    page = chat.page
    page.locator("#find").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Agents")
    expect(dialog.get_by_role("heading", name="Planner")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#agents-open")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Schedules").get_by_role("button", name="Sign in")).to_be_visible()
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 780})
    chat.button("Chats").click()
    assert axe_violations(chat) == []
    page.locator("#drawer").get_by_role("button", name="Agents").click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).not_to_be_in_viewport()
    expect(page.locator("#scroll")).to_be_focused()
    assert chat.complaints == []


def test_the_open_chat_is_scrolled_out_of_the_faded_end_of_the_list(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1280, "height": 480})
    for number in range(9):
        if number > 0:
            chat.button("New chat").click()
            expect(page.locator(".message")).to_have_count(1)
        chat.send(f"Number {number} /words=1 /pace=0")
        chat.wait_for_end()
    chat.listed("Number 0").evaluate("row => row.click()")
    expect(page.get_by_role("heading", name="Number 0")).to_be_visible()
    page.wait_for_function(
        """() => {
            const row = document.querySelector("#chats [aria-current]").getBoundingClientRect();
            const view = document.querySelector("#drawer nav");
            const { top, bottom } = view.getBoundingClientRect();
            const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 1;
            return view.scrollTop > 0 && row.top >= top + 24 && row.bottom <= bottom - (isAtEnd ? 0 : 24);
        }"""
    )
    assert chat.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_buttons_of_the_header_keep_their_places_when_a_temporary_chat_begins(chat: Chat, width: int) -> None:
    page = chat.page
    page.set_viewport_size({"width": width, "height": 780})
    chat.button("Temporary chat").click()
    expect(chat.button("Temporary chat")).to_have_attribute("aria-pressed", "true")
    ends = """() => ["search-open", "share-open", "chat-menu"]
        .map((id) => document.getElementById(id).getBoundingClientRect().x)"""
    before = page.evaluate(ends)
    expect(chat.button("Search this chat")).to_be_disabled()
    chat.send("Between us /words=5")
    chat.wait_for_end()
    expect(chat.button("Search this chat")).to_be_enabled()
    assert page.evaluate(ends) == before
    note = page.locator("header .temporary")
    expect(note).to_have_text("Temporary chat")
    gap = """note => document.getElementById("search-open").getBoundingClientRect().x
        - note.getBoundingClientRect().right"""
    assert note.evaluate(gap) >= (0 if width == 390 else 4)
    box = note.bounding_box()
    assert box is not None
    assert box["width"] < (50 if width == 390 else 200)
    assert chat.overflow() <= 0
    assert axe_violations(chat) == []
    assert chat.complaints == []


def act_on_folder(page: Page, name: str, action: str) -> None:
    """Choose an action in the menu of a folder."""
    page.get_by_role("heading", name=name).get_by_role("button", name=f"Actions for “{name}”").click()
    page.get_by_role("menuitem", name=action).click()


def test_a_temporary_chat_is_on_no_list_survives_a_reload_and_is_deleted_from_its_menu(chat: Chat) -> None:
    page = chat.page
    usual = page.url
    switch = page.get_by_role("button", name="Temporary chat")
    switch.click()
    expect(page.get_by_role("heading", name="Temporary chat")).to_be_visible()
    expect(switch).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".about")).to_contain_text("is deleted after 24 hours")
    switch.click()
    expect(page.get_by_role("heading", name="How can I help?")).to_be_visible()
    assert page.url == usual
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "true")
    page.go_back()
    expect(switch).to_have_attribute("aria-pressed", "false")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "true")
    chat.send("Between us /words=5")
    chat.wait_for_end()
    expect(chat.listed("Between us")).to_have_count(0)
    expect(switch).to_have_count(0)
    page.reload()
    expect(chat.answer).to_contain_text("word5")
    expect(page.locator("header").get_by_text("Temporary chat")).to_be_visible()
    page.goto(page.url.partition("/t/")[0])
    expect(chat.answer).to_have_count(0)
    page.go_back()
    expect(chat.answer).to_contain_text("word5")
    page.locator("#chat-menu").click()
    expect(page.get_by_role("menuitem", name="Move to folder…")).to_have_count(0)
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="How can I help?")).to_be_visible()
    assert chat.complaints == []


def test_another_browser_shows_a_temporary_chat_as_temporary(browser: BrowserContext, chat: Chat) -> None:
    chat.register("temporary@example.com", "Ada")
    chat.button("Temporary chat").click()
    chat.send("Between us /words=5")
    chat.wait_for_end()
    profile = another_browser(browser)
    profile.add_cookies(browser.cookies())  # type: ignore[arg-type]
    other = Chat(profile, chat.url)
    expect(other.answer).to_contain_text("word5")
    expect(other.page.locator("header").get_by_text("Temporary chat")).to_be_visible()
    expect(other.listed("Between us")).to_have_count(0)
    other.page.goto(chat.url.partition("/t/")[0])
    expect(other.welcome).to_be_visible()
    expect(other.answer).to_have_count(0)
    assert chat.complaints == other.complaints == []


def test_the_list_is_hidden_and_shown_by_button_and_key_and_stays_so_after_a_reload(chat: Chat) -> None:
    page = chat.page
    drawer, field = page.locator("#drawer"), page.locator("#text")
    chat.button("Hide chat list").click()
    expect(drawer).to_be_hidden()
    show = chat.button("Show chat list")
    expect(show).to_be_focused()
    expect(show).to_have_attribute("aria-expanded", "false")
    page.reload()
    expect(show).to_be_visible()
    expect(drawer).to_be_hidden()
    show.press("Enter")
    expect(drawer).to_be_visible()
    expect(chat.button("Hide chat list")).to_be_focused()
    field.focus()
    page.keyboard.press("Control+b")
    expect(drawer).to_be_hidden()
    expect(field).to_be_focused()
    page.keyboard.press("Control+b")
    for wanted in ("Hide", "Show"):
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill(f"{wanted} chat list")
        page.keyboard.press("Enter")
        expect(drawer).to_be_visible(visible=wanted == "Show")
    chat.button("Search").focus()
    page.keyboard.press("Control+b")
    expect(show).to_be_focused()
    chat.send("/words=5")
    chat.wait_for_end()
    chat.button("New chat").click()
    expect(page.locator(".message.user")).to_have_count(0)
    expect(field).to_be_focused()
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("innerWidth === 390")
    # The page knows its new width before it draws its next frame.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.keyboard.press("Control+b")
    expect(page.locator("#new")).to_be_focused()
    chat.button("Hide chat list").click()
    expect(drawer).to_be_hidden()
    expect(page.locator("#menu")).to_be_focused()
    assert chat.complaints == []


def test_the_search_of_the_list_finds_every_chat_by_its_title(chat: Chat, server: Server) -> None:
    page = chat.page
    chat.register("ada@example.com", "Ada")
    chat.send("Recipe for soup /words=5")
    chat.wait_for_end()
    chat.act_on("Recipe for soup", "Archive")
    for number in range(8):
        body = {"title": f"Recipe number {number}"}
        assert page.request.post(f"{server.url}/api/threads", data=body).status == 201
    expect(chat.listed("Recipe number 7")).to_be_visible()
    search = chat.button("Search")
    expect(search).to_have_attribute("aria-keyshortcuts", "Control+K")
    expect(search).to_contain_text("Ctrl+K")
    search.click()
    field = page.get_by_role("combobox", name="Search chats, messages and actions")
    expect(field).to_be_focused()
    chats = page.get_by_role("group", name="Chats").get_by_role("option")
    field.fill("recipe")
    expect(chats).to_have_count(7)
    expect(chats.last).to_have_text("Show all 9 chats")
    for _ in range(6):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(chats).to_have_count(9)
    expect(chats.last).to_contain_text("Recipe for soup")
    field.fill("recip")
    chats.last.click()
    expect(chats).to_have_count(9)
    expect(field).to_be_focused()
    field.fill("soup rec")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Recipe for soup")).to_be_visible()
    assert chat.complaints == []


def test_the_search_of_the_list_finds_chats_that_are_not_loaded(chat: Chat, server: Server) -> None:
    page = chat.page
    chat.register("ada@example.com", "Ada")
    for title in ("The oldest treasure", *(f"Number {number}" for number in range(200))):
        assert page.request.post(f"{server.url}/api/threads", data={"title": title}).status == 201
    page.reload()
    expect(page.get_by_text("Showing your 200 most recent chats")).to_be_visible()
    expect(chat.listed("The oldest treasure")).to_have_count(0)
    chat.button("Search").click()
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url) if "/api/threads?limit=" in request.url else None)
    for words in ("number", "", "treasure"):
        page.get_by_role("combobox").fill(words)
        expect(page.locator("#palette [role=status]")).not_to_have_text("Searching…")
    assert len(reads) == 2
    found = page.get_by_role("group", name="Chats").get_by_role("option", name="The oldest treasure")
    expect(found).to_have_count(1)
    found.click()
    expect(page.get_by_role("heading", name="The oldest treasure")).to_be_visible()
    assert chat.complaints == []


def test_the_palette_names_what_it_does_to_the_list_also_when_a_panel_takes_its_room(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1100, "height": 800})
    chat.send("Recipe for soup /words=5")
    chat.wait_for_end()
    drawer = page.locator("#drawer")
    expect(drawer).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("Files")
    page.get_by_role("option", name="Files", exact=True).click()
    panel = page.get_by_role("dialog", name="Files")
    expect(panel).to_be_visible()
    expect(drawer).to_be_hidden()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("chat list")
    expect(page.get_by_role("option", name="Hide chat list")).to_have_count(0)
    page.get_by_role("option", name="Show chat list").click()
    expect(drawer).to_be_visible()
    expect(panel).to_be_hidden()
    assert chat.complaints == []


def test_on_a_phone_the_sheet_with_the_list_closes_after_an_action_of_the_palette_except_one_that_needs_it(
    chat: Chat,
) -> None:
    page = chat.page
    page.set_viewport_size({"width": 390, "height": 844})
    chat.send("Recipe for soup /words=5")
    chat.wait_for_end()
    sheet = page.locator("#drawer.open")
    page.locator("#menu").click()
    expect(sheet).to_be_visible()
    for words, action in (("dark", "Theme: Dark"), ("archived", "Archived")):
        page.locator("#find").click() if sheet.is_visible() else page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill(words)
        page.get_by_role("option", name=action, exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(sheet).to_have_count(1 if action == "Archived" else 0)
    expect(page.get_by_role("heading", name="Archived", exact=True)).to_be_visible()
    expect(page.get_by_text("No archived chats")).to_be_visible()
    assert chat.complaints == []


def test_a_guest_gives_a_name_with_the_first_message_and_finds_it_in_the_chat(
    browser: BrowserContext, chat: Chat
) -> None:
    chat.send("Recipe for soup /words=5")
    chat.wait_for_end()
    guest = Chat(another_browser(browser), chat.share("Can edit"))
    expect(chat.page.locator("#present svg")).to_have_count(1)
    guest.page.get_by_label("Your name").fill("Bob Stone")
    guest.send("With leeks? /words=5")
    guest.wait_for_end()
    expect(chat.page.locator(".author")).to_have_text("Bob Stone (guest)")
    expect(chat.page.locator("#present")).to_contain_text("BS")
    expect(guest.page.get_by_text("You write as Bob Stone")).to_be_visible()
    guest.button("Search this chat").click()
    guest.page.get_by_role("searchbox", name="Search messages").fill("leeks")
    guest.page.keyboard.press("Enter")
    expect(guest.page.get_by_role("dialog")).to_have_count(0)
    expect(guest.page.get_by_text("With leeks?").last).to_be_in_viewport()
