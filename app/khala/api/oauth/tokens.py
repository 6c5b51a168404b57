"""The token endpoint (RFC 6749), and the revocation of tokens by their client (RFC 7009)."""

from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency

from khala.api.context import Context
from khala.api.http.request_origin import client_network
from khala.api.oauth.forms import MAX_FORM_BYTES, error_response, read_form, required
from khala.api.oauth.metadata import REVOKE, TOKEN, require_own_server
from khala.api.oauth.resources import canonical
from khala.domain.oauth import OAuthError
from khala.store.accounts import oauth_grants
from khala.store.accounts.oauth_grants import ACCESS_LIFETIME, CodeRequest, GrantedTokens, RefreshRequest

Connection = Request[Any, Any, Any]


@post(
    TOKEN,
    status_code=200,
    include_in_schema=False,
    request_max_body_size=MAX_FORM_BYTES,
    exception_handlers={OAuthError: error_response},
)
async def token(request: Connection, context: NamedDependency[Context]) -> dict[str, Any]:
    """Exchange a code or a refresh token for tokens."""
    require_own_server(context)
    parameters = await read_form(request)
    tokens = await _exchange(context, parameters, client_network(request, context.origins))
    return {
        "access_token": tokens.access_token,
        "token_type": "Bearer",
        "expires_in": int(ACCESS_LIFETIME.total_seconds()),
        "refresh_token": tokens.refresh_token,
        "scope": " ".join(tokens.scopes),
    }


@post(
    REVOKE,
    status_code=200,
    include_in_schema=False,
    request_max_body_size=MAX_FORM_BYTES,
    exception_handlers={OAuthError: error_response},
)
async def revoke(request: Connection, context: NamedDependency[Context]) -> Response[None]:
    """End the access of the token's client. An unknown token is no error."""
    require_own_server(context)
    parameters = await read_form(request)
    secret, client_id = required(parameters, "token"), required(parameters, "client_id")
    await oauth_grants.revoke_token(context.db, secret, client_id, client_network(request, context.origins))
    return Response(None, status_code=200)


async def _exchange(context: Context, parameters: dict[str, str], network: str | None) -> GrantedTokens:
    grant_type, client_id = required(parameters, "grant_type"), required(parameters, "client_id")
    resource = parameters.get("resource")
    resource = None if resource is None else canonical(resource)
    if grant_type == "authorization_code":
        return await oauth_grants.exchange_code(
            context.db,
            CodeRequest(
                code=required(parameters, "code"),
                client_id=client_id,
                redirect_uri=required(parameters, "redirect_uri"),
                verifier=required(parameters, "code_verifier"),
                resource=resource,
            ),
            network,
        )
    if grant_type == "refresh_token":
        secret = required(parameters, "refresh_token")
        renewal = RefreshRequest(token=secret, client_id=client_id, resource=resource)
        return await oauth_grants.refresh(context.db, renewal, network)
    raise OAuthError("unsupported_grant_type", "The grant types are authorization_code and refresh_token.")
