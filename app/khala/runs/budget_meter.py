"""Meters one run against its budget: compares the usage of its calls with the reservation, and extends it in time.

Until a provider reports the usage of a call, it is estimated from the length of the prompt and the text. If a model's
price is unknown, USD are not counted; tokens and runs are.
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
from khala.runs.usage_tally import BYTES_PER_TOKEN, ModelCall, UsageTally
from khala.store.budgets import ledger
from khala.store.budgets.ledger import LedgerEntry, RunAccount
from khala.store.postgres.database import Database
from khala.store.runs.run_buffer import LeaseLost

log = structlog.get_logger()

RETRY_INTERVAL_SECONDS = 0.5
"""Time between two attempts to reserve while the database is unavailable. The model call waits."""
MAX_SLEEP_SECONDS = 3600.0
SAMPLE_TOKENS = 1000
"""The number of tokens whose price is looked up, to derive the price of one token."""


class CallRate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated cost of a call: tokens and USD of its prompt, and USD per output token.

    `usd` is None if the price is unknown.
    """

    tokens: int
    usd: Decimal | None
    usd_per_token: Decimal = Decimal(0)


class BudgetMeter:
    """The remaining budget of one run. `exhausted` says that a limit stopped the run."""

    def __init__(self, db: Database, run_id: UUID, account: RunAccount, tally: UsageTally) -> None:
        self.exhausted = False
        self._db = db
        self._run_id = run_id
        self._account = account
        self.tally = tally
        self._rate = CallRate(tokens=0, usd=None)
        self._reserved = _smallest_reserved(account.entries)
        self._reserving = asyncio.Lock()

    async def begin(self, call: ModelCall, prompt: Prompt) -> None:
        """Reserve enough for the prompt, before the call is made. Raises `BudgetExhausted`."""
        if not self._reserved:
            return
        tokens = estimate_usage(prompt, "", tools=call.model.reads_tools).input_tokens
        self._rate = estimate_rate(call.model.provider, call.model.name, tokens)
        await self.extend(call)

    async def extend(self, call: ModelCall) -> None:
        """Reserve enough for the text so far, and set the size that is covered. Raises `BudgetExhausted`."""
        await self._cover(self._needs(call.size))
        call.covered_size = self._covered_size()

    async def check(self) -> None:
        """Reserve enough for the calls so far. Raises `BudgetExhausted`."""
        if self._reserved:
            await self._cover({"tokens": self._tokens(), "usd": self._usd()})

    async def watch_time(self) -> Never:
        """Reserve more time whenever it runs out, until none is left. Raises `BudgetExhausted`."""
        while True:
            left = self._seconds_left()
            if left > 0:
                await asyncio.sleep(min(left, MAX_SLEEP_SECONDS))
            else:
                await self._cover({"seconds": self._seconds()})

    def affordable_tokens(self, provider: str, model: str) -> float:
        """Tokens of input that the run's own limits still allow for this model."""
        limits = [float("inf")]
        for entry in self._account.entries:
            if entry.scope == "run" and entry.measure == "tokens":
                limits.append(float(entry.most - self._tokens()))
            if entry.scope == "run" and entry.measure == "usd":
                price = cost(provider, model, TokenUsage(input_tokens=SAMPLE_TOKENS))
                limits.append(float((entry.most - self._usd()) / price * SAMPLE_TOKENS) if price else float("inf"))
        return max(0.0, min(limits))

    def _needs(self, size: int) -> dict[BudgetMeasure, Decimal]:
        """The amounts to reserve for a call whose text has `size` bytes."""
        output_tokens = Decimal(size) / BYTES_PER_TOKEN
        needs: dict[BudgetMeasure, Decimal] = {"tokens": self._tokens() + self._rate.tokens + output_tokens}
        if self._rate.usd is not None:
            needs["usd"] = self._usd() + self._rate.usd + output_tokens * self._rate.usd_per_token
        return needs

    def _covered_size(self) -> float:
        """The bytes of text of the current call that the reserved budget covers."""
        tokens = [float("inf")]
        if "tokens" in self._reserved:
            tokens.append(float(self._reserved["tokens"] - self._tokens()) - self._rate.tokens)
        if "usd" in self._reserved and self._rate.usd is not None and self._rate.usd_per_token:
            tokens.append(float((self._reserved["usd"] - self._usd() - self._rate.usd) / self._rate.usd_per_token))
        return min(tokens) * BYTES_PER_TOKEN

    def _tokens(self) -> Decimal:
        usage = self.tally.usage
        return Decimal(usage.input_tokens + usage.output_tokens)

    def _usd(self) -> Decimal:
        return self.tally.cost or Decimal(0)

    def _seconds(self) -> Decimal:
        return self._account.seconds + Decimal(str(time.monotonic() - self.tally.began))

    def _seconds_left(self) -> float:
        return float(self._reserved["seconds"] - self._seconds()) if "seconds" in self._reserved else MAX_SLEEP_SECONDS

    async def _cover(self, needs: Mapping[BudgetMeasure, Decimal]) -> None:
        async with self._reserving:
            rounded = {measure: need.quantize(SMALLEST_AMOUNT, ROUND_UP) for measure, need in needs.items()}
            if any(need > self._reserved.get(measure, need) for measure, need in rounded.items()):
                self._reserved = _smallest_reserved(await self._reserve(rounded))

    async def _reserve(self, needs: Mapping[BudgetMeasure, Decimal]) -> tuple[LedgerEntry, ...]:
        while True:
            try:
                entries = await ledger.extend(self._db, self._run_id, needs, datetime.now(UTC))
            except Unavailable as error:
                log.warning("budget_reservation_failed", run_id=str(self._run_id), error=str(error.__cause__))
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
                continue
            except BudgetExhausted:
                self.exhausted = True
                raise
            if not entries:
                raise LeaseLost  # The budget is settled, so another process has ended the run.
            return entries


def estimate_rate(provider: str, model: str, input_tokens: int) -> CallRate:
    """The rate of a call whose prompt has `input_tokens` tokens."""
    usd = cost(provider, model, TokenUsage(input_tokens=input_tokens))
    with_output = cost(provider, model, TokenUsage(input_tokens=input_tokens, output_tokens=SAMPLE_TOKENS))
    if usd is None or with_output is None:
        return CallRate(tokens=input_tokens, usd=None)
    return CallRate(tokens=input_tokens, usd=usd, usd_per_token=(with_output - usd) / SAMPLE_TOKENS)


def _smallest_reserved(entries: tuple[LedgerEntry, ...]) -> dict[BudgetMeasure, Decimal]:
    """For each measure, the smallest amount that is reserved from any of its limits."""
    reserved: dict[BudgetMeasure, Decimal] = {}
    for entry in entries:
        reserved[entry.measure] = min(entry.reserved, reserved.get(entry.measure, entry.reserved))
    return reserved
