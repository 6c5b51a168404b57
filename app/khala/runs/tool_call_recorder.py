"""Records the tool calls of one run: as parts of its buffer, as receipts, and in metrics and traces."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from khala.domain.parts import PartData, Step, ToolCall, ToolResult, ToolStatus
from khala.domain.run_progress import RunProgress, RunStep, ToolCallProgress
from khala.domain.tools import call_digest
from khala.runs import tool_results
from khala.runs.call_telemetry import record_tool_call
from khala.runs.tool_results import StoredOutput
from khala.runs.usage_tally import UsageTally
from khala.store.runs.run_buffer import LeaseLost, RunBuffer
from khala.store.tools.approvals import Approval

PROGRESS_INTERVAL_SECONDS = 1.0
"""Minimum time between two progress messages of one call."""
MAX_PROGRESS_MESSAGES = 30
"""Progress messages of one call."""


class ToolCallRecorder:
    """Adds parts to the run's buffer and progress. `approvals` are the decisions about its calls, by call id."""

    def __init__(self, buffer: RunBuffer, progress: RunProgress, approvals: Mapping[str, Approval]) -> None:
        self._buffer = buffer
        self._progress = progress
        self._approvals = approvals

    def add(self, part: PartData) -> None:
        """Add a part, and apply it to the run's progress."""
        self._buffer.append(part)
        self._progress.apply(part)

    @property
    def next_step(self) -> int:
        """The number of the next step."""
        return self._progress.step_count + 1

    def begin_step(self, calls: Sequence[ToolCall], tally: UsageTally, *, max_steps: int | None = None) -> RunStep:
        """Add the next step, with these calls and the usage so far. By default, `max_steps` is its number."""
        number = self.next_step
        self.add(
            Step(
                step=number,
                max_steps=max_steps or number,
                tool_count=len(calls),
                usage=tally.usage,
                cost_usd=tally.cost_usd,
            )
        )
        for call in calls:
            self.add(call)
        return self._progress.steps[-1]

    async def committed(self) -> None:
        """Return when all parts added so far are committed."""
        await self._buffer.wait_written()

    def request_approval(self, status: ToolStatus, call: ToolCallProgress, parameters: dict[str, Any]) -> None:
        """Record that the call waits for approval; `parameters` is the schema of its arguments."""
        self._progress.apply(status)
        self._buffer.request_approval(status, call.tool, call.args or {}, parameters)

    def ask(
        self, status: ToolStatus, question_id: str, call: ToolCallProgress, args: dict[str, Any], schema: dict[str, Any]
    ) -> None:
        """Record a question of a running call, which is answered like an approval of this id."""
        self._progress.apply(status)
        self._buffer.request_approval(status, call.tool, args, schema, approval_id=question_id)

    def fail(self, call: ToolCallProgress, message: str, code: str) -> None:
        """End a call that was not executed."""
        self.end(call, tool_results.failed_output(message, code), milliseconds=0, source=None)

    def end(self, call: ToolCallProgress, output: StoredOutput, *, milliseconds: int, source: str | None) -> None:
        """End the call: add its receipt and its result. `source` is None if no tool was executed."""
        self._buffer.append_receipt("tool", self._receipt(call, output, milliseconds, source), None, call.id)
        record_tool_call(call.tool, source, call.id, None if output.ok else output.code, milliseconds)
        self.add(
            ToolResult(
                tool_call_id=call.id,
                ok=output.ok,
                summary=output.summary,
                output=output.output,
                blob=output.blob,
                duration_ms=milliseconds,
            )
        )

    @contextmanager
    def progress_reporter(self, call: ToolCallProgress) -> Iterator[Callable[[str], None]]:
        """A function that records a progress message of the call.

        It drops messages that exceed one a second or `MAX_PROGRESS_MESSAGES`, and all messages after the context is
        closed.
        """
        due, remaining = time.monotonic(), MAX_PROGRESS_MESSAGES

        def report(text: str) -> None:
            nonlocal due, remaining
            if remaining and time.monotonic() >= due:
                due, remaining = time.monotonic() + PROGRESS_INTERVAL_SECONDS, remaining - 1
                with suppress(LeaseLost):  # The buffer stops the run.
                    self.add(ToolStatus(tool_call_id=call.id, state="running", reason=tool_results.one_line(text)))

        try:
            yield report
        finally:
            remaining = 0

    def _receipt(
        self, call: ToolCallProgress, output: StoredOutput, milliseconds: int, source: str | None
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "tool": call.tool,
            "source": source,
            "outcome": "ok" if output.ok else output.code,
            "argsSha256": call_digest(call.tool, call.args or {}),
            "size": output.size,
            "durationMs": milliseconds,
        }
        approval = self._approvals.get(call.id)
        if approval is not None:
            by = None if approval.decided_by is None else str(approval.decided_by)
            facts["approval"] = {"state": approval.state, "by": by, "edited": approval.edited_args is not None}
        return facts
