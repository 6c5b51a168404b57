"""OAuth clients whose id is the URL of their metadata: fetched over TLS, once, and only for people with an account."""

import functools
import json
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio
from aiohttp import web

from khala import route_context
from khala.api.oauth.client_documents import MAX_DOCUMENT_BYTES, ClientDocuments, is_document_url
from khala.domain.oauth import OAuthError
from khala.tools.http_client import GuardedClient
from tests.support.certificates import certificate
from tests.support.oauth import REDIRECT, TestClient, bearer, decide, signed_in
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = [ip_network("127.0.0.0/8"), ip_network("::1/128")]


class Publisher:
    """A host of documents: `answers` by path, each a status, a content type and a body."""

    def __init__(self) -> None:
        self.url = ""
        self.trust = ssl.create_default_context()
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        status, kind, body = self.answers[request.path]
        headers = {"Content-Type": kind} | ({"Location": f"{self.url}/app.json"} if status == 302 else {})
        return web.Response(status=status, headers=headers, body=body)

    def publish(self, path: str, **changes: object) -> str:
        """Publish a document with changes; returns its URL."""
        url = self.url + path
        document = {"client_id": url, "client_name": "Published", "redirect_uris": [REDIRECT]} | changes
        self.answers[path] = (200, "application/json", json.dumps(document).encode())
        return url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def publisher(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Publisher]:
    host = Publisher()
    file: Path = certificate(tmp_path_factory.mktemp("tls"), "localhost")
    host.trust = ssl.create_default_context(cafile=file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    application = web.Application()
    application.router.add_get("/{path:.*}", host.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    host.url = f"https://localhost:{runner.addresses[0][1]}"
    yield host
    await runner.cleanup()


async def test_a_published_client_gets_access_and_its_document_is_read_only_for_accounts(
    publisher: Publisher, postgres_url: str, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = publisher.publish("/app.json")
    monkeypatch.setattr(route_context, "GuardedClient", functools.partial(GuardedClient, trust=publisher.trust))
    settings = {"KHALA_FETCH_ALLOW": "127.0.0.0/8,::1/128"}
    async with shared(postgres_url, template, with_executor=False, **settings) as server:
        metadata = (await server.http.get("/.well-known/oauth-authorization-server")).json()
        assert metadata["client_id_metadata_document_supported"] is True
        program = TestClient(url=server.url, id=url)
        guest = await server.http.get(f"/oauth/authorize?{urlencode(program.query())}")
        assert (guest.status_code, publisher.asked) == (302, [])
        async with signed_in(server.url) as browser:
            page = await browser.get(f"/oauth/authorize?{urlencode(program.query())}")
            assert f"belongs to <strong>{httpx.URL(url).netloc.decode()}</strong>" in page.text
            code = (await decide(browser, program.query()))["code"]
            tokens = (await browser.post("/oauth/token", data=program.code_form(code))).raise_for_status().json()
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            headers = {"Accept": "application/json, text/event-stream"} | bearer(tokens["access_token"])
            assert (await server.http.post("/mcp", json=body, headers=headers)).status_code == 200
            assert publisher.asked == ["/app.json"], "read once"
            for wrong in (program.query(redirect_uri="https://evil.example.com/"), program.query(client_id=url + "x")):
                publisher.answers["/app.jsonx"] = (404, "text/plain", b"")
                refused = await browser.get(f"/oauth/authorize?{urlencode(wrong)}")
                assert (refused.status_code, "location" in refused.headers) == (400, False)


async def test_an_invalid_document_is_refused(publisher: Publisher) -> None:
    documents = ClientDocuments(GuardedClient(allow=HERE, trust=publisher.trust))
    bad = [
        publisher.publish("/other.json", client_id=f"{publisher.url}/app.json"),
        publisher.publish("/secret.json", client_secret="x"),
        publisher.publish("/key.json", token_endpoint_auth_method="private_key_jwt"),
        publisher.publish("/script.json", redirect_uris=["javascript:alert(1)"]),
        publisher.publish("/none.json", redirect_uris=[]),
        publisher.publish("/large.json", more="x" * MAX_DOCUMENT_BYTES),
    ]
    answers = {
        "/moved.json": (302, "application/json", b""),
        "/page.json": (200, "text/html", b"{}"),
        "/broken.json": (200, "application/json", b"{"),
    }
    publisher.answers |= answers
    for url in [*bad, *(publisher.url + path for path in answers)]:
        with pytest.raises(OAuthError):
            await documents.find(url)
    assert "/app.json" not in publisher.asked[-3:], "redirects are not followed"
    private = ClientDocuments(GuardedClient(trust=publisher.trust))
    with pytest.raises(OAuthError):
        await private.find(publisher.publish("/app.json"))


async def test_a_document_is_read_again_after_five_minutes(publisher: Publisher) -> None:
    clock = [0.0]
    documents = ClientDocuments(GuardedClient(allow=HERE, trust=publisher.trust), lambda: clock[0])
    url = publisher.publish("/app.json")
    before = len(publisher.asked)
    await documents.find(url)
    for clock[0], name, times in ((299.0, "Published", 1), (300.0, "Renamed", 2)):
        publisher.publish("/app.json", client_name="Renamed")
        assert ((await documents.find(url)).name, len(publisher.asked) - before) == (name, times)


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://app.example.com/client.json", True),
        ("https://app.example.com/a?b=c", True),
        ("http://app.example.com/client.json", False),
        ("https://app.example.com", False),
        ("https://app.example.com/", False),
        ("https://user@app.example.com/a", False),
        ("https://app.example.com/a#b", False),
        ("https://app.example.com/a/../b", False),
        ("https://app.example.com/" + "a" * 512, False),
        ("01a20f1a-d5dd-70c2-9593-91bf57c48adc", False),
    ],
)
async def test_which_ids_are_urls_of_documents(url: str, is_one: bool) -> None:
    assert is_document_url(url) == is_one
