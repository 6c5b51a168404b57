"""Model calls for tools of a run: they are limited by the run's budget, and have receipts with the tool call's id."""

import asyncio
from collections.abc import Sequence

import msgspec

from khala.models.model_names import ModelRef
from khala.models.port import LanguageModel, Prompt
from khala.runs.budget_meter import BudgetMeter
from khala.runs.model_turn import BuiltPrompt, ModelDependencies, ModelTurn, RunOutcome
from khala.runs.prompt_limits import PromptLimits, PromptTooLongError
from khala.store.runs.run_buffer import LeaseLost, RunBuffer
from khala.tools.port import SampledText, Sampler, ToolError


class ToolSampling:
    """Calls the run's models for its tools, one call at a time. The text is no part of the answer."""

    def __init__(
        self,
        buffer: RunBuffer,
        meter: BudgetMeter,
        models: ModelDependencies,
        candidates: Sequence[ModelRef],
        limits: PromptLimits,
    ) -> None:
        self._buffer = buffer
        self._meter = meter
        self._models = msgspec.structs.replace(models, store_reasoning=False)
        self._candidates = candidates
        self._limits = limits
        # The meter measures one model call at a time. The run itself calls no model while its tools run.
        self._turn_lock = asyncio.Lock()

    def sampler_of(self, call_id: str) -> Sampler:
        """The function that calls a model for this tool call. It raises `ToolError`."""

        async def sample(prompt: Prompt) -> SampledText:
            async with self._turn_lock:
                try:
                    return await self._sample(call_id, prompt)
                except LeaseLost as error:  # The buffer stops the run.
                    raise ToolError("The run has ended.") from error

        return sample

    async def _sample(self, call_id: str, prompt: Prompt) -> SampledText:
        async def build(model: LanguageModel, max_tokens: int | None) -> BuiltPrompt:
            limit = await self._limits.of_model(model, max_tokens)
            if limit.counter.text(prompt.system) + limit.counter.turns(prompt.turns) > limit.tokens:
                raise PromptTooLongError("The request is longer than the model can read.")
            return BuiltPrompt(prompt, None)

        turn = ModelTurn(
            self._buffer,
            self._meter,
            self._models,
            self._candidates,
            waits_for_limits=False,
            shortens=False,
            tool_call_id=call_id,
        )
        reply = await turn.request(build)
        if isinstance(reply, RunOutcome):
            raise ToolError("No model gave an answer." if reply.failure is None else reply.failure.message)
        model = self._meter.tally.model
        return SampledText(
            text=reply.text,
            model="unknown" if model is None else model.name,
            truncated=reply.completed.finish_reason == "length",
        )
