"""An OAuth client of the MCP server, and the browser of the person who decides about its access."""

import contextlib
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import msgspec

from khala.domain import ids
from tests.support.client import client

REDIRECT = "http://127.0.0.1:4567/callback"
VERIFIER = "a" * 43
CHALLENGE = urlsafe_b64encode(sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
PASSWORD = "en taro adun"


class TestClient(msgspec.Struct, frozen=True, kw_only=True):
    """A registered client of the server at `url`."""

    __test__ = False

    url: str
    id: str

    def query(self, **changes: str | None) -> dict[str, str]:
        """The parameters of a request for access, with changes; None leaves one out."""
        values = {
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "response_type": "code",
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "resource": f"{self.url}/mcp",
            "state": "s t/a+t&e",
        } | changes
        return {name: value for name, value in values.items() if value is not None}

    def code_form(self, issued: str, /, **changes: str | None) -> dict[str, str]:
        """The form that exchanges a code, with changes; None leaves a field out."""
        values = {
            "grant_type": "authorization_code",
            "client_id": self.id,
            "code": issued,
            "redirect_uri": REDIRECT,
            "code_verifier": VERIFIER,
            "resource": f"{self.url}/mcp",
        } | changes
        return {name: value for name, value in values.items() if value is not None}

    def refresh_form(self, token: str) -> dict[str, str]:
        return {"grant_type": "refresh_token", "client_id": self.id, "refresh_token": token}


async def register(http: httpx.AsyncClient, url: str, **metadata: Any) -> TestClient:
    """A new client."""
    body = {"client_name": "Probe", "redirect_uris": [REDIRECT]} | metadata
    answer = await http.post("/oauth/register", json=body)
    assert answer.status_code == 201, answer.text
    return TestClient(url=url, id=answer.json()["client_id"])


@contextlib.asynccontextmanager
async def signed_in(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The browser of a new account."""
    async with client(url) as browser:
        body = {"email": f"{ids.new()}@example.com", "password": PASSWORD}
        (await browser.post("/api/auth/register", json=body)).raise_for_status()
        yield browser


async def consent_form(browser: httpx.AsyncClient, query: dict[str, str]) -> dict[str, str]:
    """The hidden fields of the consent page."""
    page = await browser.get(f"/oauth/authorize?{urlencode(query)}")
    assert page.status_code == 200, page.text
    return {unescape(name): unescape(value) for name, value in HIDDEN.findall(page.text)}


async def decide(
    browser: httpx.AsyncClient, query: dict[str, str], *, decision: str = "allow", write: bool = True
) -> dict[str, str]:
    """Decide on the consent page; returns the parameters with which the client is sent back."""
    fields = await consent_form(browser, query) | {"decision": decision} | ({"write": "1"} if write else {})
    answer = await browser.post("/oauth/authorize", data=fields, headers={"Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 303, answer.text
    location = answer.headers["location"]
    assert location.startswith(query["redirect_uri"]), location
    return {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}


async def grant(browser: httpx.AsyncClient, program: TestClient, **changes: str | None) -> dict[str, Any]:
    """The tokens of a client that the person has allowed access."""
    code = (await decide(browser, program.query(**changes)))["code"]
    answer = await browser.post("/oauth/token", data=program.code_form(code, resource=changes.get("resource")))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
