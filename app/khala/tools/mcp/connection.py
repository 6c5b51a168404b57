"""A connection to one server that is made again whenever it is lost, and the calls that go over it."""

import asyncio
import importlib
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import structlog

from khala.domain.backoff import Backoff
from khala.domain.chat import WireStruct
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import ConnectionSignal
from khala.tools.port import CallContext, Tool, ToolError

if TYPE_CHECKING:
    import mcp_types as types

    from khala.tools.mcp.session import McpRequestError, McpSession

log = structlog.get_logger()

RECONNECT = Backoff(first_seconds=0.2, max_seconds=30.0, min_factor=0.5, max_factor=1.0)
STABLE_SECONDS = 30.0
"""A connection that lasted this long resets the delays before the next ones."""
OPENING = 20.0
"""Seconds that a server has to start and to tell its tools."""
LISTING = 10.0
REFRESH = 60.0
"""Seconds between two looks at a server that says nothing by itself."""
SETTLING = 0.25
"""Seconds between two looks at one that says much."""
PATIENCE = 2.0
"""Seconds that a call waits for a server that is being reached."""
REPEATING = 10.0
"""Seconds that an idempotent call waits for the connection over which it is repeated."""
CLOSING = (4.0, 0.5)
"""Seconds that a connection has to end, and then to be ended."""
MOST_CALLS = 200
"""Calls of one server under way at once."""
LONGEST_LOGGED = 500
MOST_FAILURES = 2
"""Looks in a row that may fail before the connection is given up."""


class ServerState(WireStruct, frozen=True, kw_only=True, omit_defaults=False):
    """How it is with a server. `attempts` counts tries to connect since it was last ready; `tools` those it has now."""

    name: str
    transport: Literal["stdio", "http"]
    state: Literal["connecting", "ready", "failed"]
    tools: int
    attempts: int
    error: str | None = None
    connected_at: datetime | None = None


class McpConnection:
    """The connection. `run` keeps it; everything else may be called at any time."""

    def __init__(
        self, server: McpServerConfig, adapted: "Callable[[McpConnection, list[types.Tool]], dict[str, Tool]]"
    ) -> None:
        """`adapted` makes tools of what the server lists, by their full names."""
        self.server = server
        self.tools: dict[str, Tool] = {}
        self.settled = asyncio.Event()
        """Set once it was ready, or has failed, for the first time."""
        self._adapted = adapted
        self._session: McpSession | None = None
        self._watch = ConnectionSignal()
        self._seen = 0
        self._turn = asyncio.Event()
        self._short_lives = 0
        self._under_way = 0
        self._attempts = 0
        self._error: str | None = None
        self._connected_at: datetime | None = None

    @property
    def state(self) -> ServerState:
        """How it is now."""
        ready = self._alive() is not None
        return ServerState(
            name=self.server.name,
            transport=self.server.transport,
            state="ready" if ready else "failed" if self._error else "connecting",
            tools=len(self.tools),
            attempts=self._attempts,
            error=None if ready else self._error,
            connected_at=self._connected_at,
        )

    async def run(self) -> None:
        """Keep the connection, for ever. A server that can't be reached is tried again, less and less often."""
        await asyncio.to_thread(importlib.import_module, "khala.tools.mcp.session")
        while True:
            began = time.monotonic()
            await self._lived()
            self._short_lives = 1 if time.monotonic() - began >= STABLE_SECONDS else self._short_lives + 1
            wait = RECONNECT.delay(self._short_lives, random.random())
            log.info("mcp_server_lost", server=self.server.name, error=self._error, retry_in=round(wait, 2))
            await asyncio.sleep(wait)

    async def _lived(self) -> None:
        """One life of the connection, in a task of its own: the SDK cancels the task that entered its client."""
        self._attempts += 1
        life = asyncio.create_task(self._live(), name=f"mcp {self.server.name}")
        try:
            await asyncio.wait({life})
        finally:
            # Ours to end when we are cancelled ourselves; it takes the time that the server takes to end.
            for seconds in CLOSING:
                if not life.done():
                    life.cancel()
                    await asyncio.wait({life}, timeout=seconds)
            self._session = None
        error = None if life.cancelled() else life.exception()
        self._error = _told(error)
        self.settled.set()
        if error is not None:
            log.debug("mcp_connection_ended", server=self.server.name, error=repr(_first(error))[:LONGEST_LOGGED])

    async def _live(self) -> None:
        from khala.tools.mcp.session import opened

        self._watch = watch = ConnectionSignal()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(OPENING):
                session = await stack.enter_async_context(opened(self.server, watch))
                self.tools = await asyncio.to_thread(self._adapted, self, await session.tools())
            self._began(session)
            try:
                await self._watched(session, watch)
            finally:
                # Before the session ends, so that nobody begins a call on it.
                self._session = None

    def _began(self, session: "McpSession") -> None:
        self._session, self._error, self._attempts = session, None, 0
        self._connected_at = datetime.now(UTC)
        self.settled.set()
        self._was_seen()
        log.info("mcp_server_ready", server=self.server.name, tools=len(self.tools))

    def _was_seen(self) -> None:
        """The server has answered: whoever waits for that goes on."""
        self._seen += 1
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def _watched(self, session: "McpSession", watch: ConnectionSignal) -> None:
        """Ask for the tools now and then, and whenever there is a reason to; return when the connection is no good."""
        failures = 0
        while failures < MOST_FAILURES:
            await watch.woken(REFRESH if not failures else SETTLING)
            if watch.ended:
                return
            over = await self._looked(session)
            failures = 0 if over is None else MOST_FAILURES if over else failures + 1
            await asyncio.sleep(SETTLING)

    async def _looked(self, session: "McpSession") -> bool | None:
        """None if the server told its tools; else whether the session is over."""
        from khala.tools.mcp.session import McpRequestError

        try:
            async with asyncio.timeout(LISTING):
                self.tools = await asyncio.to_thread(self._adapted, self, await session.tools())
        except TimeoutError:
            return False
        except McpRequestError as error:
            log.debug("mcp_look_failed", server=self.server.name, error=error.message)
            return error.over
        self._was_seen()
        return None

    async def call(
        self, tool: str, args: dict[str, Any], call: CallContext, *, idempotent: bool
    ) -> "types.CallToolResult":
        """Call a tool by the server's own name for it. Raises `ToolError`."""
        if self._under_way >= MOST_CALLS:
            raise ToolError(f"{self.server.name} has too much to do. Try again later.", code="unavailable")
        self._under_way += 1
        try:
            async with asyncio.timeout(self.server.timeout):
                return await self._called(tool, args, call, idempotent=idempotent)
        except TimeoutError as error:
            seconds = f"{self.server.timeout:g} seconds"
            raise ToolError(f"{self.server.name} did not answer within {seconds}.", code="timeout") from error
        finally:
            self._under_way -= 1

    async def _called(
        self, tool: str, args: dict[str, Any], call: CallContext, *, idempotent: bool
    ) -> "types.CallToolResult":
        from khala.tools.mcp.session import McpRequestError

        session = await self._reached(PATIENCE)
        seen = self._seen
        try:
            return await session.call(tool, args, call.idempotency_key, call.progress)
        except McpRequestError as error:
            if not error.over:
                raise ToolError(_bounded(error.message), code=error.code) from error
            self._watch.doubt()
            if error.sent and not idempotent:
                raise self._unknown(error) from error
            first = error
        # Once more: nothing was done, or doing it again is the same.
        session = await self._reached(REPEATING if first.sent else PATIENCE, after=seen)
        try:
            return await session.call(tool, args, call.idempotency_key, call.progress)
        except McpRequestError as error:
            if not error.over:
                raise ToolError(_bounded(error.message), code=error.code) from error
            raise (self._unknown(error) if error.sent or first.sent else self._unavailable()) from error

    async def _reached(self, seconds: float, *, after: int = 0) -> "McpSession":
        """A session with a server that has answered since, within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while (session := self._alive()) is None or self._seen <= after:
                    await self._turn.wait()
                return session
        except TimeoutError as error:
            raise self._unavailable() from error

    def _alive(self) -> "McpSession | None":
        return None if self._watch.ended else self._session

    def _unavailable(self) -> ToolError:
        return ToolError(f"{self.server.name} is out of reach for now. Nothing was done.", code="unavailable")

    def _unknown(self, error: "McpRequestError") -> ToolError:
        return ToolError(f"{error.message} Nobody knows whether {self.server.name} did it.", code="unknown")


def _bounded(message: str) -> str:
    return message[:2000] or "The server says that it failed, and not how."


def _told(error: BaseException | None) -> str:
    """What callers may know of it: never what a server or a library says, which may hold secrets."""
    from khala.tools.mcp.session import McpRequestError
    from khala.tools.mcp.stdio import ProgramNotFoundError

    match _first(error):
        case None:
            return "The connection was lost."
        case ProgramNotFoundError():
            return "There is no such program."
        case TimeoutError():
            return f"It was not ready within {OPENING:g} seconds."
        case McpRequestError() as broken if not broken.sent or broken.over:
            return broken.message
        case OSError():
            return "It could not be started."
        case _:
            return "It does not speak the protocol as it should."


def _first(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
