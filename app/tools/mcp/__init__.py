"""Tools of other programs, by the Model Context Protocol: which servers there are, and connections that last."""

from app.tools.mcp.config import BadConfig, Group, McpConfig, Server
from app.tools.mcp.connection import ServerState
from app.tools.mcp.connections import Connections

__all__ = ["BadConfig", "Connections", "Group", "McpConfig", "Server", "ServerState"]
