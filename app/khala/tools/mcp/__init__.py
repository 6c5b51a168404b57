"""Tools of other programs, by the Model Context Protocol: which servers there are, and connections that last."""

from khala.tools.mcp.config import McpConfig, McpConfigError, McpServerConfig, ToolGroup
from khala.tools.mcp.connection import ServerState
from khala.tools.mcp.connections import McpConnections

__all__ = ["McpConfig", "McpConfigError", "McpConnections", "McpServerConfig", "ServerState", "ToolGroup"]
