"""Which of Khala's own tools a caller is offered over MCP."""

from uuid import UUID

from khala.domain.access import Caller
from khala.domain.tools import RuleAction, ToolActor
from khala.tools.mcp import ToolGroup
from khala.tools.port import Tool
from khala.tools.tool_registry import ToolRegistry

SOURCES = ("builtin", "user")
"""Tools of other MCP servers are not passed on: whoever wants them connects there."""
ONLY_READ = frozenset({"read_file", "list_directory", "glob", "grep", "todo_list", "read_blob"})
"""Built-in tools that change nothing, here or elsewhere: all that a token without the scope `write` is offered."""
NOBODY = UUID(int=0)
"""Whose files somebody without an account would see, if they could call anything."""


class McpToolCatalog:
    """The tools of one request."""

    def __init__(self, tool_registry: ToolRegistry, caller: Caller, group: ToolGroup | None) -> None:
        self._tool_registry = tool_registry
        self._group = group
        self._writes = "write" in caller.scopes and caller.user_id is not None
        self._known = caller.user_id is not None
        self.actor = ToolActor(owner_id=caller.user_id or NOBODY, user_id=caller.user_id)

    async def tools(self) -> dict[str, Tool]:
        """By name. What asks for approval is offered to who may write: an MCP client's own person approves of it."""
        offered = await self._tool_registry.offer(self.actor)
        fitting = {name: tool for name, tool in offered.tools.items() if self._fits(tool)}
        return {name: tool for name, tool in fitting.items() if self._may(tool, offered.actions[name])}

    def _fits(self, tool: Tool) -> bool:
        return tool.spec.source in SOURCES and (self._group is None or self._group.has(tool.spec.name))

    def _may(self, tool: Tool, action: RuleAction) -> bool:
        match action:
            case "deny":
                return False
            case "ask":
                return self._writes
            case "allow":
                return self._writes or not self._known or only_reads(tool)


def only_reads(tool: Tool) -> bool:
    """Whether a call changes nothing."""
    return tool.spec.source == "builtin" and tool.spec.name in ONLY_READ
