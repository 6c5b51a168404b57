"""MCP servers that require an access token: Khala gets it from a real authorization server, as a client of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import jwt
import pytest
import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

from khala.tools.mcp import McpServerConfig
from khala.tools.mcp.oauth import AuthorizationError, OAuthTransport
from khala.tools.mcp.oauth_config import McpOAuthConfig
from tests.support import mcp_server
from tests.support.mcp_client import connected, eventually, state, use
from tests.support.oidc import provider as oidc
from tests.support.oidc.provider import AUDIENCE, SECRET, RealProvider
from tests.support.ports import free_port


class Verifier:
    """Verifies the tokens of the issuer with its current keys."""

    def __init__(self, issuer: str, resource: str) -> None:
        self._issuer = issuer
        self._resource = resource

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx.AsyncClient() as http:
            keys = jwt.PyJWKSet.from_dict((await http.get(f"{self._issuer}/jwks")).json())
        try:
            key = keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(token, key, audience=AUDIENCE, issuer=self._issuer)
        except (jwt.InvalidTokenError, KeyError):
            return None
        return AccessToken(token=token, client_id=claims["client_id"], scopes=["api"], resource=self._resource)


@pytest.fixture(scope="module")
def issuer() -> Iterator[RealProvider]:
    with oidc.running() as provider:
        yield provider


@asynccontextmanager
async def protected(journal: Path, issuer: str, named_issuer: str | None = None) -> AsyncIterator[str]:
    """The address of an MCP server that takes tokens of the issuer, and names it or another one."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    settings = {"issuer_url": named_issuer or issuer, "resource_server_url": url, "required_scopes": ["api"]}
    auth = AuthSettings.model_validate(settings | {"validate_token_resource": True})
    app = mcp_server.made(journal).streamable_http_app(auth=auth, token_verifier=Verifier(issuer, url))
    served = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=0))
    task = asyncio.create_task(served.serve())
    try:
        await eventually(lambda: served.started)
        yield url
    finally:
        served.should_exit = True
        await task


def client(url: str, issuer: str, **changes: Any) -> McpServerConfig:
    settings = {"client_id": "khala-machine", "client_secret": SECRET, "issuer": issuer} | changes
    return McpServerConfig(name="peculiar", url=url, oauth=McpOAuthConfig(**settings))


async def test_a_token_is_obtained_once_and_again_when_the_server_refuses_it(
    tmp_path: Path, issuer: RealProvider
) -> None:
    before = issuer.answered("/token")
    async with (
        protected(tmp_path / "journal", issuer.issuer) as url,
        connected(client(url, issuer.issuer)) as connections,
    ):
        echoes = (use(connections, "peculiar__echo", text=str(number)) for number in range(5))
        assert [answer.output for answer in await asyncio.gather(*echoes)] == list("01234")
        assert issuer.answered("/token") - before == 1
        issuer.rotate_keys()
        echoes = (use(connections, "peculiar__echo", text=str(number)) for number in range(5))
        assert [answer.output for answer in await asyncio.gather(*echoes)] == list("01234")
        assert issuer.answered("/token") - before == 2


async def test_a_refused_client_and_a_foreign_issuer_get_no_tools(tmp_path: Path, issuer: RealProvider) -> None:
    async def error(url: str, **changes: Any) -> str | None:
        async with connected(client(url, issuer.issuer, **changes), ready=False) as connections:
            await eventually(lambda: state(connections).state == "failed", connections)
            assert connections.tools() == {}
            return state(connections).error

    async with protected(tmp_path / "journal", issuer.issuer) as url:
        refused = await error(url, client_secret="wrong")
        assert refused == "The authorization server gives no access token for this server."
    before = issuer.answered("/token")
    async with protected(tmp_path / "journal", issuer.issuer, f"http://127.0.0.1:{free_port()}") as url:
        assert "not among the allowed origins" in (await error(url) or "")
    assert issuer.answered("/token") == before, "the secret was sent nowhere"


async def test_a_server_cannot_make_khala_send_requests_elsewhere() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        challenge = 'Bearer resource_metadata="http://169.254.169.254/latest/meta-data"'
        return httpx2.Response(401, headers={"WWW-Authenticate": challenge})

    oauth = McpOAuthConfig(client_id="khala", client_secret="secret", issuer="https://login.example.com")
    transport = OAuthTransport(httpx2.MockTransport(answer), "https://tools.example.com/mcp", oauth)
    with pytest.raises(AuthorizationError, match="not among the allowed origins"):
        await transport.handle_async_request(httpx2.Request("POST", "https://tools.example.com/mcp", content=b"{}"))
    assert asked == ["https://tools.example.com/mcp"]
