"""Tools of servers to which each account connects its own: those of the account, or one that asks to connect it."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

import mcp_types as types
import structlog
from pydantic import TypeAdapter, ValidationError

from khala.domain.tools import SEPARATOR, ToolSpec
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.account_sessions import AccountSessions
from khala.tools.mcp.connection import McpConnection
from khala.tools.mcp.tool import McpToolAdapter
from khala.tools.port import CallContext, CallResult, Tool, ToolError, UserQuestion

log = structlog.get_logger()

CONNECT = "connect_account"
"""The tool of a server that is offered while the account is not connected."""
CONNECT_TIMEOUT_SECONDS = 30.0
"""Time of that tool, beside the time that the person takes."""
FIRST_LIST_SECONDS = 5.0
"""Time that a run waits for the first lists of its accounts' tools, for all of them together."""
LIST_AGE = timedelta(minutes=10)
"""Age of a stored list at which a run has it read again, without waiting for that."""
MAX_CACHED = 300
"""Lists of tools that a process has adapted."""
START = "/api/connections/{}/start"
TOOLS = TypeAdapter(list[types.Tool])


class AccountTools:
    """The tools of accounts. The lists are stored, so all processes offer the same ones."""

    def __init__(
        self, db: Database, servers: Mapping[str, AccountServer], sessions: AccountSessions, public_url: str | None
    ) -> None:
        self._db = db
        self._servers = servers
        self._sessions = sessions
        self._public_url = public_url
        self._adapted: OrderedDict[tuple[UUID, str], dict[str, Tool]] = OrderedDict()
        self._adapters = {name: McpToolAdapter(one.config, one.prefix) for name, one in servers.items()}

    async def of_user(self, user_id: UUID) -> dict[str, Tool]:
        """The tools that runs of this user are offered, by full name.

        Waits at most `FIRST_LIST_SECONDS` in all for servers that have not listed their tools yet. A server that fails
        or is too slow is left out, and the others are not.
        """
        accounts = await self._accounts(user_id)
        new = [account for account in accounts.values() if account.tools_hash is None]
        if new:
            await self._first_lists(new)
            accounts = await self._accounts(user_id)
        found: dict[str, Tool] = {}
        for name, server in self._servers.items():
            account = accounts.get(name)
            if account is None:
                tool = self.connect_tool(server, user_id)
                found[tool.spec.name] = tool
            else:
                found |= await self._tools(server, account)
        return found

    async def _accounts(self, user_id: UUID) -> dict[str, McpAccount]:
        """The user's connected accounts, by the server's name."""
        async with self._db.driver() as driver:
            accounts = await mcp_accounts.of_user(driver, user_id)
        servers = self._servers
        return {one.server: one for one in accounts if one.server in servers and servers[one.server].accepts(one)}

    def connect_tools(self) -> list[Tool]:
        """The tools that ask to connect an account, of all servers."""
        return [self.connect_tool(server, None) for server in self._servers.values()]

    def connect_tool(self, server: AccountServer, user_id: UUID | None) -> "ConnectTool":
        """The tool that asks the user to connect an account to this server."""
        url = None if self._public_url is None else self._public_url + START.format(quote(server.config.name, safe=""))
        return ConnectTool(self._db, server, user_id, url)

    async def _tools(self, server: AccountServer, account: McpAccount) -> dict[str, Tool]:
        if account.tools_hash is None:
            return {}
        if account.listed_at is None or datetime.now(UTC) - account.listed_at > LIST_AGE:
            self._prepare(account)
        key = account.id, account.tools_hash
        cached = self._adapted.get(key)
        if cached is None:
            async with self._db.driver() as driver:
                stored = await mcp_accounts.tools(driver, account.id)
            try:
                cached = await asyncio.to_thread(self._adapt, server, account, stored or "[]")
            except ValidationError as error:
                # A version of the library that accepts less than the one that has stored them.
                log.error(
                    "mcp_tools_unreadable",
                    server=server.config.name,
                    account=str(account.id),
                    errors=error.error_count(),
                )
                self._prepare(account)
                return {}
            self._adapted[key] = cached
            if len(self._adapted) > MAX_CACHED:
                self._adapted.popitem(last=False)
        self._adapted.move_to_end(key)
        return cached

    async def _first_lists(self, accounts: Sequence[McpAccount]) -> None:
        """Have the tools of these accounts listed, all at once: there is at most one account for each server.

        An account without a list after that is tried again by a later step of the run, which does not wait once more
        for a connection that was being opened for so long.
        """
        connections = [connection for one in accounts if (connection := self._prepare(one)) is not None]
        await asyncio.gather(*map(_wait_until_settled, connections))
        for connection in connections:
            if connection.state.state != "ready":
                log.info("mcp_account_not_listed", server=connection.server.name, error=connection.state.error)

    def _prepare(self, account: McpAccount) -> McpConnection | None:
        """Begin to open the account's connection, without waiting for it. None if the process has no place for it."""
        try:
            return self._sessions.prepare(self._servers[account.server], account)
        except ToolError as error:
            log.info("mcp_account_not_listed", server=account.server, error=error.message)
            return None

    def _adapt(self, server: AccountServer, account: McpAccount, stored: str) -> dict[str, Tool]:
        assert account.user_id is not None
        caller = AccountCaller(self._db, self._sessions, server, account.user_id)
        return self._adapters[server.config.name](caller, TOOLS.validate_json(stored))


async def _wait_until_settled(connection: McpConnection) -> None:
    """Wait until the connection is ready or has failed, for at most `FIRST_LIST_SECONDS` since it was created."""
    seconds_left = connection.created_at + FIRST_LIST_SECONDS - time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_left):
            await connection.settled.wait()


class AccountCaller:
    """Calls tools of a server with the account of one user, in calls that act for this user."""

    def __init__(self, db: Database, sessions: AccountSessions, server: AccountServer, user_id: UUID) -> None:
        self._db = db
        self._sessions = sessions
        self._server = server
        self._user_id = user_id

    async def call(
        self, tool: str, args: dict[str, Any], call: CallContext, *, idempotent: bool
    ) -> types.CallToolResult:
        """Call a tool by its name at the server. Raises `ToolError`."""
        if call.actor.user_id != self._user_id:
            raise ToolError("This tool acts for another account.", code="forbidden")
        account = await self._account()
        if account is None:
            raise _not_connected(self._server)
        connection = await self._sessions.open(self._server, account)
        try:
            return await connection.call(tool, args, call, idempotent=idempotent)
        except ToolError as error:
            if error.code in ("unavailable", "forbidden") and await self._account() is None:
                self._sessions.close(account.id)
                raise _not_connected(self._server) from error
            raise

    async def _account(self) -> McpAccount | None:
        async with self._db.driver() as driver:
            account = await mcp_accounts.find(driver, self._user_id, self._server.config.name)
        return account if self._server.accepts(account) else None


class ConnectTool:
    """Asks the person to connect an account. It is offered in place of the server's tools."""

    def __init__(self, db: Database, server: AccountServer, user_id: UUID | None, url: str | None) -> None:
        """`url` is where the person connects it; None if this server does not know its public address."""
        self._db = db
        self._server = server
        self._user_id = user_id
        self._url = url
        name = server.config.name
        about = f" {name}: {server.config.description}" if server.config.description else ""
        self.spec = ToolSpec(
            name=server.prefix + SEPARATOR + CONNECT,
            description=f"Asks the person to connect their account at {name}, which is not connected yet. Call it when "
            f"the task needs {name}; its tools are available afterwards.{about}",
            parameters={"type": "object", "properties": {}, "additionalProperties": False},
            permissions=frozenset({"network"}),
            timeout=CONNECT_TIMEOUT_SECONDS,
            idempotent=True,
            source=name,
        )

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Ask, and say whether the account is connected afterwards. Raises `ToolError` if it is not."""
        name = self._server.config.name
        if self._user_id is None or call.actor.user_id != self._user_id:
            raise ToolError("This tool acts for another account.", code="forbidden")
        if not await self._is_connected() and self._url is not None and call.ask is not None:
            message = f"Connect your account at {name}, then continue."
            await call.ask(UserQuestion(source=name, message=message, url=self._url))
        if not await self._is_connected():
            raise _not_connected(self._server)
        return CallResult(output=f"The account at {name} is connected. Its tools are available now.")

    async def _is_connected(self) -> bool:
        assert self._user_id is not None
        async with self._db.driver() as driver:
            account = await mcp_accounts.find(driver, self._user_id, self._server.config.name)
        return self._server.accepts(account)


def _not_connected(server: AccountServer) -> ToolError:
    return ToolError(
        f"The account is not connected to {server.config.name}. The person can connect it in Settings, under Connected "
        f"services.",
        code="forbidden",
    )
