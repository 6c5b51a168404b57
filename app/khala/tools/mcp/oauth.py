"""Access tokens for configured servers that require them, by the OAuth client of the MCP library.

Khala is a client of its own (client credentials), which the operator has registered with an authorization server.
Tokens are in memory alone, and renewed when the MCP server refuses them.
"""

import asyncio
from contextlib import aclosing
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from khala.tools.mcp.oauth_config import McpOAuthConfig

TIMEOUTS: dict[str, float] = dict.fromkeys(("connect", "read", "write", "pool"), 10.0)
"""Seconds for each step of a request to an authorization server."""
MAX_RESPONSE_BYTES = 1 << 20
"""Bytes of a response of an authorization server."""
MAX_FLOW_REQUESTS = 20
"""Requests of one attempt to get a token."""


class AuthorizationError(Exception):
    """No access token was obtained. The message contains no text of a server."""


class DeniedRequestError(AuthorizationError):
    """A request is not possible with the account: it is not connected any more, or has too few scopes.

    The session may go on. The message contains no text of a server.
    """


class OAuthTransport(httpx2.AsyncBaseTransport):
    """Sends requests with an access token, and gets another one when the MCP server refuses the request with 401.

    Requests for a token go only to the origins of the MCP server, of the issuer, and of `origins`: the MCP server,
    which names others, is not trusted to choose. The library's client holds a lock until it gets the response to its
    request. Here it gets the refusal, and the request is sent again without the lock: calls do not wait for each other.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, url: str, oauth: McpOAuthConfig) -> None:
        self._inner = inner
        self._provider = ClientCredentialsOAuthProvider(
            url,
            _MemoryStorage(),
            oauth.client_id or "",
            oauth.client_secret or "",
            token_endpoint_auth_method=oauth.auth_method,
            scope=oauth.scope,
            issuer=oauth.issuer,
        )
        self._origins = {_origin(one) for one in (url, oauth.issuer or url, *oauth.origins)}
        self._renewal = asyncio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request. Raises `AuthorizationError` if it needs a token, and none can be had."""
        used = self._authorize(request)
        response = await self._inner.handle_async_request(request)
        if response.status_code != httpx2.codes.UNAUTHORIZED:
            return response
        await response.aclose()
        async with self._renewal:
            if self._authorize(request) in (None, used):
                await self._renew(request, response.headers)
        self._authorize(request)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()

    def _authorize(self, request: httpx2.Request) -> str | None:
        """Add the current token to the request. Return it, or None if there is none or it has expired."""
        context = self._provider.context
        if context.current_tokens is None or not context.is_token_valid():
            return None
        token = context.current_tokens.access_token
        request.headers["Authorization"] = f"Bearer {token}"
        return token

    async def _renew(self, request: httpx2.Request, challenge: httpx2.Headers) -> None:
        """Get another token, as the refusal of the request says."""
        refusal = httpx2.Response(httpx2.codes.UNAUTHORIZED, headers=challenge, request=request)
        is_refused = False
        try:
            async with aclosing(self._provider.async_auth_flow(request)) as flow:
                wanted = await anext(flow)
                for _ in range(MAX_FLOW_REQUESTS):
                    if wanted is request and is_refused:
                        return
                    is_refused = is_refused or wanted is request
                    wanted = await flow.asend(refusal if wanted is request else await self._send(wanted))
        except (OAuthFlowError, StopAsyncIteration, ValidationError, httpx2.HTTPError, OSError) as error:
            raise AuthorizationError("The authorization server gives no access token for this server.") from error
        raise AuthorizationError("The authorization server sends too many redirects.")

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request for a token, or for the metadata of a server."""
        if _origin(str(request.url)) not in self._origins:
            raise AuthorizationError("The server names an authorization server that is not among the allowed origins.")
        request.extensions["timeout"] = TIMEOUTS
        response = await self._inner.handle_async_request(request)
        body = bytearray()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        try:
            async for chunk in response.stream:
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise AuthorizationError("The response of the authorization server is too large.")
        finally:
            await response.aclose()
        headers = [(name, value) for name, value in response.headers.items() if name != "content-length"]
        return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)


def _origin(url: str) -> tuple[str, str, int | None]:
    split = urlsplit(url)
    default = {"http": 80, "https": 443}.get(split.scheme)
    return split.scheme, split.hostname or "", split.port or default


class _MemoryStorage:
    """Stores nothing: the provider itself has the tokens."""

    async def get_tokens(self) -> OAuthToken | None:
        """There are no earlier tokens."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """The provider has them."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client is configured."""
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """The client is configured."""
