"""A person allows an MCP client access on the page: they sign in, decide, and end the access later."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import BrowserContext, Route, expect

from tests.support.oauth import REDIRECT, TestClient
from tests.system.browser import Chat, Server, new_chromium

pytestmark = pytest.mark.timeout(180)

ADA = "ada@example.com"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Chromium: in the headless shell, no test can answer for the app, to which the page goes from another origin."""
    with new_chromium(whole=True) as started:
        yield started


def test_a_person_signs_in_allows_an_app_access_and_ends_it(
    browser: BrowserContext, chat: Chat, server: Server
) -> None:
    chat.register(ADA, "Ada")
    chat.sign_out()
    with httpx.Client(base_url=server.url) as http:
        body = {"client_name": "Probe", "redirect_uris": [REDIRECT]}
        program = TestClient(url=server.url, id=http.post("/oauth/register", json=body).json()["client_id"])
        returned: list[str] = []

        def app(route: Route) -> None:
            returned.append(route.request.url)
            route.fulfill(body="You may close this window.", content_type="text/plain")

        browser.route(f"{REDIRECT}*", app)
        page = chat.page
        page.goto(f"{server.url}/oauth/authorize?{urlencode(program.query())}")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Sign in to decide whether an app may access")
        dialog.get_by_label("Email").fill(ADA)
        dialog.get_by_label("Password").fill("en taro adun")
        dialog.get_by_role("button", name="Sign in", exact=True).click()
        expect(page.get_by_role("heading", name="Probe asks for access to your Khala account")).to_be_visible()
        expect(page.get_by_text(ADA)).to_be_visible()
        page.get_by_role("button", name="Allow").click()
        expect(page.get_by_text("You may close this window.")).to_be_visible()
        [answer] = [parse_qs(urlsplit(url).query) for url in returned]
        assert (answer["state"], answer["iss"]) == (["s t/a+t&e"], [server.url])
        tokens = http.post("/oauth/token", data=program.code_form(answer["code"][0])).raise_for_status().json()

        page.goto(server.url)
        page.get_by_title("Your account").click()
        page.get_by_role("tab", name="Apps and tokens").click()
        apps = page.locator("#account-apps")
        expect(apps).to_contain_text("Probe")
        expect(apps).to_contain_text("Read and write")
        page.get_by_role("button", name="Revoke Probe").click()
        expect(apps).to_contain_text("No app has access to your account.")
        headers = {"Authorization": f"Bearer {tokens['access_token']}"}
        assert http.post("/mcp", json={}, headers=headers).status_code == 401
