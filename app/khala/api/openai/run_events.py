"""The events of an autopilot run: its steps as groups of tasks, its text, and its end. Without I/O."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

import msgspec

from khala.api.openai.history import shorten
from khala.domain.chat import SendResult
from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.parts import (
    Compaction,
    Finish,
    Logprobs,
    MemoryRecall,
    Notice,
    PartData,
    ReasoningDelta,
    Route,
    RunFailure,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
)

MAX_ARGS_CHARACTERS = 60
MAX_SUMMARY_CHARACTERS = 120
ENDED_STATES = ("completed", "failed", "cancelled")


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """Base of all events. `type` names the event."""


class StartEvent(RunEvent, frozen=True, kw_only=True, tag="autopilot_start"):
    """The run was queued."""

    thread_id: UUID
    run_id: UUID
    max_steps: int
    model: str
    ignored: tuple[str, ...] = ()


class ToolTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call at the start of its step. `args` is an excerpt of its arguments."""

    task_id: str
    tool: str
    args: str
    state: str
    detail_token: str


class GroupStartEvent(RunEvent, frozen=True, kw_only=True, tag="task_group_start"):
    """The tool calls of a step start. `tasks` are all of them."""

    group_id: str
    step: int
    tasks: tuple[ToolTask, ...]


class TaskUpdateEvent(RunEvent, frozen=True, kw_only=True, tag="task_update"):
    """A task has changed its state. Tasks end in any order."""

    group_id: str
    task_id: str
    state: str
    summary: str | None = None
    duration_ms: int | None = None
    detail_token: str


class GroupEndEvent(RunEvent, frozen=True, kw_only=True, tag="task_group_end", omit_defaults=False):
    """All tasks of a step have ended."""

    group_id: str
    step: int
    duration_ms: int
    completed: int
    failed: int


class TextEvent(RunEvent, frozen=True, kw_only=True, tag="autopilot_text"):
    """More text. The texts of all events together are the answer."""

    text: str


class RepairEvent(RunEvent, frozen=True, kw_only=True, tag="autopilot_repair"):
    """The text since the last step does not fit the requested format, and is no part of the answer. Another follows."""

    message: str


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call that waits for an approval."""

    tool_call_id: str
    tool: str
    args: dict[str, Any]
    digest: str
    expires_at: datetime


class PausedEvent(RunEvent, frozen=True, kw_only=True, tag="autopilot_paused"):
    """The run waits for these approvals. It continues when they are decided."""

    run_id: UUID
    approvals: tuple[PendingApproval, ...]


class EndEvent(RunEvent, frozen=True, kw_only=True, tag="autopilot_end"):
    """The run has ended."""

    reason: str
    steps: int
    usage: TokenUsage
    cost_usd: str | None = None
    finish: Finish
    message: str | None = None


class ToolCallGroup:
    """The tool calls of the current step."""

    def __init__(self, step: Step, started_at: datetime) -> None:
        self.id = f"step-{step.step}"
        self.step = step.step
        self.size = step.tool_count
        self.started_at = started_at
        self.calls: dict[str, ToolCall] = {}
        self.states: dict[str, str] = {}
        self.tokens: Mapping[str, str] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all calls of the step are known."""
        return len(self.calls) >= self.size

    @property
    def has_ended(self) -> bool:
        """Whether all calls have ended."""
        return self.is_complete and all(state in ENDED_STATES for state in self.states.values())

    @property
    def awaiting_approval(self) -> frozenset[str]:
        """The calls that wait for an approval, if all other calls have ended."""
        unended = {call: state for call, state in self.states.items() if state not in ENDED_STATES}
        return frozenset(unended) if self.is_complete and set(unended.values()) == {"blocked"} else frozenset()


class EventEncoder:
    """Encodes the parts of a run as events.

    When all calls of a step are known, its group needs a detail token for each call before it can be announced.
    """

    def __init__(self, sent: SendResult) -> None:
        self._sent = sent
        self._group: ToolCallGroup | None = None
        self._failure: RunFailure | None = None
        self._reported_waiting: frozenset[str] = frozenset()
        self.steps = 0
        self.ended = False

    def start(self, *, max_steps: int, model: str) -> StartEvent:
        """Return the first event."""
        return StartEvent(thread_id=self._sent.thread_id, run_id=self._sent.run_id, max_steps=max_steps, model=model)

    def encode(self, data: PartData, at: datetime) -> Iterator[RunEvent]:
        """Yield the events of a part that was committed at this time.

        If the part completes a group, its calls are then in `unannounced_calls`.
        """
        match data:
            case TextDelta(text=text) if text:
                yield TextEvent(text=text)
            case Step():
                self._group, self.steps = ToolCallGroup(data, at), data.step
            case ToolCall() if self._group is not None:
                self._group.calls[data.tool_call_id] = data
                self._group.states[data.tool_call_id] = "queued"
            case ToolStatus():
                yield from self._update(data.tool_call_id, data.state, at, summary=data.reason)
            case ToolResult():
                state = "completed" if data.ok else "failed"
                yield from self._update(data.tool_call_id, state, at, data.summary, data.duration_ms)
            case Notice(code=code) if code == FORMAT_REPAIR_NOTICE:
                yield RepairEvent(message=data.message)
            case RunFailure():
                self._failure = data
            case Finish():
                yield self._end(data)
            case (
                TextDelta()
                | ToolCall()
                | Notice()
                | ReasoningDelta()
                | Logprobs()
                | Compaction()
                | MemoryRecall()
                | Route()
            ):
                pass
            case _:
                assert_never(data)

    @property
    def unannounced_calls(self) -> Sequence[str]:
        """The ids of the calls of a complete group that `announce_group` has not announced."""
        group = self._group
        return list(group.calls) if group is not None and group.is_complete and not group.tokens else ()

    def announce_group(self, tokens: Mapping[str, str]) -> GroupStartEvent:
        """Return the start event of the group, with a detail token for each call."""
        assert self._group is not None
        self._group.tokens = tokens
        tasks = tuple(
            ToolTask(
                task_id=call.tool_call_id,
                tool=call.tool,
                args=_args(call),
                state="queued",
                detail_token=tokens[call.tool_call_id],
            )
            for call in self._group.calls.values()
        )
        return GroupStartEvent(group_id=self._group.id, step=self._group.step, tasks=tasks)

    def take_pending_approvals(self) -> frozenset[str]:
        """Return the calls that the run waits for, once: empty if they are the same as at the last call."""
        waiting = self._group.awaiting_approval if self._group is not None and not self.ended else frozenset()
        if waiting == self._reported_waiting:
            return frozenset()
        self._reported_waiting = waiting
        return waiting

    def _update(
        self, task_id: str, state: str, at: datetime, summary: str | None = None, duration_ms: int | None = None
    ) -> Iterator[RunEvent]:
        group = self._group
        if group is None or task_id not in group.states:
            return
        group.states[task_id] = state
        yield TaskUpdateEvent(
            group_id=group.id,
            task_id=task_id,
            state=state,
            summary=None if summary is None else shorten(summary, MAX_SUMMARY_CHARACTERS),
            duration_ms=duration_ms,
            detail_token=group.tokens.get(task_id, ""),
        )
        if group.has_ended:
            states = list(group.states.values())
            yield GroupEndEvent(
                group_id=group.id,
                step=group.step,
                duration_ms=max(0, int((at - group.started_at).total_seconds() * 1000)),
                completed=states.count("completed"),
                failed=len(states) - states.count("completed"),
            )
            self._group = None

    def _end(self, finish: Finish) -> EndEvent:
        self.ended = True
        return EndEvent(
            reason=finish.reason,
            steps=self.steps,
            usage=finish.usage,
            cost_usd=finish.cost_usd,
            finish=finish,
            message=self._failure.message if self._failure else None,
        )


def _args(call: ToolCall) -> str:
    if call.args is None:
        return shorten(call.args_blob.preview if call.args_blob else "", MAX_ARGS_CHARACTERS)
    return shorten(
        msgspec.json.encode(call.args)[: 8 * MAX_ARGS_CHARACTERS].decode(errors="ignore"), MAX_ARGS_CHARACTERS
    )
