"""The side panel of the page: what answers made, its versions, and that nothing of it runs in the page."""

import json
import re

import pytest
from playwright.sync_api import BrowserContext, Dialog, Page, Route, expect

from tests.system.browser import Chat, another_browser

pytestmark = pytest.mark.timeout(150)

PAGE = """<!doctype html>
<title>Clock</title>
<p id="out">nothing ran</p>
<script>
try { parent.harm = 1; parent.document.title = "harmed"; }
catch { document.getElementById("out").textContent = "shut"; }
</script>"""
ARGS = [
    {"path": "site/index.html", "content": PAGE},
    {"path": "site/data.csv", "content": 'name,n\n"Ada, L.",1\n'},
]
WRITES = " ".join(f"/call write_file {json.dumps(args)}" for args in ARGS)
CHANGE = {"path": "site/data.csv", "old": "1", "new": "2"}
NOTES = {"path": "notes.md", "content": "A paragraph.\n\n- A point\n"}
EDIT = f"/call edit_file {json.dumps(CHANGE)} /call write_file {json.dumps(NOTES)}"


def test_files_of_answers_open_in_a_panel_with_versions_and_run_nothing_in_the_page(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1440, "height": 900})
    chat.send(WRITES)
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Open site/index.html").click()
    panel = page.locator(".side-panel")
    expect(panel.frame_locator("iframe").locator("#out")).to_have_text("shut")
    assert page.evaluate("window.harm") is None
    panel.get_by_role("button", name="Code").click()
    expect(panel.locator("pre")).to_contain_text("<title>Clock</title>")
    expect(panel.locator(".numbers")).to_have_text(re.compile(r"^1\s2\s3\s4\s5\s6\s7$"))

    panel.get_by_role("button", name="All files").click()
    made, workspace = (panel.get_by_role("list", name=name, exact=True) for name in ("Files", "Workspace"))
    expect(made.get_by_role("listitem")).to_have_text(["site", "data.csv", "index.html"])
    expect(workspace.get_by_role("listitem")).to_have_text(["site"])
    workspace.get_by_role("button", name="site").click()
    with page.expect_download() as saved:
        workspace.get_by_role("button", name="data.csv").click()
    assert saved.value.path().read_text() == ARGS[1]["content"]
    chat.send(EDIT)
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Open site/data.csv").click()
    expect(panel.get_by_role("row")).to_have_text(["namen", "Ada, L.2"])
    panel.get_by_role("button", name="Changes").click()
    expect(panel.locator(".new")).to_contain_text('"Ada, L.",2')
    expect(panel.locator(".gone")).to_contain_text('"Ada, L.",1')
    panel.get_by_role("combobox", name="Version").select_option(label="Version 1 of 2")
    expect(panel.get_by_role("row")).to_have_text(["namen", "Ada, L.1"])
    with page.expect_download() as saved:
        panel.get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "data.csv"
    assert saved.value.path().read_text() == ARGS[1]["content"]
    chat.answer.get_by_role("button", name="Open notes.md").click()
    paragraph, point = panel.get_by_text("A paragraph."), panel.get_by_text("A point")
    colors = [place.evaluate("place => getComputedStyle(place).color") for place in (paragraph, point, panel)]
    assert len(set(colors)) == 1, "all text of a document is as dark as that of the page"
    panel.get_by_role("button", name="Full screen").click()
    expect(panel).to_have_js_property("clientWidth", 1440)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)

    page.set_viewport_size({"width": 1000, "height": 844})
    chat.answer.get_by_role("button", name="Open site/data.csv").click()
    expect(panel).to_have_js_property("offsetWidth", 450)
    expect(page.get_by_role("complementary", name="Chats"), "the panel has the room of the list").to_be_hidden()
    expect(chat.answer.get_by_role("button", name="Open notes.md")).to_be_in_viewport()
    assert chat.overflow() == 0
    chat.button("Show chat list").click()
    expect(panel).to_have_count(0)
    expect(page.get_by_role("complementary", name="Chats")).to_be_visible()

    page.set_viewport_size({"width": 390, "height": 844})
    chat.answer.get_by_role("button", name="Open site/data.csv").click()
    expect(panel).to_have_js_property("clientWidth", 390)
    panel.get_by_role("button", name="Back").click()
    expect(panel).to_have_count(0)
    assert chat.complaints == []


def test_the_edge_of_a_panel_is_dragged_or_moved_by_keys_and_its_place_is_remembered(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1440, "height": 900})
    chat.send(WRITES)
    chat.wait_for_end()
    opener = chat.answer.get_by_role("button", name="Open site/data.csv")
    opener.click()
    panel, edge = page.locator(".side-panel"), page.get_by_role("separator", name="Width of the panel")
    expect(panel).to_have_js_property("offsetWidth", 648)
    expect(edge).to_have_attribute("aria-valuenow", "648")
    expect(edge).not_to_be_focused()
    edge.hover(position={"x": 4, "y": 400})
    page.mouse.down()
    page.mouse.move(1000, 400)
    page.mouse.up()
    expect(panel).to_have_js_property("offsetWidth", 440)
    expect(page.locator("main")).to_have_css("padding-inline-end", "440px")
    edge.press("ArrowLeft")
    expect(panel).to_have_js_property("offsetWidth", 456)
    edge.press("ArrowRight")
    expect(edge).to_have_attribute("aria-valuenow", "440")
    page.reload()
    opener.click()
    expect(panel).to_have_js_property("offsetWidth", 440)
    edge.press("End")
    expect(edge).to_have_attribute("aria-valuenow", str(edge.get_attribute("aria-valuemax")))
    expect(page.get_by_label("Message", exact=True)).to_be_in_viewport()
    page.set_viewport_size({"width": 900, "height": 900})
    expect(panel).to_have_js_property("offsetWidth", 900 - 22 * 16)
    edge.press("Home")
    expect(panel).to_have_js_property("offsetWidth", 320)
    expect(edge).to_have_attribute("aria-valuemin", "320")
    page.evaluate("document.documentElement.dataset.textSize = 'larger'")
    expect(edge).to_have_attribute("aria-valuemin", "405")
    expect(edge).to_have_attribute("aria-valuemax", str(900 - 22 * 21))
    page.evaluate("delete document.documentElement.dataset.textSize")
    expect(edge).to_have_attribute("aria-valuemin", "320")
    edge.dblclick()
    expect(panel).to_have_js_property("offsetWidth", 405)
    assert chat.overflow() == 0
    page.set_viewport_size({"width": 390, "height": 844})
    expect(panel).to_have_js_property("clientWidth", 390)
    expect(edge).to_have_count(0)
    assert chat.complaints == []


def test_a_change_of_selected_lines_or_of_the_whole_file_is_asked_for(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1440, "height": 900})
    chat.send(f"/call write_file {json.dumps(SCRIPT)}")
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Open lease.py").click()
    panel, field = page.locator(".side-panel"), page.get_by_label("Message", exact=True)
    expect(panel.locator(".numbers")).to_have_text(re.compile(r"^1\s2\s3\s4$"))
    select_text(page, "    while", "renew(30)")
    panel.get_by_role("button", name="Ask for a change").click()
    expect(field).to_have_value("> lease.py, lines 3–4:\n>     while True:\n>         renew(30)\n\n")
    expect(field).to_be_focused()
    expect(panel.get_by_role("button", name="Ask for a change")).to_have_count(0)
    field.fill("")
    panel.get_by_role("button", name="Full screen").click()
    panel.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Ask for a change").click()
    expect(field).to_have_value("> lease.py\n\n")
    expect(field).to_be_focused()
    expect(field).to_be_in_viewport()
    expect(panel).to_be_visible()

    page.evaluate("getSelection().selectAllChildren(document.querySelector('.side-panel .code'))")
    assert "1" not in page.evaluate("getSelection().toString()"), "the numbers of lines are not selected"

    field.fill("")
    page.set_viewport_size({"width": 390, "height": 844})
    panel.get_by_role("button", name="More actions").click()
    with page.expect_download() as saved:
        page.get_by_role("menuitem", name="Download").click()
    assert saved.value.path().read_text() == SCRIPT["content"]
    panel.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Ask for a change").click()
    expect(panel).to_have_count(0)
    expect(field).to_have_value("> lease.py\n\n")
    assert chat.complaints == []


SCRIPT = {"path": "lease.py", "content": "def hold():\n    # wait\n    while True:\n        renew(30)\n"}


def select_text(page: Page, first: str, last: str) -> None:
    """Select the code in the panel from one text to the end of another."""
    page.evaluate(
        """([first, last]) => {
            const code = document.querySelector(".side-panel pre code");
            const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
            const [from, to] = [code.textContent.indexOf(first), code.textContent.indexOf(last) + last.length];
            const range = new Range();
            for (let at = 0, node = walker.nextNode(); node; at += node.length, node = walker.nextNode()) {
                if (from >= at && from < at + node.length) range.setStart(node, from - at);
                if (to > at && to <= at + node.length) range.setEnd(node, to - at);
            }
            getSelection().removeAllRanges();
            getSelection().addRange(range);
        }""",
        [first, last],
    )


def test_a_table_is_sorted_by_the_head_of_a_column(chat: Chat) -> None:
    content = "name,n\nb,10\na,9\nc,\n" + "".join(f"x{row},{row + 100}\n" for row in range(60))
    chat.page.set_viewport_size({"width": 1440, "height": 900})
    chat.send(f"/call write_file {json.dumps({'path': 'data.csv', 'content': content})}")
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Open data.csv").click()
    panel = chat.page.locator(".side-panel")
    cells, head = panel.locator("tbody td:first-child"), panel.get_by_role("columnheader", name="n", exact=True)
    expect(cells.first).to_have_text("b")
    expect(panel.locator("tbody td.number").first).to_have_css("text-align", "right")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(cells.first).to_have_text("a")
    expect(cells.last, "a row without a value").to_have_text("c")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(cells.first).to_have_text("x59")
    expect(cells.last).to_have_text("c")
    cells.last.scroll_into_view_if_needed()
    expect(head, "the head stays").to_be_in_viewport()
    head.get_by_role("button").click()
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))
    expect(cells.first).to_have_text("b")
    assert chat.complaints == []


def test_a_large_picture_fits_the_panel_or_is_shown_in_its_own_size(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1440, "height": 900})
    size = {"width": 2000, "height": 1000}
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="2000" height="1000"><rect width="900" height="900"/></svg>'
    chat.send(f"/call write_file {json.dumps({'path': 'big.svg', 'content': svg})}")
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Open big.svg").click()
    panel = page.locator(".side-panel")
    picture, sizes = panel.get_by_role("img", name="big.svg"), panel.get_by_role("group", name="Size of the picture")
    expect(sizes.get_by_role("button", name="Fit")).to_have_attribute("aria-pressed", "true")
    assert picture.evaluate("picture => picture.getBoundingClientRect().width") < 648
    sizes.get_by_role("button", name="100 %").click()
    expect(picture).to_have_js_property("offsetWidth", size["width"])
    expect(picture).to_have_js_property("offsetHeight", size["height"])
    sizes.get_by_role("button", name="Fit").click()
    expect(picture).not_to_have_js_property("offsetWidth", size["width"])
    assert chat.complaints == []


def test_a_file_is_edited_in_the_panel_and_saved_as_a_new_version(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1440, "height": 900})
    chat.send(f"/call write_file {json.dumps(SCRIPT)}")
    chat.wait_for_end()
    opener = chat.answer.get_by_role("button", name="Open lease.py")
    opener.click()
    panel = page.locator(".side-panel")
    editor, edit = (
        panel.get_by_role("textbox", name="Edit: lease.py"),
        panel.get_by_role("button", name="Edit", exact=True),
    )
    edit.click()
    expect(editor).to_be_focused()
    expect(editor).to_have_value(SCRIPT["content"])
    editor.fill("def hold():\n    pass\n")
    page.keyboard.press("Escape")
    expect(panel, "Escape does not close it with what is not saved").to_be_visible()
    panel.get_by_role("button", name="Close panel").click()
    expect(panel).to_have_count(0)
    opener.click()
    expect(editor, "what was not saved is still there").to_have_value("def hold():\n    pass\n")
    editor.press("Control+s")
    expect(editor).to_have_count(0)
    expect(panel.locator("pre")).to_have_text("def hold():\n    pass\n")
    versions = panel.get_by_role("combobox", name="Version")
    expect(versions.locator("option:checked")).to_have_text("Version 2 of 2")
    panel.get_by_role("button", name="Changes").click()
    expect(panel.locator(".new")).to_contain_text("pass")
    versions.select_option(label="Version 1 of 2")
    expect(panel.locator("pre")).to_have_text(SCRIPT["content"])
    expect(edit, "only the newest version is edited").to_have_count(0)

    page.reload()
    opener.click()
    expect(versions.locator("option:checked")).to_have_text("Version 2 of 2")
    chat.send('/call edit_file {"path": "lease.py", "old": "pass", "new": "return"}')
    chat.wait_for_end()
    expect(panel.locator("pre"), "tools change what the person saved").to_have_text("def hold():\n    return\n")
    edit.click()
    editor.fill("dropped")
    panel.get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog", name="Discard your changes?")
    question.get_by_role("button", name="Cancel").click()
    expect(editor, "nothing is lost without a confirmation").to_have_value("dropped")
    panel.get_by_role("button", name="Cancel").click()
    question.get_by_role("button", name="Discard").click()
    expect(panel.locator("pre")).to_have_text("def hold():\n    return\n")
    edit.click()
    expect(editor).to_be_focused()
    chat.send('/call write_file {"path": "lease.py", "content": "other"}')
    chat.wait_for_end()
    editor.fill("mine")
    panel.get_by_role("button", name="Save").click()
    expect(panel.get_by_role("alert")).to_contain_text("This file has changed since you opened it.")
    expect(editor, "nothing is lost").to_have_value("mine")
    panel.get_by_role("button", name="Cancel").click()
    question.get_by_role("button", name="Discard").click()
    expect(panel.locator("pre")).to_have_text("other")

    edit.click()
    expect(editor).to_be_focused()
    chat.send('/call write_file {"path": "lease.py", "content": "another"}')
    chat.wait_for_end()
    editor.fill("mine again")
    editor.press("Control+s")
    panel.get_by_role("button", name="Replace anyway").click()
    expect(editor).to_have_count(0)
    expect(panel.locator("pre")).to_have_text("mine again")
    panel.get_by_role("button", name="Changes").click()
    expect(panel.locator(".gone"), "the replaced text is the version before").to_contain_text("another")
    chat.complaints[:] = [words for words in chat.complaints if "409" not in words]
    assert chat.complaints == []


PLAN = {"path": "plan.md", "content": "The plan of Ada.\n"}
OTHER_PLAN = {"path": "plan.md", "content": "A private plan of Bob.\n"}


def test_in_a_shared_chat_the_file_of_another_person_is_not_taken_for_the_own_one(
    browser: BrowserContext, chat: Chat
) -> None:
    chat.register("panel-ada@example.com", "Ada")
    chat.send(f"/call write_file {json.dumps(PLAN)}")
    chat.wait_for_end()
    bob = Chat(another_browser(browser), chat.url.partition("/t/")[0])
    bob.register("panel-bob@example.com", "Bob")
    bob.send(f"/call write_file {json.dumps(OTHER_PLAN)}")
    bob.wait_for_end()
    address = chat.share("Can edit")
    bob.page.goto(address)
    bob.answer.get_by_role("button", name="Open plan.md").click()
    panel = bob.page.locator(".side-panel")
    expect(panel.get_by_text("The plan of Ada.")).to_be_visible()
    expect(panel.get_by_role("button", name="More actions")).to_be_visible()
    expect(panel.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    expect(panel.get_by_role("combobox", name="Version")).to_have_count(0)
    assert not [url for url in bob.asked_for if "/workspace/file" in url and chat.url.partition("/t/")[2] in url]

    bob.send('/call write_file {"path": "plan.md", "content": "A common plan."}')
    bob.wait_for_end()
    expect(panel.get_by_text("A common plan.")).to_be_visible()
    expect(panel.get_by_role("button", name="Edit", exact=True)).to_be_visible()
    chat.wait_for_end()
    chat.answer.get_by_role("button", name="Open plan.md").click()
    panel = chat.page.locator(".side-panel")
    expect(panel.get_by_text("A common plan.")).to_be_visible()
    expect(panel.get_by_role("button", name="More actions")).to_be_visible()
    expect(panel.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    assert chat.complaints == []
    assert bob.complaints == []


def test_an_edit_waits_for_its_save_and_is_asked_about_before_the_page_is_left(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1440, "height": 900})
    chat.send(f"/call write_file {json.dumps(SCRIPT)}")
    chat.wait_for_end()
    opener = chat.answer.get_by_role("button", name="Open lease.py")
    opener.click()
    panel = page.locator(".side-panel")
    editor, edit = (
        panel.get_by_role("textbox", name="Edit: lease.py"),
        panel.get_by_role("button", name="Edit", exact=True),
    )
    edit.click()
    editor.fill("saved")
    held: list[Route] = []
    page.route(
        "**/workspace/file?*", lambda route: held.append(route) if route.request.method == "PUT" else route.continue_()
    )
    editor.press("Control+s")
    expect(editor).to_have_js_property("readOnly", True)
    editor.press_sequentially("lost")
    expect(editor).to_have_value("saved")
    held[0].continue_()
    expect(editor).to_have_count(0)
    expect(panel.locator("pre")).to_have_text("saved")

    edit.click()
    editor.press_sequentially("not ")
    panel.get_by_role("button", name="Close panel").click()
    expect(panel).to_have_count(0)
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    with page.expect_event("dialog"):
        page.evaluate("setTimeout(() => location.reload())")
    assert asked == ["beforeunload"]
    opener.click()
    expect(editor).to_have_value("not saved")
    panel.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(editor).to_have_count(0)
    page.reload()
    expect(opener).to_be_visible()
    assert asked == ["beforeunload"]
    assert chat.complaints == []
