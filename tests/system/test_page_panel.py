"""The side panel of the page: what answers made, its versions, and that nothing of it runs in the page."""

import json

import pytest
from playwright.sync_api import expect

from tests.system.browser import Chat

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
    panel.get_by_role("combobox", name="Version").select_option(label="Version 1")
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
