"""Requests of AG-UI and TanStack AI clients. Fields that Khala does not use are ignored: each version adds some."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from khala.domain.chat import MAX_FUNCTIONS

MAX_ID_CHARACTERS = 200
MAX_MESSAGES = 2_000
MAX_PARTS = 1_000
"""Of one message."""
MAX_INTERRUPTS = 100
MAX_CONTEXT_ITEMS = 100

ClientId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]


class PartSource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The content of a file: base64 (`data`) or an address (`url`)."""

    type: str = ""
    value: str = ""
    mime_type: str = ""


class AgentInputPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a user's message: a text or a file."""

    type: str
    text: str = ""
    source: PartSource | None = None


class AgentRequestMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message of the client's list. `error` is set for the result of a call that failed."""

    id: Annotated[str, Meta(max_length=MAX_ID_CHARACTERS)] = ""
    role: str
    content: str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_PARTS)] | None = None
    tool_call_id: str = ""
    error: str | None = None


class AgentTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client executes. `parameters` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: Any = None


class AgentContext(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about the application, for the model."""

    description: str = ""
    value: str = ""


class ResumeEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to one interrupt. `payload` has the decision."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request to run an agent. The thread is the history: of `messages`, the last one is answered.

    `forwardedProps.options` are those of `POST /api/threads/{thread_id}/send`.
    """

    thread_id: ClientId
    run_id: ClientId
    protocol_version: str | None = None
    state: Any = None
    messages: Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES)] = []
    tools: Annotated[list[AgentTool], Meta(max_length=MAX_FUNCTIONS)] = []
    context: Annotated[list[AgentContext], Meta(max_length=MAX_CONTEXT_ITEMS)] = []
    forwarded_props: Any = None
    resume: Annotated[list[ResumeEntry], Meta(max_length=MAX_INTERRUPTS)] | None = None


class JoinableRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The run that is being written."""

    run_id: str


class PendingInterrupts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The requests for approval for which the run waits."""

    run_id: str
    pending: list[dict[str, Any]]


class HydratedPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether there are older messages: `cursor` is the `before` of the next request."""

    truncated: bool
    cursor: str | None = None


class HydratedThread(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A thread for TanStack AI: messages, and the run to join."""

    messages: list[dict[str, Any]]
    active_run: JoinableRun | None
    interrupts: PendingInterrupts | None
    page: HydratedPage
