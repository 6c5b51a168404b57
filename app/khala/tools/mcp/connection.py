"""A connection to one MCP server, and the calls over it. A lost connection is restored."""

import asyncio
import importlib
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import structlog

from khala.domain.backoff import Backoff
from khala.domain.chat import WireStruct
from khala.tools.mcp.active_calls import ActiveCalls
from khala.tools.mcp.call_meta import call_meta
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import ConnectionSignal
from khala.tools.port import CallContext, Tool, ToolError
from khala.tools.supervised import ProgramNotFoundError

if TYPE_CHECKING:
    import mcp_types as types

    from khala.tools.mcp.accounts.account_tokens import AccountTokens
    from khala.tools.mcp.session import McpRequestError, McpSession

log = structlog.get_logger()

RECONNECT = Backoff(first_seconds=0.2, max_seconds=30.0, min_factor=0.5, max_factor=1.0)
STABLE_SECONDS = 30.0
"""A connection that lasted this long resets the reconnect delay."""
OPEN_TIMEOUT_SECONDS = 20.0
"""Time for a server to start and to list its tools."""
LIST_TIMEOUT_SECONDS = 10.0
CHECK_INTERVAL_SECONDS = 60.0
"""Time between two checks of a server that sends no notification."""
MIN_CHECK_INTERVAL_SECONDS = 0.25
"""Minimum time between two checks."""
CONNECT_WAIT_SECONDS = 2.0
"""Time that a call waits for a connection."""
REPEAT_WAIT_SECONDS = 10.0
"""Time that an idempotent call waits for the connection over which it is repeated."""
CLOSE_TIMEOUTS_SECONDS = (4.0, 0.5)
"""Time for a connection to close after the first and the second cancellation."""
MAX_CALLS = 200
"""Calls of one server at once."""
MAX_LOGGED_CHARACTERS = 500
MAX_MESSAGE_CHARACTERS = 2000
"""Characters of a server's error message."""
MAX_FAILED_CHECKS = 2
"""Consecutive failed checks after which the connection is closed."""


class ServerState(WireStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The state of a server. `attempts` counts tries to connect since it was last ready, and `tools` its tools."""

    name: str
    transport: Literal["stdio", "http"]
    state: Literal["connecting", "ready", "failed"]
    tools: int
    attempts: int
    error: str | None = None
    connected_at: datetime | None = None


class McpConnection:
    """The connection to one server. `run` maintains it; all other methods may be called at any time."""

    def __init__(
        self,
        server: McpServerConfig,
        adapt: "Callable[[McpConnection, list[types.Tool]], dict[str, Tool]]",
        *,
        tokens: "AccountTokens | None" = None,
        listed: "Callable[[list[types.Tool]], Awaitable[None]] | None" = None,
    ) -> None:
        """`adapt` turns the tools that the server lists into tools by full name.

        `tokens` are those of the account that uses the connection, if each account has its own. `listed` is called
        with each list of tools.
        """
        self.server = server
        self.tools: dict[str, Tool] = {}
        self.created_at = time.monotonic()
        self.settled = asyncio.Event()
        """Set when the server is ready, or has failed, for the first time."""
        self._adapt = adapt
        self._tokens = tokens
        self._listed = listed
        self._session: McpSession | None = None
        self._signal = ConnectionSignal()
        self._checks = 0
        """Checks that have begun, including those of opening a connection."""
        self._passed_check = 0
        """The last of them to which the server has responded."""
        self._responded = asyncio.Event()
        self._short_connections = 0
        self._active_calls = 0
        self._calls = ActiveCalls()
        self._attempts = 0
        self._error: str | None = None
        self._connected_at: datetime | None = None

    @property
    def state(self) -> ServerState:
        """The current state."""
        ready = self._open_session() is not None
        return ServerState(
            name=self.server.name,
            transport=self.server.transport,
            state="ready" if ready else "failed" if self._error else "connecting",
            tools=len(self.tools),
            attempts=self._attempts,
            error=None if ready else self._error,
            connected_at=self._connected_at,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no call is running."""
        return self._active_calls == 0

    async def run(self) -> None:
        """Maintain the connection until cancelled. Reconnects with increasing delays."""
        await asyncio.to_thread(importlib.import_module, "khala.tools.mcp.session")
        while True:
            began = time.monotonic()
            await self._connect_once()
            self._short_connections = 1 if time.monotonic() - began >= STABLE_SECONDS else self._short_connections + 1
            wait = RECONNECT.delay(self._short_connections, random.random())
            log.info("mcp_server_disconnected", server=self.server.name, error=self._error, retry_in=round(wait, 2))
            await asyncio.sleep(wait)

    async def _connect_once(self) -> None:
        """Run one connection until its end, in a task of its own: the SDK cancels the task that entered its client."""
        self._attempts += 1
        task = asyncio.create_task(self._run_connection(), name=f"mcp {self.server.name}")
        try:
            await asyncio.wait({task})
        finally:
            # Also on cancellation. Closing takes as long as the server takes to end.
            for seconds in CLOSE_TIMEOUTS_SECONDS:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=seconds)
            self._session = None
        error = None if task.cancelled() else task.exception()
        self._error = _public_message(error)
        self.settled.set()
        if error is not None:
            log.debug(
                "mcp_connection_ended", server=self.server.name, error=repr(_first_cause(error))[:MAX_LOGGED_CHARACTERS]
            )

    async def _run_connection(self) -> None:
        from khala.tools.mcp.session import open_session

        self._signal = signal = ConnectionSignal()
        check = self._begin_check()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(OPEN_TIMEOUT_SECONDS):
                session = await stack.enter_async_context(open_session(self.server, signal, self._calls, self._tokens))
                await self._list_tools(session)
            self._set_ready(session, check)
            try:
                await self._monitor(session, signal)
            finally:
                # Before the session ends, so that no call begins on it.
                self._session = None

    async def _list_tools(self, session: "McpSession") -> None:
        tools = await session.tools()
        self.tools = await asyncio.to_thread(self._adapt, self, tools)
        if self._listed is not None:
            await self._listed(tools)

    def _set_ready(self, session: "McpSession", check: int) -> None:
        self._session, self._error, self._attempts = session, None, 0
        self._connected_at = datetime.now(UTC)
        self.settled.set()
        self._record_response(check)
        log.info("mcp_server_ready", server=self.server.name, tools=len(self.tools))

    def _begin_check(self) -> int:
        self._checks += 1
        return self._checks

    def _record_response(self, check: int) -> None:
        """Record that the server has responded to this check, and wake the calls that wait for that."""
        self._passed_check = check
        responded, self._responded = self._responded, asyncio.Event()
        responded.set()

    async def _monitor(self, session: "McpSession", signal: ConnectionSignal) -> None:
        """List the tools regularly and whenever a check is requested. Return when the connection is lost."""
        failures = 0
        while failures < MAX_FAILED_CHECKS:
            await signal.wait(CHECK_INTERVAL_SECONDS if not failures else MIN_CHECK_INTERVAL_SECONDS)
            if signal.ended:
                return
            session_ended = await self._check(session)
            failures = 0 if session_ended is None else MAX_FAILED_CHECKS if session_ended else failures + 1
            await asyncio.sleep(MIN_CHECK_INTERVAL_SECONDS)

    async def _check(self, session: "McpSession") -> bool | None:
        """List the tools. Returns None on success, else whether the session has ended."""
        from khala.tools.mcp.session import McpRequestError

        check = self._begin_check()
        try:
            async with asyncio.timeout(LIST_TIMEOUT_SECONDS):
                await self._list_tools(session)
        except TimeoutError:
            return False
        except McpRequestError as error:
            log.debug("mcp_check_failed", server=self.server.name, error=error.message)
            return error.session_ended
        self._record_response(check)
        return None

    async def call(
        self, tool: str, args: dict[str, Any], call: CallContext, *, idempotent: bool
    ) -> "types.CallToolResult":
        """Call a tool by its name at the server. Raises `ToolError`."""
        if self._active_calls >= MAX_CALLS:
            raise ToolError(f"{self.server.name} is busy with too many calls. Try again later.", code="unavailable")
        self._active_calls += 1
        try:
            async with asyncio.timeout(self.server.timeout) as timeout, self._calls.track(call, timeout):
                return await self._call(tool, args, call, idempotent=idempotent)
        except TimeoutError as error:
            seconds = f"{self.server.timeout:g} seconds"
            raise ToolError(f"{self.server.name} did not answer within {seconds}.", code="timeout") from error
        finally:
            self._active_calls -= 1

    async def _call(
        self, tool: str, args: dict[str, Any], call: CallContext, *, idempotent: bool
    ) -> "types.CallToolResult":
        from khala.tools.mcp.session import McpRequestError

        meta = call_meta(call.idempotency_key, call.actor, share_identity=self.server.share_identity)
        session = await self._wait_for_session(CONNECT_WAIT_SECONDS)
        try:
            return await session.call(tool, args, meta, call.progress)
        except McpRequestError as error:
            if not error.session_ended:
                raise ToolError(_bounded(error.message), code=error.code) from error
            # A check that began before the failure says nothing about the server as it is now.
            checks = self._checks
            self._signal.request_check()
            if error.sent and not idempotent:
                raise self._unknown(error) from error
            first = error
        # Repeat the call: it was not executed, or the tool is idempotent.
        session = await self._wait_for_session(
            REPEAT_WAIT_SECONDS if first.sent else CONNECT_WAIT_SECONDS, after=checks
        )
        try:
            return await session.call(tool, args, meta, call.progress)
        except McpRequestError as error:
            if not error.session_ended:
                raise ToolError(_bounded(error.message), code=error.code) from error
            raise (self._unknown(error) if error.sent or first.sent else self._unavailable()) from error

    async def _wait_for_session(self, seconds: float, *, after: int = 0) -> "McpSession":
        """A session whose server has passed a check that began after the first `after` checks.

        Raises `ToolError` after so many seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                while (session := self._open_session()) is None or self._passed_check <= after:
                    await self._responded.wait()
                return session
        except TimeoutError as error:
            raise self._unavailable() from error

    def _open_session(self) -> "McpSession | None":
        return None if self._signal.ended else self._session

    def _unavailable(self) -> ToolError:
        return ToolError(f"{self.server.name} can't be reached now. Nothing was done.", code="unavailable")

    def _unknown(self, error: "McpRequestError") -> ToolError:
        return ToolError(f"{error.message} It is unknown whether {self.server.name} executed the call.", code="unknown")


def _bounded(message: str) -> str:
    return message[:MAX_MESSAGE_CHARACTERS] or "The server reported a failure without a message."


def _public_message(error: BaseException | None) -> str:
    """A message for callers. It never contains text of a server or a library, because that may contain secrets."""
    from khala.tools.mcp.session import McpRequestError

    match _first_cause(error):
        case None:
            return "The connection was lost."
        case ProgramNotFoundError():
            return "The program was not found."
        case TimeoutError():
            return f"The server was not ready within {OPEN_TIMEOUT_SECONDS:g} seconds."
        case McpRequestError() as broken if not broken.sent or broken.session_ended:
            return broken.message
        case OSError():
            return "The server could not be started."
        case _:
            return "The server does not follow the protocol."


def _first_cause(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
