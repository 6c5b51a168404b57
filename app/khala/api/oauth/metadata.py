"""Metadata of the MCP servers (RFC 9728) and of the authorization server (RFC 8414), for clients to find their way."""

from typing import Annotated, Any

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import PathParameter

from khala.api.context import Context
from khala.api.http.request_origin import base_url
from khala.api.oauth.resources import MCP_PATH, RESOURCE_METADATA, resource_metadata
from khala.domain.errors import NotFound
from khala.domain.oauth import OAUTH_SCOPES

AUTHORIZE, TOKEN, REGISTER, REVOKE = (f"/oauth/{name}" for name in ("authorize", "token", "register", "revoke"))

Connection = Request[Any, Any, Any]
GroupName = Annotated[str, PathParameter(description="The group's name.")]


def require_own_server(context: Context) -> None:
    """Raise `NotFound` unless this server issues tokens itself."""
    if context.oauth.mode == "off" or context.oauth.external is not None:
        raise NotFound("This server issues no tokens to MCP clients.")


# Clients that find no metadata of the path ask for those of the origin.
@get([RESOURCE_METADATA, RESOURCE_METADATA + MCP_PATH], include_in_schema=False)
async def server_metadata(request: Connection, context: NamedDependency[Context]) -> dict[str, Any]:
    """Describe the MCP server."""
    return _resource(request, context, "")


@get(RESOURCE_METADATA + MCP_PATH + "/{group:str}", include_in_schema=False)
async def group_metadata(request: Connection, context: NamedDependency[Context], group: GroupName) -> dict[str, Any]:
    """Describe the MCP server of a group."""
    if group not in context.tools.groups:
        raise NotFound("There is no such group of tools.")
    return _resource(request, context, group)


def _resource(request: Connection, context: Context, group: str) -> dict[str, Any]:
    if context.oauth.mode == "off":
        raise NotFound("This server has no OAuth.")
    return resource_metadata(request, context, group)


# The second path is the one of OpenID Connect, which some clients ask for first. There are no ID tokens.
@get(
    ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"],
    include_in_schema=False,
)
async def authorization_server_metadata(request: Connection, context: NamedDependency[Context]) -> dict[str, Any]:
    """Describe the authorization server."""
    require_own_server(context)
    issuer = base_url(request, context.origins)
    return {
        "issuer": issuer,
        "authorization_endpoint": issuer + AUTHORIZE,
        "token_endpoint": issuer + TOKEN,
        "registration_endpoint": issuer + REGISTER,
        "revocation_endpoint": issuer + REVOKE,
        "scopes_supported": list(OAUTH_SCOPES),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        # Clients cannot keep a secret; PKCE protects them.
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "client_id_metadata_document_supported": True,
        "authorization_response_iss_parameter_supported": True,
    }
