"""The tally of a run: what its model calls used, and when its first token came."""

import time
from decimal import Decimal
from typing import Any

from app.domain.parts import Finish, Usage
from app.models.port import Completed, Model
from app.models.prices import cost


class Call:
    """One model call: its clock, and how much text has come."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.chunks: list[str] = []
        self.began = time.monotonic()
        self.first: float | None = None

    def text(self, text: str) -> None:
        """More text came."""
        if self.first is None:
            self.first = time.monotonic()
        self.chunks.append(text)

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


class Tally:
    """All calls of one run."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: float | None = None
        self.usage = Usage()
        self.cost: Decimal | None = None
        self.model: Model | None = None

    def add(self, call: Call, usage: Usage) -> Decimal | None:
        """Count a call that ended, however it ended; returns what it cost in USD, None if the price is unknown."""
        self.model = call.model
        self.usage += usage
        self.first = self.first if self.first is not None else call.first
        price = cost(call.model.provider, call.model.name, usage)
        if price is not None:
            self.cost = (self.cost or Decimal(0)) + price
        return price

    def finish(self, reason: str) -> Finish:
        """The run's finish as of now."""
        return Finish(
            reason=reason,
            usage=self.usage,
            cost_usd=None if self.cost is None else f"{self.cost:f}",
            model=self.model.name if self.model else None,
            provider=self.model.provider if self.model else None,
            time_to_first_token_ms=None if self.first is None else milliseconds(self.first - self.began),
            total_ms=milliseconds(time.monotonic() - self.began),
        )


def milliseconds(seconds: float) -> int:
    """Rounded down."""
    return int(seconds * 1000)
