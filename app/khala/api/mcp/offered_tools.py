"""The tools of this server that a caller is offered over MCP."""

from collections.abc import Iterable
from uuid import UUID

from khala.domain.access import Caller
from khala.domain.tools import SEPARATOR, RuleAction, ToolActor
from khala.tools.mcp import ToolGroup
from khala.tools.port import Tool
from khala.tools.tool_registry import ToolRegistry

SOURCES = ("builtin", "app", "user")
"""Tools of other MCP servers are not offered: clients can connect to those servers themselves."""
READ_ONLY_TOOLS = frozenset(
    {"read_file", "list_directory", "glob", "grep", "todo_list", "memory_search", "memory_list", "read_blob"}
)
"""Built-in tools that change nothing, except that a search counts the uses of memories. A token without the scope
`write` is offered only these."""
THREAD_TOOLS = frozenset({"plan_create", "plan_update", "plan_status"})
"""Built-in tools that only runs can call: what they change belongs to the run's thread."""
NO_OWNER = UUID(int=0)
"""Stands for the owner if the caller has no account. Such a caller cannot call tools."""


class McpToolCatalog:
    """The tools that one request is offered."""

    def __init__(self, tool_registry: ToolRegistry, caller: Caller, group: ToolGroup | None) -> None:
        self._tool_registry = tool_registry
        self._group = group
        self._may_write = "write" in caller.scopes and caller.user_id is not None
        self._has_account = caller.user_id is not None
        self.actor = ToolActor(owner_id=caller.user_id or NO_OWNER, user_id=caller.user_id)

    async def tools(self) -> dict[str, Tool]:
        """Return the tools by name.

        A tool whose calls require an approval is offered to callers who may write: the MCP client's user approves them.
        """
        offered = await self._tool_registry.offer(self.actor)
        selected = {name: tool for name, tool in offered.tools.items() if self._is_selected(tool)}
        return {name: tool for name, tool in selected.items() if self._is_permitted(tool, offered.actions[name])}

    async def allowed_names(self, names: Iterable[str]) -> set[str]:
        """Those of these names of prompts or resources that the group has, and that no rule for tools denies."""
        selected = [name for name in names if self._group is None or self._group.has(name)]
        return await self._tool_registry.allowed_names(self.actor, selected) if selected else set()

    def _is_selected(self, tool: Tool) -> bool:
        in_group = self._group is None or self._group.has(tool.spec.name)
        # A server may be named `app`, but the names of its tools have the separator.
        is_own = tool.spec.source in SOURCES and SEPARATOR not in tool.spec.name
        return is_own and in_group and tool.spec.name not in THREAD_TOOLS

    def _is_permitted(self, tool: Tool, action: RuleAction) -> bool:
        match action:
            case "deny":
                return False
            case "ask":
                return self._may_write
            case "allow":
                return self._may_write or not self._has_account or is_read_only(tool)


def is_read_only(tool: Tool) -> bool:
    """Whether calls of the tool change nothing."""
    return tool.spec.source == "builtin" and tool.spec.name in READ_ONLY_TOOLS
