"""The answers of a server about threads, runs, accounts and all that belongs to them.

Times are aware datetimes in UTC, costs are USD. Fields whose values are one of a list are texts, because later servers
may add values: the docstrings have those of this version.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from khala_client.content import Content, Finish, Part, RunFailure, text_of
from khala_client.plan_models import PlanEntry, PlanEvent, StepProgress
from khala_client.wire import WireStruct

ENDED_STATUSES = frozenset({"final", "error", "canceled"})
"""The statuses of messages and runs that have ended."""


class ThreadInfo(WireStruct, frozen=True, kw_only=True):
    """A thread. `revision` counts its committed changes. `visibility` is private, link or public.

    `active_leaf` is the last message of the active branch, None while the thread has no messages. `expires_at` is when
    a temporary thread is deleted, None for all others.
    """

    id: UUID
    owner_id: UUID | None = None
    title: str | None = None
    visibility: str
    revision: int
    active_leaf: UUID | None = None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None


class StepRef(WireStruct, frozen=True, kw_only=True):
    """An attempt of a step of a plan, numbered from 1."""

    plan_id: UUID
    step_id: str
    attempt: int


class Message(WireStruct, frozen=True, kw_only=True):
    """A message. `content` is the fold of its parts 0..seq-1.

    `role` is user, assistant or system; `status` is draft, streaming, final, error or canceled.
    """

    id: UUID
    thread_id: UUID
    parent_id: UUID | None = None
    role: str
    status: str
    run_id: UUID | None = None
    seq: int
    author_id: UUID | None = None
    author_name: str | None = None
    content: Content | None = None
    finish: Finish | None = None
    step: StepRef | None = None
    created_at: datetime
    updated_at: datetime

    @property
    def text(self) -> str:
        """The text of the content."""
        return text_of(self.content or ())

    @property
    def has_ended(self) -> bool:
        """Whether nothing is written any more. A `finish` says so, whatever the status is."""
        return self.finish is not None or self.status in ENDED_STATUSES


class RunInfo(WireStruct, frozen=True, kw_only=True):
    """One answer of an agent. `status` is queued, running, blocked, final, error or canceled.

    `attempt` counts the executors that have claimed it. `error` says why a run has failed.
    """

    id: UUID
    thread_id: UUID
    message_id: UUID
    status: str
    attempt: int
    steps: int
    cancel_requested_at: datetime | None = None
    created_at: datetime
    finish: Finish | None = None
    error: RunFailure | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, however it ended."""
        return self.status in ENDED_STATUSES


class SendResult(WireStruct, frozen=True, kw_only=True):
    """The ids of a send. A retry of the same send has the same ones."""

    thread_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    run_id: UUID
    revision: int


class Snapshot(WireStruct, frozen=True, kw_only=True):
    """A thread at one revision, with its newest messages in order and its newest plans."""

    revision: int
    thread: ThreadInfo
    messages: tuple[Message, ...] = ()
    has_more: bool = False
    reset: bool = False
    plans: tuple[PlanEntry, ...] = ()


class Delta(WireStruct, frozen=True, kw_only=True):
    """The changes of a thread after revision `since`, up to and including `revision`.

    `plan_steps` and `plan_events` are None where there are too many: then they are read over REST.
    """

    since: int = msgspec.field(name="from")
    revision: int
    thread: ThreadInfo | None = None
    messages: tuple[Message, ...] = ()
    parts: tuple[Part, ...] = ()
    plans: tuple[PlanEntry, ...] = ()
    plan_steps: tuple[StepProgress, ...] | None = ()
    plan_events: tuple[PlanEvent, ...] | None = ()


class MessagePage(WireStruct, frozen=True, kw_only=True):
    """Older messages in order. `has_more` says that there are others before them."""

    items: tuple[Message, ...]
    has_more: bool = False


class PartPage(WireStruct, frozen=True, kw_only=True):
    """Parts of a run. `done` says that the run has ended and no part follows."""

    items: tuple[Part, ...]
    next_after: int = -1
    done: bool = False


class Approval(WireStruct, frozen=True, kw_only=True):
    """A tool call that waits for a decision, or had one. `state` is pending, approved, denied or expired.

    `digest` identifies exactly this call. `may_edit` says that the caller may send `edited_args`.
    """

    run_id: UUID
    tool_call_id: str
    tool: str
    args: dict[str, Any]
    digest: str
    state: str
    reason: str | None = None
    edited_args: dict[str, Any] | None = None
    decided_by: UUID | None = None
    decided_name: str | None = None
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None = None
    may_edit: bool = False


class Receipt(WireStruct, frozen=True, kw_only=True):
    """The record of one model or tool call. `type` is model or tool."""

    run_id: UUID
    seq: int
    type: str
    tool_call_id: str | None = None
    data: dict[str, Any]
    cost_usd: Decimal | None = None
    hash: str | None = None
    created_at: datetime


class Access(WireStruct, frozen=True, kw_only=True):
    """The caller's role in a thread: viewer, editor or owner."""

    role: str
    expires_at: datetime | None = None


class Member(WireStruct, frozen=True, kw_only=True):
    """A user with a role in a thread. `status` is member or invited."""

    user_id: UUID
    name: str | None = None
    role: str
    status: str = "member"


class ShareLink(WireStruct, frozen=True, kw_only=True):
    """A link that grants a role. `share_key` and `url` are returned only when it is created."""

    id: UUID
    role: str
    created_at: datetime
    expires_at: datetime | None = None
    share_key: str | None = None
    url: str | None = None


class Memory(WireStruct, frozen=True, kw_only=True):
    """A short text that outlives its thread. `scope` is user, thread or agent.

    `kind` is fact, preference, instruction or summary. `score` is from 0 to 1, in a search only.
    """

    id: UUID
    scope: str
    kind: str
    text: str
    keywords: str | None = None
    agent: str | None = None
    thread_id: UUID | None = None
    message_id: UUID | None = None
    run_id: UUID | None = None
    created_at: datetime
    used_at: datetime | None = None
    uses: int = 0
    expires_at: datetime | None = None
    supersedes: UUID | None = None
    superseded_by: UUID | None = None
    score: float | None = None


class Highlight(WireStruct, frozen=True, kw_only=True):
    """A word of a search in `text`, from `start` to before `end`, in UTF-16 code units."""

    start: int
    end: int


class SearchHit(WireStruct, frozen=True, kw_only=True):
    """A message, file or memory that a search has found. `match` is exact or similar, `by` is words or meaning."""

    thread_id: UUID | None = None
    message_id: UUID | None = None
    blob_id: UUID | None = None
    name: str | None = None
    memory_id: UUID | None = None
    path: str | None = None
    text: str
    highlights: tuple[Highlight, ...] = ()
    match: str
    by: str
    score: float
    created_at: datetime


class Agent(WireStruct, frozen=True, kw_only=True):
    """Instructions, tools, models and limits for runs, under a name. `visibility` is private, link or public."""

    name: str
    title: str = ""
    description: str = ""
    instructions: str = ""
    tools: tuple[str, ...] = ()
    model: str | None = None
    fallbacks: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    budget: dict[str, Any] | None = None
    version: int = 1
    owner: UUID | None = None
    visibility: str = "private"


class Model(WireStruct, frozen=True, kw_only=True):
    """A model that a request may name, as in `RunOptions.model`. Prices are those of a million tokens.

    `title` and `description` are the operator's words for people.
    """

    model: str
    provider: str
    name: str
    title: str | None = None
    description: str | None = None
    input_usd_per_million: Decimal | None = None
    output_usd_per_million: Decimal | None = None
    context_tokens: int | None = None


class ModelList(WireStruct, frozen=True, kw_only=True):
    """The models of a server, the default first, and the embedding model."""

    default: str
    items: tuple[Model, ...]
    embeddings: Any = None


class Identity(WireStruct, frozen=True, kw_only=True):
    """An identity of an account at an OpenID Provider."""

    issuer: str
    email: str | None = None


class User(WireStruct, frozen=True, kw_only=True):
    """An account. `password` says whether it has one."""

    id: UUID
    name: str | None = None
    email: str | None = None
    password: bool = False
    identities: tuple[Identity, ...] = ()
    created_at: datetime


class Usage(WireStruct, frozen=True, kw_only=True):
    """The use of one limit. `scope` is user or key, `measure` is usd, tokens, runs or seconds."""

    scope: str
    measure: str
    used: Decimal
    reserved: Decimal
    most: Decimal
    ends_at: datetime


class BlobLine(WireStruct, frozen=True, kw_only=True):
    """A line of a blob. `match` says that the pattern matches it, `cut` that it is not whole."""

    line: int
    text: str
    match: bool = False
    cut: bool = False


class ClaimResult(WireStruct, frozen=True, kw_only=True):
    """The result of a claim. Without `code` the caller owns the thread now."""

    thread_id: UUID
    code: str | None = None


class AgentEstimate(WireStruct, frozen=True, kw_only=True):
    """Medians of `of` earlier runs of an agent."""

    of: int = 0
    steps: float | None = None
    seconds: float | None = None
    usd: Decimal | None = None


class AgentChoice(WireStruct, frozen=True, kw_only=True):
    """An agent, and the probability from 0 to 1 that it is the right one."""

    agent: str
    confidence: float


class AgentRoute(WireStruct, frozen=True, kw_only=True):
    """The agent that the server would choose for a text. If it abstained, `agent` is `default`.

    `by`: `words` or `meaning`. Servers of earlier versions do not say it.
    """

    agent: str
    confidence: float
    abstained: bool = False
    why: str = ""
    by: str | None = None
    alternatives: tuple[AgentChoice, ...] = ()
    estimate: AgentEstimate = AgentEstimate()
