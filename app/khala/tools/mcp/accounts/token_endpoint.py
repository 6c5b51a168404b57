"""Requests to the token and revocation endpoints of an authorization server (RFC 6749, RFC 7009)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from mcp.shared.auth import OAuthToken
from pydantic import ValidationError

from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, ClientCredentials, ConnectError

log = structlog.get_logger()

MAX_TOKEN_CHARACTERS = 16 * 1024
MAX_SCOPE_CHARACTERS = 4096
MAX_LIFETIME_SECONDS = 10 * 365 * 86_400
REFUSALS = range(400, 404)
"""Statuses by which an endpoint refuses a request. Any other failure may go away."""
GRANT_ENDED = ("invalid_grant", "bad_refresh_token")
"""Error codes of a code or a refresh token that is not valid any more: that of RFC 6749, and that of GitHub."""
CLIENT_UNKNOWN = ("invalid_client", "unauthorized_client", "incorrect_client_credentials")
"""Error codes of a client or a secret that is not valid: those of RFC 6749, and that of GitHub."""
TEMPORARY = ("temporarily_unavailable", "server_error", "slow_down")
"""Error codes of failures that may go away."""
MAX_LOGGED_CHARACTERS = 40
REFRESH_BEFORE_SECONDS = 60.0
"""An access token is refreshed so long before it expires, but at most a quarter of its lifetime."""


class TokenRefusedError(ConnectError):
    """The authorization server refuses the request. `code` is its error code (RFC 6749, section 5.2), if it has one.

    `is_answer`: whether the endpoint itself refuses. A status without an error code may be that of a proxy before it.
    """

    def __init__(self, message: str, code: str | None, *, is_answer: bool) -> None:
        super().__init__(message)
        self.code = code
        self.is_answer = is_answer

    @property
    def of_grant(self) -> bool:
        """Whether the code or the refresh token is not valid any more."""
        return self.code in GRANT_ENDED

    @property
    def of_client(self) -> bool:
        """Whether the authorization server does not know Khala as a client, or not by this secret."""
        return self.code in CLIENT_UNKNOWN


class IssuedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of an authorization server. Without a `refresh_token`, the earlier one stays valid."""

    access_token: str
    refresh_token: str | None
    scope: str | None
    expires_at: datetime | None
    refresh_at: datetime | None
    """When to refresh the access token: a minute before it expires, or after 3/4 of a lifetime under 4 minutes."""


async def request_tokens(
    http: AuthorizationHttp, url: str, client: ClientCredentials, form: Mapping[str, str], name: str
) -> IssuedTokens:
    """Exchange a code or a refresh token at this endpoint. `name` is that of the MCP server.

    Raises `TokenRefusedError`, or `ConnectError` if it may succeed later.
    """
    response = await http.post_form(url, client, form)
    if response.status != 200 and response.status not in REFUSALS:
        raise ConnectError(f"The authorization server of {name} gives no token now.")
    fields = _fields(response.body)
    # Some issuers refuse with the status 200, and an error in place of a token.
    is_refused = fields is not None and bool(fields.get("error") or not fields.get("access_token"))
    if is_refused or response.status in REFUSALS:
        raise _refusal(response.status, fields or {}, form["grant_type"], name)
    try:
        return _issued(OAuthToken.model_validate_json(response.body))
    except (ValidationError, ValueError) as error:
        raise ConnectError(f"The authorization server of {name} gives no valid token.") from error


async def revoke_all(
    http: AuthorizationHttp, url: str, client: ClientCredentials, access_token: str, refresh_token: str | None
) -> bool:
    """Revoke a refresh token, and then the access token, as not every server ends the one with the other.

    Returns whether the server has, or else refuses to. Raises `ConnectError` for a failure.
    """
    done = True
    if refresh_token is not None:
        done = await revoke(http, url, client, refresh_token, "refresh_token")
    return await revoke(http, url, client, access_token, "access_token") and done


async def revoke(http: AuthorizationHttp, url: str, client: ClientCredentials, token: str, hint: str) -> bool:
    """Revoke a token. Returns whether the server has, or else refuses to. Raises `ConnectError` for a failure."""
    response = await http.post_form(url, client, {"token": token, "token_type_hint": hint})
    if response.status != 200 and response.status not in REFUSALS:
        raise ConnectError("The authorization server can't revoke tokens now.")
    return response.status == 200


def bounded_scope(scope: str) -> str:
    """As many of these scopes as may be stored."""
    if len(scope) <= MAX_SCOPE_CHARACTERS:
        return scope
    # The last one may be cut, unless the bound is between two.
    return scope[: MAX_SCOPE_CHARACTERS + 1].rpartition(" ")[0]


def _issued(token: OAuthToken) -> IssuedTokens:
    """The tokens, which fit into a header. Raises `ValueError`."""
    for text in (token.access_token, token.refresh_token):
        if text is not None and not (1 <= len(text) <= MAX_TOKEN_CHARACTERS and text.isascii() and text.isprintable()):
            raise ValueError("the token is no text of a header")
    seconds = None if token.expires_in is None else min(max(token.expires_in, 0), MAX_LIFETIME_SECONDS)
    now = datetime.now(UTC)
    refreshed_after = None if seconds is None else max(seconds - REFRESH_BEFORE_SECONDS, seconds * 0.75)
    return IssuedTokens(
        access_token=token.access_token,
        refresh_token=token.refresh_token,
        scope=None if token.scope is None else bounded_scope(token.scope),
        expires_at=None if seconds is None else now + timedelta(seconds=seconds),
        refresh_at=None if refreshed_after is None else now + timedelta(seconds=refreshed_after),
    )


def _refusal(status: int, fields: Mapping[str, object], grant: str, name: str) -> ConnectError:
    code = _error_code(fields)
    if code in TEMPORARY:
        return ConnectError(f"The authorization server of {name} gives no token now.")
    log.info("mcp_token_refused", server=name, grant=grant, status=status, error=code)
    refused = f"The authorization server of {name} refuses Khala's request for a token."
    return TokenRefusedError(refused, code, is_answer=status == 200 or "error" in fields)


def _fields(body: bytes) -> dict[str, object] | None:
    """The fields of a response; None if it is no JSON object."""
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _error_code(fields: Mapping[str, object]) -> str | None:
    """The error code of RFC 6749, section 5.2. The description is not logged: it may repeat a secret."""
    code = fields.get("error")
    return code[:MAX_LOGGED_CHARACTERS] if isinstance(code, str) and code.replace("_", "").isalnum() else None
