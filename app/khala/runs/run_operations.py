"""The operations of one run: model replies, steps of tool calls, text and notices. Each is stored in the run's parts.

The built-in loop and the runs of Python agents consist of these operations.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from collections.abc import Set as AbstractSet

from khala.domain.chat import RunOptions
from khala.domain.errors import BudgetExhausted
from khala.domain.parts import Notice
from khala.domain.run_progress import RunProgress, RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse
from khala.runs.budget_meter import BudgetMeter
from khala.runs.model_turn import ModelDependencies, RunOutcome, failed_outcome
from khala.runs.prepared_run import PreparedRun
from khala.runs.reply_requester import ReplyRequester
from khala.runs.tool_executor import ToolExecutor
from khala.sdk.errors import StepError
from khala.sdk.loop import EndReason, Reply
from khala.store.runs.run_buffer import RunBuffer


class WaitsForPeople(Exception):  # It is control flow, and no failure.
    """The run has to wait: these calls need approval, and nothing else of the step is to be done."""

    def __init__(self, call_ids: Sequence[str]) -> None:
        super().__init__(*call_ids)
        self.call_ids = call_ids


class RunOperations:
    """The operations of one run: a `LoopContext`. Its methods raise `WaitsForPeople` where the run has to wait."""

    def __init__(
        self,
        prepared: PreparedRun,
        buffer: RunBuffer,
        progress: RunProgress,
        meter: BudgetMeter,
        models: ModelDependencies,
        tool_executor: ToolExecutor,
    ) -> None:
        self._prepared = prepared
        self._buffer = buffer
        self._progress = progress
        self._requester = ReplyRequester(prepared, buffer, progress, meter, models)
        self._tool_executor = tool_executor
        self._new_texts: list[str] = []
        """Text that is in the buffer and not in the progress yet."""
        self._reason: EndReason = "stop"

    async def outcome_of(self, loop: Awaitable[None]) -> RunOutcome:
        """The outcome of the run after a loop over these operations."""
        try:
            await loop
        except WaitsForPeople as waiting:
            return RunOutcome("blocked", "blocked", awaits=waiting.call_ids)
        except StepError as error:
            return failure_of(error)
        return RunOutcome("final", self._reason)

    @property
    def options(self) -> RunOptions:
        """See `LoopContext`."""
        return self._prepared.options

    @property
    def steps(self) -> Sequence[RunStep]:
        """See `LoopContext`."""
        return self._progress.steps

    @property
    def notices(self) -> AbstractSet[str]:
        """See `LoopContext`."""
        return self._progress.notices

    @property
    def reason(self) -> EndReason:
        """The reason with which the answer finishes."""
        return self._reason

    async def text(self, text: str) -> None:
        """See `LoopContext`."""
        self._buffer.append_text(text)
        self._new_texts.append(text)
        if self._buffer.full:
            await self._buffer.wait_written()

    def settle_text(self) -> None:
        """Add the text of `text` to the progress."""
        if self._new_texts:
            self._progress.pending_text += "".join(self._new_texts)
            self._new_texts.clear()

    async def tools(self) -> Sequence[ToolSpec]:
        """See `LoopContext`."""
        return await self._tool_executor.offer(self._prepared.options.tools)

    async def reply(
        self, tools: Sequence[ToolSpec] | None = None, *, instructions: str = "", prompt: str = ""
    ) -> Reply:
        """See `LoopContext`."""
        offered = await self.tools() if tools is None else tools
        steps = self._progress.steps
        if steps and not steps[-1].ended:
            await self.finish_calls(steps[-1])
        self.settle_text()
        if offered and steps:
            await asyncio.sleep(self._prepared.cooldown_seconds)
        received = await self._requester.request(offered, instructions=instructions, prompt=prompt)
        if isinstance(received, RunOutcome):
            failure = received.failure
            assert failure is not None
            raise StepError(failure.message, code=failure.code, cause=failure.cause, retry_after=failure.retry_after)
        reason = received.completed.finish_reason
        self._reason = "length" if reason == "length" else "stop"
        return Reply(text=received.text, calls=received.completed.uses, finish_reason=reason)

    async def begin_calls(
        self, calls: Sequence[ToolUse], *, max_steps: int | None = None, call_id: str | None = None
    ) -> RunStep:
        """See `LoopContext`. A single call may get a `call_id`."""
        self.settle_text()
        return await self._tool_executor.begin(calls, max_steps=max_steps, call_id=call_id)

    async def finish_calls(self, step: RunStep | None = None) -> None:
        """See `LoopContext`. By default, `step` is the last one."""
        steps = self._progress.steps
        step = step or (steps[-1] if steps else None)
        if step is not None and not step.ended:
            awaited = await self._tool_executor.finish(step)
            if awaited:
                raise WaitsForPeople(awaited)

    async def notice(self, code: str, message: str) -> None:
        """See `LoopContext`."""
        self.settle_text()
        part = Notice(code=code, message=message)
        self._buffer.append(part)
        self._progress.apply(part)

    def finish(self, reason: EndReason) -> None:
        """See `LoopContext`."""
        self._reason = reason


def failure_of(error: StepError) -> RunOutcome:
    """The outcome of a run that this error ends."""
    outcome = failed_outcome(error.code, str(error), cause=error.cause, retry_after=error.retry_after)
    return outcome._replace(reason="budget") if error.code == BudgetExhausted.code else outcome
