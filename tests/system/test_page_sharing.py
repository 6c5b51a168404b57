"""Accounts and sharing on the page, in several real browsers, one for each person."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.support.archives import files_of
from tests.support.oidc.provider import SECRET, running
from tests.support.server import Server as Process
from tests.support.server import ended
from tests.system.browser import Chat, Server, another_browser, words

pytestmark = pytest.mark.timeout(180)

LOOK_ON, WRITE = "Can view", "Can edit"
ADA, BOB = "ada@example.com", "bob@example.com"


def test_registering_in_mid_stream_keeps_the_answer_going_and_the_chat_in_every_browser_of_the_account(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.send("Count for me /words=5000 /pace=40")
    chat.wait_for_word("word10")
    chat.register(ADA, "Ada")
    assert chat.is_writing()
    assert words(5000).startswith(chat.text())
    expect(chat.listed("Count for me")).to_contain_text("Writing")
    elsewhere = Chat(another_browser(browser), server.url)
    elsewhere.sign_in(ADA)
    expect(elsewhere.listed("Count for me")).to_contain_text("Writing")
    chat.button("Stop").click()
    chat.wait_for_end()
    written = chat.stored_text()
    assert chat.text() == written
    expect(elsewhere.listed("Count for me")).not_to_contain_text("Writing")
    chat.page.reload()
    expect(chat.listed("Count for me")).to_be_visible()
    expect(chat.answer).to_be_visible()
    assert chat.text() == written
    assert chat.page.evaluate("Object.keys(localStorage).filter((name) => name.startsWith('khala.chat.'))") == []
    elsewhere.listed("Count for me").click()
    expect(elsewhere.answer).to_contain_text(written)
    assert elsewhere.text() == written
    assert chat.complaints == elsewhere.complaints == []


def test_a_chat_of_another_browser_of_the_account_is_unread_until_it_is_looked_at(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    elsewhere = Chat(another_browser(browser), server.url)
    elsewhere.sign_in(ADA)
    chat.send("Good morning /words=20")
    chat.wait_for_end()
    elsewhere.button("New chat").click()
    row = elsewhere.listed("Good morning")
    expect(row).to_be_visible()
    chat.button("New chat").click()
    expect(chat.page.locator(".message.user")).to_have_count(0)
    # That of the other browser, which somebody may share: the open one is not listed.
    expect(chat.listed("New chat")).to_have_count(1)
    path = str(row.get_attribute("href")).replace("/t/", "/api/threads/")
    sent = elsewhere.page.request.post(f"{server.url}{path}/send", data={"text": "/words=5"})
    assert sent.status == 202
    expect(chat.listed("Good morning")).to_contain_text("Unread")
    chat.listed("Good morning").click()
    expect(chat.listed("Good morning")).not_to_contain_text("Unread")
    expect(elsewhere.listed("Good morning")).not_to_contain_text("Unread")


def test_all_tabs_of_a_browser_continue_when_one_of_them_registers(browser: BrowserContext, chat: Chat) -> None:
    chat.send("First /words=5")
    chat.wait_for_end()
    chat.button("New chat").click()
    expect(chat.page.locator(".message")).to_have_count(1)
    other = Chat(browser, chat.url)
    chat.send("Second /words=300 /pace=60")
    other.wait_for_word("word10")
    chat.register(ADA, "Ada")
    expect(other.page.get_by_title("Your account")).to_be_visible()
    for each_chat in (chat, other):
        each_chat.wait_for_end()
        assert each_chat.text() == words(300)
        expect(each_chat.listed("First")).to_be_visible()
        expect(each_chat.page.get_by_text("Only in this browser")).to_have_count(0)
    assert chat.complaints == other.complaints == []


def test_a_login_at_the_provider_asks_once_whether_to_add_the_chats_of_this_browser(
    database_url: str, browser: BrowserContext, tmp_path: Path
) -> None:
    server = Process(tmp_path / "server.log", {"DATABASE_URL": database_url, "KHALA_MODEL": "demo"})
    callback, home = f"{server.url}/api/auth/oidc/callback", f"{server.url}/"
    with running(callbacks=(callback,), signed_out=(home,)) as provider, ended(server):
        settings = {"ISSUER": provider.issuer, "CLIENT_ID": "khala", "CLIENT_SECRET": SECRET, "NAME": "Example"}
        server.env |= {f"KHALA_OIDC_{name}": value for name, value in settings.items()}
        server.start()
        _comes_back_from_elsewhere(Chat(browser, server.url))


def _comes_back_from_elsewhere(chat: Chat) -> None:
    chat.send("Mine /words=5")
    chat.wait_for_end()
    chat.button("Sign in").click()
    chat.page.get_by_role("link", name="Sign in with Example").click()
    expect(chat.page.get_by_title("Your account")).to_contain_text("Alice Example")
    expect(chat.listed("Mine")).to_contain_text("Only in this browser")
    chat.button("Add to account").click()
    expect(chat.listed("Mine")).not_to_contain_text("Only in this browser")
    expect(chat.page.get_by_text("Add the chat in this browser")).to_be_hidden()
    chat.page.reload()
    expect(chat.listed("Mine")).to_be_visible()
    expect(chat.page.get_by_text("Add the chat in this browser")).to_be_hidden()
    chat.wait_for_end()
    assert chat.text() == words(5)
    assert chat.complaints == []
    chat.page.get_by_title("Your account").click()
    chat.button("Sign out").click()
    chat.button("Yes, sign me out").click()
    expect(chat.button("Sign in")).to_be_visible()
    expect(chat.listed("Mine")).to_have_count(0)


def test_a_failed_login_at_the_provider_is_shown_in_the_dialog(chat: Chat, server: Server) -> None:
    chat.page.goto(f"{server.url}/?signin=invalid_input")
    expect(chat.page.get_by_role("dialog").get_by_text("Signing in was cancelled")).to_be_visible()
    assert "signin" not in chat.url
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)


def test_an_address_that_says_so_shows_who_has_signed_in_elsewhere(chat: Chat, server: Server) -> None:
    account = {"email": "elsewhere@example.com", "password": "en taro adun"}
    assert chat.page.request.post(f"{server.url}/api/auth/register", data=account).ok
    chat.page.goto(f"{server.url}/?signed-in")
    expect(chat.page.get_by_title("Your account")).to_be_visible()
    assert "signed-in" not in chat.url


def test_a_wrong_password_is_shown_in_the_dialog_and_changes_nothing(chat: Chat) -> None:
    chat.button("Sign in").click()
    dialog = chat.page.get_by_role("dialog")
    dialog.get_by_label("Email").fill(ADA)
    dialog.get_by_label("Password").fill("not the password")
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog.get_by_text("The email or password is incorrect.")).to_be_visible()
    chat.page.keyboard.press("Escape")
    chat.send("/words=5")
    chat.wait_for_end()
    assert chat.text() == words(5)


def test_dialogs_fit_a_window_of_320_pixels(chat: Chat) -> None:
    chat.page.set_viewport_size({"width": 320, "height": 640})
    chat.page.locator("#menu").click()
    chat.register(ADA, "Ada")
    chat.page.get_by_title("Your account").click()
    expect(chat.page.get_by_text("This device")).to_be_visible()
    assert chat.overflow() == 0
    assert chat.page.locator("#settings").evaluate("(dialog) => dialog.scrollWidth - dialog.clientWidth") == 0
    chat.page.keyboard.press("Escape")
    chat.page.keyboard.press("Escape")
    chat.button("Share").click()
    chat.button("Copy link").click()
    expect(chat.button("Revoke")).to_be_visible()
    assert chat.page.locator("#share").evaluate("(dialog) => dialog.scrollWidth - dialog.clientWidth") == 0


def test_a_viewer_by_link_follows_live_cannot_write_and_loses_access_when_it_is_revoked(
    browser: BrowserContext, chat: Chat
) -> None:
    link = chat.share(LOOK_ON)
    viewer = Chat(another_browser(browser), link)
    expect(viewer.page.get_by_text("View only")).to_be_visible()
    expect(viewer.page.get_by_label("Message", exact=True)).to_be_hidden()
    assert "share=" not in viewer.url
    chat.send("/words=5000 /pace=60")
    viewer.wait_for_word("word10")
    assert viewer.is_writing()
    expect(viewer.button("Stop")).to_be_hidden()
    chat.button("Stop").click()
    chat.wait_for_end()
    viewer.wait_for_end()
    assert viewer.text() == chat.text()
    viewer.page.reload()
    expect(viewer.answer).to_contain_text(chat.text())
    chat.send("/words=100 /pace=60")
    # The revocation below also removes the announcement for screen readers.
    expect(viewer.page.locator("#announce")).to_contain_text("word1 ")
    chat.button("Share").click()
    chat.button("Revoke").click()
    expect(viewer.page.get_by_text("You no longer have access to this chat.")).to_be_visible()
    expect(viewer.page.locator(".message")).to_have_count(0)
    assert "word1" not in viewer.page.content()
    viewer.page.reload()
    expect(viewer.page.get_by_text("You no longer have access to this chat.")).to_be_visible()
    assert chat.complaints == viewer.complaints == []


def test_the_dialog_offers_what_the_server_allows_and_asks_before_it_ends_links(chat: Chat) -> None:
    chat.share(LOOK_ON)
    chat.button("Share").click()
    dialog = chat.page.get_by_role("dialog", name="Share chat")
    expect(dialog.get_by_label("Only members")).to_be_visible()
    expect(dialog.get_by_label("Anyone can view")).to_have_count(0)
    links = dialog.locator("[aria-labelledby=share-links-title] li")
    expect(links).to_have_count(1)
    dialog.get_by_label("Only members").click()
    question = chat.page.locator("#confirm")
    expect(question).to_contain_text("All links stop working permanently.")
    expect(links).to_have_count(1)
    question.get_by_role("button", name="Cancel").click()
    expect(dialog.get_by_label("Anyone with a link")).to_be_checked()
    expect(links).to_have_count(1)
    dialog.get_by_label("Only members").click()
    question.get_by_role("button", name="Revoke links").click()
    expect(dialog.get_by_label("Only members")).to_be_checked()
    expect(links).to_have_count(0)
    dialog.get_by_label("Anyone with a link").check()
    expect(dialog.get_by_text("No links yet")).to_be_visible()
    dialog.get_by_label("Invite by email address").fill("nobody@example.com")
    dialog.get_by_role("button", name="Invite", exact=True).click()
    expect(dialog.get_by_text("No account here has this address.")).to_be_visible()


def test_links_are_offered_only_where_they_work_and_copying_one_visibly_opens_the_chat_to_them(chat: Chat) -> None:
    chat.send("Plans /words=5")
    chat.wait_for_end()
    chat.button("Share").click()
    dialog = chat.page.get_by_role("dialog", name="Share chat")
    expect(dialog.get_by_label("Only members")).to_be_checked()
    expect(dialog.get_by_label("Only members")).to_have_accessible_description(re.compile("^Only you and people"))
    expect(dialog.get_by_role("region", name="Links")).to_have_count(0)
    people = dialog.locator("#share-members").get_by_role("listitem")
    expect(people).to_have_count(1)
    expect(people).to_contain_text("You")
    expect(people).to_contain_text("Owner")
    invite = dialog.get_by_role("button", name="Invite", exact=True)
    expect(invite).to_be_disabled()
    dialog.get_by_label("Invite by email address").fill(BOB)
    expect(invite).to_be_enabled()
    expect(dialog.get_by_text("Copying a link lets anyone who has it view this chat.")).to_be_visible()
    dialog.get_by_role("button", name="Copy link").click()
    expect(dialog.get_by_label("Anyone with a link")).to_be_checked()
    expect(dialog.get_by_label("Copy it now")).to_have_value(re.compile("#share="))
    expect(dialog.get_by_label("Copy it now")).to_be_focused()
    links = dialog.get_by_role("region", name="Links")
    expect(links.get_by_role("listitem")).to_have_count(1)
    expect(links.get_by_role("listitem")).to_contain_text(LOOK_ON)
    links.get_by_role("button", name="Copy link").click()
    expect(links.get_by_role("listitem")).to_have_count(1)
    assert chat.complaints == []


def test_a_link_that_another_tab_has_revoked_is_not_copied(browser: BrowserContext, chat: Chat) -> None:
    chat.send("Plans /words=5")
    chat.wait_for_end()
    chat.button("Share").click()
    dialog = chat.page.get_by_role("dialog", name="Share chat")
    dialog.get_by_role("button", name="Copy link").click()
    shown = dialog.get_by_label("Copy it now")
    expect(shown).to_have_value(re.compile("#share="))
    revoked = shown.input_value()
    elsewhere = Chat(browser, chat.url)
    elsewhere.button("Share").click()
    elsewhere.page.get_by_label("Only members").click()
    elsewhere.button("Revoke links").click()
    expect(dialog.get_by_label("Only members")).to_be_checked()
    expect(shown).to_have_count(0)
    elsewhere.page.get_by_label("Anyone with a link").check()
    expect(dialog.get_by_label("Anyone with a link")).to_be_checked()
    expect(shown).to_have_count(0)
    dialog.get_by_role("button", name="Copy link").click()
    expect(shown).to_have_value(re.compile("#share="))
    assert shown.input_value() != revoked
    assert chat.complaints == elsewhere.complaints == []


def test_people_in_a_chat_see_who_is_present_and_who_is_typing(browser: BrowserContext, chat: Chat) -> None:
    chat.register(ADA, "Ada Lovelace")
    guest = Chat(another_browser(browser), chat.share(WRITE))
    expect(guest.page.get_by_title("Ada Lovelace is in this chat")).to_be_visible()
    expect(chat.page.get_by_title("Guest is in this chat")).to_be_visible()
    expect(chat.page.locator("#present li")).to_have_count(1)
    seen = guest.page.get_by_text("Ada Lovelace is typing…")
    for _ in range(100):
        chat.page.get_by_label("Message", exact=True).press("h")
        guest.page.wait_for_timeout(200)
        if seen.is_visible():
            break
    else:
        pytest.fail("nobody sees that somebody types")
    expect(chat.page.get_by_text("is typing…")).to_be_hidden()
    expect(seen).to_be_hidden()
    chat.button("New chat").click()
    expect(guest.page.get_by_title("Ada Lovelace is in this chat")).to_be_hidden()
    assert chat.complaints == guest.complaints == []


def test_after_signing_out_no_chat_is_readable_and_after_signing_in_the_list_is_back(chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.send("A secret /words=20")
    chat.wait_for_end()
    secret = chat.url
    chat.sign_out()
    expect(chat.page.locator(".message")).to_have_count(1)
    expect(chat.listed("A secret")).to_have_count(0)
    assert chat.url != secret
    chat.page.goto(secret)
    expect(chat.page.get_by_text("You don’t have access to this chat.")).to_be_visible()
    expect(chat.page.locator(".message")).to_have_count(0)
    chat.sign_in(ADA)
    expect(chat.answer).to_be_visible()
    assert chat.text() == words(20)
    expect(chat.listed("A secret")).to_be_visible()


def test_an_editor_by_link_writes_and_each_sees_the_others_name(browser: BrowserContext, chat: Chat) -> None:
    chat.register(ADA, "Ada")
    chat.send("Mine /words=5")
    chat.wait_for_end()
    editor = Chat(another_browser(browser), chat.share(WRITE))
    expect(editor.page.locator(".user .author")).to_have_text(["Ada"])
    editor.send("Theirs /words=7")
    editor.wait_for_end()
    assert editor.text() == words(7)
    expect(editor.page.locator(".user .author")).to_have_text(["Ada"])
    expect(chat.page.locator(".user .author")).to_have_text(["Guest"])
    editor.page.reload()
    expect(editor.page.locator(".user .author")).to_have_text(["Ada"])
    assert chat.complaints == editor.complaints == []


def test_a_guest_with_an_account_adds_a_shared_chat_to_the_list_and_keeps_it_without_the_link(
    browser: BrowserContext, chat: Chat
) -> None:
    chat.register(ADA, "Ada")
    chat.send("Plans /words=5")
    chat.wait_for_end()
    guest = Chat(another_browser(browser), chat.share(LOOK_ON))
    guest.register(BOB, "Bob")
    guest.button("Add to my chats").click()
    expect(guest.button("Add to my chats")).to_be_hidden()
    expect(guest.listed("Plans")).to_contain_text("Shared with you")
    chat.button("Share").click()
    chat.button("Revoke").click()
    expect(chat.page.get_by_text("No links yet.")).to_be_visible()
    chat.page.get_by_label("Role of Bob").select_option(label="Can edit")
    expect(guest.page.get_by_label("Message", exact=True)).to_be_editable()
    chat.button("Remove Bob").click()
    expect(guest.page.get_by_text("You no longer have access to this chat.")).to_be_visible()
    expect(guest.listed("Plans")).to_have_count(0)
    assert chat.complaints == guest.complaints == []


def test_a_chat_can_be_renamed_and_deleted_in_the_list_of_every_browser(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    chat.send("Old name /words=5")
    chat.wait_for_end()
    elsewhere = Chat(another_browser(browser), server.url)
    elsewhere.sign_in(ADA)
    chat.act_on("Old name", "Rename…")
    chat.page.get_by_label("Title", exact=True).fill("New name")
    chat.page.keyboard.press("Enter")
    expect(elsewhere.listed("New name")).to_be_visible()
    expect(chat.page.get_by_role("heading", name="New name")).to_be_visible()
    chat.act_on("New name", "Delete")
    chat.button("Delete").click()  # this server has no undo, so the page asks
    expect(elsewhere.listed("New name")).to_have_count(0)
    expect(chat.listed("New name")).to_have_count(0)
    expect(chat.page.locator(".message")).to_have_count(1)
    assert chat.complaints == elsewhere.complaints == []


def test_tokens_sessions_the_password_and_the_data_of_an_account_are_managed_in_the_settings(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    elsewhere = Chat(another_browser(browser), server.url)
    elsewhere.sign_in(ADA)
    chat.page.get_by_title("Your account").click()
    dialog = chat.page.get_by_role("dialog")
    expect(dialog.get_by_text("This device")).to_be_visible()
    dialog.get_by_role("tab", name="Usage").click()
    expect(dialog.get_by_text("Answers: 0 of 300")).to_be_visible()
    dialog.get_by_role("tab", name="Apps and tokens").click()
    dialog.get_by_role("button", name="Create token").click()
    dialog.locator("#token-form").get_by_label("Name").fill("A script")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog.get_by_text("A script")).to_be_visible()
    token = dialog.get_by_label("Copy it now").input_value()
    me = f"{server.url}/api/threads"
    assert another_browser(browser).request.get(me, headers={"Authorization": f"Bearer {token}"}).status == 200
    dialog.get_by_role("button", name="Revoke A script").click()
    expect(dialog.get_by_role("button", name="Revoke A script")).to_have_count(0)
    assert another_browser(browser).request.get(me, headers={"Authorization": f"Bearer {token}"}).status == 401
    dialog.get_by_role("tab", name="Your account").click()
    dialog.locator("#account-sessions").get_by_role("button").click()
    expect(elsewhere.button("Sign in").first).to_be_visible()
    dialog.get_by_role("button", name="Change password").click()
    dialog.get_by_label("Current password").fill("en taro adun")
    dialog.get_by_label("New password").fill("en taro tassadar")
    dialog.locator("#password-form").get_by_role("button", name="Save").click()
    expect(dialog.get_by_text("Password changed.")).to_be_visible()
    dialog.get_by_role("tab", name="Your data").click()
    with chat.page.expect_download() as download:
        dialog.get_by_role("link", name="Download your data").click()
    assert ADA in files_of(download.value.path().read_bytes())["logins.jsonl"].decode()
    dialog.get_by_role("button", name="Delete account…").click()
    dialog.locator("#delete-form").get_by_label("Password").fill("en taro tassadar")
    dialog.get_by_role("button", name="Delete account", exact=True).click()
    chat.page.locator("#confirm").get_by_role("button", name="Delete account").click()
    expect(chat.button("Sign in").first).to_be_visible()
    assert chat.complaints == []


def invite(owner: Chat, guest: Chat, server: Server, role: str) -> str:
    """Invite the guest's account to the owner's current chat; returns the thread's id."""
    thread_id = owner.url.rpartition("/t/")[2]
    guest_id = guest.page.request.get(f"{server.url}/api/me").json()["id"]
    path = f"{server.url}/api/threads/{thread_id}/members/{guest_id}"
    assert owner.page.request.put(path, data={"role": role}).json()["status"] == "invited"
    return thread_id


def test_a_new_chat_with_an_invitation_stays_listed(browser: BrowserContext, chat: Chat, server: Server) -> None:
    guest = Chat(another_browser(browser), server.url)
    guest.register(BOB, "Bob")
    chat.register(ADA, "Ada")
    invite(chat, guest, server, "editor")
    address = chat.url
    chat.button("Share").click()
    expect(chat.page.locator("#share-members").get_by_role("listitem")).to_have_count(2)
    chat.page.get_by_role("dialog", name="Share chat").get_by_role("button", name="Close").click()
    expect(chat.listed("New chat")).to_have_attribute("href", re.compile(address.rpartition("/")[2]))
    chat.page.reload()
    expect(chat.listed("New chat")).to_have_attribute("href", re.compile(address.rpartition("/")[2]))
    assert chat.complaints == []


def test_an_invited_person_reads_the_chat_and_accepts_and_its_owner_sees_the_status(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    chat.send("Plans /words=5")
    chat.wait_for_end()
    guest = Chat(another_browser(browser), server.url)
    guest.register(BOB, "Bob")
    invite(chat, guest, server, "editor")
    invitations = guest.page.get_by_role("region", name="Invitations")
    expect(invitations.get_by_title("Open chat")).to_contain_text("Plans")
    expect(invitations).to_contain_text("Ada invited you to edit this chat.")
    expect(guest.listed("Plans")).to_have_count(0)
    chat.button("Share").click()
    members = chat.page.locator("#share-members")
    expect(members.get_by_role("listitem").filter(has_text="Bob")).to_contain_text("Invited")
    expect(members.get_by_role("button", name="Cancel invitation: Bob")).to_be_visible()
    chat.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    invitations.get_by_title("Open chat").click()
    expect(guest.answer).to_contain_text("word5")
    here = guest.page.locator("#invited")
    expect(here).to_contain_text("Ada invited you to edit this chat.")
    expect(guest.page.get_by_label("Message", exact=True)).to_have_count(0)
    here.get_by_role("button", name="Accept invitation").click()
    expect(guest.page.get_by_label("Message", exact=True)).to_be_visible()
    expect(guest.listed("Plans")).to_be_visible()
    expect(invitations).to_have_count(0)
    chat.button("Share").click()
    expect(members.get_by_role("button", name="Remove Bob")).to_be_visible()
    assert chat.complaints == guest.complaints == []


def test_declined_and_withdrawn_invitations_leave_nothing_behind(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    guest = Chat(another_browser(browser), server.url)
    guest.register(BOB, "Bob")
    invitations = guest.page.get_by_role("region", name="Invitations")
    invite(chat, guest, server, "viewer")
    expect(invitations).to_contain_text("to view this chat.")
    chat.button("Share").click()
    chat.page.get_by_role("button", name="Cancel invitation: Bob").click()
    expect(invitations).to_have_count(0)
    chat.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    thread_id = invite(chat, guest, server, "owner")
    expect(invitations).to_contain_text("to co-own this chat.")
    invitations.get_by_role("button", name="Decline invitation").click()
    expect(invitations).to_have_count(0)
    found = chat.page.request.get(f"{server.url}/api/threads/{thread_id}/members").json()["items"]
    assert [(result["name"], result["status"]) for result in found] == [("Ada", "member")]


def test_only_the_requester_of_a_call_can_edit_it(browser: BrowserContext, chat: Chat, server: Server) -> None:
    chat.register(ADA, "Ada")
    chat.send("Plans /words=5")
    chat.wait_for_end()
    guest = Chat(another_browser(browser), server.url)
    guest.register(BOB, "Bob")
    invite(chat, guest, server, "editor")
    guest.page.get_by_role("button", name="Accept invitation").click()
    expect(guest.answer).to_contain_text("word5")
    guest.with_autopilot()
    with chat.page.expect_response(lambda response: response.url.endswith("/approvals")) as response_info:
        guest.send('/call delete_file {"path": "a.txt"} /say Over.')
    guest.card("delete_file").get_by_role("button", name="Details").click()
    expect(guest.card("delete_file").get_by_role("button", name="Edit input")).to_be_visible()
    card = chat.card("delete_file")
    expect(card.get_by_role("button", name="Allow", exact=True)).to_be_visible()
    assert "mayEdit" not in response_info.value.json()["items"][0]
    chat.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    card.get_by_role("button", name="Details").click()
    expect(card.get_by_role("button", name="Show JSON")).to_be_visible()
    expect(card.get_by_role("button", name="Edit input")).to_have_count(0)
    card.get_by_role("button", name="Allow", exact=True).click()
    chat.wait_for_end()
    guest.wait_for_end()
