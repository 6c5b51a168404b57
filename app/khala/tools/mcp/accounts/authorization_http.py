"""Requests to authorization servers: behind the SSRF guard, with bounds of time and size, and without redirects."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec

from khala.domain.secure_urls import is_secure
from khala.tools.http_client import DEFAULT_PORTS, GuardedClient, GuardedResponse, parse_url, tool_errors
from khala.tools.mcp.config import McpServerConfig
from khala.tools.port import ToolError
from khala.tools.ssrf_guard import IPNetwork, parse_networks

TIMEOUT_SECONDS = 10.0
"""Time for one request, with its response."""
MAX_RESPONSE_BYTES = 1 << 20
ACCEPT = ((b"Accept", b"application/json"), (b"Accept-Encoding", b"identity"))
EVERYWHERE = parse_networks(("0.0.0.0/0", "::/0"))


class ConnectError(Exception):
    """An account could not be connected. The message is for people, and has no text of a server."""


class AuthorizationResponse(msgspec.Struct, frozen=True):
    """A response. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class ClientCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Khala as a client of an authorization server. `auth_method`: how it proves itself at the token endpoint."""

    id: str
    secret: str | None = None
    auth_method: str = "none"


class AuthorizationHttp:
    """Requests on behalf of one configured MCP server.

    All addresses need https, except those of loopback hosts. The addresses that the operator has configured may be
    anywhere: those of the server, of the issuer and of `origins`. Other addresses come from metadata. With a configured
    issuer they are refused; without one, they must be public, or be in a network of `allow`.
    """

    def __init__(self, server: McpServerConfig, *, allow: Sequence[IPNetwork] = ()) -> None:
        oauth = server.oauth
        assert server.url is not None
        assert oauth is not None
        configured = (server.url, *([oauth.issuer] if oauth.issuer else []), *oauth.origins)
        self._name = server.name
        self._has_issuer = oauth.issuer is not None
        self._origins = frozenset(map(origin, configured))
        self._own = GuardedClient(allow=EVERYWHERE)
        self._guarded = GuardedClient(allow=allow)

    async def get(self, url: str) -> AuthorizationResponse:
        """Read metadata. Raises `ConnectError`."""
        return await self._send(url, ACCEPT, None)

    async def post_json(
        self, url: str, body: object, headers: Mapping[str, str] | None = None
    ) -> AuthorizationResponse:
        """Send JSON. Raises `ConnectError`."""
        given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        kind = (b"Content-Type", b"application/json")
        accept = () if any(name.lower() == b"accept" for name, _ in given) else ACCEPT
        return await self._send(url, (kind, *accept, *given), msgspec.json.encode(body))

    async def post_form(self, url: str, client: ClientCredentials, form: Mapping[str, str]) -> AuthorizationResponse:
        """Send a form as this client (RFC 6749, section 2.3.1). Raises `ConnectError`."""
        fields, headers = {**form, "client_id": client.id}, [*ACCEPT]
        if client.auth_method == "client_secret_basic" and client.secret is not None:
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            headers.append((b"Authorization", b"Basic " + b64encode(pair.encode())))
        elif client.auth_method == "client_secret_post" and client.secret is not None:
            fields["client_secret"] = client.secret
        headers.append((b"Content-Type", b"application/x-www-form-urlencoded"))
        return await self._send(url, headers, urlencode(fields).encode())

    async def check(self, url: str) -> None:
        """Raise `ConnectError` if neither Khala nor a browser may be sent to this address."""
        await self._client(url)

    def check_tls(self, url: str) -> None:
        """Raise `ConnectError` for an address without https, unless it is one of a loopback host."""
        if not is_secure(url):
            raise ConnectError(f"{self._name} names an address of an authorization server without https.")

    async def _client(self, url: str) -> tuple[GuardedClient, httpx.URL]:
        """The client for an address, which passes the checks."""
        try:
            parsed = parse_url(url)
            self.check_tls(str(parsed))
            if origin(str(parsed)) in self._origins:
                return self._own, parsed
            if self._has_issuer:
                raise ConnectError(
                    f"{self._name} names an address that belongs neither to it nor to its configured issuer. The "
                    f"operator can allow it with origins."
                )
            await self._guarded.is_in_allowed_network(parsed)
        except ToolError as error:
            raise ConnectError(f"{self._name} names an address that Khala does not use: {error.message}") from error
        except ValueError as error:
            raise ConnectError(f"{self._name} names an address that is not valid.") from error
        return self._guarded, parsed

    async def _send(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], content: bytes | None
    ) -> AuthorizationResponse:
        try:
            with tool_errors(TIMEOUT_SECONDS):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    client, parsed = await self._client(url)
                    opened = client.get(parsed, headers) if content is None else client.post(parsed, headers, content)
                    async with opened as response:
                        return AuthorizationResponse(response.status, response.headers, await self._body(response))
        except ToolError as error:
            raise ConnectError(f"The authorization server of {self._name} can't be reached now.") from error

    async def _body(self, response: GuardedResponse) -> bytes:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return b""  # The answer of an MCP server, which has no end.
        body = bytearray()
        async for chunk in response.body:
            body += chunk
            if len(body) > MAX_RESPONSE_BYTES:
                raise ConnectError(f"The authorization server of {self._name} sends too much.")
        return bytes(body)


def origin(url: str) -> tuple[str, str, int | None]:
    """The scheme, host and port of an address. Raises `ValueError`."""
    split = urlsplit(url)
    return split.scheme, split.hostname or "", split.port or DEFAULT_PORTS.get(split.scheme)
