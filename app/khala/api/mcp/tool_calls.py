"""Tool calls that MCP clients may not make with the scopes of their token: found before the call begins.

Over OAuth, the HTTP status and its challenge tell the client how to get access; an error of JSON-RPC would not.
"""

import msgspec

from khala.api.context import Context
from khala.api.mcp.offered_tools import McpToolCatalog
from khala.domain.access import Caller
from khala.tools.mcp import ToolGroup

NEEDS_ACCOUNT = -32050
"""The JSON-RPC error code of a call without an account."""
NEEDS_ACCOUNT_MESSAGE = "Calling tools requires an account. Send the header Authorization: Bearer, followed by a token."


class CallParameters(msgspec.Struct, frozen=True):
    """The name of the tool that is called."""

    name: str


class CalledTool(msgspec.Struct, frozen=True, tag_field="method", tag="tools/call"):
    """The request of a tool call."""

    params: CallParameters


def called_tool(body: bytes) -> CalledTool | None:
    """Return the tool call in a request; None if it is another request, or invalid."""
    try:
        return msgspec.json.decode(body, type=CalledTool)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def needs_write(name: str, context: Context, caller: Caller, group: ToolGroup | None) -> bool:
    """Whether the caller would be offered this tool only with the scope `write`."""
    if "write" in caller.scopes:
        return False
    writer = msgspec.structs.replace(caller, scopes=caller.scopes | {"write"})
    own = await McpToolCatalog(context.tools.registry, caller, group).tools()
    all_tools = await McpToolCatalog(context.tools.registry, writer, group).tools()
    return name not in own and name in all_tools
