"""Client of the Model Context Protocol: the configured servers, their connections, and their tools."""

from khala.tools.mcp.config import McpConfig, McpConfigError, McpServerConfig, ToolGroup
from khala.tools.mcp.connection import ServerState
from khala.tools.mcp.connections import McpConnections

__all__ = ["McpConfig", "McpConfigError", "McpConnections", "McpServerConfig", "ServerState", "ToolGroup"]
