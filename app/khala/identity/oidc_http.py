"""HTTP client of an OpenID Provider: limits time and size, follows no redirects, and raises Khala's own errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar
from urllib.parse import quote_plus

import httpx2
import msgspec
from authlib.common.urls import add_params_to_uri
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oauth2.auth import encode_client_secret_basic

from khala.domain.errors import Unauthorized, Unavailable

CALL_TIMEOUT_SECONDS = 10.0
"""Timeout of a whole call, from the first byte sent to the last one read."""
MAX_RESPONSE_BYTES = 1024 * 1024
"""Bytes of a response."""
RETRY_AFTER_SECONDS = 10.0
"""Seconds until a retry after the provider was unavailable."""
TOKEN_ERRORS = (200, 400, 401, 403)
"""Statuses of a token endpoint that concern the code. Any other means that the provider is unavailable."""
CLIENT_ERRORS = ("invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_request")
"""Errors of a token endpoint (RFC 6749, section 5.2) that concern this client, so that a new sign-in won't help."""

T = TypeVar("T")


class ProviderEndpoints(msgspec.Struct, frozen=True):
    """The used fields of a discovery document (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class TokenResponse(msgspec.Struct, frozen=True):
    """The response of a token endpoint to a code."""

    id_token: str | None = None
    access_token: str | None = None


class OidcHttpClient:
    """Calls one provider as one client. `name` is the provider's name for people."""

    def __init__(self, name: str, client_id: str, client_secret: str | None) -> None:
        self._name = name
        self._client = AsyncOAuth2Client(
            client_id=client_id,
            client_secret=client_secret,
            code_challenge_method="S256",
            timeout=CALL_TIMEOUT_SECONDS / 2,
            follow_redirects=False,
            headers={"accept-encoding": "identity"},
            event_hooks={"response": [_bounded]},
        )
        self._client.register_client_auth_method(("client_secret_basic", _client_secret_basic))
        self._client.register_compliance_hook("access_token_response", _token_endpoint_response)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def fetch(self, url: str, kind: type[T], *, access_token: str | None = None) -> T:
        """The JSON document at `url`, decoded. Raises Unavailable for anything else."""
        headers = {"accept": "application/json"}
        if access_token is not None:
            headers["authorization"] = f"Bearer {access_token}"
        response = await self._bounded(self._client.request("GET", url, headers=headers, withhold_token=True))
        if response.status_code != httpx2.codes.OK:
            raise self.unavailable() from ValueError(f"status {response.status_code} at {url}")
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.unavailable() from error

    def authorization_url(self, endpoint: str, verifier: str, **parameters: str) -> str:
        """The URL for signing in (RFC 6749, section 4.1.1, with PKCE by RFC 7636)."""
        url, _ = self._client.create_authorization_url(endpoint, code_verifier=verifier, **parameters)
        return str(url)

    def end_session_url(self, endpoint: str, **parameters: str) -> str:
        """The URL for signing out (RP-Initiated Logout 1.0, section 2)."""
        return str(add_params_to_uri(endpoint, [("client_id", self._client.client_id), *parameters.items()]))

    async def exchange_code(self, endpoints: ProviderEndpoints, **parameters: str) -> TokenResponse:
        """The tokens for an authorization code. Raises Unauthorized if the provider rejects it."""
        method = self._method(endpoints.token_endpoint_auth_methods_supported)
        parameters |= {"url": endpoints.token_endpoint, "grant_type": "authorization_code"}
        try:
            tokens = await self._bounded(self._client.fetch_token(auth=self._client.client_auth(method), **parameters))
            self._client.token = None  # All users share the client, so it must not hold tokens.
            return msgspec.convert(dict(tokens), TokenResponse)
        except OAuthError as error:
            if error.error in CLIENT_ERRORS:
                raise self.unavailable(f"{self._name} does not accept this server.") from error
            raise Unauthorized(f"{self._name} did not accept the sign-in. Please try again.") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise self.unavailable() from error

    def unavailable(self, message: str | None = None, *, retry_after: float = RETRY_AFTER_SECONDS) -> Unavailable:
        """The error for a provider that does not respond as it should."""
        return Unavailable(message or f"{self._name} is unavailable. Try again in a moment.", retry_after=retry_after)

    def _method(self, offered: tuple[str, ...]) -> str:
        """The client's authentication method. RFC 6749 requires every provider to support the first one."""
        if not self._client.client_secret:
            return "none"
        basic = "client_secret_basic" in offered or "client_secret_post" not in offered
        return "client_secret_basic" if basic else "client_secret_post"

    async def _bounded(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                return await call
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError) as error:
            raise self.unavailable() from error


async def _bounded(response: httpx2.Response) -> None:
    """Limit the size of the response. A compressed one is refused, because the limit applies to received bytes."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("the response is compressed, which was not requested", request=response.request)
    response.stream = _BoundedStream(response)


def _token_endpoint_response(response: httpx2.Response) -> httpx2.Response:
    return response if response.status_code in TOKEN_ERRORS else response.raise_for_status()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        self._response, self._stream = response, response.stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._stream, httpx2.AsyncByteStream)
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_RESPONSE_BYTES:
                raise httpx2.ReadError("the response is too large", request=self._response.request)
            yield chunk

    async def aclose(self) -> None:
        assert isinstance(self._stream, httpx2.AsyncByteStream)
        await self._stream.aclose()


class _Quoted(msgspec.Struct, frozen=True):
    client_id: str
    client_secret: str


def _client_secret_basic(client: Any, method: str, uri: str, headers: Any, body: Any) -> Any:
    """Basic authentication, form-encoded by RFC 6749, section 2.3.1, so that a secret may have any character."""
    quoted = _Quoted(quote_plus(client.client_id), quote_plus(client.client_secret))
    return encode_client_secret_basic(quoted, method, uri, headers, body)
