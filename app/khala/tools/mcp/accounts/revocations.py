"""Revokes the tokens of accounts that were disconnected, at their issuers (RFC 7009)."""

import asyncio
from collections.abc import Mapping

import structlog

from khala.domain.errors import Unavailable
from khala.domain.secret_box import SecretBox, SecretError
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.account_connector import current_client
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.authorization_http import ConnectError
from khala.tools.mcp.accounts.sealed_secrets import SealedTokens, opened
from khala.tools.mcp.accounts.token_endpoint import revoke_all

log = structlog.get_logger()

INTERVAL_SECONDS = 30.0
"""Time between two looks for tokens to revoke, unless an account is disconnected in this process."""


class TokenRevoker:
    """Revokes tokens in the background. Any process may do it; a row is claimed for each attempt."""

    def __init__(self, db: Database, box: SecretBox, servers: Mapping[str, AccountServer]) -> None:
        self._db = db
        self._box = box
        self._servers = servers
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look for tokens to revoke at once."""
        self._woken.set()

    async def run(self) -> None:
        """Revoke tokens until cancelled."""
        while True:
            self._woken.clear()
            await self._look()
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        """Try to revoke all tokens that are due. Without a database, the next look does."""
        try:
            while await self.revoke_next():
                pass
        except Unavailable as error:
            log.warning("mcp_revocations_failed", error=str(error.__cause__))

    async def revoke_next(self) -> bool:
        """Try to revoke the tokens of one account. Returns whether there was one.

        After the last attempt, the row is deleted without.
        """
        async with self._db.driver() as driver:
            claimed = await mcp_accounts.claim_revocation(driver)
        if claimed is None:
            return False
        account, is_last = claimed
        if await self._revoke(account) or is_last:
            async with self._db.driver() as driver:
                await mcp_accounts.remove(driver, account.id)
        return True

    async def _revoke(self, account: McpAccount) -> bool:
        """Revoke the tokens of an account that belongs to nobody. Returns whether nothing is left to do."""
        try:
            tokens = opened(self._box, account.tokens, SealedTokens, "mcp_accounts", account.id)
        except SecretError:
            # Another process may have the key.
            log.warning("mcp_account_unreadable", server=account.server, account=str(account.id))
            return False
        server = self._servers.get(account.server)
        client = None if server is None else current_client(server.config, tokens.client)
        if server is None:
            _log_unrevoked(account, "The operator no longer offers the service.")
        elif client is None:
            _log_unrevoked(account, "The configured client is another one.")
        elif tokens.revocation_endpoint is None:
            _log_unrevoked(account, "The issuer offers no revocation.")
        else:
            url, access, refresh = tokens.revocation_endpoint, tokens.access_token, tokens.refresh_token
            try:
                if await revoke_all(server.http, url, client, access, refresh):
                    log.info("mcp_token_revoked", server=account.server)
                else:
                    _log_unrevoked(account, "The issuer refuses to revoke it.")
            except ConnectError as error:
                _log_unrevoked(account, str(error))
                return False
        return True


def _log_unrevoked(account: McpAccount, reason: str) -> None:
    log.info("mcp_token_not_revoked", server=account.server, reason=reason)
