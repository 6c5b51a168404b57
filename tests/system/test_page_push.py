"""Push notifications in a real browser: turned on beside a call that waits, and shown by the service worker."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Locator, expect

from tests.support import postgres
from tests.support.push_service import DEADLINE_SECONDS, Browser, collected_pushes, encoded
from tests.support.server import Server, ended
from tests.system.browser import PATIENCE_MS, Chat, new_chromium, new_profile

pytestmark = pytest.mark.timeout(180)

ANOTHER = "0198c0de-0000-7000-8000-000000000000"
"""Id of a thread that no window shows."""
ASKS = '/call write_file {"path":"a.txt","content":"hi"} /then /call delete_file {"path":"a.txt"}'
PUSH_MANAGER = """(subscription) => {
    let current = null;
    PushManager.prototype.getSubscription = async () => current;
    PushManager.prototype.subscribe = async ({ applicationServerKey }) => {
        window.serverKey = [...applicationServerKey];
        const options = { applicationServerKey: applicationServerKey.buffer };
        const unsubscribe = async () => ((current = null), true);
        return (current = { options, toJSON: () => subscription, unsubscribe });
    };
}"""
"""Chromium without Google's services can't register with a push service; all else is the browser's own."""
NOTIFICATIONS = """async () => {
    const shown = await (await navigator.serviceWorker.ready).getNotifications();
    return shown.map(({ title, body, lang, data }) => ({ title, body, lang, path: data.path }));
}"""
CLOSE_NOTIFICATIONS = """async () => {
    for (const each of await (await navigator.serviceWorker.ready).getNotifications()) each.close();
}"""


@pytest.fixture(scope="module")
def shared_server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As in the other tests of the page, with a push service on this machine."""
    env = {"KHALA_MODEL": "demo", "KHALA_FETCH_ALLOW": "127.0.0.0/8", "KHALA_PUSH_HOSTS": "127.0.0.1"}
    with postgres.sync_database(postgres_url, template) as url:
        server = Server(tmp_path_factory.mktemp("server") / "server.log", env | {"DATABASE_URL": url})
        with ended(server):
            server.start()
            yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Chromium with notifications."""
    with new_chromium(whole=True) as started:
        yield started


def blocked_card(chat: Chat) -> Locator:
    """A card of the newest answer that waits for approval."""
    chat.with_autopilot()
    chat.send(ASKS)
    waiting = chat.card("delete_file")
    expect(waiting).to_have_attribute("data-state", "blocked")
    return waiting


def pusher(chat: Chat, origin: str) -> Callable[[dict[str, Any]], None]:
    """Delivers a message to the page's service worker, as the browser does that has received and decrypted it."""
    session = chat.page.context.new_cdp_session(chat.page)
    registrations: list[str] = []

    def note(event: dict[str, Any]) -> None:
        registrations.extend(each["registrationId"] for each in event["registrations"])

    chat.page.wait_for_function("navigator.serviceWorker.controller !== null")
    session.on("ServiceWorker.workerRegistrationUpdated", note)
    session.send("ServiceWorker.enable")
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not registrations:
        assert time.monotonic() < deadline, "Chromium names no service worker"
        chat.page.wait_for_timeout(20)

    def push(message: dict[str, Any]) -> None:
        request = {"origin": origin, "registrationId": registrations[-1], "data": json.dumps(message)}
        session.send("ServiceWorker.deliverPushMessage", request)

    return push


def notifications(chat: Chat, count: int) -> list[dict[str, Any]]:
    """The notifications that are shown, once there are so many: the service worker shows them asynchronously."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(shown := chat.page.evaluate(NOTIFICATIONS)) < count:
        assert time.monotonic() < deadline, f"{len(shown)} notifications instead of {count}"
        chat.page.wait_for_timeout(50)
    return list(shown)


def test_a_notification_tells_what_waits_where_the_chat_is_not_shown(chromium: Chromium, server: Server) -> None:
    with collected_pushes() as (endpoint, received), new_profile(chromium, service_workers="allow") as profile:
        profile.grant_permissions(["notifications"], origin=server.url)
        person = Browser(endpoint, "")
        profile.add_init_script(f"({PUSH_MANAGER})({json.dumps(person.body)})")
        chat = Chat(profile, server.url)
        waiting = blocked_card(chat)
        expect(chat.button("Turn on notifications")).to_have_count(0)
        waiting.get_by_role("button", name="Deny").click()
        chat.button("Turn on notifications").click()
        expect(chat.page.get_by_text("Notifications are on.")).to_be_visible()
        person.server_key = encoded(bytes(chat.page.evaluate("window.serverKey")))
        chat.wait_for_end()
        blocked_card(chat)
        headers, body = received.get(timeout=DEADLINE_SECONDS)
        person.verify(headers["authorization"], endpoint.removesuffix("/push"))
        message = person.decrypt(body)
        assert (message["kind"], message["tool"]) == ("waiting", "delete_file")
        push = pusher(chat, server.url)
        path = chat.page.evaluate("location.pathname")
        chat.button("New chat").click()
        expect(chat.page).not_to_have_url(re.compile(f"{path}$"))
        push(message)
        (shown,) = notifications(chat, 1)
        assert shown["path"] == path
        assert (shown["body"], shown["lang"]) == ("“Delete file” is waiting for approval.", "en")
        chat.page.evaluate(CLOSE_NOTIFICATIONS)
        chat.page.go_back()
        expect(chat.card("delete_file")).to_be_visible()
        push(message)
        # What the service worker shows for the first message, it shows before this one.
        push(message | {"threadId": ANOTHER})
        (shown,) = notifications(chat, 1)
        assert shown["path"] == f"/t/{ANOTHER}", "the person looks at the chat of the first message"
        chat.page.evaluate(CLOSE_NOTIFICATIONS)
        chat.page.goto(server.url + path)
        expect(chat.card("delete_file")).to_be_visible()
        chat.button("New chat").click()
        expect(chat.page).not_to_have_url(re.compile(f"{path}$"))
        push(message)
        (shown,) = notifications(chat, 1)
        assert shown["path"] == path, "the page was loaded at this chat, and shows another one"
        assert chat.complaints == []
