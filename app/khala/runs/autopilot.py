"""The loop of a run: the model speaks, its tools run, it hears what came of them, until it has an answer or must stop.

Nothing of it is kept but the parts that it writes. Whoever takes the run over reads them, and goes on in the round, or
in the midst of the text, where it was.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from khala.domain import autopilot
from khala.domain.autopilot import AutopilotLimits
from khala.domain.chat import Message, RunOptions
from khala.domain.parts import Notice, PartData
from khala.domain.run_progress import REPROMPTED_NOTICE, RunProgress
from khala.domain.tools import ToolSpec
from khala.models.port import Model, Prompt, ToolUse
from khala.models.prices import context_window
from khala.models.token_counter import Counter
from khala.runs import prompt
from khala.runs.budget_meter import BudgetMeter
from khala.runs.compaction import Compactor
from khala.runs.model_turn import ModelReply, ModelTurn, PromptBuilder, RunOutcome
from khala.runs.prompt import ModelTokenCounter, PromptInput
from khala.runs.prompt_files import PromptFiles
from khala.runs.tool_executor import ToolExecutor
from khala.store.runs.run_buffer import RunBuffer

log = structlog.get_logger()

OUTPUT_SHARE = 0.25
"""The part of a model's window that is left for its answer."""
TOOLS_SHARE = 0.1
"""The part of what the run may use that one description of the tools may take: it is repeated in each round."""
NO_TOOLS = "You have used your tools. Answer now with what you know."


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How runs are asked for: instructions, the most that a prompt may take in tokens, seconds between two rounds."""

    system: str
    context_tokens: int
    cooldown: float


class Autopilot:
    """One run, from wherever it was to where it has to stop."""

    def __init__(
        self,
        *,
        stream: RunBuffer,
        progress: RunProgress,
        meter: BudgetMeter,
        turn: ModelTurn,
        tool_executor: ToolExecutor,
        counter: Counter,
        files: PromptFiles,
        config: RunConfig,
        options: RunOptions,
        history: Sequence[Message],
    ) -> None:
        self._stream = stream
        self._progress = progress
        self._meter = meter
        self._turn = turn
        self._tool_executor = tool_executor
        self._counter = counter
        self._files = files
        self._config = config
        self._options = options
        self._history = history
        self._compactor = Compactor(turn, history, progress)
        budget = options.budget
        calls = autopilot.MAX_TOOL_CALLS if budget is None or budget.tool_calls is None else budget.tool_calls
        self._limits = AutopilotLimits(steps=options.rounds, calls=calls)

    async def run(self) -> RunOutcome:
        """Go on until the run ends, or has to wait for somebody's approval."""
        while True:
            tools = await self._offer()
            rounds = self._progress.rounds
            if rounds and not rounds[-1].over:
                awaited = await self._tool_executor.finish(rounds[-1])
                if awaited:
                    return RunOutcome("blocked", "blocked", awaits=awaited)
            if self._handed_over():
                return RunOutcome("final", "tool_calls")
            why = autopilot.stop_reason(rounds, self._limits) if self._progress.steps else None
            if why is not None:
                return await self._conclude(why)
            if rounds:
                await asyncio.sleep(self._config.cooldown)
            said = await self._ask(tools)
            if isinstance(said, RunOutcome):
                return said
            if said.completed.uses:
                await self._begin(said.completed.uses)
            elif not self._reprompts(said.text, tools):
                return RunOutcome("final", said.completed.finish_reason)

    async def _offer(self) -> list[ToolSpec]:
        offered = await self._tool_executor.offer(self._options.tools)
        return offered if self._limits.calls else []

    async def _begin(self, uses: Sequence[ToolUse]) -> None:
        left = min(self._limits.calls - sum(1 for _ in self._progress.calls), autopilot.MAX_TOOL_CALLS_PER_STEP)
        if len(uses) > left:
            self._say(Notice(code="left_out", message=f"{len(uses) - left} of {len(uses)} calls are over the limit."))
        cost: dict[str, Any] = {"usage": self._meter.tally.usage, "cost_usd": self._meter.tally.cost_usd}
        await self._tool_executor.begin(
            uses[:left], number=self._progress.steps + 1, max_steps=self._limits.steps, spent=cost
        )

    def _handed_over(self) -> bool:
        """Whether the caller has to carry out tools of its own before the model goes on."""
        rounds = self._progress.rounds
        own = {function.name for function in self._options.functions}
        return bool(rounds) and any(call.tool in own for call in rounds[-1].calls)

    async def _ask(self, tools: Sequence[ToolSpec], instruction: str = "") -> ModelReply | RunOutcome:
        said = await self._turn.ask(self._prompt_for(tools, instruction), self._stream.append_text)
        if isinstance(said, ModelReply):
            self._progress.said = said.text
        return said

    def _prompt_for(self, tools: Sequence[ToolSpec], instruction: str) -> PromptBuilder:
        async def build(model: Model) -> Prompt:
            await self._counter.ready(model.name)
            token_counter, limit = ModelTokenCounter(self._counter, model.name), self._limit(model)
            conversation = PromptInput(
                history=self._history,
                progress=self._progress,
                files=await self._files.read(self._history),
                instruction=instruction,
            )

            def fitted() -> prompt.FittedPrompt:
                return prompt.fit(
                    conversation,
                    system=self._config.system,
                    tools=tools,
                    limit=limit,
                    token_counter=token_counter,
                    reads_tools=model.reads_tools,
                    tools_limit=TOOLS_SHARE * self._meter.affords(model.provider, model.name),
                )

            found = fitted()
            if found.dropped or found.tight:
                summary = await self._compactor.summary(found, token_counter, limit)
                if summary is not None:
                    self._say(summary)
                    found = fitted()
            return msgspec.structs.replace(found.prompt, max_output_tokens=self._options.max_output_tokens)

        return build

    def _limit(self, model: Model) -> int:
        window = context_window(model.provider, model.name)
        most = self._config.context_tokens
        return most if window is None else min(most, int(window * (1 - OUTPUT_SHARE)))

    def _reprompts(self, text: str, tools: Sequence[ToolSpec]) -> bool:
        """Whether the reply isn't taken for the answer, because it only asks or plans; the model is asked again."""
        if not self._options.autopilot or not tools or self._options.functions:
            return False
        before = sum(not round_.calls for round_ in self._progress.rounds)
        if before >= autopilot.MAX_REPROMPTS or not autopilot.only_asks_or_plans(text):
            return False
        self._say(Notice(code=REPROMPTED_NOTICE, message="It was told to go on by itself."))
        return True

    async def _conclude(self, why: autopilot.StopReason) -> RunOutcome:
        """The last word: without tools, and with autopilot as a summary after a word about why."""
        if not self._options.autopilot and why == "max_steps":
            said = await self._ask((), NO_TOOLS)
            return said if isinstance(said, RunOutcome) else RunOutcome("final", said.completed.finish_reason)
        steps, calls = self._progress.steps, sum(1 for _ in self._progress.calls)
        sentence = autopilot.STOP_MESSAGES[why].format(steps=steps, calls=calls)
        if why not in self._progress.notices:
            self._say(Notice(code=why, message=sentence))
        said = await self._ask((), autopilot.SUMMARY_PROMPT.format(why=sentence))
        if isinstance(said, RunOutcome):
            return said
        if not said.text:
            self._stream.append_text(sentence)
        return RunOutcome("final", why)

    def _say(self, part: PartData) -> None:
        self._stream.append(part)
        self._progress.apply(part)
