"""Authenticates requests and sockets by cookie and headers. Each route then checks the caller's permissions."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
import structlog
from litestar import Request, WebSocket
from litestar.di import NamedDependency
from litestar.openapi.spec import SecurityScheme
from litestar.params import HeaderParameter

from khala.api.accounts import session_cookie
from khala.api.accounts.service_tokens import act_for_user, refuse_browser, refuse_user_header
from khala.api.context import Context
from khala.api.http.request_origin import SAFE_METHODS, Connection, client_network, is_trusted_origin
from khala.domain.access import Caller, key_hash, require_scope, require_service_scope
from khala.domain.errors import Forbidden, Unauthorized
from khala.identity.jwt_claims import JwtIdentity
from khala.store.accounts import accounts, api_tokens, external_users, sessions
from khala.store.sharing import thread_tokens

log = structlog.get_logger()

SCHEMES = {
    "session": SecurityScheme(
        type="apiKey",
        security_scheme_in="cookie",
        name=session_cookie.COOKIE_NAME,
        description="A signed-in browser. Over TLS, the cookie's name begins with `__Host-`.",
    ),
    "bearer": SecurityScheme(
        type="http",
        scheme="bearer",
        description="An API token, a JWT of a configured issuer, a service token, or a thread token.",
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
THREAD_PARAMETERS = {"thread_id", "run_id", "message_id", "blob_id", "plan_id", "chat_id", "thread_name"}
"""Path parameters of routes that concern one thread. A thread token opens these routes, as far as its role allows."""
OPEN_TO_THREAD_TOKENS = "open_to_thread_tokens"
"""Route option: the route concerns one thread, which its path does not name."""
SERVICE_SCOPE = "service_scope"
"""Route option: the scope that a service token needs, in place of the scope that others need."""
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
    options = request.route_handler.opt
    account = await _account(request, context, returning=bool(options.get(RETURNS_FROM_PROVIDER)))
    if account.only_thread is not None:
        _check_thread_route(request)
    if account.service is not None and SERVICE_SCOPE in options:
        require_service_scope(account.service, options[SERVICE_SCOPE])
    else:
        require_scope(account, options.get("scope", "read" if request.method in SAFE_METHODS else "write"))
    return with_keys(account, anon_key, share_key)


def _check_thread_route(request: Request[Any, Any, Any]) -> None:
    """Raise `Forbidden` unless a thread token opens this route, which concerns one thread."""
    if not THREAD_PARAMETERS & set(request.path_params) and not request.route_handler.opt.get(OPEN_TO_THREAD_TOKENS):
        raise Forbidden("A thread token opens one thread and nothing else.")


async def authenticate_socket(socket: WebSocket[Any, Any, Any], context: Context) -> Caller:
    """Return the account of a socket's handshake. Raises `Unauthorized` for an invalid token."""
    return await _account(socket, context)


async def authenticate_request(request: Request[Any, Any, Any], context: Context) -> Caller:
    """Return the account of a request. Raises `Unauthorized` for an invalid token."""
    return await _account(request, context)


def with_keys(account: Caller, anon_key: str | None, share_key: str | None) -> Caller:
    """Return the caller with the keys that they sent. Raises `Forbidden` if a thread token comes with other keys."""
    if account.only_thread is not None:
        if anon_key or share_key:
            raise Forbidden("A thread token opens its thread alone. Send no other key with it.")
        return account
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
        account = msgspec.structs.replace(account, network=network)
    else:
        is_trusted = returning or is_trusted_origin(connection, context.origins)
        account = (await _authenticate_cookie(connection, context) if is_trusted else None) or Caller()
    if account.service is None:
        refuse_user_header(connection)
        return msgspec.structs.replace(account, network=network)
    refuse_browser(connection)
    return await act_for_user(connection, account, context.db, context.sign_in.impersonations)


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
    """Return the caller with this token: an API, service or thread token, or a JWT of a configured issuer.

    Raises `Unauthorized` if it is invalid, and `Forbidden` if its account is blocked.
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise Unauthorized("This token is too long.")
    account: Caller | None
    if token.startswith(thread_tokens.PREFIX):
        async with context.db.driver() as driver:
            account = await thread_tokens.find(driver, token)
    elif token.startswith(api_tokens.PREFIX):
        async with context.db.driver() as driver:
            account = await api_tokens.find(driver, token)
    else:
        account = await _authenticate_jwt(token, context)
    if account is None:
        raise Unauthorized("This token is invalid or has expired.")
    return account


async def authenticate_message_token(token: str, context: Context) -> Caller:
    """As `authenticate_token`, for a token in a message of a socket. Raises `Forbidden` for a service token."""
    account = await authenticate_token(token, context)
    if account.service is not None:
        raise Forbidden("Send a service token in the header Authorization of the handshake, and not in a message.")
    return account


async def _authenticate_jwt(token: str, context: Context) -> Caller | None:
    sign_in = context.sign_in
    verified = None if sign_in.issuers is None else await sign_in.issuers.verify(token)
    if verified is not None:
        plan = _known_plan(verified, sign_in.plans)
        user = await external_users.find_or_create(context.db, verified.identity, Caller(), plan=plan)
        return Caller(user_id=user.id, name=user.name, expires_at=verified.expires_at, admin_claim=verified.admin)
    if sign_in.provider is None:
        return None
    bearer = await sign_in.provider.verify(token)
    user = await external_users.find_or_create(context.db, bearer.identity, Caller())
    return Caller(user_id=user.id, name=user.name, expires_at=bearer.expires_at)


def _known_plan(verified: JwtIdentity, plans: frozenset[str]) -> str | msgspec.UnsetType | None:
    """Return the plan of the token. An unknown one becomes None, for the default plan, and is logged."""
    if isinstance(verified.plan, str) and verified.plan not in plans:
        log.warning("budget_plan_unknown", issuer=verified.identity.issuer, plan=verified.plan)
        return None
    return verified.plan


def require_credentials(caller: Caller) -> Caller:
    """Return the caller. Raises `Unauthorized` if the request has no credentials."""
    if caller.user_id is None and caller.anon_key_hash is None and caller.share_key_hash is None:
        raise Unauthorized("Sign in, or send the thread's key as X-Anon-Key.")
    return caller


def require_user(caller: Caller) -> UUID:
    """Return the caller's user. Raises `Unauthorized` if they are not signed in."""
    return accounts.require_account(caller)
