"""The tool registry: which tools there are, who is offered which, and what becomes of calls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.tools import (
    STRICTNESS,
    TOOL_NAME,
    RuleAction,
    ToolActor,
    ToolRule,
    ToolSpec,
    decide_action,
    matches_any,
)
from khala.store.postgres.database import Database
from khala.store.tools import tool_rules, user_tools
from khala.store.tools.tool_rules import StoredToolRules
from khala.tools.directory_tools import GlobFiles, ListDirectory
from khala.tools.fetch_url import FetchUrl
from khala.tools.file_search import GrepFiles
from khala.tools.mcp import McpConnections
from khala.tools.port import Tool
from khala.tools.read_blob import ReadBlob
from khala.tools.run_code import RunCode
from khala.tools.sandbox import Sandbox
from khala.tools.ssrf_guard import IPNetwork
from khala.tools.todo_tools import TodoAdd, TodoComplete, TodoList
from khala.tools.user_tools import UserProgramTool
from khala.tools.workspace_tools import DeleteFile, EditFile, ReadFile, WriteFile

log = structlog.get_logger()

MOST_NAMED = 100
"""Tools that the log names because they can't be offered."""


class ToolRegistryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator says: patterns of what is offered at all, rules that nobody loosens, networks to fetch from."""

    offered: tuple[str, ...] = ("*",)
    rules: tuple[ToolRule, ...] = ()
    fetch_allow: tuple[IPNetwork, ...] = ()


class OfferedTools(msgspec.Struct, frozen=True):
    """The tools that somebody is offered, and what becomes of calls of each, by name."""

    tools: dict[str, Tool]
    actions: dict[str, RuleAction]


class ToolRegistry:
    """All tools of this process. The built-in ones are the same for everybody; servers' come and go."""

    def __init__(
        self,
        db: Database,
        blob_service: BlobService | None,
        *,
        sandbox: Sandbox | None,
        connections: McpConnections | None,
        options: ToolRegistryOptions,
    ) -> None:
        self._db = db
        self._sandbox = sandbox
        self._connections = connections
        self._options = options
        self._left_out: set[str] = set()
        self._builtins: dict[str, Tool] = {tool.spec.name: tool for tool in self._made(blob_service)}

    def _made(self, blob_service: BlobService | None) -> Iterable[Tool]:
        """The built-in tools, in the order in which models are told of them."""
        db = self._db
        yield from (
            ReadFile(db),
            WriteFile(db),
            EditFile(db),
            DeleteFile(db),
            ListDirectory(db),
            GlobFiles(db),
            GrepFiles(db),
        )
        yield from (TodoAdd(db), TodoList(db), TodoComplete(db))
        yield FetchUrl(allow=self._options.fetch_allow)
        if blob_service is not None:
            yield ReadBlob(blob_service)
        if self._sandbox is not None:
            yield RunCode(self._sandbox)

    @property
    def taken(self) -> frozenset[str]:
        """Names that no user's tool may have: the built-in tools', also those that this machine lacks, and servers'."""
        servers = [] if self._connections is None else [server.name for server in self._connections.servers()]
        return frozenset({*self._builtins, "read_blob", "run_code", *servers})

    async def offered(self, actor: ToolActor, patterns: Sequence[str] | None = None) -> OfferedTools:
        """The tools that this actor may use: the built-in ones first, then all others by name.

        What becomes of a call is by all rules: the operator's, the user's and the thread's. Left out is what the
        operator doesn't offer, what `patterns` don't fit, what needs more than the actor may, and what is denied.
        """
        said, own = await self._read(actor)
        tools = self._builtins | self._others(own)
        actions = {
            name: self._action(tool.spec, said)
            for name, tool in tools.items()
            if self._fits(tool.spec, actor, patterns)
        }
        allowed: dict[str, RuleAction] = {name: action for name, action in actions.items() if action != "deny"}
        return OfferedTools({name: tools[name] for name in allowed}, allowed)

    async def _read(self, actor: ToolActor) -> tuple[StoredToolRules, list[Tool]]:
        if actor.thread_id is None and actor.user_id is None:
            return StoredToolRules(), []
        async with self._db.driver() as driver:
            said = await tool_rules.read(driver, thread_id=actor.thread_id, user_id=actor.user_id)
            if actor.user_id is None or self._sandbox is None:
                return said, []
            definitions = await user_tools.approved(driver, actor.user_id)
        programs = [one for one in definitions if one.language in self._sandbox.languages]
        return said, [UserProgramTool(self._db, self._sandbox, actor.user_id, one) for one in programs]

    def _others(self, own: Iterable[Tool]) -> dict[str, Tool]:
        found: dict[str, Tool] = {tool.spec.name: tool for tool in own if tool.spec.name not in self.taken}
        served: Mapping[str, Tool] = {} if self._connections is None else self._connections.tools()
        for name, tool in served.items():
            if TOOL_NAME.fullmatch(name) is None or name in self._builtins:
                self._leave_out(tool.spec)
            else:
                found[name] = tool
        return dict(sorted(found.items()))

    def _leave_out(self, spec: ToolSpec) -> None:
        if spec.name not in self._left_out and len(self._left_out) < MOST_NAMED:
            self._left_out.add(spec.name)
            log.warning("tool_left_out", tool=spec.name, source=spec.source)

    def _fits(self, spec: ToolSpec, actor: ToolActor, patterns: Sequence[str] | None) -> bool:
        return (
            spec.permissions <= actor.permissions
            and matches_any(spec.name, self._options.offered)
            and (patterns is None or _chosen(spec.name, patterns))
        )

    def _action(self, spec: ToolSpec, said: StoredToolRules) -> RuleAction:
        operator = self._options.rules
        wished = decide_action(spec, operator, (said.user, said.thread))
        if not said.foreign:
            return wished
        # In somebody else's thread its rules may hold the user's tools back, and no more.
        return max(wished, decide_action(spec, operator, (said.user,)), key=lambda action: STRICTNESS[action])


def _chosen(name: str, patterns: Sequence[Any]) -> bool:
    """Whether one of a caller's patterns fits; what is no pattern fits nothing."""
    return matches_any(name, [pattern for pattern in patterns if 1 <= len(pattern) <= 200])
