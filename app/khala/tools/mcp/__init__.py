"""Tools of other programs, by the Model Context Protocol: which servers there are, and connections that last."""

from khala.tools.mcp.config import BadConfig, Group, McpConfig, Server
from khala.tools.mcp.connection import ServerState
from khala.tools.mcp.connections import Connections

__all__ = ["BadConfig", "Connections", "Group", "McpConfig", "Server", "ServerState"]
