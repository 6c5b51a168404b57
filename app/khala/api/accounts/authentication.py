"""Authenticates requests and sockets by cookie and headers. Each route then checks the caller's permissions."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Request, WebSocket
from litestar.di import NamedDependency
from litestar.openapi.spec import SecurityScheme
from litestar.params import HeaderParameter

from khala.api.accounts import session_cookie
from khala.api.context import Context
from khala.api.http.request_origin import SAFE_METHODS, Connection, client_network, is_trusted_origin
from khala.domain.access import Caller, key_hash, require_scope
from khala.domain.errors import Unauthorized
from khala.store.accounts import accounts, api_tokens, sessions

SCHEMES = {
    "session": SecurityScheme(
        type="apiKey",
        security_scheme_in="cookie",
        name=session_cookie.COOKIE_NAME,
        description="A signed-in browser. Over TLS, the cookie's name begins with `__Host-`.",
    ),
    "bearer": SecurityScheme(
        type="http", scheme="bearer", description="An API token, or a JWT of the configured OpenID Provider."
    ),
    "anonKey": SecurityScheme(
        type="apiKey",
        security_scheme_in="header",
        name="X-Anon-Key",
        description="The key of an anonymous thread. The client chooses it, or the server returns it once.",
    ),
    "shareKey": SecurityScheme(
        type="apiKey", security_scheme_in="header", name="X-Share-Key", description="The key of a share link."
    ),
}
"""The ways to authenticate, for the OpenAPI document."""
BY_ACCOUNT: list[dict[str, list[str]]] = [{"session": []}, {"bearer": []}]
"""For the OpenAPI document: this operation requires an account."""
BY_ACCOUNT_OR_ANON_KEY: list[dict[str, list[str]]] = [*BY_ACCOUNT, {"anonKey": []}]
"""For the OpenAPI document: this operation requires an account or an anonymous key."""
BY_KEY: list[dict[str, list[str]]] = [*BY_ACCOUNT, {"anonKey": []}, {"shareKey": []}]
"""For the OpenAPI document: this operation requires an account with access, or one of the thread's keys."""

AnonKey = Annotated[str | None, HeaderParameter(name="X-Anon-Key", include_in_schema=False)]
ShareKey = Annotated[str | None, HeaderParameter(name="X-Share-Key", include_in_schema=False)]

MAX_TOKEN_CHARACTERS = 16 * 1024
RETURNS_FROM_PROVIDER = "returns_from_provider"
"""Route option: another site redirects browsers to this route, so that its cookie counts in cross-site requests, too.

The route itself must check that the same browser started the login."""


async def caller(
    request: Request[Any, Any, Any],
    context: NamedDependency[Context],
    anon_key: AnonKey = None,
    share_key: ShareKey = None,
) -> Caller:
    """Return the caller of this request, who may be anonymous. A token must have the scope that the route requires."""
    account = await _account(request, context, returning=bool(request.route_handler.opt.get(RETURNS_FROM_PROVIDER)))
    default_scope = "read" if request.method in SAFE_METHODS else "write"
    require_scope(account, request.route_handler.opt.get("scope", default_scope))
    return with_keys(account, anon_key, share_key)


async def authenticate_socket(socket: WebSocket[Any, Any, Any], context: Context) -> Caller:
    """Return the account of a socket's handshake. Raises `Unauthorized` for an invalid token."""
    return await _account(socket, context)


async def authenticate_request(request: Request[Any, Any, Any], context: Context) -> Caller:
    """Return the account of a request. Raises `Unauthorized` for an invalid token."""
    return await _account(request, context)


def with_keys(account: Caller, anon_key: str | None, share_key: str | None) -> Caller:
    """Return the caller with the keys that they sent."""
    return msgspec.structs.replace(
        account,
        anon_key_hash=key_hash(anon_key) if anon_key else None,
        share_key_hash=key_hash(share_key) if share_key else None,
    )


async def _account(connection: Connection, context: Context, *, returning: bool = False) -> Caller:
    network = client_network(connection, context.origins)
    authorization = connection.headers.get("authorization")
    if authorization is not None:
        account = await authenticate_token(_bearer(authorization), context)
    else:
        is_trusted = returning or is_trusted_origin(connection, context.origins)
        account = (await _authenticate_cookie(connection, context) if is_trusted else None) or Caller()
    return msgspec.structs.replace(account, network=network)


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("Send the header Authorization: Bearer, followed by a token.")
    return token.strip()


async def _authenticate_cookie(connection: Connection, context: Context) -> Caller | None:
    secret = session_cookie.session_secret(connection, context.origins)
    if not secret:
        return None
    async with context.db.driver() as driver:
        return await sessions.find(driver, secret)


async def authenticate_token(token: str, context: Context) -> Caller:
    """Return the account of an API token or of a JWT of the configured issuer. Raises `Unauthorized` if invalid."""
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise Unauthorized("This token is too long.")
    if token.startswith(api_tokens.PREFIX):
        async with context.db.driver() as driver:
            account = await api_tokens.find(driver, token)
    else:
        account = await _authenticate_jwt(token, context)
    if account is None:
        raise Unauthorized("This token is invalid or has expired.")
    return account


async def _authenticate_jwt(token: str, context: Context) -> Caller | None:
    if context.sign_in.provider is None:
        return None
    verified = await context.sign_in.provider.verify(token)
    user_id = await accounts.of_identity(context.db, verified.identity, Caller())
    async with context.db.driver() as driver:
        name = await accounts.name_of(driver, user_id)
    return Caller(user_id=user_id, name=name, expires_at=verified.expires_at)


def require_credentials(caller: Caller) -> Caller:
    """Return the caller. Raises `Unauthorized` if the request has no credentials."""
    if caller.user_id is None and caller.anon_key_hash is None and caller.share_key_hash is None:
        raise Unauthorized("Sign in, or send the thread's key as X-Anon-Key.")
    return caller


def require_user(caller: Caller) -> UUID:
    """Return the caller's user. Raises `Unauthorized` if they are not signed in."""
    return accounts.require_account(caller)
