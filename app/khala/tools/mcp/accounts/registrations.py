"""Khala as a client of an authorization server: configured, by its metadata document, or registered (RFC 7591)."""

from datetime import UTC, datetime

import httpx2
import structlog
from mcp.client.auth import OAuthRegistrationError
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.client.auth.utils import handle_registration_response, should_use_client_metadata_url
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata

from khala.domain.secret_box import SecretBox, SecretError
from khala.store.postgres.database import Database
from khala.store.tools import mcp_authorizations
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, ClientCredentials, ConnectError
from khala.tools.mcp.accounts.client_metadata import CLIENT_METADATA, client_metadata, document_url, redirect_uri
from khala.tools.mcp.accounts.sealed_secrets import opened, seal
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.oauth_config import McpOAuthConfig

log = structlog.get_logger()

MAX_CLIENT_CHARACTERS = 4096
"""Characters of an id or a secret that an authorization server assigns."""


def configured_client(oauth: McpOAuthConfig) -> ClientCredentials | None:
    """The client that the operator has registered, if there is one."""
    if oauth.client_id is None:
        return None
    method = "none" if oauth.client_secret is None else oauth.auth_method
    return ClientCredentials(id=oauth.client_id, secret=oauth.client_secret, auth_method=method)


def is_registered(server: McpServerConfig, client: ClientCredentials) -> bool:
    """Whether Khala has registered this client itself. Otherwise its id is configured, or names its document."""
    is_configured = server.oauth is not None and server.oauth.client_id is not None
    return not is_configured and not client.id.endswith(CLIENT_METADATA)


class ClientRegistrations:
    """Finds or makes registrations. Accounts at the same MCP server and issuer share one."""

    def __init__(self, db: Database, box: SecretBox, public_url: str | None) -> None:
        """`public_url`: the address of this server, if the operator has set it. Only then the document exists."""
        self._db = db
        self._box = box
        self._document = document_url(public_url)

    async def client(
        self, server: McpServerConfig, http: AuthorizationHttp, metadata: OAuthMetadata, base_url: str
    ) -> ClientCredentials:
        """The client to use at this authorization server. Raises `ConnectError`."""
        assert server.oauth is not None
        configured = configured_client(server.oauth)
        if configured is not None:
            return configured
        if self._document is not None and should_use_client_metadata_url(metadata, self._document):
            return ClientCredentials(id=self._document)
        issuer, returns_to = str(metadata.issuer), redirect_uri(base_url, server.name)
        return await self._stored(issuer, returns_to) or await self._register(server, http, metadata, base_url)

    async def forget(self, issuer: str, redirect_uri: str) -> None:
        """Forget a registration that the issuer does not know any more, so that the next attempt registers again."""
        async with self._db.driver() as driver:
            await mcp_authorizations.forget_client(driver, issuer, redirect_uri)

    async def _stored(self, issuer: str, redirect_uri: str) -> ClientCredentials | None:
        async with self._db.driver() as driver:
            sealed = await mcp_authorizations.find_client(driver, issuer, redirect_uri)
        if sealed is None:
            return None
        try:
            return opened(self._box, sealed, ClientCredentials, "mcp_clients", issuer, redirect_uri)
        except SecretError:
            log.warning("mcp_client_unreadable", issuer=issuer)
            return None

    async def _register(
        self, server: McpServerConfig, http: AuthorizationHttp, metadata: OAuthMetadata, base_url: str
    ) -> ClientCredentials:
        if metadata.registration_endpoint is None:
            raise ConnectError(
                f"The authorization server of {server.name} does not accept client registrations. The operator has to "
                f"register Khala there and set clientId."
            )
        request = client_metadata(base_url, [server.name]) | {
            "token_endpoint_auth_method": _auth_method(metadata),
            "application_type": "web" if base_url.startswith("https://") else "native",
        }
        response = await http.post_json(str(metadata.registration_endpoint), request)
        try:
            answer = httpx2.Response(response.status, content=response.body)
            registered = await handle_registration_response(answer)
            check_registration_usable(registered)
            client = _client(registered)
        except (OAuthRegistrationError, ValueError) as error:
            log.info("mcp_registration_refused", server=server.name, status=response.status)
            raise ConnectError(f"The authorization server of {server.name} does not register Khala.") from error
        issuer, returns_to = str(metadata.issuer), redirect_uri(base_url, server.name)
        sealed = seal(self._box, client, "mcp_clients", issuer, returns_to)
        async with self._db.driver() as driver:
            await mcp_authorizations.store_client(driver, issuer, returns_to, sealed, _secret_expiry(registered))
        return client


def _auth_method(metadata: OAuthMetadata) -> str:
    """How Khala asks to prove itself. It can keep a secret, so it asks for one where it can."""
    supported = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    return next((one for one in ("client_secret_basic", "client_secret_post") if one in supported), "none")


def _client(registered: OAuthClientInformationFull) -> ClientCredentials:
    """The registered client. Raises `ValueError` if its id or secret is too long."""
    if max(len(registered.client_id), len(registered.client_secret or "")) > MAX_CLIENT_CHARACTERS:
        raise ValueError("the id or the secret is too long")
    secret = registered.client_secret
    default = "none" if secret is None else "client_secret_basic"
    return ClientCredentials(
        id=registered.client_id, secret=secret, auth_method=registered.token_endpoint_auth_method or default
    )


def _secret_expiry(registered: OAuthClientInformationFull) -> datetime | None:
    at = registered.client_secret_expires_at
    try:
        return datetime.fromtimestamp(at, UTC) if at else None
    except (ValueError, OverflowError, OSError):
        return None
