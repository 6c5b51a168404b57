"""Threads, messages, runs and receipts, as stored and on the wire."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.access import Role as AccessRole
from khala.domain.fold import Content
from khala.domain.generation import GenerationOptions, offers
from khala.domain.parts import Finish, Route, RunFailure

MessageRole: TypeAlias = Literal["user", "assistant", "system"]
MessageStatus: TypeAlias = Literal["draft", "streaming", "final", "error", "canceled"]
RunStatus: TypeAlias = Literal["queued", "running", "blocked", "final", "error", "canceled"]
IfBusy: TypeAlias = Literal["reject", "queue", "interrupt"]
ContextOverflowPolicy: TypeAlias = Literal["shorten", "error"]

ACTIVE: tuple[RunStatus, ...] = ("queued", "running", "blocked")
"""The statuses of a run that has not ended."""


class WireStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the structs on the wire: camelCase in JSON, snake_case in Python. Defaults are omitted."""


class Thread(WireStruct, frozen=True, kw_only=True):
    """A conversation. `revision` counts its committed changes and is the cursor of every transport.

    `active_leaf` is the last message of the active branch; absent while the thread has no messages. `expires_at` is
    when a temporary thread is deleted; absent for all others.
    """

    id: UUID
    owner_id: UUID | None = None
    title: str | None = None
    visibility: Literal["private", "link", "public"]
    revision: int
    active_leaf: UUID | None = None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None


class ListedThread(Thread, frozen=True, kw_only=True):
    """A thread, and where the caller keeps it."""

    pinned: bool = False
    archived: bool = False
    folder: str | None = None


class ThreadListing(WireStruct, frozen=True, kw_only=True):
    """The entry of a thread on a person's own list."""

    pinned: bool
    archived: bool
    folder: str | None = None


class ThreadFolder(WireStruct, frozen=True, kw_only=True):
    """A folder of a person, and the number of threads in it.

    `agent` is the name of the agent with which clients begin threads there. `has_instructions` says whether the person
    has given instructions for the folder.
    """

    name: str
    threads: int
    agent: str | None = None
    has_instructions: bool = False


class FolderSettings(WireStruct, frozen=True, kw_only=True):
    """A folder of a person, with the instructions that go to the model in the runs that the person requests there."""

    name: str
    threads: int
    agent: str | None = None
    instructions: str | None = None


class FolderFile(WireStruct, frozen=True, kw_only=True):
    """A file of a folder, which the runs that the person requests there can use."""

    id: UUID
    name: str
    size: int
    media_type: str
    created_at: datetime


class ThreadListEntry(WireStruct, frozen=True, kw_only=True):
    """A thread list entry: the thread, the user's role, and whether something there needs their attention."""

    thread: Thread
    role: AccessRole
    unread: bool
    running: bool
    needs_approval: bool
    plan_waits: bool = False
    """Whether a plan has paused by itself, for a review or after a failure."""
    pinned: bool = False
    archived: bool = False
    folder: str | None = None
    changed_at: datetime


class StepRef(WireStruct, frozen=True, kw_only=True):
    """An attempt of a step of a plan. Attempts of a step are numbered from 1."""

    plan_id: UUID
    step_id: str
    attempt: int


class StepCheckout(WireStruct, frozen=True, kw_only=True):
    """How the work on a plan's step is committed: with the step's title, and in a worktree of its own if others run.

    `allow_dirty`: the folder may have changes that are not committed. `resumes`: the plan does not know that the step
    was ever completed. So if it has a commit, its executor was lost after that.
    """

    title: str
    worktree: bool = False
    allow_dirty: bool = False
    resumes: bool = True


class PlanDraft(WireStruct, frozen=True, kw_only=True):
    """The plan that a run makes from a goal: its id, and what its author has chosen instead of the model.

    `config` has the fields of `PlanConfigChanges` that were chosen, as JSON.
    """

    plan_id: UUID
    title: str | None = None
    mode: Literal["all", "step", "autopilot"] | None = None
    max_iterations: int | None = None
    config: dict[str, Any] = {}


class Message(WireStruct, frozen=True, kw_only=True):
    """A message. `content` is the fold of parts 0..seq-1. A delta has the new parts of answers, not their content.

    `step` is set for the task and the answer of a plan's step. They are a branch of their own, without a parent.
    """

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
    step: StepRef | None = None
    created_at: datetime
    updated_at: datetime


BUDGET_BOUNDS: dict[str, tuple[Decimal, int]] = {
    "usd": (Decimal("0.0001"), 10_000), "tokens": (Decimal(1), 1_000_000_000), "seconds": (Decimal("0.1"), 7 * 86_400),
    "tool_calls": (Decimal(0), 1_000),
}  # fmt: skip
"""The minimum and maximum of each measure of a run's budget."""


class RunBudget(WireStruct, frozen=True, kw_only=True):
    """The limits of one run, unless the operator's are lower. Send `usd` as a string to keep it exact."""

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
"""The default limit of steps."""
MAX_STEPS = 50
MAX_TOOL_PATTERNS = 64
MAX_FUNCTIONS = 128
MAX_INSTRUCTIONS_CHARACTERS = 8_000
MIN_CONTEXT_TOKENS = 500
MAX_AGENT_NAME_CHARACTERS = 63


class ClientFunction(WireStruct, frozen=True, kw_only=True):
    """A tool that the client executes: a run that calls it ends with reason `tool_calls`.

    `parameters` is the JSON Schema of an object; `{}` means an object without fields. With `strict`, providers that can
    do so let the model write only arguments that fit it.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$(?!\n)")]  # Not before a final newline.
    description: Annotated[str, msgspec.Meta(max_length=4_000)] = ""
    parameters: dict[str, Any] = {}
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.parameters:
            msgspec.structs.force_setattr(self, "parameters", {"type": "object", "properties": {}})


class RunOptions(GenerationOptions, frozen=True, kw_only=True):
    """The options of a run. `model` is `provider:name`; `if_busy` decides what happens while another run is active.

    With `autopilot` the run takes up to `max_steps` steps until it has an answer; without, it takes one step. `tools`
    are patterns of the tools to offer, by default all. Each reply of the model has at most `max_output_tokens`.
    `instructions` are added to the model's instructions for this run. A prompt has at most `context_tokens`, if the
    operator's limit is not lower. `max_steps` is limited to 1 to 50, and invalid values count as 20. `agent` is the
    name of an agent, or `auto` to leave the choice to the server. Without `server_instructions`, the prompt has none of
    the operator. With `personal`, the run uses the instructions and the model that its requester
    prefers. `context_overflow` decides about a conversation that is too long for a prompt: its older messages are
    left out, or summarised on autopilot, or the run ends with an error.
    """

    agent: Annotated[str, msgspec.Meta(max_length=MAX_AGENT_NAME_CHARACTERS)] | None = None
    model: str | None = None
    if_busy: IfBusy = "reject"
    budget: RunBudget | None = None
    autopilot: bool = False
    max_steps: Any = DEFAULT_STEPS
    tools: Annotated[Sequence[str], msgspec.Meta(max_length=MAX_TOOL_PATTERNS)] | None = None
    functions: Annotated[Sequence[ClientFunction], msgspec.Meta(max_length=MAX_FUNCTIONS)] = ()
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    context_tokens: Annotated[int, msgspec.Meta(ge=MIN_CONTEXT_TOKENS, le=1_000_000_000)] | None = None
    instructions: Annotated[str, msgspec.Meta(max_length=MAX_INSTRUCTIONS_CHARACTERS)] = ""
    server_instructions: bool = True
    personal: bool = True
    context_overflow: ContextOverflowPolicy = "shorten"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "max_steps", _steps(self.max_steps))

    @property
    def client_tools(self) -> frozenset[str]:
        """The names of the client's functions that the model may call. A call of another one is refused."""
        return frozenset(function.name for function in self.functions if offers(self.tool_choice, function.name))

    @property
    def step_limit(self) -> int:
        """The limit of steps."""
        return _steps(self.max_steps) if self.autopilot else 1


class ResponseRequest(WireStruct, frozen=True, kw_only=True):
    """The facts of a request of OpenAI's Responses API that no other option of its run has.

    `model` is the name that it gave. `previous` is the run that it continues; with `conversation`, it continues the
    thread instead. Its input is the results of the calls `results`, which the message `after` has, and then the
    messages that follow `after` up to the run's question. `ignored` are its paths that had no effect.
    """

    model: str
    previous: UUID | None = None
    conversation: bool = False
    background: bool = False
    ephemeral: bool = False
    max_tool_calls: int | None = None
    after: UUID | None = None
    results: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


class StoredRunOptions(RunOptions, frozen=True, kw_only=True):
    """The options of a run as stored, with the version of its agent. `agent_id` is absent for a built-in agent.

    `route` is the server's choice of the agent, if that was left to the server. `step` is the step of a plan that the
    run executes, and `checkout` says how its work is committed. `draft` is the plan that the run makes. `response` is
    set for a run that a request of the Responses API has queued. `remote_owner` owns the agent of a run that only
    remote workers execute.
    Only executors of level `needs` or above claim the run: see `khala.domain.program_level`.
    """

    agent_version: int | None = None
    agent_id: UUID | None = None
    route: Route | None = None
    step: StepRef | None = None
    checkout: StepCheckout | None = None
    draft: PlanDraft | None = None
    response: ResponseRequest | None = None
    remote_owner: UUID | None = None
    needs: int = 0


def _steps(requested: Any) -> int:
    """The requested limit of steps, at most 50; 20 for an invalid value."""
    valid = isinstance(requested, int) and not isinstance(requested, bool) and requested >= 1
    return min(requested, MAX_STEPS) if valid else DEFAULT_STEPS


class Run(WireStruct, frozen=True, kw_only=True):
    """One assistant turn. `attempt` counts the executors that have claimed it.

    `waits_until` is set while a run waits for a remote worker: if none has claimed it by then, it fails. `error` says
    why a run has failed; only `GET /runs/{id}` has it.
    """

    id: UUID
    thread_id: UUID
    message_id: UUID
    status: RunStatus
    attempt: int
    steps: int
    cancel_requested_at: datetime | None = None
    created_at: datetime
    finish: Finish | None = None
    waits_until: datetime | None = None
    error: RunFailure | None = None


class Receipt(WireStruct, frozen=True, kw_only=True):
    """The record of one model or tool call. `cost_usd` is a decimal string, absent if unknown.

    `hash` (hex digits) covers this receipt and the `hash` of the previous one: see `khala.domain.receipts`.
    """

    run_id: UUID
    seq: int
    type: Literal["model", "tool"]
    tool_call_id: str | None = None
    data: dict[str, Any]
    cost_usd: str | None = None
    hash: str | None = None
    created_at: datetime


class AppendedMessages(WireStruct, frozen=True, kw_only=True):
    """The result of an append: the ids of its messages, in order. A retry of the same append has the same result."""

    thread_id: UUID
    message_ids: tuple[UUID, ...]
    revision: int


class SendResult(WireStruct, frozen=True, kw_only=True):
    """The result of a send. A retry of the same send has the same result."""

    thread_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    run_id: UUID
    revision: int
