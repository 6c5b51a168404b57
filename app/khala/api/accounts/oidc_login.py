"""Signing in at an OpenID Provider: there, and back again."""

import hmac
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

import structlog
from litestar import Controller, Request, Response, get
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Redirect

from khala.api.accounts import session_cookie
from khala.api.accounts.authentication import RETURNING, require_user
from khala.api.accounts.sign_in import begin
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.http.request_origin import base_url, is_https, refuse_cross_site
from khala.domain.access import Caller
from khala.domain.errors import Conflict, InvalidInput, KhalaError, NotFound
from khala.identity.oidc import OidcProvider
from khala.store.accounts import accounts, oidc_logins

log = structlog.get_logger()

CALLBACK = "/api/auth/oidc/callback"
STATE = "khala_oidc"
"""The cookie that ties a login to the browser that began it."""

ReturnTo = Annotated[str, QueryParameter(name="returnTo", description="A path of this server's to come back to.")]
Text = Annotated[str | None, QueryParameter(max_length=4096)]
Connection = Request[Any, Any, Any]


class OidcController(Controller):
    """By way of an OpenID Provider."""

    path = "/auth/oidc"
    tags = ("Accounts",)

    @get(
        "/login",
        operation_id="oidcLogin",
        summary="Sign in at the OpenID Provider",
        status_code=302,
        response_description="Go there.",
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
        link: Annotated[bool, QueryParameter(description="Link the identity to the account that asks.")] = False,  # noqa: FBT002
    ) -> Redirect:
        """Begin a login; the browser comes back to the callback."""
        provider = _provider(context)
        if link:
            # A page elsewhere could have signed its visitor in there as somebody else.
            refuse_cross_site(request, context.origins, cookie=True)
        begun = await provider.begin(base_url(request, context.origins) + CALLBACK)
        pending = oidc_logins.PendingLogin(
            nonce=begun.nonce,
            verifier=begun.verifier,
            return_to=_path(return_to),
            user_id=require_user(caller) if link else None,
        )
        await oidc_logins.store(context.db, begun.state, pending)
        return Redirect(begun.url, status_code=302, cookies=[_state_cookie(context, request, begun.state)])

    # Providers add parameters of their own.
    @get("/callback", include_in_schema=False, status_code=302, opt={RETURNING: True}, lenient=True)
    async def callback(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        request: Connection,
        code: Text = None,
        oidc_state: Annotated[str | None, QueryParameter(name="state", max_length=4096)] = None,
        error: Text = None,
    ) -> Response[Any]:
        """End a login: a new session, and back to where it began. What went wrong is told there."""
        forget = _state_cookie(context, request, "")
        try:
            pending = await _taken(context, request, oidc_state)
            if code is None:
                raise InvalidInput("The login was not finished.")
            cookie = await _finish(context, caller, request, pending, code)
        except KhalaError as problem:
            log.info("oidc_failed", code=problem.code, detail=problem.message, error=error, exc_info=problem.__cause__)
            return Redirect(f"/?signin={problem.code}", status_code=302, cookies=[forget])
        kept = [forget] if cookie is None else [forget, cookie]
        return Redirect(pending.return_to, status_code=302, cookies=kept)


def _provider(context: Context) -> OidcProvider:
    if context.sign_in.provider is None:
        raise NotFound("There is no OpenID Provider here.")
    return context.sign_in.provider


def _path(given: str) -> str:
    """A path of ours; what leads elsewhere leads home."""
    split = urlsplit(given)
    ours = given.startswith("/") and not given.startswith(("//", "/\\")) and not split.scheme and not split.netloc
    return given if ours and given.isprintable() and "\\" not in given and len(given) <= 1024 else "/"


def _state_cookie(context: Context, request: Connection, state: str) -> Cookie:
    return Cookie(
        key=STATE,
        value=state,
        max_age=int((oidc_logins.LIFETIME if state else timedelta(0)).total_seconds()),
        path="/api/auth/oidc",
        secure=is_https(request, context.origins),
        httponly=True,
        samesite="lax",
    )


async def _taken(context: Context, request: Connection, state: str | None) -> oidc_logins.PendingLogin:
    """The login that this browser began. Another's, brought here to sign somebody in as another, is none."""
    mine = request.cookies.get(STATE, "")
    if not state or not hmac.compare_digest(mine.encode(), state.encode()):
        raise InvalidInput("This login was not begun here.")
    pending = await oidc_logins.take(context.db, state)
    if pending is None:
        raise InvalidInput("This login has taken too long, or is over.")
    return pending


async def _finish(
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
            raise Conflict("Another account is signed in by now.")
        await accounts.link(context.db, verified.identity, pending.user_id, caller)
        return None
    user_id = await accounts.of_identity(context.db, verified.identity, caller)
    secret = await begin(context, request, caller, user_id, id_token=verified.id_token)
    return session_cookie.keeping(request, context.origins, secret)
