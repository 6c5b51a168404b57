"""Finds the authorization server of an MCP server (RFC 9728, RFC 8414), with the parsers of the MCP library."""

import httpx2
import msgspec
import structlog
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    issuers_match,
    union_scopes,
    validate_metadata_issuer,
)
from mcp.shared.auth import DEFAULT_GRANT_TYPES, OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from khala.tools.mcp.accounts.account_server import allows_issuer
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, ConnectError
from khala.tools.mcp.config import McpServerConfig
from khala.version import KHALA_VERSION

log = structlog.get_logger()

MAX_LOGGED_ISSUERS = 3
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "khala", "version": KHALA_VERSION},
    },
}
"""A request that a server refuses without a token: the refusal says where its metadata are."""
FAILURES = range(500, 600)


class DiscoveredServer(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization server, the resource for which it is asked for tokens (RFC 8707), and the scopes to request."""

    metadata: OAuthMetadata
    resource: str
    scope: str | None


async def discover(server: McpServerConfig, http: AuthorizationHttp, missing_scope: str | None) -> DiscoveredServer:
    """Find the authorization server. `missing_scope`: scopes that the server required in addition, earlier.

    A configured scope is requested in place of all others. Raises `ConnectError` if there is none that Khala may use.
    """
    assert server.url is not None
    assert server.oauth is not None
    refusal = await _refusal(server, server.url, http)
    resource_metadata = await _resource_metadata(server, server.url, http, refusal)
    metadata = await _authorization_server(server, server.url, http, resource_metadata)
    if "S256" not in (metadata.code_challenge_methods_supported or ()):
        raise ConnectError(f"The authorization server of {server.name} does not support PKCE with S256.")
    await _check_endpoints(http, metadata)
    own_scope = get_client_metadata_scopes(
        extract_scope_from_www_auth(refusal), resource_metadata, metadata, DEFAULT_GRANT_TYPES
    )
    return DiscoveredServer(
        metadata=metadata,
        resource=resource_url_from_server_url(resource_metadata.resource if resource_metadata else server.url),
        scope=server.oauth.scope or union_scopes(own_scope, missing_scope),
    )


async def _check_endpoints(http: AuthorizationHttp, metadata: OAuthMetadata) -> None:
    """Raise `ConnectError` for an endpoint without TLS, or one that may be used and that Khala may not reach.

    A registration endpoint may be anywhere as long as Khala does not register there, because the client is configured.
    """
    used = [metadata.authorization_endpoint, metadata.token_endpoint, metadata.revocation_endpoint]
    for endpoint in filter(None, used):
        await http.check(str(endpoint))
    if metadata.registration_endpoint is not None:
        http.check_tls(str(metadata.registration_endpoint))


async def _refusal(server: McpServerConfig, url: str, http: AuthorizationHttp) -> httpx2.Response:
    """The server's answer to a request without a token."""
    accept = {"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity"}
    response = await http.post_json(url, INITIALIZE, {**server.headers, **accept})
    return httpx2.Response(response.status, headers=response.headers)


async def _get(http: AuthorizationHttp, url: str) -> httpx2.Response:
    response = await http.get(url)
    return httpx2.Response(response.status, content=response.body)


async def _resource_metadata(
    server: McpServerConfig, url: str, http: AuthorizationHttp, refusal: httpx2.Response
) -> ProtectedResourceMetadata | None:
    """The metadata of the MCP server; None if it has none, as servers of 2025-03-26."""
    for address in build_protected_resource_metadata_discovery_urls(
        extract_resource_metadata_from_www_auth(refusal), url
    ):
        response = await _get(http, address)
        if response.status_code in FAILURES:
            raise ConnectError(f"{server.name} does not say now which authorization server it uses.")
        metadata = await handle_protected_resource_response(response)
        if metadata is None:
            continue
        if not check_resource_allowed(resource_url_from_server_url(url), str(metadata.resource)):
            raise ConnectError(f"The metadata of {server.name} are those of another server.")
        return metadata
    return None


async def _authorization_server(
    server: McpServerConfig, url: str, http: AuthorizationHttp, resource: ProtectedResourceMetadata | None
) -> OAuthMetadata:
    issuer = _issuer(server, resource)
    for address in build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        can_continue, metadata = await handle_auth_metadata_response(await _get(http, address))
        if not can_continue:
            break
        if metadata is None:
            continue
        expected = issuer or str(httpx2.URL(url).join("/")).rstrip("/")
        if issuers_match(str(metadata.issuer), expected):
            expected = str(metadata.issuer)
        try:
            validate_metadata_issuer(metadata, expected)
        except OAuthFlowError as error:
            raise ConnectError(
                f"The metadata of the authorization server of {server.name} name another one."
            ) from error
        return metadata
    raise ConnectError(f"The metadata of the authorization server of {server.name} cannot be read.")


def _issuer(server: McpServerConfig, resource: ProtectedResourceMetadata | None) -> str | None:
    """The issuer to use: the first that the server names and the configuration allows; None if it is the server itself.

    Raises `ConnectError` if the server names only others. They are logged, for the operator to choose.
    """
    configured = None if server.oauth is None else server.oauth.issuer
    if resource is None:
        return configured
    named_issuers = [str(one) for one in resource.authorization_servers]
    named = next((one for one in named_issuers if allows_issuer(server, one)), None)
    if named is not None:
        return configured or named
    log.warning("mcp_issuer_not_allowed", server=server.name, named=named_issuers[:MAX_LOGGED_ISSUERS])
    if configured is not None:
        raise ConnectError(f"{server.name} does not name its configured issuer as an authorization server.")
    raise ConnectError(
        f"{server.name} names an authorization server on another origin. The operator can allow it with issuer."
    )
