"""Connects an account at an MCP server: the authorization-code flow with PKCE, bound to the user who began it.

What has begun is stored by its `state`, sealed, for ten minutes, so that the browser may return to any process. Only
the same user can complete it, and only once.
"""

import asyncio
from base64 import urlsafe_b64encode
from hashlib import sha256
from uuid import UUID

import httpx
import structlog
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import validate_authorization_response_iss
from mcp.shared.auth import OAuthMetadata

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import KhalaError
from khala.domain.secret_box import SecretBox, SecretError
from khala.domain.secure_urls import is_secure
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts, mcp_authorizations
from khala.store.tools.mcp_accounts import NewMcpAccount
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.authorization_http import ClientCredentials, ConnectError
from khala.tools.mcp.accounts.client_metadata import redirect_uri
from khala.tools.mcp.accounts.connection_results import (
    AuthorizationResult,
    CompletedConnection,
    DeniedError,
    ExpiredError,
)
from khala.tools.mcp.accounts.discovery import discover
from khala.tools.mcp.accounts.registrations import ClientRegistrations, configured_client
from khala.tools.mcp.accounts.sealed_secrets import PendingConnection, SealedTokens, opened, seal
from khala.tools.mcp.accounts.token_endpoint import IssuedTokens, TokenRefusedError, request_tokens, revoke_all
from khala.tools.mcp.config import McpServerConfig

log = structlog.get_logger()

OFFLINE = "offline_access"
BEGIN_TIMEOUT_SECONDS = 30.0
"""Time for all requests that find the authorization server, and register at it."""
MAX_URL_CHARACTERS = 8192


class AccountConnector:
    """Begins and completes connections to MCP servers."""

    def __init__(self, db: Database, box: SecretBox, public_url: str | None) -> None:
        """`public_url`: the address of this server, if the operator has set it."""
        self._db = db
        self._box = box
        self._registrations = ClientRegistrations(db, box, public_url)

    async def begin(self, caller: Caller, server: AccountServer, base_url: str, return_to: str) -> str:
        """Begin a connection of the caller, and return the address at which the person allows it.

        `base_url` is the address of this server, to which the browser returns. Raises `ConnectError`.
        """
        config = server.config
        assert caller.user_id is not None
        assert config.url is not None
        if not is_secure(base_url):
            raise ConnectError("This server has no https address to which a browser may return with a code.")
        async with self._db.driver() as driver:
            earlier = await mcp_accounts.find(driver, caller.user_id, config.name)
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_SECONDS):
                found = await discover(config, server.http, None if earlier is None else earlier.missing_scope)
                client = await self._registrations.client(config, server.http, found.metadata, base_url)
        except TimeoutError as error:
            raise ConnectError(f"The authorization server of {config.name} is too slow now.") from error
        configured = configured_client(config.oauth) if config.oauth else None
        state, verifier = ids.new_secret(), ids.new_secret()
        pending = PendingConnection(
            server=config.name,
            resource=config.url,
            audience=found.resource,
            redirect_uri=redirect_uri(base_url, config.name),
            return_to=return_to,
            verifier=verifier,
            scope=found.scope,
            client=client if configured is None else ClientCredentials(id=client.id),
            metadata=found.metadata.model_dump_json(exclude_none=True),
        )
        sealed = seal(self._box, pending, "mcp_authorizations", caller.user_id, state)
        await mcp_authorizations.begin(self._db, caller, config.name, state, sealed)
        return _authorization_url(found.metadata, pending, state)

    async def take(self, user_id: UUID, state: str) -> PendingConnection:
        """Remove and return what this user has begun with this state. Raises `ExpiredError`."""
        taken = await mcp_authorizations.take(self._db, user_id, state)
        try:
            if taken is not None:
                return opened(self._box, taken[1], PendingConnection, "mcp_authorizations", user_id, state)
        except SecretError:
            log.warning("mcp_authorization_unreadable", server=taken[0] if taken else None)
        raise ExpiredError("This connection was begun by another account, has expired, or is complete. Start again.")

    async def finish(
        self, caller: Caller, server: AccountServer, pending: PendingConnection, result: AuthorizationResult
    ) -> CompletedConnection:
        """Complete a connection: exchange the code, and store the tokens. Raises `ConnectError`."""
        metadata = OAuthMetadata.model_validate_json(pending.metadata)
        try:
            # Against mix-up: a code of another server must not be sent to this one (RFC 9207).
            validate_authorization_response_iss(result.issuer, metadata)
        except OAuthFlowError as error:
            raise ConnectError("The answer comes from another authorization server than was asked.") from error
        if result.error == "access_denied":
            raise DeniedError(f"The access to {pending.server} was not allowed.")
        if result.code is None or result.error is not None:
            raise ConnectError(f"The authorization server of {pending.server} reports an error.")
        client = current_client(server.config, pending.client)
        if client is None or pending.resource != server.config.url:
            raise ExpiredError("The configuration of the service has changed. Start again.")
        issued = await self._exchange(server, metadata, client, pending, result.code)
        account = self._account(caller, metadata, pending, issued)
        try:
            await mcp_accounts.connect(self._db, caller, account)
        except KhalaError:
            await _revoke(server, metadata, client, issued)
            raise
        log.info("mcp_account_connected", server=pending.server, issuer=account.issuer)
        return CompletedConnection(account_id=account.id, server=pending.server)

    async def _exchange(
        self,
        server: AccountServer,
        metadata: OAuthMetadata,
        client: ClientCredentials,
        pending: PendingConnection,
        code: str,
    ) -> IssuedTokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "resource": pending.audience,
        }
        try:
            return await request_tokens(server.http, str(metadata.token_endpoint), client, form, pending.server)
        except TokenRefusedError as error:
            if error.of_client:
                await self._registrations.forget(str(metadata.issuer), pending.redirect_uri)
            raise

    def _account(
        self, caller: Caller, metadata: OAuthMetadata, pending: PendingConnection, issued: IssuedTokens
    ) -> NewMcpAccount:
        assert caller.user_id is not None
        account_id = ids.new()
        endpoint = metadata.revocation_endpoint
        tokens = SealedTokens(
            user_id=caller.user_id,
            server=pending.server,
            resource=pending.resource,
            access_token=issued.access_token,
            refresh_token=issued.refresh_token,
            refresh_at=issued.refresh_at,
            token_endpoint=str(metadata.token_endpoint),
            revocation_endpoint=None if endpoint is None else str(endpoint),
            audience=pending.audience,
            client=pending.client,
        )
        return NewMcpAccount(
            id=account_id,
            server=pending.server,
            resource=pending.resource,
            issuer=str(metadata.issuer),
            client_id=pending.client.id,
            tokens=seal(self._box, tokens, "mcp_accounts", account_id),
            scope=issued.scope or pending.scope,
            access_expires_at=issued.expires_at,
        )


def current_client(server: McpServerConfig, client: ClientCredentials) -> ClientCredentials | None:
    """The client with its current secret; None if the operator has configured another one since."""
    configured = None if server.oauth is None else configured_client(server.oauth)
    if configured is None:
        return client
    return configured if configured.id == client.id else None


async def _revoke(
    server: AccountServer, metadata: OAuthMetadata, client: ClientCredentials, issued: IssuedTokens
) -> None:
    """Revoke tokens that could not be stored."""
    url = metadata.revocation_endpoint
    if url is None:
        return
    try:
        await revoke_all(server.http, str(url), client, issued.access_token, issued.refresh_token)
    except ConnectError as error:
        log.warning("mcp_token_not_revoked", server=server.config.name, reason=str(error))


def _authorization_url(metadata: OAuthMetadata, pending: PendingConnection, state: str) -> str:
    challenge = urlsafe_b64encode(sha256(pending.verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": pending.client.id,
        "redirect_uri": pending.redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": pending.audience,
    }
    if pending.scope:
        query["scope"] = pending.scope
        if OFFLINE in pending.scope.split():
            query["prompt"] = "consent"  # OpenID Connect requires it for a refresh token.
    url = str(httpx.URL(str(metadata.authorization_endpoint)).copy_merge_params(query))
    if len(url) > MAX_URL_CHARACTERS:
        raise ConnectError("The authorization server asks for too many scopes. The operator can configure scope.")
    return url
