"""The bodies of the executor protocol, as a worker reads them."""

from typing import Any
from uuid import UUID

import msgspec

from khala_client.content import Content
from khala_client.models import Message
from khala_client.wire import WireStruct


class DecidedApproval(WireStruct, frozen=True, kw_only=True):
    """The decision of a person about a call: approved, denied or expired."""

    tool_call_id: str
    state: str
    reason: str | None = None
    edited_args: dict[str, Any] | None = None
    decided_name: str | None = None


class ClaimedAgent(WireStruct, frozen=True, kw_only=True):
    """The agent of a run, in the version with which it was sent."""

    name: str
    version: int
    title: str = ""
    description: str = ""
    instructions: str = ""
    tools: tuple[str, ...] = ()
    model: str | None = None
    fallbacks: tuple[str, ...] = ()


class ClaimedRun(WireStruct, frozen=True, kw_only=True):
    """A run that this worker holds. `content` is what former workers have written."""

    run_id: UUID
    thread_id: UUID
    message_id: UUID
    agent: ClaimedAgent
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    messages: tuple[Message, ...]
    epoch: int
    lease_seconds: float
    next_seq: int
    next_receipt: int = 0
    receipts_outside_calls: int | None = None
    content: Content = ()
    approvals: tuple[DecidedApproval, ...] = ()
    taken_over: bool = False
    cancelled: bool = False
    reasoning: bool = False


class Claimed(WireStruct, frozen=True, kw_only=True):
    """The answer to a claim."""

    runs: tuple[ClaimedRun, ...] = ()


class RunState(WireStruct, frozen=True, kw_only=True):
    """The state of a run, in the answer to a heartbeat."""

    run_id: UUID
    epoch: int
    held: bool = False
    cancelled: bool = False
    approvals: tuple[DecidedApproval, ...] = ()


class Heartbeat(WireStruct, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    lease_seconds: float = 10.0
    runs: tuple[RunState, ...] = ()


class NextSeqs(WireStruct, frozen=True, kw_only=True):
    """The answer to an append."""

    next_seq: int
    next_receipt: int = 0
