"""The maximum size of a prompt for each model."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from khala.domain.context import ContextPurpose, ContextRecord, ContextSection
from khala.models.model_names import ModelRef
from khala.models.port import LanguageModel, ModelFailed
from khala.models.prices import context_window
from khala.models.token_counter import TokenCounter
from khala.runs.prompt_tokens import ModelTokenCounter

DEFAULT_CONTEXT_TOKENS = 32_000
"""The limit of an operator who has set none. It does not apply to a conversation that may not be shortened, if the
window of the model is known."""
OUTPUT_SHARE = 0.25
"""Share of a model's window that is left for its answer, unless the run limits the answer to fewer tokens."""
MAX_OUTPUT_SHARE = 0.5
"""Share of a model's window that is left for an answer at most, however long the run allows it to be."""


class PromptTooLongError(ModelFailed):
    """The required items of a prompt are longer than the limit. The message is for the person in the chat."""

    def __init__(self, message: str = "This message is longer than the model can read.") -> None:
        super().__init__("context_exceeded", message)


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
    leaves beside its output of up to `output_tokens`. `shortens`: a conversation that is too long is shortened. If not,
    and if the operator has set no limit, the model's window is the limit.
    """

    def __init__(
        self,
        counter: TokenCounter,
        *,
        context_tokens: int | None,
        requested: int | None = None,
        output_tokens: int | None = None,
        shortens: bool = True,
    ) -> None:
        self._counter = counter
        self._context_tokens = context_tokens
        self._requested = requested
        self._shortens = shortens
        self._output_tokens = output_tokens
        self._counters: dict[object, ModelTokenCounter] = {}

    async def of_model(self, model: LanguageModel, max_tokens: int | None = None) -> PromptLimit:
        """The limit for this model, at most `max_tokens` if they are given. Loads the model's vocabulary."""
        await self._counter.load(model.name)
        new = ModelTokenCounter(self._counter, model.name)
        counter = self._counters.setdefault(new.key, new)
        window = self._window(model)
        operators = self._context_tokens
        if operators is None and (self._shortens or window is None):
            operators = DEFAULT_CONTEXT_TOKENS
        bounds = (operators, self._requested, window, max_tokens)
        return PromptLimit(min(bound for bound in bounds if bound is not None), counter)

    def _window(self, model: LanguageModel) -> int | None:
        window = context_window(model.provider, model.name)
        if window is None:
            return None
        share = window * OUTPUT_SHARE if self._output_tokens is None else self._output_tokens
        return int(window - min(share, window * MAX_OUTPUT_SHARE))


def max_prompt_tokens(context_tokens: int | None, models: Sequence[ModelRef], *, shortens: bool) -> int:
    """The maximum tokens of a prompt for any of these models, with the operator's `context_tokens`."""
    if context_tokens is not None:
        return context_tokens
    windows = [] if shortens else [context_window(model.provider, model.name) or 0 for model in models]
    return max([DEFAULT_CONTEXT_TOKENS, *windows])
