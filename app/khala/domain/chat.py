"""Threads, messages, runs and receipts as they are stored and as they travel."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.access import Role as AccessRole
from khala.domain.fold import Content
from khala.domain.parts import Finish, Part

MessageRole: TypeAlias = Literal["user", "assistant", "system"]
MessageStatus: TypeAlias = Literal["draft", "streaming", "final", "error", "canceled"]
RunStatus: TypeAlias = Literal["queued", "running", "blocked", "final", "error", "canceled"]
IfBusy: TypeAlias = Literal["reject", "queue", "interrupt"]

ACTIVE: tuple[RunStatus, ...] = ("queued", "running", "blocked")
"""The states of a run that has not ended."""


class WireStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """camelCase outside, snake_case inside; what is absent is left out."""


class Thread(WireStruct, frozen=True, kw_only=True):
    """A conversation. `revision` counts its committed changes and is the one cursor of every transport.

    `active_leaf` is the message at the end of the branch that is gone on from; none as long as nothing was said.
    """

    id: UUID
    owner_id: UUID | None = None
    title: str | None = None
    visibility: Literal["private", "link", "public"]
    revision: int
    active_leaf: UUID | None = None
    created_at: datetime
    updated_at: datetime


class ThreadListEntry(WireStruct, frozen=True, kw_only=True):
    """A thread in a user's list: what they are in it, and whether something awaits them there."""

    thread: Thread
    role: AccessRole
    unread: bool
    running: bool
    needs_approval: bool
    changed_at: datetime


class Message(WireStruct, frozen=True, kw_only=True):
    """A message. `content` is the fold of parts 0..seq-1; a delta leaves it out for answers, whose parts it carries."""

    id: UUID
    thread_id: UUID
    parent_id: UUID | None = None
    role: MessageRole
    status: MessageStatus
    run_id: UUID | None = None
    seq: int
    author_id: UUID | None = None
    author_name: str | None = None
    content: Content | None = None
    finish: Finish | None = None
    created_at: datetime
    updated_at: datetime


BUDGET_BOUNDS: dict[str, tuple[Decimal, int]] = {
    "usd": (Decimal("0.0001"), 10_000), "tokens": (Decimal(1), 1_000_000_000), "seconds": (Decimal("0.1"), 7 * 86_400),
    "tool_calls": (Decimal(0), 1_000),
}  # fmt: skip
"""The least and the most of each measure of a run's budget."""


class RunBudget(WireStruct, frozen=True, kw_only=True):
    """The most that one run may use; where the operator's limit is lower, that counts. `usd` is best a string."""

    usd: Decimal | None = None
    tokens: int | None = None
    seconds: float | None = None
    tool_calls: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in BUDGET_BOUNDS.items():
            amount: Decimal | float | None = getattr(self, name)
            if amount is not None and not (isfinite(amount) and least <= amount <= most):
                raise ValueError(f"{_camel(name)} must be between {least} and {most:,}.")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


DEFAULT_STEPS = 20
"""Rounds of tools that a run has unless it says otherwise."""
MAX_STEPS = 50
MAX_TOOL_PATTERNS = 64
MAX_FUNCTIONS = 128
MAX_INSTRUCTIONS_CHARACTERS = 8_000


class ClientFunction(WireStruct, frozen=True, kw_only=True):
    """A tool that whoever sends carries out: a run that calls it ends with reason `tool_calls`.

    `parameters` are a JSON Schema of an object; `{}` stands for one without fields.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$(?!\n)")]  # Python's `$` is no end.
    description: Annotated[str, msgspec.Meta(max_length=4_000)] = ""
    parameters: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not self.parameters:
            msgspec.structs.force_setattr(self, "parameters", {"type": "object", "properties": {}})


class RunOptions(WireStruct, frozen=True, kw_only=True):
    """How a run shall go: `model` as `provider:name`; `if_busy` says what happens while another run is active.

    With `autopilot` it goes on in rounds of tools, at most `max_steps` of them, until it has an answer; without, it has
    one round. `tools` are patterns of the tools that it is offered, by default all. Each reply of the model's has at
    most `max_output_tokens`. `instructions` are the model's for this run. Whatever `max_steps` is said to be,
    it is a number from 1 to 50.
    """

    model: str | None = None
    if_busy: IfBusy = "reject"
    budget: RunBudget | None = None
    autopilot: bool = False
    max_steps: Any = DEFAULT_STEPS
    tools: Annotated[Sequence[str], msgspec.Meta(max_length=MAX_TOOL_PATTERNS)] | None = None
    functions: Annotated[Sequence[ClientFunction], msgspec.Meta(max_length=MAX_FUNCTIONS)] = ()
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    instructions: Annotated[str, msgspec.Meta(max_length=MAX_INSTRUCTIONS_CHARACTERS)] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "max_steps", _steps(self.max_steps))

    @property
    def rounds(self) -> int:
        """The most rounds of tools."""
        return _steps(self.max_steps) if self.autopilot else 1


def _steps(said: Any) -> int:
    """What is asked for, at most 50; 20 for what is no number of rounds."""
    sensible = isinstance(said, int) and not isinstance(said, bool) and said >= 1
    return min(said, MAX_STEPS) if sensible else DEFAULT_STEPS


class Run(WireStruct, frozen=True, kw_only=True):
    """One assistant turn. `attempt` counts the executors that worked on it."""

    id: UUID
    thread_id: UUID
    message_id: UUID
    status: RunStatus
    attempt: int
    steps: int
    cancel_requested_at: datetime | None = None
    created_at: datetime
    finish: Finish | None = None


class Receipt(WireStruct, frozen=True, kw_only=True):
    """What one model or tool call cost and how it went; `cost_usd` is a decimal string, absent where unknown.

    `hash` (hex digits) is of this receipt and the `hash` of the one before: see `khala.domain.receipts`.
    """

    run_id: UUID
    seq: int
    type: Literal["model", "tool"]
    tool_call_id: str | None = None
    data: dict[str, Any]
    cost_usd: str | None = None
    hash: str | None = None
    created_at: datetime


class Snapshot(WireStruct, frozen=True, kw_only=True):
    """A thread at one revision, with its newest messages in order."""

    revision: int
    thread: Thread
    messages: tuple[Message, ...]
    has_more: bool
    reset: bool = False


class Delta(WireStruct, frozen=True, kw_only=True):
    """What changed in a thread after revision `since` up to and including `revision`."""

    since: int = msgspec.field(name="from")
    revision: int
    thread: Thread | None = None
    messages: tuple[Message, ...]
    parts: tuple[Part, ...]


class SendResult(WireStruct, frozen=True, kw_only=True):
    """What a send made, or had made when it was tried before."""

    thread_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    run_id: UUID
    revision: int
