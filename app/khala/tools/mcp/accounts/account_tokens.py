"""The access token of one connected account. One process at a time refreshes it, under a lease in the database.

Each request reads the token from the database, so that a disconnected account is used nowhere any more.
"""

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

import msgspec
import structlog
from mcp.client.auth.utils import union_scopes

from khala.domain.backoff import Backoff
from khala.domain.errors import Unavailable
from khala.domain.secret_box import SecretBox, SecretError
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.account_connector import current_client
from khala.tools.mcp.accounts.authorization_http import AuthorizationHttp, ClientCredentials, ConnectError
from khala.tools.mcp.accounts.registrations import is_registered
from khala.tools.mcp.accounts.sealed_secrets import SealedTokens, opened, seal
from khala.tools.mcp.accounts.token_endpoint import (
    IssuedTokens,
    TokenRefusedError,
    bounded_scope,
    request_tokens,
    revoke_all,
)
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.oauth import AuthorizationError, DeniedRequestError

log = structlog.get_logger()

WAIT_SECONDS = 20.0
"""Time that a request waits for the refresh by another process."""
POLL_SECONDS = 0.2
STORE_BACKOFF = Backoff(first_seconds=0.2, max_seconds=2.0, min_factor=0.5)
"""Between attempts to store refreshed tokens."""

MAX_REFUSALS = 5
"""Refusals in a row after which the account expires, although none of them says that the grant has ended."""
REFUSAL_BACKOFF = Backoff(first_seconds=5.0, max_seconds=60.0, min_factor=0.8)
"""Between refreshes that the issuer refuses."""

AccountRow: TypeAlias = tuple[McpAccount, SealedTokens]


class AccessToken(msgspec.Struct, frozen=True):
    """An access token, and the version of the account's tokens."""

    text: str
    version: int


class AccountTokens:
    """The tokens of the account with this id.

    All methods raise `AuthorizationError` if there is no valid token, and `KhalaError` without a database.
    """

    def __init__(
        self,
        db: Database,
        box: SecretBox,
        server: McpServerConfig,
        http: AuthorizationHttp,
        account_id: UUID,
        refreshes: set[asyncio.Task[None]],
    ) -> None:
        """`refreshes` gets the refreshes that are under way, to be waited for."""
        self._db = db
        self._box = box
        self._server = server
        self._http = http
        self._account_id = account_id
        self._refreshes = refreshes
        self._refusals = 0
        """Refusals in a row of the tokens of `_refused_version`."""
        self._refused_version: int | None = None
        self._refusal = ""
        self._refused_until = 0.0
        """Until then, in monotonic seconds, no refresh is tried: the issuer has refused one, as `_refusal` says."""

    async def current(self) -> AccessToken:
        """The current token, which is refreshed before it expires."""
        account, tokens = await self._read()
        refresh_at, expires_at = tokens.refresh_at, account.access_expires_at
        if refresh_at is None or tokens.refresh_token is None or refresh_at > datetime.now(UTC):
            return AccessToken(tokens.access_token, account.version)
        try:
            return await self.renewed(account.version)
        except DeniedRequestError:
            raise
        except AuthorizationError as error:
            if expires_at is None or expires_at <= datetime.now(UTC):
                raise
            log.info("mcp_token_not_refreshed", server=self._server.name, error=str(error))
            return AccessToken(tokens.access_token, account.version)

    async def renewed(self, refused: int) -> AccessToken:
        """A token of a later version than the refused one. The account expires if there is none."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    account, tokens = await self._read()
                    if account.version != refused:
                        return AccessToken(tokens.access_token, account.version)
                    if tokens.refresh_token is None:
                        await self.expire(refused)
                        continue  # To raise the error of an expired account.
                    if not await self._try_refresh(account, tokens):
                        await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise AuthorizationError(
                f"{self._server.name} can't be reached now: its token is not refreshed."
            ) from error

    async def expire(self, refused: int) -> None:
        """Record that the server refuses the token of this version, although it is new."""
        account, _ = await self._read()
        if account.version == refused:
            await self._expire(account)

    async def add_missing_scope(self, scope: str) -> None:
        """Record scopes that a call needs, for the next time that the account is connected."""
        account, _ = await self._read()
        missing = union_scopes(union_scopes(account.scope, account.missing_scope), scope)
        async with self._db.driver() as driver:
            await mcp_accounts.set_missing_scope(driver, self._account_id, bounded_scope(missing or scope))

    async def _read(self) -> AccountRow:
        async with self._db.driver() as driver:
            account = await mcp_accounts.read(driver, self._account_id)
        if account is None or account.refused_at is not None:
            raise DeniedRequestError(f"The account is not connected to {self._server.name}.")
        try:
            tokens = opened(self._box, account.tokens, SealedTokens, "mcp_accounts", account.id)
        except SecretError as error:
            log.error("mcp_account_unreadable", server=self._server.name, account=str(account.id))
            raise AuthorizationError("The stored token can't be decrypted with the keys of this server.") from error
        if (tokens.user_id, tokens.server, tokens.resource) != (account.user_id, self._server.name, self._server.url):
            raise DeniedRequestError(f"The account is not connected to {self._server.name}.")
        return account, tokens

    async def _try_refresh(self, account: McpAccount, tokens: SealedTokens) -> bool:
        """Refresh under a lease. Returns False if another process holds it."""
        if time.monotonic() < self._refused_until:
            raise AuthorizationError(self._refusal)
        async with self._db.driver() as driver:
            lease = await mcp_accounts.lease_refresh(driver, account.id, account.version)
        if lease is None:
            return False
        # In a task of its own: the refresh token is valid once, and the one after it must not be lost with the call.
        task = asyncio.create_task(self._refresh(account, tokens, lease), name="mcp token refresh")
        self._refreshes.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Log the exception, which nobody awaits if the call was cancelled."""
        self._refreshes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("mcp_token_not_refreshed", server=self._server.name, error=str(error))

    async def _refresh(self, account: McpAccount, tokens: SealedTokens, lease: datetime) -> None:
        lease_end = time.monotonic() + mcp_accounts.REFRESH_LEASE_SECONDS
        client = current_client(self._server, tokens.client)
        if client is None or tokens.refresh_token is None:
            await self._expire(account)
            return
        form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token, "resource": tokens.audience}
        try:
            issued = await request_tokens(self._http, tokens.token_endpoint, client, form, self._server.name)
        except ConnectError as error:
            if isinstance(error, TokenRefusedError):
                self._record_refusal(error, account.version)
                if self._ends_account(error, client):
                    await self._expire(account)
                    return
            async with self._db.driver() as driver:
                await mcp_accounts.release_refresh(driver, account.id, lease)
            raise AuthorizationError(str(error)) from error
        self._refusals, self._refused_until = 0, 0.0
        await self._store_until(lease_end, account, tokens, issued)

    def _record_refusal(self, error: TokenRefusedError, version: int) -> None:
        """Count a refusal of the tokens of this version, and back off before the next refresh."""
        if self._refused_version != version:
            # Another process has refreshed them since.
            self._refused_version, self._refusals = version, 0
        self._refusals += error.is_answer and not error.of_client
        self._refusal = str(error)
        self._refused_until = time.monotonic() + REFUSAL_BACKOFF.delay(max(self._refusals, 1), random.random())

    def _ends_account(self, error: TokenRefusedError, client: ClientCredentials) -> bool:
        """Whether only connecting again helps. The operator can mend a wrong secret, and a few refusals may go away."""
        if error.of_client:
            return is_registered(self._server, client)
        return error.of_grant or self._refusals >= MAX_REFUSALS

    async def _store_until(self, end: float, account: McpAccount, tokens: SealedTokens, issued: IssuedTokens) -> None:
        """Store new tokens, with retries until this time: the issuer may accept the earlier refresh token no more."""
        failures = 0
        while True:
            try:
                return await self._store(account, tokens, issued)
            except Unavailable:
                failures += 1
                seconds = STORE_BACKOFF.delay(failures, random.random())
                if time.monotonic() + seconds >= end:
                    log.error("mcp_token_lost", server=self._server.name, account=str(account.id))
                    raise
                await asyncio.sleep(seconds)

    async def _store(self, account: McpAccount, tokens: SealedTokens, issued: IssuedTokens) -> None:
        renewed = msgspec.structs.replace(
            tokens,
            access_token=issued.access_token,
            refresh_token=issued.refresh_token or tokens.refresh_token,
            refresh_at=issued.refresh_at,
        )
        sealed = seal(self._box, renewed, "mcp_accounts", account.id)
        scope = issued.scope or account.scope
        async with self._db.driver() as driver:
            if await mcp_accounts.replace_tokens(driver, account, sealed, scope, issued.expires_at):
                log.info("mcp_token_refreshed", server=self._server.name, account=str(account.id))
                return
            # An account that was connected again keeps its tokens: some issuers end them with the earlier ones.
            if await mcp_accounts.find(driver, tokens.user_id, tokens.server) is not None:
                return
        await self._revoke(renewed)

    async def _revoke(self, tokens: SealedTokens) -> None:
        """Revoke tokens that could not be stored, because the account was disconnected during the refresh."""
        client, url = current_client(self._server, tokens.client), tokens.revocation_endpoint
        if client is None or url is None:
            return
        try:
            await revoke_all(self._http, url, client, tokens.access_token, tokens.refresh_token)
        except ConnectError as error:
            log.warning("mcp_token_not_revoked", server=self._server.name, reason=str(error))

    async def _expire(self, account: McpAccount) -> None:
        log.info("mcp_account_expired", server=self._server.name, account=str(account.id))
        async with self._db.driver() as driver:
            await mcp_accounts.expire(driver, account)
