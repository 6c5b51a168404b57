"""All connections, side by side: one that fails is nobody else's trouble."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from khala.tools.mcp import tool_names
from khala.tools.mcp.config import McpConfig
from khala.tools.mcp.connection import McpConnection, ServerState
from khala.tools.mcp.tool import McpToolAdapter
from khala.tools.port import Tool


class McpConnections:
    """The servers of a configuration. Without any, all of this is nothing."""

    def __init__(self, config: McpConfig) -> None:
        prefixes = tool_names.prefixes(config.servers)
        self._connections = [
            McpConnection(one, McpToolAdapter(one, prefixes[name])) for name, one in config.servers.items()
        ]

    async def run(self) -> None:
        """Keep all connections, for ever; cancelled, it ends all servers that it has started, within 5 seconds."""
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(connection.run(), name=f"mcp {connection.server.name}")
            await asyncio.Event().wait()

    async def settled(self, within: float) -> None:
        """Wait until each is ready or has failed for the first time, for so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for connection in self._connections:
                    await connection.settled.wait()

    def tools(self) -> Mapping[str, Tool]:
        """What the servers offer at this moment, by full name. A lost server's tools stay, and fail as unavailable."""
        return {name: tool for connection in self._connections for name, tool in connection.tools.items()}

    def servers(self) -> list[ServerState]:
        """How it is with each."""
        return [connection.state for connection in self._connections]
