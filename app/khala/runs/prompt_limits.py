"""The maximum size of a prompt for each model."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from khala.domain.context import ContextPurpose, ContextRecord, ContextSection
from khala.models.port import LanguageModel, ModelFailed
from khala.models.prices import context_window
from khala.models.token_counter import TokenCounter
from khala.runs.prompt_tokens import ModelTokenCounter

OUTPUT_SHARE = 0.25
"""Share of a model's window that is left for its answer, unless the run limits the answer to fewer tokens."""
MAX_OUTPUT_SHARE = 0.5
"""Share of a model's window that is left for an answer at most, however long the run allows it to be."""


class PromptTooLongError(ModelFailed):
    """The required items of a prompt are longer than the limit."""

    def __init__(self) -> None:
        super().__init__("context_exceeded", "This message is longer than the model can read.")


class PromptLimit(msgspec.Struct, frozen=True):
    """The maximum tokens of a prompt for one model, and what counts them."""

    tokens: int
    counter: ModelTokenCounter

    def record(self, sections: Sequence[ContextSection], purpose: ContextPurpose) -> ContextRecord:
        """The record of a prompt with these sections, which is sent now."""
        return ContextRecord(
            at=datetime.now(UTC),
            purpose=purpose,
            limit=self.tokens,
            estimated=self.counter.estimates,
            sections=[section for section in sections if section.items or section.left_out],
        )


class PromptLimits:
    """The limits of one run's prompts.

    A prompt has at most the operator's `context_tokens`, the run's `requested` tokens, and what the model's window
    leaves beside its output of up to `output_tokens`.
    """

    def __init__(
        self,
        counter: TokenCounter,
        *,
        context_tokens: int,
        requested: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        self._counter = counter
        self._most = context_tokens if requested is None else min(context_tokens, requested)
        self._output_tokens = output_tokens
        self._counters: dict[object, ModelTokenCounter] = {}

    async def of_model(self, model: LanguageModel, max_tokens: int | None = None) -> PromptLimit:
        """The limit for this model, at most `max_tokens` if they are given. Loads the model's vocabulary."""
        await self._counter.load(model.name)
        new = ModelTokenCounter(self._counter, model.name)
        counter = self._counters.setdefault(new.key, new)
        bounds = (self._most, self._window(model), max_tokens)
        return PromptLimit(min(bound for bound in bounds if bound is not None), counter)

    def _window(self, model: LanguageModel) -> int | None:
        window = context_window(model.provider, model.name)
        if window is None:
            return None
        share = window * OUTPUT_SHARE if self._output_tokens is None else self._output_tokens
        return int(window - min(share, window * MAX_OUTPUT_SHARE))
