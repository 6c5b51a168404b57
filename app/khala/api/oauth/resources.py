"""The MCP servers as OAuth resources: their URLs, scopes, metadata (RFC 9728) and challenges."""

from typing import Any

from litestar import Request

from khala.api.context import Context
from khala.api.http.request_origin import base_url
from khala.domain.oauth import OAUTH_SCOPES

MCP_PATH = "/mcp"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource"

Connection = Request[Any, Any, Any]


def resource_url(request: Connection, context: Context, group: str = "") -> str:
    """Return the URL of the MCP server, or of the one of a group."""
    path = f"{MCP_PATH}/{group}" if group else MCP_PATH
    return base_url(request, context.origins) + path


def is_resource(request: Connection, context: Context, resource: str) -> bool:
    """Whether this is the URL of an MCP server of Khala. Scheme and host may have any case (RFC 8707)."""
    base = resource_url(request, context)
    group = resource.removeprefix(f"{base}/")
    return resource == base or (group != resource and group in context.tools.groups)


def canonical(resource: str) -> str:
    """Return the URL with its scheme and host in lower case, and without a slash at the end."""
    scheme, mark, rest = resource.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{mark}{host.lower()}{slash}{path}".rstrip("/")


def resource_metadata(request: Connection, context: Context, group: str) -> dict[str, Any]:
    """Return the metadata of an MCP server."""
    server = context.oauth.external
    return {
        "resource": resource_url(request, context, group),
        "authorization_servers": [base_url(request, context.origins) if server is None else server.settings.issuer],
        "scopes_supported": list(OAUTH_SCOPES),
        "bearer_methods_supported": ["header"],
        "resource_name": "Khala",
    }


def challenge(request: Connection, context: Context, group: str, **parameters: str) -> dict[str, str]:
    """Return the header that tells a client how to get a token (RFC 6750, section 3, and RFC 9728, section 5.1)."""
    if context.oauth.mode == "off":
        return {"WWW-Authenticate": "Bearer"}
    path = f"{MCP_PATH}/{group}" if group else MCP_PATH
    all_parameters = {
        **parameters,
        "scope": " ".join(OAUTH_SCOPES),
        "resource_metadata": base_url(request, context.origins) + RESOURCE_METADATA + path,
    }
    return {"WWW-Authenticate": "Bearer " + ", ".join(f'{name}="{value}"' for name, value in all_parameters.items())}
