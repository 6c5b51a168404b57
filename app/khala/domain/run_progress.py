"""The progress of a run, read from its parts. An interrupted run continues from its progress.

A step is one model call: the text of the reply, and the tool calls in it with their results. A step without tool calls
is a reply that only asked or planned, or that did not fit the requested format, after which the run continued.
"""

from collections.abc import Iterable, Iterator
from typing import Any, assert_never

import msgspec

from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.parts import (
    BlobRef,
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
    ToolCall,
    ToolResult,
    ToolStatus,
)

REPROMPTED_NOTICE = "reprompted"
"""The code of the notice after a reply that only asks or plans."""


class ToolCallProgress(msgspec.Struct, kw_only=True):
    """The progress of a tool call. `state` is that of its block. `result` is set once it has ended."""

    id: str
    tool: str
    args: dict[str, Any] | None
    args_blob: BlobRef | None = None
    state: str = "queued"
    result: ToolResult | None = None


class RunStep(msgspec.Struct, kw_only=True):
    """One reply of the model: its text, and its tool calls in order.

    `mismatches`: the places at which the text does not fit the requested format, if the model had to write it again.
    """

    text: str = ""
    step: int = 0
    mismatches: str = ""
    calls: list[ToolCallProgress] = []

    @property
    def ended(self) -> bool:
        """Whether all tool calls have ended."""
        return all(call.result is not None for call in self.calls)


class RunProgress(msgspec.Struct, kw_only=True):
    """The steps of a run so far.

    `pending_text` is the text after the last step, `compaction` the summary of older turns, `recall` the memories that
    were found for the question, and `notices` the codes of all notices. `by_id` has the tool calls by their ids.
    """

    steps: list[RunStep] = []
    pending_text: str = ""
    compaction: Compaction | None = None
    recall: MemoryRecall | None = None
    notices: set[str] = set()
    by_id: dict[str, ToolCallProgress] = {}

    @property
    def step_count(self) -> int:
        """The number of steps with tool calls."""
        return sum(bool(step.calls) for step in self.steps)

    @property
    def calls(self) -> Iterator[ToolCallProgress]:
        """All tool calls so far."""
        return (call for step in self.steps for call in step.calls)

    @property
    def waits_for_approval(self) -> bool:
        """Whether a tool call of the last step waits for approval."""
        return bool(self.steps) and any(call.state == "blocked" and not call.result for call in self.steps[-1].calls)

    def apply(self, part: PartData) -> None:
        """Apply the next part."""
        match part:
            case TextDelta():
                self.pending_text += part.text
            case Notice():
                self.notices.add(part.code)
                if part.code == REPROMPTED_NOTICE:
                    self._end_step()
                elif part.code == FORMAT_REPAIR_NOTICE:
                    self._end_step(mismatches=part.message)
            case Step():
                self._end_step(part.step)
            case ToolCall():
                call = ToolCallProgress(id=part.tool_call_id, tool=part.tool, args=part.args, args_blob=part.args_blob)
                self.steps[-1].calls.append(call)
                self.by_id[call.id] = call
            case ToolStatus():
                call = self.by_id[part.tool_call_id]
                call.state = part.state
                if part.args is not None or part.args_blob is not None:
                    call.args, call.args_blob = part.args, part.args_blob
            case ToolResult():
                call = self.by_id[part.tool_call_id]
                call.state, call.result = "completed" if part.ok else "failed", part
            case Compaction():
                self.compaction = part
            case MemoryRecall():
                self.recall = part
            case ReasoningDelta() | Logprobs() | Route() | RunFailure() | Finish():
                pass
            case _:
                assert_never(part)

    def _end_step(self, step: int = 0, mismatches: str = "") -> None:
        self.steps.append(RunStep(text=self.pending_text, step=step, mismatches=mismatches))
        self.pending_text = ""


def read_progress(parts: Iterable[PartData | None]) -> RunProgress:
    """The progress after these parts."""
    progress = RunProgress()
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextDelta):
            texts.append(part.text)
            continue
        progress.pending_text += "".join(texts)
        texts.clear()
        if part is not None:
            progress.apply(part)
    progress.pending_text += "".join(texts)
    return progress
