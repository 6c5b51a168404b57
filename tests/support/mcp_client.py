"""Connections to test MCP servers, and calls of their tools."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from khala.domain import ids
from khala.domain.tools import ToolActor
from khala.tools.mcp import McpConfig, McpConnections, McpServerConfig, ServerState
from khala.tools.port import CallContext, CallResult
from tests.support import mcp_server
from tests.support.forked import CONTEXT
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 30.0


class Collected:
    """A sink that stores everything."""

    def __init__(self) -> None:
        self.content = bytearray()

    async def write(self, data: bytes) -> None:
        self.content += data


def call_context(
    key: str | None = None, *, progress: list[str] | None = None, sink: Collected | None = None
) -> CallContext:
    return CallContext(
        id="call",
        idempotency_key=key or ids.new().hex,
        actor=ToolActor(owner_id=UUID(int=1), user_id=UUID(int=1)),
        sink=sink or Collected(),
        progress=(progress if progress is not None else []).append,
    )


def stdio(journal: Path, name: str = "peculiar", **settings: Any) -> McpServerConfig:
    """The server of `tests/support/mcp_server.py` as a program."""
    args = ("-m", "tests.support.mcp_server", "stdio", str(journal))
    return McpServerConfig(name=name, command=sys.executable, args=args, cwd=str(ROOT), **settings)


class HttpMcpServer:
    """The same server over HTTP; it can be killed and started again."""

    def __init__(self, journal: Path, *, handshake: bool = True) -> None:
        self.port = free_port()
        self._journal = journal
        self._transport = "http" if handshake else "modern"
        self._process: ForkServerProcess | None = None

    def server(self, name: str = "peculiar", **settings: Any) -> McpServerConfig:
        return McpServerConfig(name=name, url=f"http://127.0.0.1:{self.port}/mcp", **settings)

    def start(self) -> None:
        # Forked, because the imports take a second of a core.
        self._process = CONTEXT.Process(
            target=mcp_server.main, args=(self._transport, str(self._journal), str(self.port)), daemon=True
        )
        self._process.start()

    async def wait_ready(self) -> None:
        """Wait until the server responds."""
        async with asyncio.timeout(TIMEOUT_SECONDS), httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await http.get(f"http://127.0.0.1:{self.port}/mcp")
                    return
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


@contextlib.asynccontextmanager
async def over_http(journal: Path, *, handshake: bool = True) -> AsyncIterator[HttpMcpServer]:
    """The running server. Without a handshake, it speaks only the newer version of the protocol."""
    server = HttpMcpServer(journal, handshake=handshake)
    server.start()
    try:
        await server.wait_ready()
        yield server
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def connected(*servers: McpServerConfig, ready: bool = True) -> AsyncIterator[McpConnections]:
    """Connections that run while this is open; with `ready` it opens when all servers are ready."""
    connections = McpConnections(McpConfig(servers={one.name: one for one in servers}))
    running = asyncio.create_task(connections.run())
    try:
        if ready:
            await eventually(lambda: all(one.state == "ready" for one in connections.servers()), connections)
        yield connections
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled()


async def eventually(condition: Callable[[], bool], context: object = "", seconds: float = TIMEOUT_SECONDS) -> None:
    """Wait until the condition holds, with a deadline."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, _description(context)
        await asyncio.sleep(0.02)


def _description(context: object) -> object:
    return context.servers() if isinstance(context, McpConnections) else context


def state(connections: McpConnections, name: str = "peculiar") -> ServerState:
    return next(one for one in connections.servers() if one.name == name)


async def use(connections: McpConnections, tool: str, call: CallContext | None = None, **args: Any) -> CallResult:
    """Call a tool by its full name."""
    return await connections.tools()[tool].run(args, call or call_context())
