"""The loop of a run: call the model, execute its tool calls, and repeat until there is an answer or a reason to stop.

All state of the loop is in the run's parts. After a take-over the next executor reads them, and continues in the step,
or in the middle of the text, that was interrupted.
"""

import asyncio
from collections.abc import Sequence

from khala.domain import autopilot
from khala.domain.autopilot import AutopilotLimits
from khala.domain.generation import FORMAT_MISMATCH, FORMAT_REPAIR_NOTICE, TOOL_NOT_CALLED
from khala.domain.parts import Notice, PartData
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.run_progress import REPROMPTED_NOTICE, RunProgress, RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse
from khala.runs import answer_format
from khala.runs.model_turn import ModelReply, RunEndReason, RunOutcome, failed_outcome
from khala.runs.prepared_run import PreparedRun
from khala.runs.reply_requester import ReplyRequester
from khala.runs.tool_executor import ToolExecutor
from khala.store.runs.run_buffer import RunBuffer

NO_TOOLS = "You have used all your tool calls. Answer now with what you know."


class Autopilot:
    """Executes one run from its current state to an outcome.

    `instructions` are added to those of the run. `earlier_steps` were made before the loop began, and do not count
    towards its limit.
    """

    def __init__(
        self,
        *,
        buffer: RunBuffer,
        progress: RunProgress,
        requester: ReplyRequester,
        tool_executor: ToolExecutor,
        prepared: PreparedRun,
        instructions: str = "",
        earlier_steps: int = 0,
    ) -> None:
        self._buffer = buffer
        self._progress = progress
        self._requester = requester
        self._tool_executor = tool_executor
        self._cooldown_seconds = prepared.cooldown_seconds
        self._instructions = instructions
        self._options = prepared.options
        budget = self._options.budget
        calls = autopilot.MAX_TOOL_CALLS if budget is None or budget.tool_calls is None else budget.tool_calls
        self._limits = AutopilotLimits(steps=self._options.step_limit + earlier_steps, calls=calls)

    async def run(self) -> RunOutcome:
        """Continue until the run ends, or has to wait for approval of a tool call."""
        while True:
            tools = await self._offered_tools()
            steps = self._progress.steps
            if steps and not steps[-1].ended:
                awaited = await self._tool_executor.finish(steps[-1])
                if awaited:
                    return RunOutcome("blocked", "blocked", awaits=awaited)
            if steps and _completes_step(steps[-1]):
                return RunOutcome("final", "stop")
            if self._calls_client():
                return RunOutcome("final", "tool_calls")
            reason = autopilot.stop_reason(steps, self._limits) if self._progress.step_count else None
            if reason is not None:
                outcome = await self._conclude(reason)
                if outcome is not None:
                    return outcome
                continue
            if self._must_call and not tools:
                return failed_outcome(TOOL_NOT_CALLED, "None of the tools that the model must call is offered here.")
            if steps:
                await asyncio.sleep(self._cooldown_seconds)
            reply = await self._request(tools)
            if isinstance(reply, RunOutcome):
                return reply
            if reply.completed.uses:
                await self._begin_step(reply.completed.uses)
            elif not self._reprompts(reply.text, tools):
                outcome = await self._accept(reply)
                if outcome is not None:
                    return outcome

    async def _offered_tools(self) -> list[ToolSpec]:
        offered = await self._tool_executor.offer(self._options.tools)
        return offered if self._limits.calls else []

    @property
    def _must_call(self) -> bool:
        return autopilot.must_call(self._options, self._progress.steps)

    async def _begin_step(self, uses: Sequence[ToolUse]) -> None:
        most = autopilot.MAX_TOOL_CALLS_PER_STEP if self._options.parallel_tool_calls else 1
        left = min(self._limits.calls - sum(1 for _ in self._progress.calls), most)
        if len(uses) > left:
            self._add(Notice(code="left_out", message=f"{len(uses) - left} of {len(uses)} calls are over the limit."))
        await self._tool_executor.begin(uses[:left], max_steps=self._limits.steps)

    def _calls_client(self) -> bool:
        """Whether the last step calls tools that the client has to execute."""
        steps = self._progress.steps
        own = {function.name for function in self._options.functions}
        return bool(steps) and any(call.tool in own for call in steps[-1].calls)

    async def _request(self, tools: Sequence[ToolSpec], prompt: str = "") -> ModelReply | RunOutcome:
        return await self._requester.request(tools, instructions=self._instructions, prompt=prompt)

    async def _accept(self, reply: ModelReply, reason: RunEndReason | None = None) -> RunOutcome | None:
        """The outcome after an answer; None if it does not fit the format and the model has to write it again."""
        if self._must_call and reply.completed.finish_reason == "stop":
            return failed_outcome(TOOL_NOT_CALLED, "The model had to call a tool, and called none.")
        reason = reason or reply.completed.finish_reason
        requested = self._options.json_format
        if requested is None or reply.completed.finish_reason == "length":
            return RunOutcome("final", reason)
        problem = await answer_format.mismatches(requested, reply.text)
        if not problem:
            return RunOutcome("final", reason)
        if FORMAT_REPAIR_NOTICE in self._progress.notices:
            return failed_outcome(FORMAT_MISMATCH, f"The answer does not fit the requested format: {problem}.")
        self._add(Notice(code=FORMAT_REPAIR_NOTICE, message=problem))
        return None

    def _reprompts(self, text: str, tools: Sequence[ToolSpec]) -> bool:
        """Whether the reply only asks or plans. Then it is not an answer, and the model is prompted to continue."""
        if not self._options.autopilot or not tools or self._options.functions or self._options.json_format:
            return False
        before = sum(not step.calls for step in self._progress.steps)
        if before >= autopilot.MAX_REPROMPTS or not autopilot.only_asks_or_plans(text):
            return False
        self._add(Notice(code=REPROMPTED_NOTICE, message="The model was told to continue by itself."))
        return True

    async def _conclude(self, reason: autopilot.StopReason) -> RunOutcome | None:
        """Request the last answer, without tools. With autopilot it is a summary, after a notice with the reason.

        None if the answer does not fit the requested format and has to be requested again.
        """
        if not self._options.autopilot and reason == "max_steps":
            reply = await self._request((), NO_TOOLS)
            return reply if isinstance(reply, RunOutcome) else await self._accept(reply)
        steps, calls = self._progress.step_count, sum(1 for _ in self._progress.calls)
        message = autopilot.STOP_MESSAGES[reason].format(steps=steps, calls=calls)
        if reason not in self._progress.notices:
            self._add(Notice(code=reason, message=message))
        reply = await self._request((), autopilot.SUMMARY_PROMPT.format(why=message))
        if isinstance(reply, RunOutcome):
            return reply
        if not reply.text:
            self._buffer.append_text(message)
        return await self._accept(reply, reason)

    def _add(self, part: PartData) -> None:
        self._buffer.append(part)
        self._progress.apply(part)


def _completes_step(step: RunStep) -> bool:
    """Whether the agent has said that its step of a plan is complete."""
    return any(call.tool == COMPLETE_STEP and call.result is not None and call.result.ok for call in step.calls)
