"""Sign-in with an OpenID Provider: the redirect there, and the callback."""

import hmac
from datetime import timedelta
from typing import Annotated, Any

import structlog
from litestar import Controller, Request, Response, get
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Redirect

from khala.api.accounts import session_cookie
from khala.api.accounts.authentication import RETURNS_FROM_PROVIDER, require_user
from khala.api.accounts.sign_in import start_session
from khala.api.context import Context
from khala.api.http.local_path import local_path
from khala.api.http.problem_details import documented_errors
from khala.api.http.request_origin import base_url, is_https, refuse_cross_site
from khala.domain.access import Caller
from khala.domain.errors import Conflict, InvalidInput, KhalaError, NotFound
from khala.identity.oidc import OidcProvider
from khala.store.accounts import accounts, oidc_logins

log = structlog.get_logger()

CALLBACK = "/api/auth/oidc/callback"
STATE_COOKIE = "khala_oidc"
"""The cookie that binds a login to the browser that started it."""

ReturnTo = Annotated[str, QueryParameter(name="returnTo", description="The path on this server to return to.")]
Text = Annotated[str | None, QueryParameter(max_length=4096)]
Connection = Request[Any, Any, Any]


class OidcController(Controller):
    """Sign-in with an OpenID Provider."""

    path = "/auth/oidc"
    tags = ("Accounts",)

    @get(
        "/login",
        operation_id="oidcLogin",
        summary="Sign in with the OpenID Provider",
        status_code=302,
        response_description="A redirect to the provider.",
        responses=documented_errors(
            "invalid_input", "unauthorized", "forbidden", "not_found", "rate_limited", "unavailable"
        ),
    )
    async def login(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        return_to: ReturnTo = "/",
        link: Annotated[bool, QueryParameter(description="Link the identity to the caller's account.")] = False,  # noqa: FBT002
    ) -> Redirect:
        """Start a login. The provider redirects the browser back to the callback."""
        provider = _provider(context)
        if link:
            # Another site could have signed the browser in at the provider as somebody else.
            refuse_cross_site(request, context.origins, cookie=True)
        login = await provider.begin(base_url(request, context.origins) + CALLBACK)
        pending = oidc_logins.PendingLogin(
            nonce=login.nonce,
            verifier=login.verifier,
            return_to=local_path(return_to),
            user_id=require_user(caller) if link else None,
        )
        await oidc_logins.store(context.db, login.state, pending)
        return Redirect(login.url, status_code=302, cookies=[_state_cookie(context, request, login.state)])

    # Lenient, because providers add parameters of their own.
    @get("/callback", include_in_schema=False, status_code=302, opt={RETURNS_FROM_PROVIDER: True}, lenient=True)
    async def callback(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        code: Text = None,
        oidc_state: Annotated[str | None, QueryParameter(name="state", max_length=4096)] = None,
        error: Text = None,
    ) -> Response[Any]:
        """Complete a login: start a session, and redirect to where the login started. Errors are shown there."""
        forget = _state_cookie(context, request, "")
        try:
            pending = await _take_pending(context, request, oidc_state)
            if code is None:
                raise InvalidInput("The login was not completed.")
            cookie = await _complete(context, caller, request, pending, code)
        except KhalaError as problem:
            log.info(
                "oidc_sign_in_failed",
                code=problem.code,
                detail=problem.message,
                error=error,
                exc_info=problem.__cause__,
            )
            return Redirect(f"/?signin={problem.code}", status_code=302, cookies=[forget])
        cookies = [forget] if cookie is None else [forget, cookie]
        return Redirect(pending.return_to, status_code=302, cookies=cookies)


def _provider(context: Context) -> OidcProvider:
    if context.sign_in.provider is None:
        raise NotFound("No OpenID Provider is configured.")
    return context.sign_in.provider


def _state_cookie(context: Context, request: Connection, state: str) -> Cookie:
    return Cookie(
        key=STATE_COOKIE,
        value=state,
        max_age=int((oidc_logins.LIFETIME if state else timedelta(0)).total_seconds()),
        path="/api/auth/oidc",
        secure=is_https(request, context.origins),
        httponly=True,
        samesite="lax",
    )


async def _take_pending(context: Context, request: Connection, state: str | None) -> oidc_logins.PendingLogin:
    """Return the login that this browser started. Raises `InvalidInput` for any other, to prevent login CSRF."""
    own_state = request.cookies.get(STATE_COOKIE, "")
    if not state or not hmac.compare_digest(own_state.encode(), state.encode()):
        raise InvalidInput("This login was not started in this browser. Start again.")
    pending = await oidc_logins.take(context.db, state)
    if pending is None:
        raise InvalidInput("This login has expired or was already completed. Start again.")
    return pending


async def _complete(
    context: Context, caller: Caller, request: Connection, pending: oidc_logins.PendingLogin, code: str
) -> Cookie | None:
    verified = await _provider(context).finish(
        code=code,
        redirect_uri=base_url(request, context.origins) + CALLBACK,
        verifier=pending.verifier,
        nonce=pending.nonce,
    )
    if pending.user_id is not None:
        if caller.user_id != pending.user_id:
            raise Conflict("Another account has signed in meanwhile. Start again.")
        await accounts.link(context.db, verified.identity, pending.user_id, caller)
        return None
    user_id = await accounts.of_identity(context.db, verified.identity, caller)
    secret = await start_session(context, request, caller, user_id, id_token=verified.id_token)
    return session_cookie.signed_in(request, context.origins, secret)
