"""Encodes the parts of a run as chunks of the AI SDK's UI message stream. Without I/O.

The chunks follow from the parts alone. So a replay gives the same chunks, up to where consecutive text is divided, and
a client that folds them gets the same message.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, assert_never
from uuid import UUID

import msgspec

from khala.api.chats.tool_values import CANCELED, approval_id, blob_url, error_text, tool_input, tool_output
from khala.domain import ids
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

UiChunk: TypeAlias = dict[str, Any]
CallState: TypeAlias = Literal["queued", "running", "blocked", "ended"]

FETCH_URL = "fetch_url"
"""The tool whose results are sources."""
FINISH_REASONS = {
    "stop": "stop", "length": "length", "tool_calls": "tool-calls", "content_filter": "content-filter",
    "error": "error",
}  # fmt: skip
"""The AI SDK's names of finish reasons. Every other reason is `other`; the metadata has Khala's name."""


class StreamedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run that its chunks need. `functions` are the names of the client's own tools."""

    thread_id: UUID
    run_id: UUID
    message_id: UUID
    functions: frozenset[str] = frozenset()


class StreamedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the current step."""

    tool: str
    state: CallState = "queued"
    approval: str = ""
    """The id of the request for approval."""
    url: str = ""
    """The address that the call reads, if its result is a source."""


class ChunkEncoder:
    """The chunks of one run, as far as its parts have been added.

    `pauses` counts the moments in which the run could not go on without an approval. `awaited` are the calls that it
    waits for now. `positions` has, for each chunk that `add` has returned, the number of parts that a client then has.
    """

    def __init__(self, run: StreamedRun) -> None:
        self._run = run
        self._chunks: list[UiChunk] = []
        self._position = 0
        self.positions: list[int] = []
        self._in_step = False
        self._step_has_calls = False
        self._block: Literal["", "text", "reasoning"] = ""
        self._block_id = ""
        self._announced = 0
        self._calls: dict[str, StreamedCall] = {}
        self._failure: RunFailure | None = None
        self.pauses = 0
        self.awaited: frozenset[str] = frozenset()
        self.ended = False

    def fork(self) -> "ChunkEncoder":
        """Return an encoder that continues from here."""
        other = object.__new__(ChunkEncoder)  # A tenth of the time of `copy.copy`, for each commit of each run.
        other.__dict__ = self.__dict__.copy()
        return other

    @property
    def is_in_text(self) -> bool:
        """Whether more text only appends to the open block."""
        return self._block == "text"

    def add_text(self, seq: int, text: str) -> UiChunk:
        """Add the next part, a text that only appends to the open block, and return its chunk."""
        self._position = seq + 1
        self._chunks, self.positions = [], [self._position]
        return {"type": "text-delta", "id": self._block_id, "delta": text}

    def start(self) -> UiChunk:
        """Return the first chunk of every stream of this run."""
        metadata = run_metadata(self._run.thread_id, self._run.run_id)
        return {"type": "start", "messageId": str(self._run.message_id), "messageMetadata": metadata}

    def add(self, parts: Sequence[Part], arguments: Mapping[str, Any]) -> list[UiChunk]:
        """Add the next parts, and return their chunks.

        `arguments` are those of calls that were too large for a part, by the call's id.
        """
        self._chunks, self.positions = [], []
        for part, data in without_failure_text(parts):
            self._add(part.seq, data, arguments)
        return self._chunks

    def add_decided(
        self, parts: Sequence[Part], decided: AbstractSet[str], arguments: Mapping[str, Any]
    ) -> tuple[list[UiChunk], int]:
        """Add all stored parts for a client that has decided these calls.

        Returns the chunks after the last pause in which the run waited for all of them, and the number of that pause:
        the client has the chunks before.
        """
        self._chunks, self.positions, decided_pause = [], [], 0
        for part, data in without_failure_text(parts):
            pauses = self.pauses
            self._add(part.seq, data, arguments)
            if self.pauses > pauses and decided <= self.awaited:
                self._chunks, self.positions, decided_pause = [], [], self.pauses
        return self._chunks, decided_pause

    def pause(self) -> list[UiChunk]:
        """Return the last chunks of a stream that ends because the run waits for an approval."""
        return [{"type": "finish-step"}, {"type": "finish", "finishReason": "tool-calls"}]

    def _add(self, seq: int, data: PartData, arguments: Mapping[str, Any]) -> None:
        match data:
            case TextDelta(text=text):
                self._append("text", seq, text)
            case ReasoningDelta(text=text):
                self._append("reasoning", seq, text)
            case Step():
                self._begin_output()
                self._announced, self._calls = data.tool_count, {}
            case ToolCall():
                self._call(data, arguments)
            case ToolStatus() if data.tool_call_id in self._calls:
                self._update(data, self._calls[data.tool_call_id])
                self._note_pause()
            case ToolResult() if data.tool_call_id in self._calls:
                self._end_call(data, self._calls[data.tool_call_id])
                self._note_pause()
            case Notice():
                self._close_block()
                # The id: a client that continues after a pause may have it already, and replaces it.
                self._emit("data-notice", id=f"notice-{seq}", data={"code": data.code, "message": data.message})
            case MemoryRecall():
                self._emit("data-memories", data=data.memories)
            case Route():
                self._emit("data-route", data=data)
            case RunFailure():
                self._failure = data
            case Finish():
                self._finish(data)
            case ToolStatus() | ToolResult() | Compaction() | Logprobs():
                pass
            case _:
                assert_never(data)
        self._position = seq + 1
        if self.positions:
            self.positions[-1] = self._position

    def _emit(self, kind: str, **fields: Any) -> None:
        self._chunks.append({"type": kind, **fields})
        self.positions.append(self._position)

    def _begin_output(self) -> None:
        """Begin the next step, if this output of the model is the first, or follows tool calls."""
        if self._in_step and not self._step_has_calls:
            return
        self._close_step()
        self._emit("start-step")
        self._in_step = True

    def _close_step(self) -> None:
        self._close_block()
        if self._in_step:
            self._emit("finish-step")
        self._in_step = self._step_has_calls = False

    def _append(self, block: Literal["text", "reasoning"], seq: int, text: str) -> None:
        if not text:
            return
        self._begin_output()
        if self._block != block:
            self._close_block()
            self._block, self._block_id = block, f"{block}-{seq}"
            self._emit(f"{block}-start", id=self._block_id)
        last = self._chunks[-1] if self._chunks else {}
        if last.get("type") == f"{block}-delta":
            last["delta"] += text
        else:
            self._emit(f"{block}-delta", id=self._block_id, delta=text)

    def _close_block(self) -> None:
        if self._block:
            self._emit(f"{self._block}-end", id=self._block_id)
            self._block = ""

    def _call(self, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        self._close_block()
        self._step_has_calls = True
        if not self._in_step:
            self._in_step = True
            self._emit("start-step")
        args = tool_input(call, arguments)
        url = args.get("url", "") if call.tool == FETCH_URL and isinstance(args, dict) else ""
        self._set(call.tool_call_id, StreamedCall(tool=call.tool, url=url if isinstance(url, str) else ""))
        named = {"toolCallId": call.tool_call_id, "toolName": call.tool} | self._executed_here(call.tool)
        self._emit("tool-input-start", **named)
        self._emit("tool-input-available", **named, input=args)

    def _executed_here(self, tool: str) -> dict[str, bool]:
        """Mark the tools of the server: the client neither executes them nor waits for their results."""
        return {} if tool in self._run.functions else {"providerExecuted": True}

    def _update(self, status: ToolStatus, call: StreamedCall) -> None:
        call_id = status.tool_call_id
        match status.state:
            case "blocked":
                approval = approval_id(self._run.run_id, status.digest or "", call_id)
                self._set(call_id, call, state="blocked", approval=approval)
                self._emit("tool-approval-request", approvalId=approval, toolCallId=call_id)
            case "running":
                self._set(call_id, call, state="running")
                if call.state == "blocked":
                    self._approved(status, call)
                elif status.reason:
                    data = {"toolCallId": call_id, "message": status.reason}
                    self._emit("data-progress", data=data, transient=True)
            case "cancelled":
                self._set(call_id, call, state="ended")
                self._emit(
                    "tool-output-error", toolCallId=call_id, errorText=CANCELED, **self._executed_here(call.tool)
                )
            case _:
                self._set(call_id, call, state="queued")

    def _approved(self, status: ToolStatus, call: StreamedCall) -> None:
        if status.args is not None:
            named = {"toolCallId": status.tool_call_id, "toolName": call.tool} | self._executed_here(call.tool)
            self._emit("tool-input-available", **named, input=status.args)
        self._emit(
            "tool-approval-response", approvalId=call.approval, approved=True, reason=status.reason or "Approved."
        )

    def _end_call(self, result: ToolResult, call: StreamedCall) -> None:
        call_id = result.tool_call_id
        self._set(call_id, call, state="ended")
        if call.tool in self._run.functions:
            return
        if call.state == "blocked" and not result.ok:
            self._emit("tool-approval-response", approvalId=call.approval, approved=False, reason=result.summary)
            self._emit("tool-output-denied", toolCallId=call_id)
        elif result.ok:
            self._emit("tool-output-available", toolCallId=call_id, output=tool_output(result), providerExecuted=True)
            self._attach(result, call)
        else:
            self._emit("tool-output-error", toolCallId=call_id, errorText=error_text(result), providerExecuted=True)

    def _attach(self, result: ToolResult, call: StreamedCall) -> None:
        """Emit the page that a call has read as a source, and an image that it has made as a file."""
        if call.url:
            self._emit("source-url", sourceId=result.tool_call_id, url=call.url)
        if result.blob is not None and result.blob.media_type.startswith("image/"):
            self._emit("file", url=blob_url(result.blob.blob_id), mediaType=result.blob.media_type)

    def _set(self, call_id: str, call: StreamedCall, **changes: Any) -> None:
        # Forks share the mapping.
        self._calls = {**self._calls, call_id: msgspec.structs.replace(call, **changes) if changes else call}

    def _note_pause(self) -> None:
        """Count a pause: all calls of the step are known, and those that have not ended wait for an approval."""
        unended = {call_id: call.state for call_id, call in self._calls.items() if call.state != "ended"}
        is_paused = len(self._calls) >= self._announced and set(unended.values()) == {"blocked"}
        self.awaited = frozenset(unended) if is_paused else frozenset()
        self.pauses += is_paused

    def _finish(self, finish: Finish) -> None:
        self.ended, self.awaited = True, frozenset()
        self._close_step()
        metadata = finish_metadata(finish)
        if self._failure is not None:
            # A client may stop reading at the error.
            self._emit("message-metadata", messageMetadata=metadata)
            self._emit("error", errorText=self._failure.message)
        elif finish.reason == "canceled":
            self._emit("abort", reason="This answer was canceled.")
        self._emit("finish", finishReason=FINISH_REASONS.get(finish.reason, "other"), messageMetadata=metadata)


def run_metadata(thread_id: UUID, run_id: UUID) -> dict[str, Any]:
    """Return the metadata of an answer from its start on."""
    return {"threadId": thread_id, "runId": run_id, "createdAt": ids.created_at(run_id)}


def finish_metadata(finish: Finish) -> dict[str, Any]:
    """Return the metadata of an answer that has ended."""
    used = finish.usage
    usage = {
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.input_tokens + used.output_tokens,
    }
    optional = {
        "costUsd": finish.cost_usd,
        "model": finish.model,
        "timeToFirstTokenMs": finish.time_to_first_token_ms,
        "totalMs": finish.total_ms,
    }
    return {"reason": finish.reason, "usage": usage} | {k: v for k, v in optional.items() if v is not None}
