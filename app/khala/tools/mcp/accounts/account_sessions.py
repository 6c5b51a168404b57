"""Sessions with MCP servers for single accounts: opened when they are needed, and closed when they are idle."""

import asyncio
import contextvars
import time
from collections.abc import Sequence
from hashlib import sha256
from uuid import UUID

import mcp_types as types
import msgspec
import structlog

from khala.domain.errors import Unavailable
from khala.domain.secret_box import SecretBox
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.store.tools.mcp_accounts import McpAccount
from khala.tools.mcp.accounts.account_server import AccountServer
from khala.tools.mcp.accounts.account_tokens import AccountTokens
from khala.tools.mcp.connection import McpConnection
from khala.tools.port import ToolError

log = structlog.get_logger()

MAX_SESSIONS = 500
"""Sessions of one process."""
IDLE_SECONDS = 300.0
"""Time without calls after which a session is closed."""
CHECK_INTERVAL_SECONDS = 15.0
OPEN_TIMEOUT_SECONDS = 15.0
"""Time that a call waits for its session."""
CLOSE_TIMEOUT_SECONDS = 15.0
"""Time for refreshes that are under way when the process stops: the request, and storing its tokens."""
MAX_LISTED_BYTES = 2 << 20
"""Size of the stored tools of one account; further tools are left out."""


class _Session(msgspec.Struct, kw_only=True):
    connection: McpConnection
    task: "asyncio.Task[None]"
    used_at: float


class AccountSessions:
    """The sessions of this process. `run` maintains them; all other methods may be called while it runs."""

    def __init__(self, db: Database, box: SecretBox) -> None:
        self._db = db
        self._box = box
        self._sessions: dict[UUID, _Session] = {}
        self._refreshes: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Maintain the sessions until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                while True:
                    await asyncio.sleep(CHECK_INTERVAL_SECONDS)
                    for account_id in self._idle(IDLE_SECONDS):
                        self.close(account_id)
        finally:
            self._group = None
            self._sessions.clear()
            if self._refreshes:
                await asyncio.wait(self._refreshes, timeout=CLOSE_TIMEOUT_SECONDS)

    async def open(self, server: AccountServer, account: McpAccount) -> McpConnection:
        """The connection for this account, once it is ready or has failed. Raises `ToolError`."""
        connection = self.prepare(server, account)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_SECONDS):
                await connection.settled.wait()
        except TimeoutError as error:
            raise ToolError(
                f"{server.config.name} can't be reached now. Nothing was done.", code="unavailable"
            ) from error
        return connection

    def prepare(self, server: AccountServer, account: McpAccount) -> McpConnection:
        """Begin to open the connection for this account, without waiting for it. Raises `ToolError`."""
        session = self._sessions.get(account.id)
        if session is None:
            session = self._sessions[account.id] = self._create(server, account)
        session.used_at = time.monotonic()
        return session.connection

    def close(self, account_id: UUID) -> None:
        """Close the session of an account, if it has one."""
        session = self._sessions.pop(account_id, None)
        if session is not None:
            session.task.cancel()

    def _create(self, server: AccountServer, account: McpAccount) -> _Session:
        if len(self._sessions) >= MAX_SESSIONS:
            for account_id in self._idle(0.0)[:1]:
                self.close(account_id)
        if self._group is None or len(self._sessions) >= MAX_SESSIONS:
            raise ToolError(f"{server.config.name} is busy. Nothing was done.", code="unavailable")
        tokens = AccountTokens(self._db, self._box, server.config, server.http, account.id, self._refreshes)
        connection = McpConnection(
            server.config,
            lambda *_: {},  # The tools are those that are stored, and the same in all processes.
            tokens=tokens,
            listed=lambda tools: self._store(account.id, tools),
        )
        # In a context of its own: the session outlives the run or request that opens it, and belongs to none.
        name, context = f"mcp account {server.config.name}", contextvars.Context()
        task = self._group.create_task(connection.run(), name=name, context=context)
        return _Session(connection=connection, task=task, used_at=time.monotonic())

    def _idle(self, seconds: float) -> list[UUID]:
        """The accounts whose sessions had no call for so long, the longest first."""
        now = time.monotonic()
        ordered = sorted(self._sessions.items(), key=lambda item: item[1].used_at)
        return [key for key, one in ordered if one.connection.is_idle and now - one.used_at >= seconds]

    async def _store(self, account_id: UUID, tools: Sequence[types.Tool]) -> None:
        """Store what the server lists for this account."""
        listed, count = await asyncio.to_thread(_dumped, tools)
        try:
            async with self._db.driver() as driver:
                await mcp_accounts.set_tools(driver, account_id, listed, sha256(listed.encode()).hexdigest(), count)
        except Unavailable as error:
            # The session and its calls go on, and the next list is stored.
            log.warning("mcp_tools_not_stored", account=str(account_id), error=str(error.__cause__))


def _dumped(tools: Sequence[types.Tool]) -> tuple[str, int]:
    """As many tools as may be stored, as a JSON array, and their number. Postgres stores no NUL characters."""
    dumped: list[str] = []
    size = 0
    for tool in tools:
        used = tool.model_dump_json(
            by_alias=True, exclude_none=True, include={"name", "title", "description", "input_schema", "annotations"}
        )
        size += len(used) + 1
        if size > MAX_LISTED_BYTES:
            break
        if "\\u0000" not in used:
            dumped.append(used)
    return f"[{','.join(dumped)}]", len(dumped)
