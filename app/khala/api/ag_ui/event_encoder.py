"""Encodes the parts of a run as AG-UI events. Without I/O.

The events and their ids follow from the parts alone. So a client that has the events up to an id gets the rest from any
server process, and a replay gives the same events, up to where consecutive text is divided.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, assert_never
from uuid import UUID

import msgspec

from khala.api.ag_ui.messages import function_arguments, result_content, result_id, segment_id
from khala.api.chats.tool_values import CANCELED, approval_id, error_text, tool_input
from khala.domain.parts import (
    Compaction,
    Finish,
    Logprobs,
    MemoryRecall,
    Notice,
    Part,
    PartData,
    ReasoningDelta,
    Route,
    RunFailure,
    Step,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStatus,
    without_failure_text,
)

AgentEvent: TypeAlias = dict[str, Any]
AgentCallState: TypeAlias = Literal["queued", "running", "blocked", "ended"]
EventId: TypeAlias = tuple[int, int]
"""The position of a part, from 1 on, and the event's index among those of the part. Position 0: before all parts."""

PROTOCOL_VERSION = "1.0"


class EventedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run that its events need. `functions` are the names of the client's own tools.

    `thread_name` and `run_name` are the ids that the client has given to both.
    """

    thread_id: UUID
    run_id: UUID
    message_id: UUID
    thread_name: str
    run_name: str
    functions: frozenset[str] = frozenset()


class IdentifiedEvent(msgspec.Struct, frozen=True):
    """An event and its id. An event without an id is no part of the answer, and may be missed."""

    id: EventId | None
    event: AgentEvent


class EventedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the current step."""

    tool: str
    state: AgentCallState = "queued"
    approval: str = ""


class AgentEventEncoder:
    """The events of one run, as far as its parts have been added.

    `pauses` counts the moments in which the run could not go on without an approval. `awaited` are the calls that it
    waits for now, with the ids of the requests for approval.
    """

    def __init__(self, run: EventedRun) -> None:
        self._run = run
        self._events: list[IdentifiedEvent] = []
        self._position = 0
        self._index = 0
        self._merges = True
        self._segment = 0
        self._has_calls = False
        self._open_step = ""
        self._open_text = ""
        self._open_reasoning = ""
        self._announced = 0
        self._calls: dict[str, EventedCall] = {}
        self._pending: tuple[str, ...] = ()
        self._failure: RunFailure | None = None
        self.pauses = 0
        self.awaited: Mapping[str, str] = {}
        self.ended = False

    def fork(self) -> "AgentEventEncoder":
        """Return an encoder that continues from here."""
        other = object.__new__(AgentEventEncoder)
        other.__dict__ = self.__dict__.copy()
        return other

    @property
    def is_in_text(self) -> bool:
        """Whether more text only appends to the open message."""
        return bool(self._open_text)

    def add_text(self, seq: int, text: str) -> IdentifiedEvent:
        """Add the next part, a text that only appends to the open message, and return its event."""
        self._events, self._position, self._index = [], seq + 1, 1
        event = {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._open_text, "delta": text}
        return IdentifiedEvent((self._position, 0), event)

    def start(self, state: Mapping[str, Any]) -> list[IdentifiedEvent]:
        """Return the first events of every stream of this run. `state` is the client's."""
        run = self._run
        named = {"threadId": run.thread_name, "runId": run.run_name}
        known = {"threadId": run.thread_id, "runId": run.run_id, "messageId": run.message_id}
        return [
            IdentifiedEvent((0, 0), {"type": "RUN_STARTED", **named, "protocolVersion": PROTOCOL_VERSION}),
            IdentifiedEvent((0, 1), {"type": "STATE_SNAPSHOT", "snapshot": {**state, "khala": known}}),
        ]

    def add(self, parts: Sequence[Part], arguments: Mapping[str, Any], *, merges: bool = True) -> list[IdentifiedEvent]:
        """Add the next parts, and return their events.

        `arguments` are those of calls that were too large for a part, by the call's id. With `merges`, the text of
        consecutive parts is one event, with the id of the last one.
        """
        self._events, self._merges = [], merges
        for part, data in without_failure_text(parts):
            self._add(part.seq, data, arguments)
        return self._events

    def add_decided(
        self, parts: Sequence[Part], decided: AbstractSet[str], arguments: Mapping[str, Any], *, merges: bool = True
    ) -> tuple[list[IdentifiedEvent], int]:
        """Add all stored parts for a client that has decided these calls.

        Returns the events after the last pause in which the run waited for all of them, and the number of that pause:
        the client has the events before, and has closed what was open then.
        """
        self._events, self._merges, decided_pause = [], merges, 0
        for part, data in without_failure_text(parts):
            pauses = self.pauses
            self._add(part.seq, data, arguments)
            if self.pauses > pauses and decided <= set(self.awaited):
                self._events, decided_pause = [], self.pauses
                self._open_step = ""
        return self._events, decided_pause

    def pause(self, interrupts: Sequence[Mapping[str, Any]], snapshots: Sequence[AgentEvent]) -> list[IdentifiedEvent]:
        """Return the last events of a stream that ends because the run waits for an approval."""
        self._events = []
        self._close_step()
        for snapshot in snapshots:
            self._append_event(snapshot)
        self._end({"type": "interrupt", "interrupts": list(interrupts)}, ())
        return self._events

    def _add(self, seq: int, data: PartData, arguments: Mapping[str, Any]) -> None:
        self._position, self._index = seq + 1, 0
        match data:
            case TextDelta(text=text):
                self._add_text(text)
            case ReasoningDelta(text=text):
                self._add_reasoning(seq, text)
            case Step():
                self._begin_output()
                self._announced, self._calls = data.tool_count, {}
                self._emit("STATE_DELTA", delta=[{"op": "add", "path": "/khala/step", "value": data}])
            case ToolCall():
                self._call(data, arguments)
            case ToolStatus() if data.tool_call_id in self._calls:
                self._update(data, self._calls[data.tool_call_id])
                self._note_pause()
            case ToolResult() if data.tool_call_id in self._calls:
                self._end_call(data, self._calls[data.tool_call_id])
                self._note_pause()
            case Notice():
                self._custom("notice", {"id": seq, "code": data.code, "message": data.message})
            case MemoryRecall():
                self._custom("memories", data.memories)
            case Route():
                self._custom("route", data)
            case RunFailure():
                self._failure = data
            case Finish():
                self._finish(data)
            case ToolStatus() | ToolResult() | Compaction() | Logprobs():
                pass
            case _:
                assert_never(data)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._append_event({"type": kind, **fields})

    def _append_event(self, event: AgentEvent) -> None:
        self._events.append(IdentifiedEvent((self._position, self._index), event))
        self._index += 1

    def _custom(self, name: str, value: Any) -> None:
        self._emit("CUSTOM", name=name, value=value)

    def _emit_delta(self, kind: str, message_id: str, delta: str) -> None:
        """Append text, to the event before if that has only text of the same message."""
        last = self._events[-1].event if self._merges and self._index == 0 and self._events else {}
        if last.get("type") == kind and last["messageId"] == message_id:
            delta = last["delta"] + delta
            self._events.pop()
        self._emit(kind, messageId=message_id, delta=delta)

    def _begin_output(self) -> None:
        """Begin the next step, if this output of the model is the first, or follows tool calls."""
        if self._segment and not self._has_calls:
            return
        self._close_step()
        self._segment += 1
        self._has_calls = False
        self._open_step = f"step {self._segment}"
        self._emit("STEP_STARTED", stepName=self._open_step)

    def _close_step(self) -> None:
        self._close_text()
        if self._open_step:
            self._emit("STEP_FINISHED", stepName=self._open_step)
        self._open_step = ""

    def _add_text(self, text: str) -> None:
        if not text:
            return
        self._begin_output()
        if not self._open_text:
            self._close_text()
            self._open_text = segment_id(self._run.message_id, self._segment)
            self._emit("TEXT_MESSAGE_START", messageId=self._open_text, role="assistant")
        self._emit_delta("TEXT_MESSAGE_CONTENT", self._open_text, text)

    def _add_reasoning(self, seq: int, text: str) -> None:
        if not text:
            return
        self._begin_output()
        if not self._open_reasoning:
            self._close_text()
            self._open_reasoning = f"{self._run.message_id}:reasoning:{seq}"
            self._emit("REASONING_START", messageId=self._open_reasoning)
            self._emit("REASONING_MESSAGE_START", messageId=self._open_reasoning, role="reasoning")
        self._emit_delta("REASONING_MESSAGE_CONTENT", self._open_reasoning, text)

    def _close_text(self) -> None:
        if self._open_reasoning:
            self._emit("REASONING_MESSAGE_END", messageId=self._open_reasoning)
            self._emit("REASONING_END", messageId=self._open_reasoning)
        if self._open_text:
            self._emit("TEXT_MESSAGE_END", messageId=self._open_text)
        self._open_reasoning = self._open_text = ""

    def _call(self, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        self._close_text()
        if not self._segment:
            self._begin_output()
        self._has_calls = True
        call_id, args = call.tool_call_id, tool_input(call, arguments)
        self._set(call_id, EventedCall(tool=call.tool))
        parent = segment_id(self._run.message_id, self._segment)
        self._emit("TOOL_CALL_START", toolCallId=call_id, toolCallName=call.tool, parentMessageId=parent)
        self._emit("TOOL_CALL_ARGS", toolCallId=call_id, delta=function_arguments(args))
        self._emit("TOOL_CALL_END", toolCallId=call_id)
        if call.tool in self._run.functions:
            self._pending = (*self._pending, call_id)
            # TanStack AI executes its tools at this event.
            self._custom("tool-input-available", {"toolCallId": call_id, "toolName": call.tool, "input": args})

    def _update(self, status: ToolStatus, call: EventedCall) -> None:
        call_id = status.tool_call_id
        match status.state:
            case "blocked":
                approval = approval_id(self._run.run_id, status.digest or "", call_id)
                self._set(call_id, call, state="blocked", approval=approval)
            case "running":
                self._set(call_id, call, state="running")
                if status.args is not None:
                    self._custom("tool-call-args", {"toolCallId": call_id, "args": status.args})
                elif call.state != "blocked" and status.reason:
                    self._custom("progress", {"toolCallId": call_id, "message": status.reason})
            case "cancelled":
                self._set(call_id, call, state="ended")
                self._result(call_id, call, CANCELED, failed=True)
            case _:
                self._set(call_id, call, state="queued")

    def _end_call(self, result: ToolResult, call: EventedCall) -> None:
        call_id = result.tool_call_id
        self._set(call_id, call, state="ended")
        content = result_content(result) if result.ok else error_text(result)
        self._result(call_id, call, content, failed=not result.ok)

    def _result(self, call_id: str, call: EventedCall, content: str, *, failed: bool) -> None:
        """Emit the result of a tool of the server: the client has the results of its own."""
        if call.tool in self._run.functions:
            return
        # TanStack AI knows a failed call by this.
        failure = {"metadata": {"tanstack": {"state": "output-error"}}} if failed else {}
        answer = {"messageId": result_id(call_id), "toolCallId": call_id, "content": content, "role": "tool"}
        self._emit("TOOL_CALL_RESULT", **answer, **failure)

    def _set(self, call_id: str, call: EventedCall, **changes: Any) -> None:
        # Forks share the mapping.
        self._calls = {**self._calls, call_id: msgspec.structs.replace(call, **changes) if changes else call}

    def _note_pause(self) -> None:
        """Count a pause: all calls of the step are known, and those that have not ended wait for an approval."""
        unended = {call_id: call for call_id, call in self._calls.items() if call.state != "ended"}
        is_paused = len(self._calls) >= self._announced and {call.state for call in unended.values()} == {"blocked"}
        self.awaited = {call_id: call.approval for call_id, call in unended.items()} if is_paused else {}
        self.pauses += is_paused

    def _finish(self, finish: Finish) -> None:
        self.ended, self.awaited = True, {}
        self._close_step()
        if self._failure is not None or finish.reason == "error":
            message = "The answer failed." if self._failure is None else self._failure.message
            code = "error" if self._failure is None else self._failure.code
            self._emit("RUN_ERROR", message=message, code=code, usage=[_usage(finish)])
            return
        pending = {"pendingToolCallIds": list(self._pending)} if finish.reason == "tool_calls" and self._pending else {}
        succeeded = {"type": "success", **pending}
        outcome = {"type": "cancelled"} if finish.reason == "canceled" else succeeded
        self._end(outcome, [_usage(finish)], result=_result_of(finish))

    def _end(self, outcome: Mapping[str, Any], usage: Sequence[Mapping[str, Any]], **more: Any) -> None:
        run = self._run
        counted = {"usage": list(usage)} if usage else {}
        self._emit(
            "RUN_FINISHED", threadId=run.thread_name, runId=run.run_name, outcome=dict(outcome), **more, **counted
        )


def _usage(finish: Finish) -> dict[str, Any]:
    used = finish.usage
    counts = {
        "provider": finish.provider,
        "model": finish.model,
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.input_tokens + used.output_tokens,
        "reasoningTokens": finish.reasoning_tokens,
        "cachedInputTokens": finish.cached_tokens,
    }
    return {name: value for name, value in counts.items() if value is not None}


def _result_of(finish: Finish) -> dict[str, Any]:
    facts = {
        "reason": finish.reason,
        "costUsd": finish.cost_usd,
        "timeToFirstTokenMs": finish.time_to_first_token_ms,
        "totalMs": finish.total_ms,
    }
    return {name: value for name, value in facts.items() if value is not None}


OPENED_BY = {
    "TEXT_MESSAGE_END": "TEXT_MESSAGE_START",
    "REASONING_MESSAGE_END": "REASONING_MESSAGE_START",
    "REASONING_END": "REASONING_START",
    "TOOL_CALL_END": "TOOL_CALL_START",
    "STEP_FINISHED": "STEP_STARTED",
}
"""The event that opens what this one closes."""


def reopening(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    """Return the events that open again what these events have opened and not closed."""
    opened: dict[tuple[str, str], AgentEvent] = {}
    for event in events:
        kind = event["type"]
        name = event.get("toolCallId") or event.get("messageId") or event.get("stepName") or ""
        if kind in OPENED_BY:
            opened.pop((OPENED_BY[kind], name), None)
        elif kind in OPENED_BY.values():
            opened[kind, name] = event
    return list(opened.values())
