"""A plan as a viewer knows it. Frames of the feed change it; it performs no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.parts import Part, RunFailure, TextDelta, ToolCall, ToolResult, ToolStatus
from khala.domain.plans.views import PlanDetail, PlanEntry, PlanEventEntry, StepDetail, StepProgress
from khala.operations.plan_client.output_tail import OutputTail

PROGRESS_FIELDS = StepProgress.__struct_fields__


class SeenMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message of a snapshot, as far as it is shown: the output of a run so far."""

    run_id: UUID | None = None
    seq: int = 0
    content: list[dict[str, Any]] = []


class FeedFrame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A frame of a thread's feed, as far as plans are concerned.

    `gone` has a code and no revision. `skipped` is no frame of the server: it stands for one that was too large.
    """

    type: str
    revision: int | None = None
    code: str | None = None
    plans: Sequence[PlanEntry] = ()
    plan_steps: Sequence[StepProgress] | None = ()
    plan_events: Sequence[PlanEventEntry] | None = ()
    messages: Sequence[SeenMessage] = ()
    parts: Sequence[Part] = ()


class PlanViewState:
    """A plan, its steps in order, and the output of the steps under way."""

    def __init__(self, plan: PlanDetail, steps: Iterable[StepDetail]) -> None:
        self.plan: PlanEntry = plan
        self.steps: dict[str, StepDetail] = {}
        self.outputs: dict[UUID, OutputTail] = {}
        self._read_revision = 0
        self.replace(plan, steps)

    def replace(self, plan: PlanDetail, steps: Iterable[StepDetail]) -> None:
        """Replace the plan and its steps, which were read after it."""
        self.plan = plan
        self.steps = {step.id: step for step in steps}
        self._read_revision = plan.revision
        self._keep_outputs()

    @property
    def running(self) -> list[StepDetail]:
        """The steps under way."""
        return [step for step in self.steps.values() if step.status == "running"]

    def apply(self, frame: FeedFrame) -> bool:
        """Apply a frame. Returns whether the steps have to be read again, because the frame has not all of them."""
        before = self.plan
        news = (plan for plan in frame.plans if plan.id == before.id and plan.revision >= before.revision)
        self.plan = next(news, before)
        complete = frame.type == "delta" and frame.plan_steps is not None
        if (frame.revision or 0) > self._read_revision:
            for progress in frame.plan_steps or ():
                complete = self._apply_step(progress) and complete
        self._keep_outputs()
        for message in frame.messages if frame.type == "snapshot" else ():
            self._replace_output(message)
        for part in frame.parts:
            self._append_output(part)
        same_steps = self.plan.edited_revision == before.edited_revision
        return not (complete and same_steps and self.plan.counts.blocked == before.counts.blocked)

    def _apply_step(self, progress: StepProgress) -> bool:
        """Apply the progress of a step. Returns whether the step is known."""
        if progress.plan_id != self.plan.id:
            return True
        step = self.steps.get(progress.id)
        if step is None:
            return False
        fields = {name: getattr(progress, name) for name in PROGRESS_FIELDS}
        self.steps[progress.id] = msgspec.structs.replace(step, **fields)
        return True

    def _keep_outputs(self) -> None:
        """Keep the output of the steps under way, and drop all other."""
        runs = (step.run_id for step in self.running if step.run_id is not None)
        self.outputs = {run_id: self.outputs.get(run_id) or OutputTail() for run_id in runs}

    def _replace_output(self, message: SeenMessage) -> None:
        if message.run_id is None or message.run_id not in self.outputs:
            return
        tail = self.outputs[message.run_id] = OutputTail()
        tail.seq = message.seq - 1
        for block in message.content:
            tail.append(_text(block))

    def _append_output(self, part: Part) -> None:
        tail = self.outputs.get(part.run_id)
        if tail is None or part.seq <= tail.seq:
            return
        tail.seq = part.seq
        match part.read():
            case TextDelta(text=text):
                tail.append(text)
            case ToolCall(tool=tool):
                tail.append_line(f"> {tool}")
            case ToolStatus(state=state, reason=reason) if reason:
                tail.append_line(f"  {state}: {reason}")
            case ToolResult(summary=summary, ok=ok):
                tail.append_line(f"  {summary}" if ok else f"  failed: {summary}")
            case RunFailure(message=message):
                tail.append_line(f"error: {message}")
            case _:
                pass


def _text(block: Mapping[str, Any]) -> str:
    """The text of a block of a message."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "tool", "tool": str(tool)}:
            return f"\n> {tool}\n"
        case _:
            return ""
