"""Connected services: the MCP servers to which each account connects its own, from the first request to revocation."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from khala.domain.access import Caller
from khala.domain.errors import NotFound, Unavailable
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.authorization_http import ConnectError
from khala.tools.mcp.accounts.connection_results import (
    AccountConnection,
    AuthorizationResult,
    CompletedConnection,
    ExpiredError,
)
from khala.tools.mcp.accounts.sealed_secrets import PendingConnection
from khala.tools.port import ToolError

if TYPE_CHECKING:
    # They load the MCP library, which takes a second.
    from khala.tools.mcp.accounts.account_connector import AccountConnector
    from khala.tools.mcp.accounts.account_sessions import AccountSessions
    from khala.tools.mcp.accounts.account_tools import AccountTools
    from khala.tools.mcp.accounts.revocations import TokenRevoker

log = structlog.get_logger()


class AccountServers:
    """All servers to which accounts connect their own. `compose.open_account_servers` makes it."""

    def __init__(
        self,
        db: Database,
        servers: Mapping[str, AccountServer],
        *,
        connector: "AccountConnector",
        sessions: "AccountSessions",
        tools: "AccountTools",
        revoker: "TokenRevoker",
    ) -> None:
        self._db = db
        self._servers = servers
        self._connector = connector
        self._sessions = sessions
        self._revoker = revoker
        self.tools = tools

    @property
    def names(self) -> list[str]:
        """The names of the servers."""
        return list(self._servers)

    async def run(self) -> None:
        """Maintain sessions, and revoke tokens of accounts that were disconnected, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sessions.run(), name="mcp account sessions")
            group.create_task(self._revoker.run(), name="mcp account revocations")

    async def begin(self, caller: Caller, name: str, base_url: str, return_to: str) -> str:
        """Begin to connect the caller's account to a server. Returns the address at which the person allows it.

        Raises `NotFound`, and `Unavailable` with the reason if it cannot be connected.
        """
        server = self._servers.get(name)
        if server is None:
            raise NotFound("There is no such service.")
        try:
            return await self._connector.begin(caller, server, base_url, return_to)
        except ConnectError as error:
            raise Unavailable(str(error)) from error

    async def take(self, user_id: UUID, state: str) -> PendingConnection:
        """Remove and return what this user has begun with this state. Raises `ExpiredError`."""
        return await self._connector.take(user_id, state)

    async def finish(
        self, caller: Caller, pending: PendingConnection, result: AuthorizationResult
    ) -> CompletedConnection:
        """Complete a connection, and begin to list its tools. Raises `ConnectError`."""
        server = self._servers.get(pending.server)
        if server is None:
            raise ExpiredError("This server no longer offers the service.")
        completed = await self._connector.finish(caller, server, pending, result)
        async with self._db.driver() as driver:
            account = await mcp_accounts.read(driver, completed.account_id)
        if account is not None:
            try:
                self._sessions.prepare(server, account)
            except ToolError as error:
                log.info("mcp_account_not_listed", server=completed.server, error=error.message)
        return completed

    async def connections(self, user_id: UUID) -> list[AccountConnection]:
        """All servers with the state of the user's account, and its accounts at servers that are no longer offered."""
        return await connections(self._db, self._servers, user_id)

    async def disconnect(self, caller: Caller, name: str) -> None:
        """End the use of the caller's account at once, and revoke its tokens soon. Raises `NotFound`."""
        self._sessions.close(await mcp_accounts.disconnect(self._db, caller, name))
        self._revoker.wake()


async def connections(db: Database, servers: Mapping[str, AccountServer], user_id: UUID) -> list[AccountConnection]:
    """These servers with the state of the user's account, and its accounts at servers that are no longer offered."""
    async with db.driver() as driver:
        accounts = {account.server: account for account in await mcp_accounts.of_user(driver, user_id)}
    offered = [_describe(name, server, accounts.pop(name, None)) for name, server in servers.items()]
    return offered + [_describe(name, None, account) for name, account in accounts.items()]


def _describe(name: str, server: AccountServer | None, account: McpAccount | None) -> AccountConnection:
    description = "" if server is None else server.config.description
    if account is None:
        return AccountConnection(name=name, description=description, state="disconnected")
    is_connected = server is not None and server.accepts(account)
    return AccountConnection(
        name=name,
        description=description,
        state="removed" if server is None else "connected" if is_connected else "expired",
        tools=account.tool_count if is_connected else 0,
        issuer=account.issuer,
        scopes=tuple((account.scope or "").split()),
        needs_scope=is_connected and account.missing_scope is not None and not _has_fixed_scope(server),
        connected_at=account.created_at,
        used_at=account.used_at,
    )


def _has_fixed_scope(server: AccountServer | None) -> bool:
    """Whether the operator has configured the scopes, so that connecting again requests no others."""
    return server is not None and server.config.oauth is not None and server.config.oauth.scope is not None
