"""Rounds: what an answer has done so far, read from its parts. A run that was interrupted goes on from just this.

A round is one word of the model: the text that it said and the tools that it then called, with what came of each. A
round without tools is text after which the run went on nevertheless, because it only asked or only planned.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from khala.domain.parts import BlobRef, Compaction, Notice, PartData, Step, TextDelta, ToolCall, ToolResult, ToolStatus

REPROMPTED_NOTICE = "reprompted"
"""The notice that parts a reply which only asks or plans from what was said after it."""


class ToolCallProgress(msgspec.Struct, kw_only=True):
    """A tool call, as far as it has come. `state` is that of its block; `result` is there once it has ended."""

    id: str
    tool: str
    args: dict[str, Any] | None
    args_blob: BlobRef | None = None
    state: str = "queued"
    result: ToolResult | None = None


class RunStep(msgspec.Struct, kw_only=True):
    """What the model said at once, and the tools that it called then, in its order."""

    text: str = ""
    step: int = 0
    calls: list[ToolCallProgress] = []

    @property
    def over(self) -> bool:
        """Whether all its calls have ended."""
        return all(call.result is not None for call in self.calls)


class RunProgress(msgspec.Struct, kw_only=True):
    """All rounds so far; `said` is text after the last one, `compaction` what stands for older turns.

    `notices` are the codes of what a reader was told.
    """

    rounds: list[RunStep] = []
    said: str = ""
    compaction: Compaction | None = None
    notices: set[str] = set()
    by_id: dict[str, ToolCallProgress] = {}

    @property
    def steps(self) -> int:
        """Rounds of tools that were begun."""
        return sum(bool(round_.calls) for round_ in self.rounds)

    @property
    def calls(self) -> Iterator[ToolCallProgress]:
        """All tool calls so far."""
        return (call for round_ in self.rounds for call in round_.calls)

    @property
    def waits(self) -> bool:
        """Whether a call of the last round waits for approval."""
        return bool(self.rounds) and any(call.state == "blocked" and not call.result for call in self.rounds[-1].calls)

    def apply(self, part: PartData) -> None:
        """One more part."""
        match part:
            case TextDelta():
                self.said += part.text
            case Notice():
                self.notices.add(part.code)
                if part.code == REPROMPTED_NOTICE:
                    self._close()
            case Step():
                self._close(part.step)
            case ToolCall():
                call = ToolCallProgress(id=part.tool_call_id, tool=part.tool, args=part.args, args_blob=part.args_blob)
                self.rounds[-1].calls.append(call)
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
            case _:
                pass

    def _close(self, step: int = 0) -> None:
        self.rounds.append(RunStep(text=self.said, step=step))
        self.said = ""


def read(parts: Iterable[PartData | None]) -> RunProgress:
    """What these parts amount to."""
    progress = RunProgress()
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextDelta):
            texts.append(part.text)
            continue
        progress.said += "".join(texts)
        texts.clear()
        if part is not None:
            progress.apply(part)
    progress.said += "".join(texts)
    return progress
