"""Tools: their specifications, permissions, and the rules for approving calls. Pure."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct

ToolPermission: TypeAlias = Literal["fs", "network", "code", "ui"]
"""A resource that a tool uses: the workspace's files, the network, the sandbox or the user's screen."""
RuleAction: TypeAlias = Literal["allow", "ask", "deny"]
"""The treatment of a call: it runs, waits for approval, or fails."""
CostClass: TypeAlias = Literal["free", "cheap", "costly"]

TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""The tool names that every provider accepts."""
SEPARATOR = "__"
"""Separates the name of an MCP server from the name of its tool."""
QUESTION_MARK = ".question-"
"""In the id of what a running call asks, between the id of the call and that of the question."""
MAX_RULES = 100
STRICTNESS: dict[RuleAction, int] = {"allow": 0, "ask": 1, "deny": 2}
MEMBER_PERMISSIONS: frozenset[ToolPermission] = frozenset({"fs", "network", "code", "ui"})
GUEST_PERMISSIONS: frozenset[ToolPermission] = frozenset({"fs", "ui"})
"""The permissions of tools that act for a guest."""


class ToolSpec(WireStruct, frozen=True, kw_only=True):
    """The specification of a tool. `parameters` is a JSON Schema of type object. Times are seconds.

    `idempotent`: a call whose outcome is unknown may be repeated with its key. `approval`: the treatment of a call
    without a rule. `source`: `builtin`, `user`, or the name of the tool's MCP server. `strict`: the provider
    makes the arguments fit `parameters`. `title`: the name for people, if it has one. `destructive`: a call may delete
    or overwrite what cannot be restored.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    permissions: frozenset[ToolPermission] = frozenset()
    timeout: float = 30.0
    cost: CostClass = "free"
    idempotent: bool = False
    approval: RuleAction = "allow"
    source: str = "builtin"
    strict: bool = False
    title: str | None = None
    destructive: bool = False


class ToolActor(msgspec.Struct, frozen=True, kw_only=True):
    """The principal of a tool call. `owner_id` owns the files and todos that it sees: the user, or a guest's thread."""

    owner_id: UUID
    user_id: UUID | None = None
    thread_id: UUID | None = None
    run_id: UUID | None = None

    @property
    def permissions(self) -> frozenset[ToolPermission]:
        """The permissions of tools that act for this principal."""
        return MEMBER_PERMISSIONS if self.user_id is not None else GUEST_PERMISSIONS


ApprovalReach: TypeAlias = Literal["once", "run", "thread"]
"""How far an approval reaches: this call, all later calls of the tool in its run, or all in the thread."""


class ToolRule(WireStruct, frozen=True, kw_only=True):
    """The treatment of calls to tools whose name matches the pattern (`*` and `?` as in shells)."""

    pattern: str
    action: RuleAction

    def __post_init__(self) -> None:
        if not 1 <= len(self.pattern) <= 200:
            raise ValueError("A pattern must have 1 to 200 characters.")

    def matches(self, tool: str) -> bool:
        """Whether the rule matches this tool. A pattern without a server's name matches the tool on every server."""
        bare = tool.rpartition(SEPARATOR)[2]
        return fnmatchcase(tool, self.pattern) or fnmatchcase(bare, self.pattern)


def decide_action(spec: ToolSpec, operator: Sequence[ToolRule], rule_lists: Sequence[Sequence[ToolRule]]) -> RuleAction:
    """The treatment of a call to this tool.

    The strictest matching rule of the operator is a minimum. `rule_lists` are the user's rules and the thread's rules.
    The last matching rule of the last list with a match decides, or else the tool's own policy; but never less strictly
    than the minimum.
    """
    minimum = max((rule.action for rule in operator if rule.matches(spec.name)), key=_strictness, default=None)
    preferred: RuleAction = spec.approval
    for rules in rule_lists:
        preferred = next((rule.action for rule in reversed(rules) if rule.matches(spec.name)), preferred)
    if minimum is None:
        return preferred
    return max(minimum, preferred, key=_strictness)


def _strictness(action: RuleAction) -> int:
    return STRICTNESS[action]


def matches_any(tool: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the tool."""
    return any(ToolRule(pattern=pattern, action="allow").matches(tool) for pattern in patterns)


def call_digest(tool: str, args: dict[str, Any]) -> str:
    """The identity of a call that a person approves: SHA-256 of tool and arguments, as hex digits."""
    return hashlib.sha256(msgspec.json.encode([tool, args], order="deterministic")).hexdigest()
