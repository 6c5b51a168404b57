"""Tools: what each is, who may use it, and whether somebody has to approve of a call."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import Wire

Permission: TypeAlias = Literal["fs", "network", "code", "ui"]
"""What a tool reaches: the workspace's files, the network, the sandbox, the person's screen."""
Action: TypeAlias = Literal["allow", "ask", "deny"]
"""What becomes of a call: it runs, it waits for somebody's approval, or it fails."""
CostClass: TypeAlias = Literal["free", "cheap", "costly"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What every provider takes as a tool's name."""
SEPARATOR = "__"
"""Between a server's name and its tool's."""
MOST_RULES = 100
STRICTNESS: dict[Action, int] = {"allow": 0, "ask": 1, "deny": 2}
MEMBER: frozenset[Permission] = frozenset({"fs", "network", "code", "ui"})
GUEST: frozenset[Permission] = frozenset({"fs", "ui"})
"""What somebody without an account may let a tool reach."""


class Spec(Wire, frozen=True, kw_only=True):
    """What a tool is. `parameters` is a JSON Schema of type object; times are seconds.

    `idempotent`: a call whose outcome is unknown may be run again under its key. `approval`: what becomes of a call
    where no rule says otherwise. `source`: `builtin`, `user`, or the name of the MCP server that has it.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    permissions: frozenset[Permission] = frozenset()
    timeout: float = 30.0
    cost: CostClass = "free"
    idempotent: bool = False
    approval: Action = "allow"
    source: str = "builtin"


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a tool acts. `owner_id` is whose files and todos it sees: the user, or the thread of a guest."""

    owner_id: UUID
    user_id: UUID | None = None
    thread_id: UUID | None = None
    run_id: UUID | None = None

    @property
    def permissions(self) -> frozenset[Permission]:
        """What tools that act for them may reach."""
        return MEMBER if self.user_id is not None else GUEST


class Rule(Wire, frozen=True, kw_only=True):
    """What becomes of calls of the tools whose name fits the pattern (`*` and `?` stand for what they do in shells)."""

    pattern: str
    action: Action

    def __post_init__(self) -> None:
        if not 1 <= len(self.pattern) <= 200:
            raise ValueError("A pattern has 1 to 200 characters.")

    def fits(self, tool: str) -> bool:
        """Whether it is about this tool. A pattern without a server's name fits the tool on every server."""
        bare = tool.rpartition(SEPARATOR)[2]
        return fnmatchcase(tool, self.pattern) or fnmatchcase(bare, self.pattern)


def decide(spec: Spec, operator: Sequence[Rule], own: Sequence[Sequence[Rule]]) -> Action:
    """What becomes of a call of this tool.

    The operator's rules are a floor: the strictest that fits holds, whatever others say. Above it the last fitting rule
    of the last list that has one decides (the user's come first, then the thread's), or else the tool's own policy.
    """
    floor = max((rule.action for rule in operator if rule.fits(spec.name)), key=_strictness, default=None)
    wished: Action = spec.approval
    for rules in own:
        wished = next((rule.action for rule in reversed(rules) if rule.fits(spec.name)), wished)
    if floor is None:
        return wished
    return max(floor, wished, key=_strictness)


def _strictness(action: Action) -> int:
    return STRICTNESS[action]


def offered(tool: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns fits the tool."""
    return any(Rule(pattern=pattern, action="allow").fits(tool) for pattern in patterns)


def digest(tool: str, args: dict[str, Any]) -> str:
    """What a person who approves of a call binds themselves to: SHA-256 of tool and arguments, as hex digits."""
    return hashlib.sha256(msgspec.json.encode([tool, args], order="deterministic")).hexdigest()
