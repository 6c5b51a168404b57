"""An MCP server that requires tokens of people, and its authorization server: both of the published MCP library.

Run as `python -m tests.support.mcp_accounts PORT PORT` for a process of its own. It prints a line when it is ready.

The authorization server signs in `person` without asking, and its metadata can be changed. The tools say for whom they
were called. The refresh tokens rotate: one that is used twice ends the grant, as at careful issuers.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import mcp_types as types
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    ProviderTokenVerifier,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import build_metadata, create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from khala.domain import ids
from tests.support.mcp_client import eventually
from tests.support.ports import free_port

NOTHING = {"type": "object", "properties": {}}
PRIVILEGED = b"privileged"
"""A tool that requires the scope `admin`."""


class Issuer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The authorization server. `counts` has the requests of each kind, and `subjects` the person of each token."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.person = "alice"
        self.error: str | None = None
        self.lifetime = 3600
        self.delay = 0.0
        self.token_answer: dict[str, Any] | None = None
        """With the status 200, in place of tokens. `answered` counts them."""
        self.answered = 0
        self.returned_issuer: str | None = issuer
        self.asked: list[AuthorizationParams] = []
        self.refreshes = 0
        self.reused = 0
        self.revoked: list[str] = []
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self._refresh: dict[str, RefreshToken] = {}
        self._used: dict[str, RefreshToken] = {}
        scopes = ["read", "admin"]
        options = ClientRegistrationOptions(enabled=True, valid_scopes=scopes, default_scopes=scopes)
        self._options = options, RevocationOptions(enabled=True)
        built = build_metadata(AnyHttpUrl(issuer), None, *self._options)
        self.metadata: dict[str, Any] = json.loads(built.model_dump_json(exclude_none=True)) | {
            "issuer": issuer,
            "authorization_response_iss_parameter_supported": True,
            # The library revokes tokens of no client that sends its secret in a header.
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def routes(self) -> list[Route]:
        async def metadata(_: object) -> JSONResponse:
            return JSONResponse(self.metadata)

        own = Route("/.well-known/oauth-authorization-server", endpoint=metadata)
        routes = create_auth_routes(self, AnyHttpUrl(self.issuer), None, *self._options)
        for route in routes:
            if route.path == "/token":
                route.app = self._answering(route.app)
        return [own, *routes]

    def _answering(self, token_endpoint: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if self.token_answer is None:
                await token_endpoint(scope, receive, send)
            else:
                self.answered += 1
                await JSONResponse(self.token_answer)(scope, receive, send)

        return answer

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.asked.append(params)
        back = str(params.redirect_uri)
        if self.error is not None:
            return construct_redirect_uri(back, error=self.error, state=params.state, iss=self.returned_issuer)
        code = AuthorizationCode(
            code=ids.new_secret(),
            scopes=params.scopes or ["read"],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            subject=self.person,
            **params.model_dump(exclude={"scopes", "state"}),
        )
        self._codes[code.code] = code
        return construct_redirect_uri(back, code=code.code, state=params.state, iss=self.returned_issuer)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        one = authorization_code
        return self._issue(client.client_id, one.scopes, one.subject, one.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        await asyncio.sleep(self.delay)
        if (used := self._used.get(refresh_token)) is not None:
            self.reused += 1
            self._end(used.subject)
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if refresh_token.token not in self._refresh:
            raise TokenError("invalid_grant")
        self.refreshes += 1
        self._used[refresh_token.token] = self._refresh.pop(refresh_token.token)
        return self._issue(client.client_id, scopes, refresh_token.subject, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.revoked.append(token.token)
        self._end(token.subject)

    def end_access_tokens(self) -> None:
        """No access token is valid any more; refresh tokens are."""
        self.access.clear()

    def _issue(self, client_id: str, scopes: list[str], subject: str | None, resource: str | None) -> OAuthToken:
        facts: dict[str, Any] = {"client_id": client_id, "scopes": scopes, "subject": subject, "resource": resource}
        access, refresh = AccessToken(token=ids.new_secret(), **facts), RefreshToken(token=ids.new_secret(), **facts)
        self.access[access.token], self._refresh[refresh.token] = access, refresh
        return OAuthToken(
            access_token=access.token,
            refresh_token=refresh.token,
            expires_in=self.lifetime,
            scope=" ".join(scopes),
        )

    def _end(self, subject: str | None) -> None:
        self.access = {text: one for text, one in self.access.items() if one.subject != subject}
        self._refresh = {text: one for text, one in self._refresh.items() if one.subject != subject}


class PersonalServer:
    """The MCP server. `seen` are the tokens of its requests; `refused` are scopes that the next calls lack."""

    def __init__(self, url: str, issuer: Issuer) -> None:
        self.url = url
        self.issuer = issuer
        self.seen: set[str] = set()

    def app(self) -> ASGIApp:
        async def list_tools(_: ServerRequestContext[Any, Any], __: object) -> types.ListToolsResult:
            hints = types.ToolAnnotations(read_only_hint=True)
            names = ("whoami", PRIVILEGED.decode())
            return types.ListToolsResult(
                tools=[types.Tool(name=name, input_schema=NOTHING, annotations=hints) for name in names]
            )

        async def call_tool(
            _: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
        ) -> types.CallToolResult:
            token = get_access_token()
            who = "nobody" if token is None else token.subject
            return types.CallToolResult(content=[types.TextContent(text=f"{params.name} for {who}")])

        settings = {
            "issuer_url": self.issuer.issuer, "resource_server_url": self.url, "required_scopes": ["read"],
            "validate_token_resource": True,
        }  # fmt: skip
        server = Server("personal", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
        app = server.streamable_http_app(
            auth=AuthSettings.model_validate(settings), token_verifier=ProviderTokenVerifier(self.issuer)
        )
        return self._watching(app)

    def _watching(self, app: ASGIApp) -> ASGIApp:
        """Record tokens, and refuse calls of the privileged tool without its scope, as GitHub's server does."""

        async def watch(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = dict(scope["headers"])
            token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
            if token:
                self.seen.add(token)
            message = await receive()

            async def replay() -> Any:
                nonlocal message
                first, message = message, {}
                return first or await receive()

            issued = self.issuer.access.get(token)
            called = b'"tools/call"' in message.get("body", b"") and PRIVILEGED in message["body"]
            if called and issued is not None and "admin" not in issued.scopes:
                challenge = 'Bearer error="insufficient_scope", scope="admin"'
                await JSONResponse({}, status_code=403, headers={"WWW-Authenticate": challenge})(scope, replay, send)
                return
            await app(scope, replay, send)

        return watch

    async def allow(self, url: str, person: str = "alice") -> str:
        """Open the address as this person, who allows the access; returns where the browser is sent."""
        self.issuer.person = person
        async with httpx.AsyncClient() as http:
            answer = await http.get(url)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]


@asynccontextmanager
async def personal_server(ports: tuple[int, int] | None = None) -> AsyncIterator[PersonalServer]:
    """A running authorization server with its MCP server, at these ports or at free ones.

    At one port, they have the same origin, and only discovery works.
    """
    ports = ports or (free_port(), free_port())
    issuer = Issuer(f"http://127.0.0.1:{ports[0]}")
    server = PersonalServer(f"http://127.0.0.1:{ports[1]}/mcp", issuer)
    if ports[0] == ports[1]:
        async with _served(Starlette(routes=[*issuer.routes(), Mount("/", server.app())]), ports[0]):
            yield server
        return
    async with _served(Starlette(routes=issuer.routes()), ports[0]), _served(server.app(), ports[1]):
        yield server


@asynccontextmanager
async def _served(app: ASGIApp, port: int) -> AsyncIterator[None]:
    served = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=0))
    task = asyncio.create_task(served.serve())
    try:
        await eventually(lambda: served.started)
        yield
    finally:
        served.should_exit = True
        await task


def query(url: str) -> dict[str, str]:
    """The parameters of an address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def main(issuer_port: str, port: str) -> None:
    """Serve until the process is ended."""
    async with personal_server((int(issuer_port), int(port))):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
