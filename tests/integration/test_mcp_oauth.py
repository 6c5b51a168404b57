"""OAuth of MCP clients: the official client gets access by a person's consent, uses it, renews it and loses it."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from khala.api.mcp import tool_calls
from khala.store.postgres.database import Database
from tests.support.in_process import InProcessServer
from tests.support.oauth import REDIRECT, bearer, decide, grant, register, signed_in
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template, with_executor=False) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    """A server that requires a token, behind a proxy."""
    settings = {"KHALA_MCP_OAUTH": "required", "KHALA_TRUSTED_PROXIES": "127.0.0.1"}
    async with shared(postgres_url, template, with_executor=False, **settings) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


class Storage:
    """The tokens that the official client stores."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Official:
    """The official client, and the person at its browser."""

    def __init__(self, server: InProcessServer, browser: httpx.AsyncClient, path: str = "/mcp", **more: Any) -> None:
        self.storage = Storage()
        self.asked: list[dict[str, str]] = []
        self.url = server.url + path
        self._browser = browser
        self._answer: dict[str, str] = {}
        metadata = OAuthClientMetadata(client_name="Official", redirect_uris=[AnyUrl(REDIRECT)])
        self.auth = OAuthClientProvider(self.url, metadata, self.storage, self._open_browser, self._callback, **more)

    async def _open_browser(self, url: str) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.asked.append(query)
        self._answer = await decide(self._browser, query)

    async def _callback(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=self._answer["code"], state=self._answer["state"], iss=self._answer["iss"])

    @contextlib.asynccontextmanager
    async def connected(self, **more: Any) -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(auth=self.auth, timeout=20) as http,
            Client(streamable_http_client(self.url, http_client=http), **more) as mcp,
        ):
            yield mcp


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_gets_access_uses_it_renews_it_and_loses_it(
    strict: InProcessServer, mode: str
) -> None:
    async with signed_in(strict.url) as browser:
        official = Official(strict, browser)
        async with official.connected(mode=mode) as mcp:
            assert {"read_file", "write_file"} <= {tool.name for tool in (await mcp.list_tools()).tools}
            written = await mcp.call_tool("write_file", {"path": "a.md", "content": "En taro Adun"})
            assert not written.is_error, written
        assert len(official.asked) == 1
        first = official.storage.tokens
        assert first is not None
        official.auth.context.token_expiry_time = 1
        async with official.connected(mode=mode) as mcp:
            found = await mcp.call_tool("read_file", {"path": "a.md"})
            assert not found.is_error, found
        assert official.storage.tokens is not None
        assert official.storage.tokens.refresh_token != first.refresh_token
        assert len(official.asked) == 1, "renewed without the person"

        [item] = (await browser.get("/api/grants")).json()["items"]
        assert (item["clientName"], item["redirectHost"], item["resource"], item["scopes"]) == (
            "Official", "127.0.0.1:4567", official.url, ["khala:read", "khala:write"],
        )  # fmt: skip
        assert (await browser.delete(f"/api/grants/{item['id']}")).status_code == 204
        async with official.connected(mode=mode) as mcp:
            await mcp.list_tools()
        assert len(official.asked) == 2, "asks the person again"
        actions = [entry["action"] for entry in (await browser.get("/api/me/audit")).json()["items"]]
        assert actions[:3] == ["app_allowed", "app_revoked", "app_allowed"]


async def test_where_oauth_is_optional_a_guest_lists_tools_and_is_refused_as_before(server: InProcessServer) -> None:
    async with signed_in(server.url) as browser:
        official = Official(server, browser)
        async with official.connected(mode="legacy") as mcp:
            assert "run_code" not in {tool.name for tool in (await mcp.list_tools()).tools}
            with pytest.raises(MCPError) as refused:
                await mcp.call_tool("todo_list", {})
            assert refused.value.code == tool_calls.NEEDS_ACCOUNT
        assert official.asked == []
        guest = await call(server, "/mcp", "todo_list", {})
        assert (guest.status_code, '"code":-32050' in guest.text) == (200, True)


async def test_a_client_of_one_group_has_no_access_to_another(strict: InProcessServer) -> None:
    async with signed_in(strict.url) as browser:
        official = Official(strict, browser, "/mcp/tasks")
        async with official.connected(mode="legacy") as mcp:
            assert not (await mcp.call_tool("todo_list", {})).is_error
        assert official.asked[0]["resource"] == f"{strict.url}/mcp/tasks"
        assert official.storage.tokens is not None
        headers = bearer(official.storage.tokens.access_token)
        statuses = {
            path: await call(strict, path, "todo_list", headers) for path in ("/mcp/tasks", "/mcp", "/mcp/core")
        }
        assert {path: answer.status_code for path, answer in statuses.items()} == {
            "/mcp/tasks": 200, "/mcp": 401, "/mcp/core": 401,
        }  # fmt: skip
        whole = await grant(browser, await register(browser, strict.url), resource=f"{strict.url}/mcp")
        answer = await call(strict, "/mcp/tasks", "todo_list", bearer(whole["access_token"]))
        assert answer.status_code == 200, "the grant for all tools covers each group"


async def test_a_person_may_withhold_changes_and_a_call_then_asks_for_them(server: InProcessServer) -> None:
    async with signed_in(server.url) as browser:
        program = await register(browser, server.url)
        code = (await decide(browser, program.query(), write=False))["code"]
        tokens = (await browser.post("/oauth/token", data=program.code_form(code))).json()
        assert tokens["scope"] == "khala:read"
        headers = bearer(tokens["access_token"])
        assert (await call(server, "/mcp", "todo_list", headers)).status_code == 200
        refused = await call(server, "/mcp", "todo_add", headers)
        assert refused.status_code == 403
        assert refused.headers["www-authenticate"] == (
            'Bearer error="insufficient_scope", scope="khala:read khala:write", '
            f'resource_metadata="{server.url}/.well-known/oauth-protected-resource/mcp"'
        )
        unknown = await call(server, "/mcp", "no_such_tool", headers)
        assert (unknown.status_code, "Unknown tool" in unknown.text) == (200, True)


async def test_the_metadata_name_the_address_of_the_request(server: InProcessServer) -> None:
    for path, resource in {"": "/mcp", "/mcp": "/mcp", "/mcp/files": "/mcp/files"}.items():
        metadata = (await server.http.get(f"/.well-known/oauth-protected-resource{path}")).raise_for_status().json()
        assert (metadata["resource"], metadata["authorization_servers"]) == (server.url + resource, [server.url])
    assert (await server.http.get("/.well-known/oauth-protected-resource/mcp/none")).status_code == 404
    for path in ("oauth-authorization-server", "openid-configuration"):
        metadata = (await server.http.get(f"/.well-known/{path}")).raise_for_status().json()
        assert metadata["issuer"] == server.url
        assert metadata["code_challenge_methods_supported"] == ["S256"]
    invalid = await call(server, "/mcp/files", "read_file", bearer("khala_mcp_a.b"))
    assert (invalid.status_code, invalid.headers["www-authenticate"]) == (
        401,
        'Bearer error="invalid_token", scope="khala:read khala:write", '
        f'resource_metadata="{server.url}/.well-known/oauth-protected-resource/mcp/files"',
    )


async def test_a_public_url_and_a_trusted_proxy_decide_the_addresses(
    strict: InProcessServer, postgres_url: str, template: str
) -> None:
    more = {"KHALA_PUBLIC_URL": "https://chat.example.com", "KHALA_HOSTS": "*"}
    async with shared(postgres_url, template, with_executor=False, **more) as behind:
        metadata = (await behind.http.get("/.well-known/oauth-protected-resource/mcp")).json()
        assert metadata["resource"] == "https://chat.example.com/mcp"
        issuer = (await behind.http.get("/.well-known/oauth-authorization-server")).json()
        assert issuer["token_endpoint"] == "https://chat.example.com/oauth/token"
    forwarded = {"X-Forwarded-Proto": "https"}
    metadata = (await strict.http.get("/.well-known/oauth-protected-resource/mcp", headers=forwarded)).json()
    assert metadata["resource"] == strict.url.replace("http:", "https:") + "/mcp"


async def test_switched_off_there_is_no_oauth(postgres_url: str, template: str) -> None:
    async with shared(postgres_url, template, with_executor=False, KHALA_MCP_OAUTH="off") as off:
        for method, path in (
            ("GET", "/.well-known/oauth-protected-resource"), ("GET", "/.well-known/oauth-authorization-server"),
            ("GET", "/oauth/authorize"), ("POST", "/oauth/authorize"), ("POST", "/oauth/token"),
            ("POST", "/oauth/register"), ("POST", "/oauth/revoke"),
        ):  # fmt: skip
            assert (await off.http.request(method, path)).status_code == 404, path
        refused = await call(off, "/mcp", "todo_list", bearer("khala_mcp_a.b"))
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        guest = await call(off, "/mcp", "todo_list", {})
        assert (guest.status_code, '"code":-32050' in guest.text) == (200, True)


async def call(server: InProcessServer, path: str, tool: str, headers: dict[str, str]) -> httpx.Response:
    """The response to a tool call without arguments."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    accept = {"Accept": "application/json, text/event-stream"}
    return await server.http.post(path, json=body, headers=accept | headers)
