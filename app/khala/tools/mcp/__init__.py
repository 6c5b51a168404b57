"""Client of the Model Context Protocol: the configured servers, their connections, and their tools."""

from khala.tools.mcp.config import McpConfig, McpServerConfig, ToolGroup
from khala.tools.mcp.connection import ServerState
from khala.tools.mcp.connections import McpConnections

__all__ = ["McpConfig", "McpConnections", "McpServerConfig", "ServerState", "ToolGroup"]
