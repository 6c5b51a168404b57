"""Tools: what each is, who may use it, and whether somebody has to approve of a call."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct

ToolPermission: TypeAlias = Literal["fs", "network", "code", "ui"]
"""What a tool reaches: the workspace's files, the network, the sandbox, the person's screen."""
RuleAction: TypeAlias = Literal["allow", "ask", "deny"]
"""What becomes of a call: it runs, it waits for somebody's approval, or it fails."""
CostClass: TypeAlias = Literal["free", "cheap", "costly"]

TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What every provider takes as a tool's name."""
SEPARATOR = "__"
"""Between a server's name and its tool's."""
MAX_RULES = 100
STRICTNESS: dict[RuleAction, int] = {"allow": 0, "ask": 1, "deny": 2}
MEMBER_PERMISSIONS: frozenset[ToolPermission] = frozenset({"fs", "network", "code", "ui"})
GUEST_PERMISSIONS: frozenset[ToolPermission] = frozenset({"fs", "ui"})
"""What somebody without an account may let a tool reach."""


class ToolSpec(WireStruct, frozen=True, kw_only=True):
    """What a tool is. `parameters` is a JSON Schema of type object; times are seconds.

    `idempotent`: a call whose outcome is unknown may be run again under its key. `approval`: what becomes of a call
    where no rule says otherwise. `source`: `builtin`, `user`, or the name of the MCP server that has it.
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


class ToolActor(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a tool acts. `owner_id` is whose files and todos it sees: the user, or the thread of a guest."""

    owner_id: UUID
    user_id: UUID | None = None
    thread_id: UUID | None = None
    run_id: UUID | None = None

    @property
    def permissions(self) -> frozenset[ToolPermission]:
        """What tools that act for them may reach."""
        return MEMBER_PERMISSIONS if self.user_id is not None else GUEST_PERMISSIONS


class ToolRule(WireStruct, frozen=True, kw_only=True):
    """What becomes of calls of the tools whose name fits the pattern (`*` and `?` stand for what they do in shells)."""

    pattern: str
    action: RuleAction

    def __post_init__(self) -> None:
        if not 1 <= len(self.pattern) <= 200:
            raise ValueError("A pattern has 1 to 200 characters.")

    def fits(self, tool: str) -> bool:
        """Whether it is about this tool. A pattern without a server's name fits the tool on every server."""
        bare = tool.rpartition(SEPARATOR)[2]
        return fnmatchcase(tool, self.pattern) or fnmatchcase(bare, self.pattern)


def decide_action(spec: ToolSpec, operator: Sequence[ToolRule], own: Sequence[Sequence[ToolRule]]) -> RuleAction:
    """What becomes of a call of this tool.

    The operator's rules are a floor: the strictest that fits holds, whatever others say. Above it the last fitting rule
    of the last list that has one decides (the user's come first, then the thread's), or else the tool's own policy.
    """
    floor = max((rule.action for rule in operator if rule.fits(spec.name)), key=_strictness, default=None)
    wished: RuleAction = spec.approval
    for rules in own:
        wished = next((rule.action for rule in reversed(rules) if rule.fits(spec.name)), wished)
    if floor is None:
        return wished
    return max(floor, wished, key=_strictness)


def _strictness(action: RuleAction) -> int:
    return STRICTNESS[action]


def matches_any(tool: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns fits the tool."""
    return any(ToolRule(pattern=pattern, action="allow").fits(tool) for pattern in patterns)


def call_digest(tool: str, args: dict[str, Any]) -> str:
    """What a person who approves of a call binds themselves to: SHA-256 of tool and arguments, as hex digits."""
    return hashlib.sha256(msgspec.json.encode([tool, args], order="deterministic")).hexdigest()
