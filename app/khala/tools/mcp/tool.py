"""Adapts tools of an MCP server. The server's descriptions are not trusted: they are bounded and checked."""

import re
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from khala.domain.tools import ToolPermission, ToolSpec
from khala.tools.mcp import tool_names
from khala.tools.mcp.config import McpServerConfig
from khala.tools.port import CallContext, CallResult, Tool

if TYPE_CHECKING:
    import mcp_types as types

log = structlog.get_logger()

MAX_DESCRIPTION_CHARACTERS = 2000
MAX_NAME_CHARACTERS = 256
MAX_TITLE_CHARACTERS = 100
MAX_REMEMBERED_REFUSALS = 1000
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
"""Control characters, which can make a text look different from its content."""


class McpCaller(Protocol):
    """Calls tools of a server: over the connection of all people, or over that of one account."""

    async def call(
        self, tool: str, args: dict[str, Any], call: CallContext, *, idempotent: bool
    ) -> "types.CallToolResult":
        """Call a tool by its name at the server. Raises `ToolError`."""
        ...


class McpTool:
    """A tool of an MCP server."""

    def __init__(self, connection: McpCaller, name: str, spec: ToolSpec) -> None:
        """`name` is the tool's name at the server."""
        self.spec = spec
        self._connection = connection
        self._name = name

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Call the tool at the server."""
        from khala.tools.mcp.results import convert_result

        answer = await self._connection.call(self._name, args, call, idempotent=self.spec.idempotent)
        return await convert_result(answer, call.sink)


class McpToolAdapter:
    """Adapts the listed tools of one server. An invalid tool is left out, and logged when it first appears."""

    def __init__(self, server: McpServerConfig, prefix: str) -> None:
        self._server = server
        self._prefix = prefix
        self._refused: set[str] = set()

    def __call__(self, connection: McpCaller, listed: "list[types.Tool]") -> dict[str, Tool]:
        """The valid tools by full name, in the server's order."""
        valid = {tool.name: tool for tool in listed if self._is_valid(tool)}
        full_names = tool_names.full_names(self._prefix, valid)
        return {
            full_names[name]: McpTool(connection, name, self._spec(full_names[name], tool))
            for name, tool in valid.items()
        }

    def _is_valid(self, tool: "types.Tool") -> bool:
        problem = _problem(tool)
        if problem is None:
            self._refused.discard(tool.name)
            return True
        if tool.name not in self._refused:
            self._refused = {*list(self._refused)[:MAX_REMEMBERED_REFUSALS], tool.name}
            log.warning(
                "mcp_tool_rejected", server=self._server.name, tool=tool.name[:MAX_NAME_CHARACTERS], problem=problem
            )
        return False

    def _spec(self, full_name: str, tool: "types.Tool") -> ToolSpec:
        hints = tool.annotations
        only_reads = self._server.only_reads(tool.name) or bool(hints and hints.read_only_hint)
        repeatable = only_reads or self._server.may_repeat(tool.name) or bool(hints and hints.idempotent_hint)
        permissions: frozenset[ToolPermission] = frozenset() if self._server.anonymous else frozenset({"network"})
        return ToolSpec(
            name=full_name,
            description=_bounded(tool.description or tool.title or tool.name),
            parameters={"type": "object", **tool.input_schema},
            permissions=permissions,
            timeout=self._server.timeout,
            idempotent=repeatable,
            approval="allow" if only_reads else "ask",
            source=self._server.name,
            title=_title(tool),
            destructive=not only_reads and bool(hints and hints.destructive_hint),
        )


def _problem(tool: "types.Tool") -> str | None:
    """The reason why the tool can't be offered; None if it can."""
    from khala.tools.validation.arguments import schema_problem

    if not tool.name or len(tool.name) > MAX_NAME_CHARACTERS:
        return f"A name has 1 to {MAX_NAME_CHARACTERS} characters."
    return schema_problem({"type": "object", **tool.input_schema})


def _title(tool: "types.Tool") -> str | None:
    """The tool's name for people, on one line; None if the server gives none."""
    named = tool.title or (tool.annotations.title if tool.annotations else None)
    return _bounded(" ".join((named or "").split()), MAX_TITLE_CHARACTERS) or None


def _bounded(text: str, maximum: int = MAX_DESCRIPTION_CHARACTERS) -> str:
    plain = CONTROL.sub("", text).strip()
    return plain if len(plain) <= maximum else plain[: maximum - 1] + "…"
