"""The authorization endpoint: a signed-in person allows or denies an MCP client access to their account.

Nothing is sent to a redirect URI before its client is known and has registered it, and nothing without the person's
click.
"""

import hmac
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.response import Redirect

from khala.api.accounts import session_cookie
from khala.api.accounts.sign_in_throttle import count_document
from khala.api.context import Context
from khala.api.http.request_origin import base_url, client_network, refuse_cross_site
from khala.api.oauth import pages
from khala.api.oauth.client_documents import is_document_url
from khala.api.oauth.forms import MAX_FORM_BYTES, parse_parameters, read_form, required
from khala.api.oauth.metadata import AUTHORIZE, require_own_server
from khala.api.oauth.resources import canonical, is_resource
from khala.domain import oauth
from khala.domain.access import Caller
from khala.domain.errors import Forbidden
from khala.domain.oauth import OAuthClient, OAuthError
from khala.store.accounts import accounts, oauth_clients, oauth_grants, sessions
from khala.store.accounts.oauth_grants import Consent

SIGN_IN = "/?continue="
"""The page's address at which a person signs in, followed by the path to return to."""
MAX_STATE_CHARACTERS = 2048
PARAMETERS = (
    "client_id", "redirect_uri", "response_type", "code_challenge", "code_challenge_method", "resource", "scope",
    "state",
)  # fmt: skip
"""The parameters of a request for access. Others are ignored (RFC 6749, section 3.1)."""

OTHER_SESSION = "This form was not made for this browser's session. Start again in the app."

Connection = Request[Any, Any, Any]


class AccessRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request for access. `parameters` are those that it sent."""

    consent: Consent
    parameters: dict[str, str]


class Browser(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in browser. `secret` is the one of its session."""

    caller: Caller
    secret: str


class _Refused(Exception):
    """A request of a known client that is invalid. The error may be sent to its redirect URI."""

    def __init__(self, redirect_uri: str, state: str | None, error: OAuthError) -> None:
        super().__init__(error.message)
        self.redirect_uri = redirect_uri
        self.state = state
        self.error = error


@get(AUTHORIZE, include_in_schema=False)
async def ask_consent(request: Connection, context: NamedDependency[Context]) -> Response[Any]:
    """Show the form on which the person decides. Without a session, the person signs in first."""
    require_own_server(context)
    browser = await _browser(request, context)
    try:
        parameters = parse_parameters(bytes(request.scope["query_string"]))
        if browser is None and is_document_url(parameters.get("client_id", "")):
            # Only people with an account make this server fetch a document.
            return _ask_sign_in(parameters)
        access = await _read_request(request, context, parameters)
    except OAuthError as error:
        return pages.error_page(error.message)
    except _Refused as refused:
        return _show_refusal(request, context, refused)
    if browser is None:
        return _ask_sign_in(access.parameters)
    return await _consent_page(context, access, browser)


@post(AUTHORIZE, status_code=303, include_in_schema=False, request_max_body_size=MAX_FORM_BYTES)
async def decide(request: Connection, context: NamedDependency[Context]) -> Response[Any]:
    """Send the person's decision to the client: a code, or an error."""
    require_own_server(context)
    refuse_cross_site(request, context.origins, cookie=True)
    browser = await _browser(request, context)
    if browser is None:
        raise Forbidden(OTHER_SESSION)
    try:
        form = await read_form(request)
        access = await _read_request(request, context, form)
        decision = required(form, "decision")
    except OAuthError as error:
        return pages.error_page(error.message)
    except _Refused as refused:
        return _show_refusal(request, context, refused)
    if not hmac.compare_digest(form.get("proof", "").encode(), _proof(browser, access).encode()):
        raise Forbidden(OTHER_SESSION)
    if decision != "allow":
        return _redirect(request, context, access, error="access_denied")
    scopes = access.consent.scopes if "write" in form else ("khala:read",)
    consent = msgspec.structs.replace(access.consent, scopes=tuple(s for s in access.consent.scopes if s in scopes))
    code = await oauth_grants.create(context.db, browser.caller, consent)
    async with context.db.driver() as driver:
        await oauth_clients.mark_used(driver, consent.client.id)
    return _redirect(request, context, access, code=code)


async def _read_request(request: Connection, context: Context, given: dict[str, str]) -> AccessRequest:
    """Read a client's request. Raises `OAuthError` if the client or its redirect URI is unknown, else `_Refused`."""
    parameters = {name: given[name] for name in PARAMETERS if name in given}
    client = await _client(request, context, required(parameters, "client_id"))
    redirect_uri = required(parameters, "redirect_uri")
    if not client.allows_redirect(redirect_uri):
        raise OAuthError("invalid_request", "The app has not registered the address to which it wants to return.")
    state = parameters.get("state")
    try:
        consent = _checked(request, context, client, parameters)
    except OAuthError as error:
        raise _Refused(redirect_uri, state, error) from error
    return AccessRequest(consent=consent, parameters=parameters)


async def _client(request: Connection, context: Context, client_id: str) -> OAuthClient:
    if is_document_url(client_id):
        if context.oauth.documents.cached(client_id) is None:
            await count_document(context.db, client_network(request, context.origins))
        return await context.oauth.documents.find(client_id)
    async with context.db.driver() as driver:
        client = await oauth_clients.find(driver, client_id) if client_id.isprintable() else None
    if client is None:
        message = "This server does not know the app. Remove this server in the app, and add it again."
        raise OAuthError("invalid_client", message)
    return client


def _checked(request: Connection, context: Context, client: OAuthClient, parameters: dict[str, str]) -> Consent:
    if len(parameters.get("state", "")) > MAX_STATE_CHARACTERS:
        raise OAuthError("invalid_request", f"A state has at most {MAX_STATE_CHARACTERS:,} characters.")
    if required(parameters, "response_type") != "code":
        raise OAuthError("unsupported_response_type", "The response type is code.")
    challenge = oauth.check_challenge(parameters.get("code_challenge"), parameters.get("code_challenge_method"))
    resource = canonical(required(parameters, "resource"))
    if not is_resource(request, context, resource):
        raise OAuthError("invalid_target", "The resource is no MCP server of this address.")
    return Consent(
        client=client,
        redirect_uri=parameters["redirect_uri"],
        resource=resource,
        scopes=oauth.requested_scopes(parameters.get("scope")),
        challenge=challenge,
    )


def _ask_sign_in(parameters: dict[str, str]) -> Response[Any]:
    """Return the redirect to the page, on which the person signs in and returns."""
    back = f"{AUTHORIZE}?{urlencode({name: parameters[name] for name in PARAMETERS if name in parameters})}"
    return Redirect(SIGN_IN + quote(back, safe=""), status_code=302, headers={"Cache-Control": "no-store"})


async def _browser(request: Connection, context: Context) -> Browser | None:
    """Return the signed-in browser. Tokens in headers do not count: a program cannot consent for a person.

    Another site may open the form, so its cookie counts whichever site sent the request; the answer of the form is
    checked by `_proof`.
    """
    secret = session_cookie.session_secret(request, context.origins)
    if not secret:
        return None
    async with context.db.driver() as driver:
        caller = await sessions.find(driver, secret)
    if caller is None:
        return None
    network = client_network(request, context.origins)
    return Browser(caller=msgspec.structs.replace(caller, network=network), secret=secret)


def _proof(browser: Browser, access: AccessRequest) -> str:
    """Return the value that only a form made for this session and this request has."""
    message = msgspec.json.encode(access.parameters, order="deterministic")
    return hmac.new(browser.secret.encode(), b"oauth consent " + message, sha256).hexdigest()


async def _consent_page(context: Context, access: AccessRequest, browser: Browser) -> Response[str]:
    async with context.db.driver() as driver:
        user = await accounts.get(driver, accounts.require_account(browser.caller))
    consent = access.consent
    return pages.consent_page(
        pages.ConsentView(
            consent.client,
            redirect_uri=consent.redirect_uri,
            resource=consent.resource,
            scopes=consent.scopes,
            account=user.email or user.name or "an account without a name",
            fields=access.parameters | {"proof": _proof(browser, access)},
        )
    )


def _show_refusal(request: Connection, context: Context, refused: _Refused) -> Response[str]:
    parameters = {"error": refused.error.code, "error_description": refused.error.message, "state": refused.state}
    url = _response_url(request, context, refused.redirect_uri, parameters)
    return pages.error_page(refused.error.message, back=(url, oauth.redirect_host(refused.redirect_uri)))


def _redirect(request: Connection, context: Context, access: AccessRequest, **parameters: str) -> Response[Any]:
    """Return the redirect to the client. 303, so that the browser does not send the form to it."""
    values = {**parameters, "state": access.parameters.get("state")}
    url = _response_url(request, context, access.consent.redirect_uri, values)
    return Response(None, status_code=303, headers={"Location": url, "Cache-Control": "no-store"})


def _response_url(request: Connection, context: Context, redirect_uri: str, values: dict[str, str | None]) -> str:
    """Return the redirect URI with these parameters and the issuer (RFC 9207)."""
    present = {name: value for name, value in values.items() if value is not None}
    query = urlencode(present | {"iss": base_url(request, context.origins)})
    return f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}{query}"
