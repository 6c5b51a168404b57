"""The executor protocol: the bodies of requests by remote workers, and of the answers to them. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from msgspec import Meta, field

from khala.domain.agents import AgentDefinition, AgentName
from khala.domain.chat import Message, RunOptions, WireStruct
from khala.domain.fold import Content
from khala.domain.parts import TokenUsage

MAX_RUNS_PER_CLAIM = 50
MAX_RUNS_PER_HEARTBEAT = 500
MAX_PARTS_PER_APPEND = 320
MAX_RECEIPTS_PER_APPEND = 64
MAX_WAIT_SECONDS = 30
"""Time that a claim waits for runs, at most."""
MAX_CALL_ID_CHARACTERS = 100
MAX_ERROR_CHARACTERS = 1_000
MAX_USAGE_TOKENS = 1_000_000_000
"""Tokens of one receipt, in each direction."""
MAX_MILLISECONDS = 7 * 86_400_000

Seq: TypeAlias = Annotated[int, Meta(ge=0, le=2_000_000_000)]
Epoch: TypeAlias = Annotated[int, Meta(ge=1, le=2_000_000_000)]
CallId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_CALL_ID_CHARACTERS)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_MILLISECONDS)]
ModelText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
ErrorCode: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$(?!\n)")]
CostUsd: TypeAlias = Annotated[str, Meta(pattern=r"^(?:10000(?:\.0{1,10})?|[0-9]{1,4}(?:\.[0-9]{1,10})?)$(?!\n)")]
"""Dollars from 0 to 10,000, in decimal notation."""
FinishStatus: TypeAlias = Literal["completed", "failed", "cancelled"]


class WorkerPart(WireStruct, frozen=True, kw_only=True):
    """A part that a worker writes. `data` depends on the kind: see `khala.domain.worker_parts`."""

    kind: str
    data: dict[str, Any]


class WorkerUsage(WireStruct, frozen=True, kw_only=True):
    """The tokens of one call. Input includes cached tokens."""

    input_tokens: Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] = 0
    output_tokens: Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] = 0

    def total(self) -> TokenUsage:
        """The same tokens as those of a run."""
        return TokenUsage(input_tokens=self.input_tokens, output_tokens=self.output_tokens)


class WorkerReceipt(WireStruct, frozen=True, kw_only=True):
    """The record of one call of a model or tool by a worker.

    `cost_usd` is a decimal string. Without it, the cost follows from the price list, if that has the model.
    """

    type: Literal["model", "tool"]
    provider: ModelText | None = None
    model: ModelText | None = None
    tool_call_id: CallId | None = None
    outcome: Annotated[str, Meta(min_length=1, max_length=64)] = "completed"
    usage: WorkerUsage = WorkerUsage()
    cost_usd: CostUsd | None = None
    total_ms: Milliseconds = 0


Receipts: TypeAlias = Annotated[Sequence[WorkerReceipt], Meta(max_length=MAX_RECEIPTS_PER_APPEND)]


class RunClaimRequest(WireStruct, frozen=True, kw_only=True):
    """Claim up to `max_runs` runs of these agents, by default of all agents of the token.

    Without runs, the answer waits up to `wait_seconds`. Repeating the `claim_id` returns the runs that it has claimed.
    """

    claim_id: UUID
    agents: Annotated[Sequence[AgentName], Meta(min_length=1, max_length=100)] | None = None
    max_runs: Annotated[int, Meta(ge=1, le=MAX_RUNS_PER_CLAIM)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0


class LeaseRef(WireStruct, frozen=True, kw_only=True):
    """A run, and the epoch under which the worker holds it."""

    run_id: UUID
    epoch: Epoch


class AppendPartsRequest(WireStruct, frozen=True, kw_only=True):
    """Consecutive parts from `seq` on, and receipts from `receipt_seq` on."""

    epoch: Epoch
    seq: Seq
    parts: Annotated[Sequence[WorkerPart], Meta(min_length=1, max_length=MAX_PARTS_PER_APPEND)]
    receipt_seq: Seq = 0
    receipts: Receipts = ()


class HeartbeatRequest(WireStruct, frozen=True, kw_only=True):
    """The runs whose leases are renewed."""

    runs: Annotated[Sequence[LeaseRef], Meta(max_length=MAX_RUNS_PER_HEARTBEAT)]


class AskApproval(WireStruct, frozen=True, kw_only=True):
    """Block the call until a person has decided, by the part at `seq`.

    `parameters` is the JSON Schema that changed arguments must match, by default any object.
    """

    epoch: Epoch
    seq: Seq
    tool_call_id: CallId
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    reason: Annotated[str, Meta(max_length=500)] | None = None


class FinishError(WireStruct, frozen=True, kw_only=True):
    """Why a run failed. The message is shown to people."""

    code: ErrorCode = "failed"
    message: Annotated[str, Meta(min_length=1, max_length=MAX_ERROR_CHARACTERS)]


class FinishRequest(WireStruct, frozen=True, kw_only=True):
    """End the run, whose last part has the seq before `seq`. A failed run has an `error`."""

    epoch: Epoch
    seq: Seq
    status: FinishStatus
    reason: ErrorCode = "stop"
    error: FinishError | None = None
    receipt_seq: Seq = 0
    receipts: Receipts = ()


class ReleaseRequest(WireStruct, frozen=True, kw_only=True):
    """Give the run back. With `awaits`, it waits until one of these calls is decided; otherwise it is queued."""

    epoch: Epoch
    awaits: Annotated[Sequence[CallId], Meta(max_length=64)] = ()


class DecidedApproval(WireStruct, frozen=True, kw_only=True):
    """The decision about a call. Approved arguments that the approver has changed are `edited_args`."""

    tool_call_id: str
    state: Literal["approved", "denied", "expired"]
    reason: str | None = None
    edited_args: dict[str, Any] | None = None
    decided_name: str | None = None


class WorkerAgent(AgentDefinition, frozen=True, kw_only=True):
    """The version of the agent with which the run was sent."""

    name: str
    version: int


class WorkerRun(WireStruct, frozen=True, kw_only=True):
    """A claimed run.

    `content` is the fold of the parts that former workers wrote, and `next_seq` the seq of the next part. `messages`
    are the messages up to the one to answer. `receipts_outside_calls` is the number of stored receipts that name
    no tool call. `reasoning` says whether the server takes parts with reasoning.
    """

    run_id: UUID
    thread_id: UUID
    message_id: UUID
    agent: WorkerAgent
    options: RunOptions
    messages: Sequence[Message]
    epoch: int
    lease_seconds: float
    next_seq: int
    next_receipt: int
    receipts_outside_calls: int
    content: Content
    approvals: Sequence[DecidedApproval]
    taken_over: bool
    cancelled: bool
    reasoning: bool


class ClaimAnswer(WireStruct, frozen=True, kw_only=True):
    """The claimed runs; none if there were none in time."""

    runs: Sequence[WorkerRun]


class AppendAnswer(WireStruct, frozen=True, kw_only=True):
    """All parts before `next_seq` and all receipts before `next_receipt` are stored."""

    next_seq: int
    next_receipt: int


class HeartbeatState(WireStruct, frozen=True, kw_only=True, omit_defaults=False):
    """Whether the worker still holds the run, whether the run is being cancelled, and all decisions about its calls.

    A worker that does not hold a run stops, and writes nothing more to it.
    """

    run_id: UUID
    epoch: int
    held: bool
    cancelled: bool = False
    approvals: Sequence[DecidedApproval] = ()


class HeartbeatAnswer(WireStruct, frozen=True, kw_only=True):
    """The state of each run, in the order of the request. Leases of held runs end after `lease_seconds`."""

    lease_seconds: float
    runs: Sequence[HeartbeatState]


class RunEnd(WireStruct, frozen=True, kw_only=True):
    """The status of the run now."""

    status: Literal["queued", "blocked", "final", "error", "canceled"]


class ExecutorFrame(WireStruct, frozen=True, kw_only=True, tag_field="type"):
    """A frame of a worker's socket. The answer to a request has its `id`."""


class ClaimFrame(RunClaimRequest, frozen=True, kw_only=True, tag_field="type", tag="claim"):
    """As `RunClaimRequest`."""

    id: Seq


class AppendFrame(AppendPartsRequest, frozen=True, kw_only=True, tag_field="type", tag="append"):
    """As `AppendPartsRequest`."""

    id: Seq
    run_id: UUID


class HeartbeatFrame(HeartbeatRequest, frozen=True, kw_only=True, tag_field="type", tag="heartbeat"):
    """As `HeartbeatRequest`."""

    id: Seq


class ApprovalFrame(AskApproval, frozen=True, kw_only=True, tag_field="type", tag="approval"):
    """As `AskApproval`."""

    id: Seq
    run_id: UUID


class FinishFrame(FinishRequest, frozen=True, kw_only=True, tag_field="type", tag="finish"):
    """As `FinishRequest`."""

    id: Seq
    run_id: UUID


class ReleaseFrame(ReleaseRequest, frozen=True, kw_only=True, tag_field="type", tag="release"):
    """As `ReleaseRequest`."""

    id: Seq
    run_id: UUID


WorkerFrame: TypeAlias = ClaimFrame | AppendFrame | HeartbeatFrame | ApprovalFrame | FinishFrame | ReleaseFrame
"""The requests of a worker over its socket."""


class ExecutorHello(ExecutorFrame, frozen=True, kw_only=True, tag="hello", omit_defaults=False):
    """The first frame. A lease lasts `lease_seconds`."""

    lease_seconds: float


class ResultFrame(ExecutorFrame, frozen=True, kw_only=True, tag="result", omit_defaults=False):
    """The answer to the request `id`."""

    id: int
    result: ClaimAnswer | AppendAnswer | HeartbeatAnswer | RunEnd


class RunChangedFrame(ExecutorFrame, frozen=True, kw_only=True, tag="run", omit_defaults=False):
    """The run is being cancelled, was lost, or a call of it was decided: without a request."""

    state: HeartbeatState
