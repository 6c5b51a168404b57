"""Calls of models outside of runs: each counts against the payer's budgets and has a receipt, however it ends."""

import asyncio
import random
import time
from decimal import Decimal
from typing import Any

from khala.domain.budgets import BudgetMeasure, BudgetPolicy
from khala.domain.parts import TokenUsage
from khala.models import prices, retry_policy
from khala.models.port import Completed, LanguageModel, ModelFailed, Prompt, TextChunk
from khala.models.token_counter import estimate_usage
from khala.signals import metrics
from khala.store.budgets import charges
from khala.store.budgets.charges import Charge, ChargePurpose, Payer
from khala.store.postgres.database import Database

CALL_TIMEOUT_SECONDS = 60.0
"""Time of one call."""
MAX_ANSWER_CHARACTERS = 16_000
ESTIMATED_SECONDS = Decimal(5)


class MeteredCalls:
    """Calls models within these budgets."""

    def __init__(self, db: Database, budgets: BudgetPolicy) -> None:
        self._db = db
        self._budgets = budgets

    async def answer(self, model: LanguageModel, prompt: Prompt, payer: Payer, purpose: ChargePurpose) -> str:
        """The text of the model's answer, after retries. The prompt bounds the tokens of its output.

        Raises `BudgetExhausted` and `ModelFailed`.
        """
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                return await self._call(model, prompt, payer, purpose, tries)
            except ModelFailed as failure:
                elapsed = time.monotonic() - began
                decision = retry_policy.decide(
                    failure, tries=tries, elapsed=elapsed, jitter=random.random(), more_models=False
                )
                if not isinstance(decision, retry_policy.Wait):
                    raise
                metrics.MODEL_RETRIES.labels(model.provider, failure.code).inc()
                await asyncio.sleep(decision.seconds)

    async def _call(
        self, model: LanguageModel, prompt: Prompt, payer: Payer, purpose: ChargePurpose, attempt: int
    ) -> str:
        """The answer of one call, which is charged, and has a receipt."""
        guess = estimate_usage(prompt, "", tools=False) + TokenUsage(output_tokens=prompt.max_output_tokens or 0)
        estimate = _amounts(model, guess, ESTIMATED_SECONDS)
        charge = await charges.begin(self._db, self._budgets, payer, purpose, estimate)
        chunks: list[str] = []
        completed: Completed | None = None
        outcome = "canceled"
        began = time.monotonic()
        try:
            completed = await _stream(model, prompt, chunks)
            outcome = completed.finish_reason
        except ModelFailed as failure:
            outcome = failure.code
            raise
        finally:
            if completed is None:
                usage = estimate_usage(prompt, "".join(chunks), tools=False)
                completed = Completed(usage=usage, finish_reason="stop", estimated=True)
            await asyncio.shield(
                self._settle(
                    charge, model, completed, outcome=outcome, attempt=attempt, seconds=time.monotonic() - began
                )
            )
        return "".join(chunks)

    async def _settle(
        self,
        charge: Charge,
        model: LanguageModel,
        completed: Completed,
        *,
        outcome: str,
        attempt: int,
        seconds: float,
    ) -> None:
        cost = prices.cost(model.provider, model.name, completed.usage)
        facts: dict[str, Any] = {
            "provider": model.provider,
            "model": model.name,
            "attempt": attempt,
            "outcome": outcome,
            "usage": completed.usage,
            "estimated": completed.estimated,
            "totalMs": int(seconds * 1000),
        }
        used = _amounts(model, completed.usage, Decimal(str(round(seconds, 3))))
        await charges.end(self._db, charge, used, facts, cost)
        label = metrics.model(model.name)
        metrics.MODEL_CALLS.labels(model.provider, label, metrics.outcome(outcome)).inc()
        metrics.MODEL_CALL.labels(model.provider, label).observe(seconds)
        metrics.MODEL_TOKENS.labels(model.provider, label, "input").inc(completed.usage.input_tokens)
        metrics.MODEL_TOKENS.labels(model.provider, label, "output").inc(completed.usage.output_tokens)
        metrics.MODEL_COST.labels(model.provider, label).inc(float(cost or 0))


async def _stream(model: LanguageModel, prompt: Prompt, chunks: list[str]) -> Completed:
    """Collect the answer's text. Raises `ModelFailed`, also for an answer that is too slow or too long."""
    size = 0
    try:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS), model.stream(prompt) as events:
            async for event in events:
                match event:
                    case Completed():
                        return event
                    case TextChunk():
                        chunks.append(event.text)
                        size += len(event.text)
                if size > MAX_ANSWER_CHARACTERS:
                    raise ModelFailed("invalid_response", "The answer is too long.", midstream=True)
    except TimeoutError as error:
        raise ModelFailed("timeout", "The answer took too long.", midstream=bool(chunks)) from error
    raise ModelFailed("invalid_response", "The model's answer broke off.", midstream=bool(chunks))


def _amounts(model: LanguageModel, usage: TokenUsage, seconds: Decimal) -> dict[BudgetMeasure, Decimal]:
    cost = prices.cost(model.provider, model.name, usage)
    tokens = Decimal(usage.input_tokens + usage.output_tokens)
    return {"usd": cost or Decimal(0), "tokens": tokens, "seconds": seconds}
