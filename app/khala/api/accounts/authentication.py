"""Who asks: from a request's or a socket's cookie and headers. Each command checks what they may do."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Request, WebSocket
from litestar.di import NamedDependency
from litestar.openapi.spec import SecurityScheme
from litestar.params import HeaderParameter

from khala.api.accounts import session_cookie
from khala.api.context import Context
from khala.api.http.request_origin import SAFE, Connection, client_network, is_trusted_origin
from khala.domain.access import Caller, key_hash, require_scope
from khala.domain.errors import Unauthorized
from khala.store.accounts import accounts, api_tokens, sessions

SCHEMES = {
    "session": SecurityScheme(
        type="apiKey",
        security_scheme_in="cookie",
        name=session_cookie.PLAIN,
        description="A browser that is signed in. Over TLS the cookie's name begins with `__Host-`.",
    ),
    "bearer": SecurityScheme(
        type="http", scheme="bearer", description="An API token, or a JWT of the configured OpenID Provider."
    ),
    "anonKey": SecurityScheme(
        type="apiKey",
        security_scheme_in="header",
        name="X-Anon-Key",
        description="The secret that opens an anonymous thread: the client's own, or told once when it is made.",
    ),
    "shareKey": SecurityScheme(
        type="apiKey", security_scheme_in="header", name="X-Share-Key", description="A share link's secret."
    ),
}
"""How callers show who they are, for the OpenAPI document."""
BY_ACCOUNT: list[dict[str, list[str]]] = [{"session": []}, {"bearer": []}]
"""For the OpenAPI document: this operation needs an account."""
BY_KEY: list[dict[str, list[str]]] = [*BY_ACCOUNT, {"anonKey": []}, {"shareKey": []}]
"""For the OpenAPI document: this operation needs an account with access, or one of the thread's keys."""

AnonKey = Annotated[str | None, HeaderParameter(name="X-Anon-Key", include_in_schema=False)]
ShareKey = Annotated[str | None, HeaderParameter(name="X-Share-Key", include_in_schema=False)]

LONGEST_TOKEN = 16 * 1024
RETURNING = "returns_from_provider"
"""A route's option: another site sends the browser here, and the route itself ties that to this browser."""


async def caller(
    request: Request[Any, Any, Any],
    context: NamedDependency[Context],
    anon_key: AnonKey = None,
    share_key: ShareKey = None,
) -> Caller:
    """The caller of this request, known or not. A token must be good for what the route is about."""
    account = await _account(request, context, returning=bool(request.route_handler.opt.get(RETURNING)))
    usual = "read" if request.method in SAFE else "write"
    require_scope(account, request.route_handler.opt.get("scope", usual))
    return with_keys(account, anon_key, share_key)


async def authenticate_socket(socket: WebSocket[Any, Any, Any], context: Context) -> Caller:
    """Whoever opens the socket, as far as its handshake tells. Raises `Unauthorized` for a token that is not good."""
    return await _account(socket, context)


async def authenticate_request(request: Request[Any, Any, Any], context: Context) -> Caller:
    """Whoever sends this, by their account. Raises `Unauthorized` for a token that is not good."""
    return await _account(request, context)


def with_keys(account: Caller, anon_key: str | None, share_key: str | None) -> Caller:
    """The caller by account, with the keys that they show, too."""
    return msgspec.structs.replace(
        account,
        anon_key_hash=key_hash(anon_key) if anon_key else None,
        share_key_hash=key_hash(share_key) if share_key else None,
    )


async def _account(connection: Connection, context: Context, *, returning: bool = False) -> Caller:
    network = client_network(connection, context.origins)
    authorization = connection.headers.get("authorization")
    if authorization is not None:
        found = await authenticate_token(_bearer(authorization), context)
    else:
        believed = returning or is_trusted_origin(connection, context.origins)
        found = (await _of_cookie(connection, context) if believed else None) or Caller()
    return msgspec.structs.replace(found, network=network)


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("Send Authorization: Bearer, and a token.")
    return token.strip()


async def _of_cookie(connection: Connection, context: Context) -> Caller | None:
    secret = session_cookie.secret(connection, context.origins)
    if not secret:
        return None
    async with context.db.driver() as driver:
        return await sessions.find(driver, secret)


async def authenticate_token(token: str, context: Context) -> Caller:
    """Whoever an API token, or a JWT of the configured issuer, acts for. Raises `Unauthorized` if it is not good."""
    if len(token) > LONGEST_TOKEN:
        raise Unauthorized("This token is too long to be one.")
    if token.startswith(api_tokens.PREFIX):
        async with context.db.driver() as driver:
            found = await api_tokens.find(driver, token)
    else:
        found = await _of_jwt(token, context)
    if found is None:
        raise Unauthorized("This token is not good, or not any more.")
    return found


async def _of_jwt(token: str, context: Context) -> Caller | None:
    if context.sign_in.provider is None:
        return None
    verified = await context.sign_in.provider.verify(token)
    user_id = await accounts.of_identity(context.db, verified.identity, Caller())
    async with context.db.driver() as driver:
        name = await accounts.name_of(driver, user_id)
    return Caller(user_id=user_id, name=name, expires_at=verified.expires_at)


def require_credentials(who: Caller) -> Caller:
    """The caller, if they showed anything at all."""
    if who.user_id is None and who.anon_key_hash is None and who.share_key_hash is None:
        raise Unauthorized("Sign in, or send the thread's key as X-Anon-Key.")
    return who


def require_user(who: Caller) -> UUID:
    """The caller's user. Raises `Unauthorized` if they are not signed in."""
    return accounts.require_account(who)
