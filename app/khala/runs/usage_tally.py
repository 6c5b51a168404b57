"""The tally of a run: what its model calls used, and when its first token came."""

import time
from decimal import Decimal
from typing import Any

from khala.domain.decimals import format_optional
from khala.domain.parts import Finish, TokenUsage
from khala.models.port import Completed, Model
from khala.models.prices import cost

TOKEN_SIZE = 4
"""Bytes of text, near enough, that a token stands for until a provider tells the usage."""
NOTHING = TokenUsage()
WIDE = 3
"""Bytes of a character in text that isn't plain ASCII, near enough."""


class ModelCall:
    """One model call: its clock, and how much text has come.

    `asked` says that it was made, `size` is about how many bytes it has said and thought, `thoughts` how many of them
    it has thought; past `enough` more has to be reserved.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.chunks: list[str] = []
        self.began = time.monotonic()
        self.first: float | None = None
        self.asked = False
        self.size = 0
        self.thoughts = 0
        self.enough = float("inf")

    def fitting(self, text: str) -> int:
        """How many characters of this may come before more has to be reserved: those up to the first one over it."""
        room = self.enough - self.size
        if size(text) <= room:
            return len(text)
        return max(0, int(room)) // (1 if text.isascii() else WIDE) + 1

    def text(self, text: str) -> None:
        """More text came."""
        if self.first is None:
            self.first = time.monotonic()
        self.chunks.append(text)
        self.size += size(text)

    def thought(self, text: str) -> None:
        """More reasoning came, which has to be paid for whether or not it is told."""
        self.size += size(text)
        self.thoughts += size(text)

    def facts(self, outcome: str, attempt: int, completed: Completed) -> dict[str, Any]:
        """The call's receipt. Times are milliseconds; `estimated` says that the provider told no usage."""
        return {
            "provider": self.model.provider,
            "model": self.model.name,
            "attempt": attempt,
            "outcome": outcome,
            "usage": completed.usage,
            "estimated": completed.estimated,
            "timeToFirstTokenMs": None if self.first is None else milliseconds(self.first - self.began),
            "totalMs": milliseconds(time.monotonic() - self.began),
        }


def size(text: str) -> int:
    """About how many bytes a text has, without looking at its characters: this is done for every token."""
    return len(text) if text.isascii() else WIDE * len(text)


class UsageTally:
    """All calls of one run: those of earlier executors had this usage and cost."""

    def __init__(self, usage: TokenUsage = NOTHING, cost: Decimal | None = None) -> None:
        self.began = time.monotonic()
        self.first: float | None = None
        self.usage = usage
        self.cost = cost
        self.model: Model | None = None

    def add(self, call: ModelCall, usage: TokenUsage) -> Decimal | None:
        """Count a call that ended, however it ended; returns what it cost in USD, None if the price is unknown."""
        self.model = call.model
        self.usage += usage
        self.first = self.first if self.first is not None else call.first
        price = cost(call.model.provider, call.model.name, usage)
        if price is not None:
            self.cost = (self.cost or Decimal(0)) + price
        return price

    @property
    def cost_usd(self) -> str | None:
        """The cost as it travels."""
        return format_optional(self.cost)

    def finish(self, reason: str) -> Finish:
        """The run's finish as of now."""
        return Finish(
            reason=reason,
            usage=self.usage,
            cost_usd=self.cost_usd,
            model=self.model.name if self.model else None,
            provider=self.model.provider if self.model else None,
            time_to_first_token_ms=None if self.first is None else milliseconds(self.first - self.began),
            total_ms=milliseconds(time.monotonic() - self.began),
        )


def milliseconds(seconds: float) -> int:
    """Rounded down."""
    return int(seconds * 1000)
