"""The events of a run on autopilot: its rounds of tools as groups of tasks, what it says, and how it ends. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.api.openai.history import shortened
from khala.domain.chat import SendResult
from khala.domain.parts import (
    Finish,
    PartData,
    RunFailure,
    Step,
    TextDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolStatus,
)

MOST_ARGS = 60
MOST_SUMMARY = 120
OVER = ("completed", "failed", "cancelled")


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """One line of the stream; `type` says which."""


class Start(Event, frozen=True, kw_only=True, tag="autopilot_start"):
    """The run is queued."""

    thread_id: UUID
    run_id: UUID
    max_steps: int
    model: str
    ignored: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call as its round begins; `args` are its arguments in short."""

    task_id: str
    tool: str
    args: str
    state: str
    detail_token: str


class GroupStart(Event, frozen=True, kw_only=True, tag="task_group_start"):
    """A round of tools begins: these are all of it."""

    group_id: str
    step: int
    tasks: tuple[Task, ...]


class Update(Event, frozen=True, kw_only=True, tag="task_update"):
    """A task changed its state; told in the order in which they end."""

    group_id: str
    task_id: str
    state: str
    summary: str | None = None
    duration_ms: int | None = None
    detail_token: str


class GroupEnd(Event, frozen=True, kw_only=True, tag="task_group_end", omit_defaults=False):
    """All tasks of a round have ended."""

    group_id: str
    step: int
    duration_ms: int
    completed: int
    failed: int


class Text(Event, frozen=True, kw_only=True, tag="autopilot_text"):
    """More of what is said. All of it comes once."""

    text: str


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call that waits for somebody's approval."""

    tool_call_id: str
    tool: str
    args: dict[str, Any]
    digest: str
    expires_at: datetime


class Paused(Event, frozen=True, kw_only=True, tag="autopilot_paused"):
    """The run waits for these approvals, and goes on as soon as somebody decides."""

    run_id: UUID
    approvals: tuple[Asked, ...]


class End(Event, frozen=True, kw_only=True, tag="autopilot_end"):
    """The run has ended."""

    reason: str
    steps: int
    usage: TokenUsage
    cost_usd: str | None = None
    finish: Finish
    message: str | None = None


class Group:
    """A round of tools that is under way."""

    def __init__(self, step: Step, began: datetime) -> None:
        self.id = f"step-{step.step}"
        self.step = step.step
        self.size = step.tool_count
        self.began = began
        self.calls: dict[str, ToolCall] = {}
        self.states: dict[str, str] = {}
        self.tokens: Mapping[str, str] = {}

    @property
    def whole(self) -> bool:
        """Whether all its calls are known."""
        return len(self.calls) >= self.size

    @property
    def over(self) -> bool:
        """Whether all its calls have ended."""
        return self.whole and all(state in OVER for state in self.states.values())

    @property
    def waits(self) -> frozenset[str]:
        """The calls that wait for approval, if nothing else is under way."""
        left = {call: state for call, state in self.states.items() if state not in OVER}
        return frozenset(left) if self.whole and set(left.values()) == {"blocked"} else frozenset()


class EventEncoder:
    """Tells a run's parts as events. A round that is whole needs tokens for its calls before it can be told."""

    def __init__(self, sent: SendResult) -> None:
        self._sent = sent
        self._group: Group | None = None
        self._failure: RunFailure | None = None
        self._told_waiting: frozenset[str] = frozenset()
        self.steps = 0
        self.ended = False

    def start(self, *, max_steps: int, model: str) -> Start:
        """The first event."""
        return Start(thread_id=self._sent.thread_id, run_id=self._sent.run_id, max_steps=max_steps, model=model)

    def take(self, data: PartData, at: datetime) -> Iterator[Event]:
        """Take in what a part said at this time; the events that it makes. A round that is whole by it is `untold`."""
        match data:
            case TextDelta(text=text) if text:
                yield Text(text=text)
            case Step():
                self._group, self.steps = Group(data, at), data.step
            case ToolCall() if self._group is not None:
                self._group.calls[data.tool_call_id] = data
                self._group.states[data.tool_call_id] = "queued"
            case ToolStatus():
                yield from self._update(data.tool_call_id, data.state, at, summary=data.reason)
            case ToolResult():
                state = "completed" if data.ok else "failed"
                yield from self._update(data.tool_call_id, state, at, data.summary, data.duration_ms)
            case RunFailure():
                self._failure = data
            case Finish():
                yield self._end(data)
            case _:
                pass

    @property
    def untold(self) -> Sequence[str]:
        """The calls of a round that is whole and was not told: get tokens for them, and `tell` it."""
        group = self._group
        return list(group.calls) if group is not None and group.whole and not group.tokens else ()

    def tell(self, tokens: Mapping[str, str]) -> GroupStart:
        """The round begins, with these tokens for its calls."""
        assert self._group is not None
        self._group.tokens = tokens
        tasks = tuple(
            Task(
                task_id=call.tool_call_id,
                tool=call.tool,
                args=_args(call),
                state="queued",
                detail_token=tokens[call.tool_call_id],
            )
            for call in self._group.calls.values()
        )
        return GroupStart(group_id=self._group.id, step=self._group.step, tasks=tasks)

    def awaited(self) -> frozenset[str]:
        """The calls that the run waits for, when it has begun to; none the next time, unless they are others then."""
        waits = self._group.waits if self._group is not None and not self.ended else frozenset()
        news = frozenset() if waits == self._told_waiting else waits
        self._told_waiting = waits
        return news

    def _update(
        self, task_id: str, state: str, at: datetime, summary: str | None = None, duration_ms: int | None = None
    ) -> Iterator[Event]:
        group = self._group
        if group is None or task_id not in group.states:
            return
        group.states[task_id] = state
        yield Update(
            group_id=group.id,
            task_id=task_id,
            state=state,
            summary=None if summary is None else shortened(summary, MOST_SUMMARY),
            duration_ms=duration_ms,
            detail_token=group.tokens.get(task_id, ""),
        )
        if group.over:
            states = list(group.states.values())
            yield GroupEnd(
                group_id=group.id,
                step=group.step,
                duration_ms=max(0, int((at - group.began).total_seconds() * 1000)),
                completed=states.count("completed"),
                failed=len(states) - states.count("completed"),
            )
            self._group = None

    def _end(self, finish: Finish) -> End:
        self.ended = True
        return End(
            reason=finish.reason,
            steps=self.steps,
            usage=finish.usage,
            cost_usd=finish.cost_usd,
            finish=finish,
            message=self._failure.message if self._failure else None,
        )


def _args(call: ToolCall) -> str:
    if call.args is None:
        return shortened(call.args_blob.preview if call.args_blob else "", MOST_ARGS)
    return shortened(msgspec.json.encode(call.args)[: 8 * MOST_ARGS].decode(errors="ignore"), MOST_ARGS)
