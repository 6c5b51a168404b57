"""The tool registry: all tools of the process, the actors to which each is offered, and the rules for calls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.repository_hosts import PUBLIC_HOSTS, RepositoryHost
from khala.domain.tool_relevance import FIND_TOOLS
from khala.domain.tools import (
    GUEST_PERMISSIONS,
    STRICTNESS,
    TOOL_NAME,
    RuleAction,
    ToolActor,
    ToolRule,
    ToolSpec,
    decide_action,
    matches_any,
)
from khala.memory.memory_service import MemoryService
from khala.store.postgres.database import Database
from khala.store.tools import tool_rules, user_tools
from khala.store.tools.tool_rules import StoredToolRules
from khala.tools.directory_tools import GlobFiles, ListDirectory
from khala.tools.fetch_url import FetchUrl
from khala.tools.file_search import GrepFiles
from khala.tools.http_client import GuardedClient
from khala.tools.mcp import McpConnections
from khala.tools.memory_tools import MemoryForget, MemoryList, MemorySearch, MemoryStore
from khala.tools.plan_tools import TOOLS_OF_PLANS, PlanCreate, PlanStatusReport, PlanUpdate
from khala.tools.port import Tool
from khala.tools.read_blob import ReadBlob
from khala.tools.repositories import LoadRepo, RepositoryLoader
from khala.tools.run_code import RunCode
from khala.tools.sandbox import Sandbox
from khala.tools.ssrf_guard import IPNetwork
from khala.tools.todo_tools import TodoAdd, TodoComplete, TodoList
from khala.tools.user_tools import UserProgramTool
from khala.tools.workspace_tools import DeleteFile, EditFile, ReadFile, WriteFile

if TYPE_CHECKING:
    from khala.tools.mcp.accounts.account_tools import AccountTools

log = structlog.get_logger()

MAX_LOGGED_TOOLS = 100
"""The number of tools that the log names because they can't be offered."""


class ToolRegistryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings: offered tools, rules that no user can loosen, and what tools may reach on the network.

    `offered` are patterns of names. Public addresses need no entry in `fetch_allow`. Repositories are loaded from
    `repository_hosts`.
    """

    offered: tuple[str, ...] = ("*",)
    rules: tuple[ToolRule, ...] = ()
    fetch_allow: tuple[IPNetwork, ...] = ()
    repository_hosts: tuple[RepositoryHost, ...] = PUBLIC_HOSTS


class OfferedTools(msgspec.Struct, frozen=True):
    """The tools that are offered to an actor, and the action for calls of each, by name."""

    tools: dict[str, Tool]
    actions: dict[str, RuleAction]


class ToolRegistry:
    """All tools of this process. Tools of servers may change at any time.

    Built-in tools and those of the operator's application are the same for everyone. Raises `RuntimeError` if one of
    `app_tools` has a name that is taken.
    """

    def __init__(
        self,
        db: Database,
        blob_service: BlobService | None,
        *,
        sandbox: Sandbox | None,
        connections: McpConnections | None,
        account_tools: "AccountTools | None" = None,
        memories: MemoryService | None = None,
        app_tools: Mapping[str, Tool] | None = None,
        options: ToolRegistryOptions,
    ) -> None:
        self._db = db
        self._sandbox = sandbox
        self._connections = connections
        self._account_tools = account_tools
        self._memories = memories
        self._options = options
        self._left_out: set[str] = set()
        self.repositories = None if blob_service is None else self._create_loader(blob_service)
        self._builtins: dict[str, Tool] = {tool.spec.name: tool for tool in self._create_builtins(blob_service)}
        self._own_tools = self._builtins
        self.replace_app_tools(app_tools or {})

    def replace_app_tools(self, app_tools: Mapping[str, Tool]) -> None:
        """Offer these tools of the application from now on. Raises `RuntimeError` if one has a name that is taken."""
        if taken := sorted(self._reserved_beside(self._own_tools) & app_tools.keys()):
            raise RuntimeError(f"KHALA_APP: {taken[0]} is the name of a built-in tool or of an MCP server.")
        self._builtins = {**self._own_tools, **app_tools}

    @property
    def fetch_client(self) -> GuardedClient | None:
        """The client for public web addresses; None if the operator offers no tool that fetches them."""
        if not matches_any(FetchUrl.spec.name, self._options.offered):
            return None
        return GuardedClient(allow=self._options.fetch_allow)

    @property
    def runs_code(self) -> bool:
        """Whether the operator offers the tool `run_code`."""
        return "run_code" in self._builtins and matches_any("run_code", self._options.offered)

    def _create_loader(self, blob_service: BlobService) -> RepositoryLoader:
        client = GuardedClient(allow=self._options.fetch_allow)
        return RepositoryLoader(self._db, blob_service, client, hosts=self._options.repository_hosts)

    def _create_builtins(self, blob_service: BlobService | None) -> Iterable[Tool]:
        """The built-in tools, in the order in which they are offered."""
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
        yield from (PlanCreate(db), PlanUpdate(db), PlanStatusReport(db))
        if self._memories is not None:
            yield from (MemoryStore(db, self._memories), MemorySearch(db, self._memories))
            yield from (MemoryList(db), MemoryForget(db))
        yield FetchUrl(allow=self._options.fetch_allow)
        if blob_service is not None:
            yield ReadBlob(blob_service)
        if self.repositories is not None:
            yield LoadRepo(self.repositories)
        if self._sandbox is not None:
            yield RunCode(self._sandbox)

    @property
    def reserved_names(self) -> frozenset[str]:
        """Names that no user's tool may have: those of servers and built-in tools, including those that are off."""
        return self._reserved_beside(self._builtins)

    def _reserved_beside(self, builtins: Mapping[str, Tool]) -> frozenset[str]:
        servers = () if self._connections is None else self._connections.names
        return frozenset({*builtins, "read_blob", "load_repo", "run_code", FIND_TOOLS, COMPLETE_STEP, *servers})

    async def offer(
        self, actor: ToolActor, patterns: Sequence[str] | None = None, *, of_agent: Sequence[str] | None = None
    ) -> OfferedTools:
        """The tools that this actor may use: the built-in ones first, then all others by name.

        The action for calls follows from all rules: the operator's, the user's and the thread's. Left out are tools
        that the operator does not offer, that `patterns` or the patterns `of_agent` do not match, that need more
        permissions than the actor has, and that are denied; and for a run in a thread without plans, those that change
        and read plans.
        """
        rules, own_tools = await self._read_own(actor)
        tools = self._builtins | self._other_tools(own_tools, await self._tools_of_account(actor))
        if actor.run_id is not None and not rules.has_plans:
            tools = {name: tool for name, tool in tools.items() if name not in TOOLS_OF_PLANS}
        actions = {
            name: self._action(tool.spec, rules)
            for name, tool in tools.items()
            if self._is_offered(tool.spec, actor, patterns) and (of_agent is None or _matches(name, of_agent))
        }
        allowed: dict[str, RuleAction] = {name: action for name, action in actions.items() if action != "deny"}
        return OfferedTools({name: tools[name] for name in allowed}, allowed)

    async def allowed_names(self, actor: ToolActor, names: Iterable[str]) -> set[str]:
        """Those of these names that the operator offers, and that no rule denies: as if they were tools."""
        rules, _ = await self._read_own(actor)
        specs = [ToolSpec(name=name, description="", parameters={}) for name in names]
        offered = [spec for spec in specs if self._is_offered(spec, actor, None)]
        return {spec.name for spec in offered if self._action(spec, rules) != "deny"}

    def offers_to_guests(self, patterns: Sequence[str]) -> bool:
        """Whether guests have all tools of this server that the patterns match."""
        connect = () if self._account_tools is None else self._account_tools.connect_tools()
        others = self._other_tools((), {tool.spec.name: tool for tool in connect})
        specs = [tool.spec for tool in (self._builtins | others).values()]
        matched = [spec for spec in specs if matches_any(spec.name, self._options.offered)]
        return all(spec.permissions <= GUEST_PERMISSIONS for spec in matched if _matches(spec.name, patterns))

    async def _read_own(self, actor: ToolActor) -> tuple[StoredToolRules, list[Tool]]:
        """Read the stored rules for the actor, and its user's own tools."""
        if actor.thread_id is None and actor.user_id is None:
            return StoredToolRules(), []
        async with self._db.driver() as driver:
            rules = await tool_rules.read(driver, thread_id=actor.thread_id, user_id=actor.user_id)
            if actor.user_id is None or self._sandbox is None:
                return rules, []
            definitions = await user_tools.approved(driver, actor.user_id)
        supported = [definition for definition in definitions if definition.language in self._sandbox.languages]
        return rules, [UserProgramTool(self._db, self._sandbox, actor.user_id, definition) for definition in supported]

    async def _tools_of_account(self, actor: ToolActor) -> Mapping[str, Tool]:
        """Tools of the servers to which the actor's user connects an account. A guest has none."""
        if self._account_tools is None or actor.user_id is None:
            return {}
        return await self._account_tools.of_user(actor.user_id)

    def _other_tools(self, own_tools: Iterable[Tool], account_tools: Mapping[str, Tool]) -> dict[str, Tool]:
        others: dict[str, Tool] = {
            tool.spec.name: tool for tool in own_tools if tool.spec.name not in self.reserved_names
        }
        served: Mapping[str, Tool] = {} if self._connections is None else self._connections.tools()
        for name, tool in {**served, **account_tools}.items():
            if TOOL_NAME.fullmatch(name) is None or name in self._builtins:
                self._log_left_out(tool.spec)
            else:
                others[name] = tool
        return dict(sorted(others.items()))

    def _log_left_out(self, spec: ToolSpec) -> None:
        if spec.name not in self._left_out and len(self._left_out) < MAX_LOGGED_TOOLS:
            self._left_out.add(spec.name)
            log.warning("tool_name_rejected", tool=spec.name, source=spec.source)

    def _is_offered(self, spec: ToolSpec, actor: ToolActor, patterns: Sequence[str] | None) -> bool:
        return (
            spec.permissions <= actor.permissions
            and matches_any(spec.name, self._options.offered)
            and (patterns is None or _matches(spec.name, patterns))
        )

    def _action(self, spec: ToolSpec, rules: StoredToolRules) -> RuleAction:
        operator = self._options.rules
        action = decide_action(spec, operator, (rules.user, rules.thread))
        if not rules.foreign:
            return action
        # In a thread of another owner, the thread's rules can only make the action stricter.
        return max(action, decide_action(spec, operator, (rules.user,)), key=lambda action: STRICTNESS[action])


def _matches(name: str, patterns: Sequence[Any]) -> bool:
    """Whether one of a caller's patterns matches. An invalid pattern matches nothing."""
    return matches_any(name, [pattern for pattern in patterns if 1 <= len(pattern) <= 200])
