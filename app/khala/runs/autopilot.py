"""The loop of a run: call the model, execute its tool calls, and repeat until there is an answer or a reason to stop.

All state of the loop is in the run's parts. After a take-over the next executor reads them, and continues in the step,
or in the middle of the text, that was interrupted.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from khala.domain import autopilot
from khala.domain.autopilot import AutopilotLimits
from khala.domain.chat import Message, RunOptions
from khala.domain.generation import FORMAT_MISMATCH, FORMAT_REPAIR_NOTICE, TOOL_NOT_CALLED, generation_of
from khala.domain.parts import Notice, PartData, RecalledMemory
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.run_progress import REPROMPTED_NOTICE, RunProgress, RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import LanguageModel, ToolUse
from khala.runs import answer_format, prompt
from khala.runs.budget_meter import BudgetMeter
from khala.runs.compaction import Compactor
from khala.runs.model_turn import (
    BuiltPrompt,
    ModelReply,
    ModelTurn,
    PromptBuilder,
    RunEndReason,
    RunOutcome,
    failed_outcome,
)
from khala.runs.prompt import PromptInput
from khala.runs.prompt_files import PromptFiles
from khala.runs.prompt_items import PromptItems
from khala.runs.prompt_limits import PromptLimits, PromptTooLongError
from khala.runs.tool_executor import ToolExecutor
from khala.runs.tool_selection import ToolSelection
from khala.store.runs.run_buffer import RunBuffer

log = structlog.get_logger()

TOOLS_SHARE = 0.1
"""Share of the affordable tokens that the descriptions of tools may take: each step of the run repeats them."""
TOO_LONG = "This conversation is longer than the limit of {limit:,} tokens of a prompt for this model."
NO_TOOLS = "You have used all your tool calls. Answer now with what you know."


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a run: instructions, recalled memories, and seconds between two steps.

    `earlier_steps` of the run were made before the loop began, and do not count towards its limit.
    """

    system: str
    personal: str | None = None
    """The person's own instructions, which `system` contains."""
    memories: Sequence[RecalledMemory] = ()
    cooldown_seconds: float
    earlier_steps: int = 0


class Autopilot:
    """Executes one run from its current state to an outcome."""

    def __init__(
        self,
        *,
        buffer: RunBuffer,
        progress: RunProgress,
        meter: BudgetMeter,
        turn: ModelTurn,
        tool_executor: ToolExecutor,
        limits: PromptLimits,
        files: PromptFiles,
        config: RunConfig,
        options: RunOptions,
        history: Sequence[Message],
    ) -> None:
        self._buffer = buffer
        self._progress = progress
        self._meter = meter
        self._turn = turn
        self._tool_executor = tool_executor
        self._prompt_limits = limits
        self._files = files
        self._config = config
        self._options = options
        self._history = history
        self._items = PromptItems()
        self._selection = ToolSelection(history, progress, options)
        self._compactor = Compactor(turn, history, progress, limits)
        budget = options.budget
        calls = autopilot.MAX_TOOL_CALLS if budget is None or budget.tool_calls is None else budget.tool_calls
        self._limits = AutopilotLimits(steps=options.step_limit + config.earlier_steps, calls=calls)
        self._generation = generation_of(options)

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
                await asyncio.sleep(self._config.cooldown_seconds)
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
        """Whether the next reply has to call a tool: only the first one."""
        return self._generation.tool_mode == "required" and not self._progress.step_count

    async def _begin_step(self, uses: Sequence[ToolUse]) -> None:
        most = autopilot.MAX_TOOL_CALLS_PER_STEP if self._generation.parallel_tool_calls else 1
        left = min(self._limits.calls - sum(1 for _ in self._progress.calls), most)
        if len(uses) > left:
            self._add(Notice(code="left_out", message=f"{len(uses) - left} of {len(uses)} calls are over the limit."))
        await self._tool_executor.begin(uses[:left], max_steps=self._limits.steps)

    def _calls_client(self) -> bool:
        """Whether the last step calls tools that the client has to execute."""
        steps = self._progress.steps
        own = {function.name for function in self._options.functions}
        return bool(steps) and any(call.tool in own for call in steps[-1].calls)

    async def _request(self, tools: Sequence[ToolSpec], instruction: str = "") -> ModelReply | RunOutcome:
        reply = await self._turn.request(self._prompt_builder(tools, instruction), self._buffer.append_text)
        if isinstance(reply, ModelReply):
            self._progress.pending_text = reply.text
        return reply

    def _prompt_builder(self, tools: Sequence[ToolSpec], instruction: str) -> PromptBuilder:
        async def build(model: LanguageModel, max_tokens: int | None) -> BuiltPrompt:
            limit = await self._prompt_limits.of_model(model, max_tokens)
            system = self._instructions(model)
            content = PromptInput(
                history=self._history,
                progress=self._progress,
                memories=self._config.memories,
                files=await self._files.read(self._history),
                instruction=instruction,
                personal=self._config.personal,
                items=self._items,
            )
            affordable = TOOLS_SHARE * self._meter.affordable_tokens(model.provider, model.name)
            offer = self._selection.select(tools, affordable)

            def fit() -> prompt.FittedPrompt:
                return prompt.fit(
                    content,
                    system=system,
                    tools=offer,
                    limit=limit.tokens,
                    token_counter=limit.counter,
                    reads_tools=model.reads_tools,
                )

            fitted = fit()
            if fitted.dropped and self._options.context_overflow == "error":
                raise PromptTooLongError(TOO_LONG.format(limit=limit.tokens))
            if fitted.dropped or fitted.tight:
                summary = await self._compactor.summary(fitted, limit)
                if summary is not None:
                    self._add(summary)
                    fitted = fit()
            generation = self._generation
            if not self._must_call:
                generation = msgspec.structs.replace(generation, tool_choice=None)
            built = msgspec.structs.replace(
                fitted.prompt, max_output_tokens=self._options.max_output_tokens, generation=generation
            )
            return BuiltPrompt(built, limit.record(fitted.sections, "answer"))

        return build

    def _instructions(self, model: LanguageModel) -> str:
        """The instructions, with the format of the answer unless the provider enforces it.

        It cannot enforce the format of the rest of an answer.
        """
        requested = self._generation.json_format
        if requested is None:
            return self._config.system
        continues = bool(self._progress.pending_text.strip())
        if requested.schema is not None and model.enforces(requested.schema) and not continues:
            return self._config.system
        return "\n\n".join(filter(None, (self._config.system, requested.instructions)))

    async def _accept(self, reply: ModelReply, reason: RunEndReason | None = None) -> RunOutcome | None:
        """The outcome after an answer; None if it does not fit the format and the model has to write it again."""
        if self._must_call and reply.completed.finish_reason == "stop":
            return failed_outcome(TOOL_NOT_CALLED, "The model had to call a tool, and called none.")
        reason = reason or reply.completed.finish_reason
        requested = self._generation.json_format
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
        if not self._options.autopilot or not tools or self._options.functions or self._generation.json_format:
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
