"""Counts the usage and cost of a run's model calls, and the time to the first token."""

import time
from decimal import Decimal
from typing import Any

from khala.domain.context import ContextRecord
from khala.domain.decimals import format_optional
from khala.domain.parts import Finish, TokenUsage
from khala.models.port import Completed, LanguageModel
from khala.models.prices import cost

BYTES_PER_TOKEN = 4
"""Approximate bytes of text per token, until a provider reports the usage."""
BYTES_PER_WIDE_CHARACTER = 3
"""Approximate bytes of a character in text that is not plain ASCII."""
NO_USAGE = TokenUsage()


class ModelCall:
    """One model call: its times, the record of its prompt, and the text received so far.

    `started` says that the provider was called. `size` is the approximate number of bytes of text and reasoning
    received, `reasoning_size` that of reasoning, whose last stored piece came at `reasoned`. When `size` exceeds
    `covered_size`, the budget must be extended.
    """

    def __init__(self, model: LanguageModel, context: ContextRecord | None = None) -> None:
        self.model = model
        self.context = context
        self.chunks: list[str] = []
        self.began = time.monotonic()
        self.first: float | None = None
        self.reasoned: float | None = None
        self.started = False
        self.size = 0
        self.reasoning_size = 0
        self.covered_size = float("inf")

    def covered_length(self, text: str) -> int:
        """The number of characters to pass on before the budget must be extended: up to the first one not covered."""
        left = self.covered_size - self.size
        if size(text) <= left:
            return len(text)
        return max(0, int(left)) // (1 if text.isascii() else BYTES_PER_WIDE_CHARACTER) + 1

    def add_text(self, text: str) -> None:
        """Count text of the answer."""
        if self.first is None:
            self.first = time.monotonic()
        self.chunks.append(text)
        self.size += size(text)

    def add_reasoning(self, text: str) -> None:
        """Count reasoning, which costs money even if it is not stored."""
        self.size += size(text)
        self.reasoning_size += size(text)

    def receipt(self, outcome: str, attempt: int, completed: Completed) -> dict[str, Any]:
        """The call's receipt. Times are milliseconds; `estimated` says that the provider reported no usage."""
        context = {} if self.context is None else {"context": self.context}
        return {
            "provider": self.model.provider,
            "model": self.model.name,
            "attempt": attempt,
            "outcome": outcome,
            "usage": completed.usage,
            "estimated": completed.estimated,
            "timeToFirstTokenMs": None if self.first is None else milliseconds(self.first - self.began),
            "totalMs": milliseconds(time.monotonic() - self.began),
            **context,
        }


def size(text: str) -> int:
    """The approximate number of bytes of the text. It is called for every token, so it does not read the characters."""
    return len(text) if text.isascii() else BYTES_PER_WIDE_CHARACTER * len(text)


class UsageTally:
    """Sums the calls of one run. It begins with the usage and cost of earlier executors."""

    def __init__(self, usage: TokenUsage = NO_USAGE, cost: Decimal | None = None) -> None:
        self.began = time.monotonic()
        self.first: float | None = None
        self.usage = usage
        self.cost = cost
        self.model: LanguageModel | None = None
        self.reported_model: tuple[str | None, str | None] = (None, None)
        """The provider and the model of the last call that was reported, of a run that calls no model itself."""
        self.memories = 0
        """The number of memories that the model was told."""
        self.cached_tokens = self.reasoning_tokens = 0
        """Details of the usage, of the calls of this executor."""
        self.reasoning_seconds = 0.0
        """The time until the last stored piece of reasoning, of all calls of this executor."""

    def add(self, call: ModelCall, completed: Completed) -> Decimal | None:
        """Count a call that has ended, in any way. Returns its cost in USD, or None if the price is unknown."""
        usage = completed.usage
        self.model = call.model
        self.usage += usage
        self.cached_tokens += completed.cached_tokens
        self.reasoning_tokens += completed.reasoning_tokens
        self.reasoning_seconds += 0.0 if call.reasoned is None else call.reasoned - call.began
        self.first = self.first if self.first is not None else call.first
        price = cost(call.model.provider, call.model.name, usage)
        if price is not None:
            self.cost = (self.cost or Decimal(0)) + price
        return price

    def add_reported(self, provider: str, model: str, usage: TokenUsage, price: Decimal | None) -> Decimal | None:
        """Count a call that code of an application has made, as it reports it. Returns its cost, as `add` does."""
        self.reported_model = provider, model
        self.usage += usage
        price = cost(provider, model, usage) if price is None else price
        if price is not None:
            self.cost = (self.cost or Decimal(0)) + price
        return price

    @property
    def cost_usd(self) -> str | None:
        """The cost as a decimal string, as on the wire."""
        return format_optional(self.cost)

    def finish(self, reason: str) -> Finish:
        """The run's finish as of now."""
        provider, model = (self.model.provider, self.model.name) if self.model else self.reported_model
        return Finish(
            reason=reason,
            usage=self.usage,
            cost_usd=self.cost_usd,
            model=model,
            provider=provider,
            time_to_first_token_ms=None if self.first is None else milliseconds(self.first - self.began),
            total_ms=milliseconds(time.monotonic() - self.began),
            memories=self.memories or None,
            cached_tokens=self.cached_tokens or None,
            reasoning_tokens=self.reasoning_tokens or None,
            reasoning_ms=max(1, milliseconds(self.reasoning_seconds)) if self.reasoning_seconds else None,
        )


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded down."""
    return int(seconds * 1000)
