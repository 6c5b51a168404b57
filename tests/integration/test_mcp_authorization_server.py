"""An authorization server of the operator: MCP clients use its tokens, if they are for Khala's MCP server."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.settings import SettingError, from_environment
from tests.support.in_process import InProcessServer
from tests.support.oauth import bearer
from tests.support.oidc.forger import Forger, forging
from tests.support.ports import free_port
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

PORT = free_port()
HOME = f"http://127.0.0.1:{PORT}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer() -> AsyncIterator[Forger]:
    async with forging() as forger:
        yield forger


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, issuer: Forger) -> AsyncIterator[InProcessServer]:
    settings = {"PORT": str(PORT), "KHALA_PUBLIC_URL": HOME, "KHALA_MCP_AUTHORIZATION_SERVER": issuer.url}
    async with shared(postgres_url, template, with_executor=False, **settings) as inside:
        yield inside


async def status(
    server: InProcessServer, token: str, tool: str = "todo_list", path: str = "/mcp"
) -> tuple[int, Mapping[str, str]]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    headers = {"Accept": "application/json, text/event-stream"} | bearer(token)
    answer = await server.http.post(path, json=body, headers=headers)
    return answer.status_code, answer.headers


async def test_the_metadata_name_the_authorization_server_and_khala_issues_nothing(
    server: InProcessServer, issuer: Forger
) -> None:
    metadata = (await server.http.get("/.well-known/oauth-protected-resource/mcp")).json()
    assert metadata["authorization_servers"] == [issuer.url]
    for method, path in (
        ("GET", "/.well-known/oauth-authorization-server"), ("GET", "/oauth/authorize"), ("POST", "/oauth/register"),
        ("POST", "/oauth/token"),
    ):  # fmt: skip
        assert (await server.http.request(method, path)).status_code == 404, path


async def test_only_a_token_for_this_mcp_server_is_accepted(server: InProcessServer, issuer: Forger) -> None:
    def token(**changed: Any) -> str:
        claims = {"sub": str(ids.new()), "aud": f"{HOME}/mcp", "scope": "khala:write", "nonce": None} | changed
        return issuer.signed(**claims)

    assert (await status(server, token()))[0] == 200
    assert (await status(server, token(aud=[f"{HOME}/mcp", "other"], azp="client")))[0] == 200
    assert (await status(server, token(), path="/mcp/tasks"))[0] == 200, "for all groups"
    of_group = token(aud=f"{HOME}/mcp/tasks")
    assert ((await status(server, of_group, path="/mcp/tasks"))[0], (await status(server, of_group))[0]) == (200, 401)
    assert (await status(server, token(header={"typ": "at+jwt"})))[0] == 200
    for wrong in (
        token(aud=HOME), token(aud="https://other.example.com/mcp"), token(iss="https://other.example.com"),
        token(exp=1), token(header={"typ": "logout+jwt"}), "nonsense", "a.b.c", token()[:-2] + "xx",
    ):  # fmt: skip
        code, headers = await status(server, wrong)
        assert (code, 'error="invalid_token"' in headers["www-authenticate"]) == (401, True), wrong
    assert (await server.http.get("/api/me", headers=bearer(token()))).status_code == 401, "not for REST"


async def test_the_scopes_of_the_token_decide(server: InProcessServer, issuer: Forger) -> None:
    def token(scope: Any) -> str:
        return issuer.signed(aud=f"{HOME}/mcp", nonce=None, scope=scope)

    assert (await status(server, token("khala:read")))[0] == 200
    for scope in ("khala:read", "openid", None, ["khala:write"]):
        code, headers = await status(server, token(scope), "todo_add")
        assert (code, 'error="insufficient_scope"' in headers["www-authenticate"]) == (403, True), scope


async def test_the_setting_needs_the_public_url() -> None:
    with pytest.raises(SettingError, match="KHALA_PUBLIC_URL"):
        from_environment({"KHALA_MCP_AUTHORIZATION_SERVER": "https://login.example.com"})
