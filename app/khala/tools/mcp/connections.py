"""The connections to all configured MCP servers. A failing connection does not affect the others."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from khala.tools.mcp import tool_names
from khala.tools.mcp.config import McpConfig
from khala.tools.mcp.connection import McpConnection, ServerState
from khala.tools.mcp.tool import McpToolAdapter
from khala.tools.port import Tool


class McpConnections:
    """The connections of a configuration; there may be none."""

    def __init__(self, config: McpConfig) -> None:
        prefixes = tool_names.prefixes(config.servers)
        self._connections = [
            McpConnection(server, McpToolAdapter(server, prefixes[name]))
            for name, server in config.servers.items()
            if not server.is_per_account
        ]
        self.names = tuple(config.servers)
        """The names of all servers, those to which each account connects its own included."""

    async def run(self) -> None:
        """Maintain all connections until cancelled. Cancellation ends all started servers within 5 seconds."""
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(connection.run(), name=f"mcp {connection.server.name}")
            await asyncio.Event().wait()

    async def wait_settled(self, timeout_seconds: float) -> None:
        """Wait until each server is ready or has failed for the first time, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                for connection in self._connections:
                    await connection.settled.wait()

    def tools(self) -> Mapping[str, Tool]:
        """The current tools of all servers, by full name. Calls of tools of a lost server fail as `unavailable`."""
        return {name: tool for connection in self._connections for name, tool in connection.tools.items()}

    def servers(self) -> list[ServerState]:
        """The state of each server."""
        return [connection.state for connection in self._connections]
