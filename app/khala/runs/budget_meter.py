"""The meter of a run: counts what its models say against what is reserved, and reserves more before that is passed.

Until a provider tells the usage of a call, it is estimated by the length of what was asked and said. Where a model's
price is not known, USD are not counted; tokens and runs are.
"""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_UP, Decimal
from typing import Never
from uuid import UUID

import msgspec
import structlog

from khala.domain.budgets import SMALLEST_AMOUNT, BudgetMeasure
from khala.domain.errors import BudgetExhausted, Unavailable
from khala.domain.parts import TokenUsage
from khala.models.port import Prompt
from khala.models.prices import cost
from khala.models.token_counter import estimate_usage
from khala.runs.usage_tally import TOKEN_SIZE, ModelCall, UsageTally
from khala.store.budgets import ledger
from khala.store.budgets.ledger import LedgerEntry, RunAccount
from khala.store.postgres.database import Database
from khala.store.runs.run_buffer import LeaseLost

log = structlog.get_logger()

PAUSE = 0.5
"""Seconds after which a database that was away is asked again; until it has answered, the turn waits."""
PATIENCE = 3600.0
"""The longest sleep, in seconds."""
SAMPLE = 1000
"""Tokens of output by which a price is sounded."""


class CallRate(msgspec.Struct, frozen=True, kw_only=True):
    """What a call costs by estimate: its prompt at once, in tokens and USD, then USD for each token that is said.

    `usd` is None where the price is not known.
    """

    tokens: int
    usd: Decimal | None
    usd_per_token: Decimal = Decimal(0)


class BudgetMeter:
    """What one run may still use. `exhausted` says that a limit stopped it."""

    def __init__(self, db: Database, run_id: UUID, account: RunAccount, tally: UsageTally) -> None:
        self.exhausted = False
        self._db = db
        self._run_id = run_id
        self._account = account
        self.tally = tally
        self._rate = CallRate(tokens=0, usd=None)
        self._reserved = _least(account.entries)
        self._reserving = asyncio.Lock()

    async def begin(self, call: ModelCall, prompt: Prompt) -> None:
        """Have enough reserved for the prompt, before the call is made. Raises `BudgetExhausted`."""
        if not self._reserved:
            return
        asked = estimate_usage(prompt, "", tools=call.model.reads_tools).input_tokens
        self._rate = rate(call.model.provider, call.model.name, asked)
        await self.more(call)

    async def more(self, call: ModelCall) -> None:
        """Have enough reserved for what was said, and say how much more there is room for. Raises `BudgetExhausted`."""
        await self._cover(self._needs(call.size))
        call.enough = self._enough()

    async def watch(self) -> Never:
        """Reserve more time when it runs out, until there is none. Raises `BudgetExhausted`."""
        while True:
            left = self._seconds_left()
            if left > 0:
                await asyncio.sleep(min(left, PATIENCE))
            else:
                await self._cover({"seconds": self._seconds()})

    def affords(self, provider: str, model: str) -> float:
        """Tokens that the run's own limits let this model read still."""
        rooms = [float("inf")]
        for entry in self._account.entries:
            if entry.scope == "run" and entry.measure == "tokens":
                rooms.append(float(entry.most - self._tokens()))
            if entry.scope == "run" and entry.measure == "usd":
                price = cost(provider, model, TokenUsage(input_tokens=SAMPLE))
                rooms.append(float((entry.most - self._usd()) / price * SAMPLE) if price else float("inf"))
        return max(0.0, min(rooms))

    def _needs(self, size: int) -> dict[BudgetMeasure, Decimal]:
        said = Decimal(size) / TOKEN_SIZE
        needs: dict[BudgetMeasure, Decimal] = {"tokens": self._tokens() + self._rate.tokens + said}
        if self._rate.usd is not None:
            needs["usd"] = self._usd() + self._rate.usd + said * self._rate.usd_per_token
        return needs

    def _enough(self) -> float:
        """The size up to which the call's text is within what is reserved."""
        rooms = [float("inf")]
        if "tokens" in self._reserved:
            rooms.append(float(self._reserved["tokens"] - self._tokens()) - self._rate.tokens)
        if "usd" in self._reserved and self._rate.usd is not None and self._rate.usd_per_token:
            rooms.append(float((self._reserved["usd"] - self._usd() - self._rate.usd) / self._rate.usd_per_token))
        return min(rooms) * TOKEN_SIZE

    def _tokens(self) -> Decimal:
        usage = self.tally.usage
        return Decimal(usage.input_tokens + usage.output_tokens)

    def _usd(self) -> Decimal:
        return self.tally.cost or Decimal(0)

    def _seconds(self) -> Decimal:
        return self._account.seconds + Decimal(str(time.monotonic() - self.tally.began))

    def _seconds_left(self) -> float:
        return float(self._reserved["seconds"] - self._seconds()) if "seconds" in self._reserved else PATIENCE

    async def _cover(self, needs: Mapping[BudgetMeasure, Decimal]) -> None:
        async with self._reserving:
            exact = {measure: need.quantize(SMALLEST_AMOUNT, ROUND_UP) for measure, need in needs.items()}
            if any(need > self._reserved.get(measure, need) for measure, need in exact.items()):
                self._reserved = _least(await self._extend(exact))

    async def _extend(self, needs: Mapping[BudgetMeasure, Decimal]) -> tuple[LedgerEntry, ...]:
        while True:
            try:
                entries = await ledger.extend(self._db, self._run_id, needs, datetime.now(UTC))
            except Unavailable as error:
                log.warning("reserving_failed", run_id=str(self._run_id), error=str(error.__cause__))
                await asyncio.sleep(PAUSE)
                continue
            except BudgetExhausted:
                self.exhausted = True
                raise
            if not entries:
                raise LeaseLost  # settled, so it was ended by somebody else
            return entries


def rate(provider: str, model: str, asked: int) -> CallRate:
    """The rate of a call whose prompt has so many tokens."""
    usd = cost(provider, model, TokenUsage(input_tokens=asked))
    further = cost(provider, model, TokenUsage(input_tokens=asked, output_tokens=SAMPLE))
    if usd is None or further is None:
        return CallRate(tokens=asked, usd=None)
    return CallRate(tokens=asked, usd=usd, usd_per_token=(further - usd) / SAMPLE)


def _least(entries: tuple[LedgerEntry, ...]) -> dict[BudgetMeasure, Decimal]:
    """What is reserved of each measure by the tightest of its limits."""
    found: dict[BudgetMeasure, Decimal] = {}
    for entry in entries:
        found[entry.measure] = min(entry.reserved, found.get(entry.measure, entry.reserved))
    return found
