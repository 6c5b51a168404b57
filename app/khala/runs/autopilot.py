"""The built-in loop: the model replies, its tool calls are executed, until there is an answer or a reason to stop.

It uses only what an agent of an application can use, and is stateless: its state is the run's parts. After a take-over
the next executor reads them, and the loop continues in the step, or in the middle of the text, that was interrupted.
"""

from collections.abc import Sequence

from khala.domain import autopilot
from khala.domain.autopilot import AutopilotLimits
from khala.domain.generation import FORMAT_MISMATCH, FORMAT_REPAIR_NOTICE, TOOL_NOT_CALLED
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.run_progress import REPROMPTED_NOTICE, RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse
from khala.runs import answer_format
from khala.sdk.errors import StepError
from khala.sdk.loop import EndReason, LoopContext, Reply

NO_TOOLS = "You have used all your tool calls. Answer now with what you know."


class Autopilot:
    """Answers in one run, from its current state on.

    `instructions` are added to those of the run. `earlier_steps` were made before the loop began, and do not count
    towards its limit.
    """

    def __init__(self, run: LoopContext, *, instructions: str = "", earlier_steps: int = 0) -> None:
        self._run = run
        self._instructions = instructions
        self._options = run.options
        budget = self._options.budget
        calls = autopilot.MAX_TOOL_CALLS if budget is None or budget.tool_calls is None else budget.tool_calls
        self._limits = AutopilotLimits(steps=self._options.step_limit + earlier_steps, calls=calls)

    async def run(self) -> None:
        """Continue until the answer is complete. Raises `StepError`, with the code of the failure."""
        while True:
            tools = await self._offered_tools()
            await self._run.finish_calls()
            steps = self._run.steps
            if steps and _completes_step(steps[-1]):
                return self._run.finish("stop")
            if steps and self._calls_client(steps[-1]):
                return self._run.finish("tool_calls")
            reason = autopilot.stop_reason(steps, self._limits) if self._step_count else None
            if reason is not None:
                if await self._conclude(reason):
                    return None
                continue
            if self._must_call and not tools:
                raise StepError("None of the tools that the model must call is offered here.", code=TOOL_NOT_CALLED)
            reply = await self._run.reply(tools, instructions=self._instructions)
            if reply.calls and not self._limits.calls:
                # The model calls tools though none are offered. It is asked once more, and then taken at its word.
                if await self._conclude("budget"):
                    return None
            elif reply.calls:
                await self._begin_step(reply.calls)
            elif not await self._reprompts(reply.text, tools) and await self._accept(reply):
                return None

    async def _offered_tools(self) -> Sequence[ToolSpec]:
        offered = await self._run.tools()
        return offered if self._limits.calls else []

    @property
    def _step_count(self) -> int:
        return sum(bool(step.calls) for step in self._run.steps)

    @property
    def _call_count(self) -> int:
        return sum(len(step.calls) for step in self._run.steps)

    @property
    def _must_call(self) -> bool:
        return autopilot.must_call(self._options, self._run.steps)

    async def _begin_step(self, calls: Sequence[ToolUse]) -> None:
        most = autopilot.MAX_TOOL_CALLS_PER_STEP if self._options.parallel_tool_calls else 1
        left = min(self._limits.calls - self._call_count, most)
        if len(calls) > left:
            await self._run.notice("left_out", f"{len(calls) - left} of {len(calls)} calls are over the limit.")
        await self._run.begin_calls(calls[:left], max_steps=self._limits.steps)

    def _calls_client(self, step: RunStep) -> bool:
        """Whether the step calls tools that the client has to execute."""
        own = self._options.client_tools
        return bool(own) and any(call.tool in own for call in step.calls)

    async def _accept(self, reply: Reply, reason: EndReason | None = None) -> bool:
        """Return whether the reply is the answer. If not, the model has to write it again in the requested format."""
        if self._must_call and reply.finish_reason == "stop":
            raise StepError("The model had to call a tool, and called none.", code=TOOL_NOT_CALLED)
        # A reply that was to call no tool may do so anyway: nobody has to execute these calls.
        self._run.finish(reason or ("length" if reply.finish_reason == "length" else "stop"))
        requested = self._options.json_format
        if requested is None or reply.finish_reason == "length":
            return True
        problem = await answer_format.mismatches(requested, reply.text)
        if not problem:
            return True
        if FORMAT_REPAIR_NOTICE in self._run.notices:
            raise StepError(f"The answer does not fit the requested format: {problem}.", code=FORMAT_MISMATCH)
        await self._run.notice(FORMAT_REPAIR_NOTICE, problem)
        return False

    async def _reprompts(self, text: str, tools: Sequence[ToolSpec]) -> bool:
        """Whether the reply only asks or plans. Then it is not an answer, and the model is prompted to continue."""
        if not self._options.autopilot or not tools or self._options.functions or self._options.json_format:
            return False
        before = sum(not step.calls for step in self._run.steps)
        if before >= autopilot.MAX_REPROMPTS or not autopilot.only_asks_or_plans(text):
            return False
        await self._run.notice(REPROMPTED_NOTICE, "The model was told to continue by itself.")
        return True

    async def _conclude(self, reason: autopilot.StopReason) -> bool:
        """Request the last answer, without tools. With autopilot it is a summary, after a notice with the reason.

        Returns whether the reply is the answer. If not, the model has to write it again in the requested format.
        """
        if not self._options.autopilot and reason == "max_steps":
            return await self._accept(await self._request_last(NO_TOOLS))
        message = autopilot.STOP_MESSAGES[reason].format(steps=self._step_count, calls=self._call_count)
        if reason not in self._run.notices:
            await self._run.notice(reason, message)
        reply = await self._request_last(autopilot.SUMMARY_PROMPT.format(why=message))
        if not reply.text:
            await self._run.text(message)
        return await self._accept(reply, reason)

    async def _request_last(self, prompt: str) -> Reply:
        return await self._run.reply((), instructions=self._instructions, prompt=prompt)


def _completes_step(step: RunStep) -> bool:
    """Whether the agent has said that its step of a plan is complete."""
    return any(call.tool == COMPLETE_STEP and call.result is not None and call.result.ok for call in step.calls)
