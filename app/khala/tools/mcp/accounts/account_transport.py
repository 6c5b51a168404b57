"""Sends the requests of one account's session, with its access token and to its server alone."""

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from khala.domain.errors import KhalaError
from khala.tools.mcp.accounts.account_tokens import AccessToken, AccountTokens
from khala.tools.mcp.accounts.authorization_http import origin
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.oauth import AuthorizationError, DeniedRequestError


class AccountTransport(httpx2.AsyncBaseTransport):
    """Adds the account's token to each request, and renews it once if the server refuses a request with 401."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server: McpServerConfig, tokens: AccountTokens) -> None:
        self._inner = inner
        self._name = server.name
        self._origin = origin(server.url or "")
        self._tokens = tokens

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request. Raises `AuthorizationError` without a valid token, or with one of too few scopes."""
        if origin(str(request.url)) != self._origin:
            raise AuthorizationError("The server redirects to another address, which gets no token.")
        try:
            return await self._authorized(request)
        except KhalaError as error:
            raise AuthorizationError(error.message) from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()

    async def _authorized(self, request: httpx2.Request) -> httpx2.Response:
        token = await self._tokens.current()
        response = await self._send(request, token)
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            await response.aclose()
            token = await self._tokens.renewed(token.version)
            response = await self._send(request, token)
            if response.status_code == httpx2.codes.UNAUTHORIZED:
                await response.aclose()
                await self._tokens.expire(token.version)
                raise DeniedRequestError(f"{self._name} refuses the token that it has just got.")
        if response.status_code == httpx2.codes.FORBIDDEN:
            await self._check_scope(response)
        return response

    async def _send(self, request: httpx2.Request, token: AccessToken) -> httpx2.Response:
        request.headers["Authorization"] = f"Bearer {token.text}"
        return await self._inner.handle_async_request(request)

    async def _check_scope(self, response: httpx2.Response) -> None:
        """Raise `DeniedRequestError` if the server wants further scopes (RFC 6750, section 3.1)."""
        if extract_field_from_www_auth(response, "error") != "insufficient_scope":
            return
        await response.aclose()
        scope = extract_scope_from_www_auth(response)
        if scope is not None:
            await self._tokens.add_missing_scope(scope)
        raise DeniedRequestError(
            f"{self._name} requires further permissions. The account has to be connected again in Settings."
        )
