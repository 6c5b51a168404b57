"""Counts embeddings against budgets, with receipts.

A request for embeddings is charged before the call. Searches, and texts that are embedded in the background, are
counted afterwards by a loop, so that a search waits for no lock of a budget. Before the call, it only reads what is
left.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeVar
from uuid import UUID

import structlog

from khala.domain.budgets import BudgetMeasure, BudgetPolicy
from khala.domain.errors import Unavailable
from khala.domain.parts import TokenUsage
from khala.models import prices
from khala.models.embeddings.embedder import MAX_CHARACTERS, Embedder
from khala.models.embeddings.port import EmbeddingResult
from khala.models.port import ModelFailed
from khala.models.token_counter import estimate
from khala.store.budgets import charges, payers
from khala.store.budgets.charges import Charge, Payer
from khala.store.postgres.database import Database

MEASURES: Sequence[BudgetMeasure] = ("usd", "tokens")
RECORD_SECONDS = 2.0
"""Time between two records of what was used."""
PAUSE_SECONDS = 300.0
"""Time for which the texts of an owner wait whose budget is used up."""
MAX_OWNERS = 10_000
"""Owners whose tokens are not recorded yet, or whose texts wait."""
CLOSE_SECONDS = 5.0
"""Time to record the rest when the process ends."""

log = structlog.get_logger()


class OwnedText(Protocol):
    """A text that is embedded for its owner: a user, or a thread of guests."""

    @property
    def owner_id(self) -> UUID: ...  # noqa: D102

    @property
    def text(self) -> str: ...  # noqa: D102


TextOfOwner = TypeVar("TextOfOwner", bound=OwnedText)


class EmbeddingMeter:
    """Counts the tokens of an embedding model. An owner is a user, or a thread."""

    def __init__(self, db: Database, embedder: Embedder, budgets: BudgetPolicy) -> None:
        self._db = db
        self._embedder = embedder
        self._budgets = budgets
        self._tokens: Counter[UUID] = Counter()
        """Tokens that are not recorded yet, by owner."""
        self._calls: Counter[UUID] = Counter()
        self._paused: dict[UUID, float] = {}
        """Owners whose budget is used up, and when to look again."""

    async def documents(self, payer: Payer, texts: Sequence[str]) -> EmbeddingResult:
        """Embed texts within the payer's budgets. Raises `BudgetExhausted` before the call, and `ModelFailed`.

        A failed call costs nothing. One that is cancelled is counted by its estimate.
        """
        tokens, outcome, estimated = sum(map(estimate, texts)), "canceled", True
        charge = await charges.begin(self._db, self._budgets, payer, "embedding", self._amounts(tokens))
        began = time.monotonic()
        try:
            result = await self._embedder.documents(texts)
            tokens, outcome, estimated = result.tokens, "ok", result.estimated
        except ModelFailed as failure:
            tokens, outcome = 0, failure.code
            raise
        finally:
            facts = {"outcome": outcome, "estimated": estimated, "totalMs": int((time.monotonic() - began) * 1000)}
            await asyncio.shield(self._end(charge, tokens, facts))
        return result

    async def _end(self, charge: Charge, tokens: int, facts: Mapping[str, Any]) -> None:
        await charges.end(self._db, charge, self._amounts(tokens), self._facts(tokens, facts), self._cost(tokens))

    async def allows(self, owner_id: UUID, text: str) -> bool:
        """Whether the owner's budgets have enough left to embed this text. Waits for no lock."""
        return len(self._tokens) < MAX_OWNERS and await self._fitting(owner_id, [text[:MAX_CHARACTERS]]) == 1

    async def affordable(self, batch: Sequence[TextOfOwner]) -> list[TextOfOwner]:
        """The texts of the batch that their owners' budgets allow. An owner with none of them has to wait."""
        owned: dict[UUID, list[TextOfOwner]] = {}
        for pending in batch:
            owned.setdefault(pending.owner_id, []).append(pending)
        found: list[TextOfOwner] = []
        for owner_id, texts in owned.items():
            many = await self._fitting(owner_id, [pending.text for pending in texts])
            found += texts[:many]
            if not many:
                self._paused[owner_id] = time.monotonic() + PAUSE_SECONDS * random.uniform(0.8, 1.2)
                log.info("embedding_waits_for_budget", owner_id=str(owner_id))
        return found

    def paused(self) -> list[UUID]:
        """The owners whose texts wait."""
        now = time.monotonic()
        self._paused = {owner_id: until for owner_id, until in self._paused.items() if until > now}
        return list(self._paused)

    @property
    def may_pause(self) -> bool:
        """Whether the texts of further owners can wait apart from those of others."""
        return len(self._paused) < MAX_OWNERS

    async def _fitting(self, owner_id: UUID, texts: Sequence[str]) -> int:
        """The number of texts, from the first on, that the owner's budgets allow."""
        async with self._db.driver() as driver:
            found = await payers.with_limits(driver, self._budgets, owner_id)
            if found is None:
                return len(texts)
            payer, policy = found
            left = await charges.remainder(driver, policy, payer, MEASURES)
        tokens = self._tokens[owner_id]
        for many, text in enumerate(texts):
            tokens += estimate(text)
            amounts = self._amounts(tokens)
            if any(amount and amount > left.get(measure, amount) for measure, amount in amounts.items()):
                return many
        return len(texts)

    def count(self, owner_id: UUID, tokens: int) -> None:
        """Count the tokens of a call, with the next record."""
        self._tokens[owner_id] += tokens
        self._calls[owner_id] += 1

    def count_batch(self, batch: Sequence[OwnedText], tokens: int) -> None:
        """Count the tokens of a call for the owners of its texts, in proportion to their length."""
        characters: Counter[UUID] = Counter()
        for pending in batch:
            characters[pending.owner_id] += len(pending.text)
        for owner_id, amount in characters.items():
            self.count(owner_id, -(-tokens * amount // characters.total()))

    async def record(self) -> None:
        """Count what was used since the last time against the budgets of its owners, with a receipt for each owner."""
        for owner_id in list(self._calls):
            tokens, calls = self._tokens[owner_id], self._calls[owner_id]
            async with self._db.driver() as driver:
                payer = await payers.of_owner(driver, owner_id)
            if payer is not None:
                facts = self._facts(tokens, {"outcome": "ok", "calls": calls})
                amounts, cost = self._amounts(tokens), self._cost(tokens)
                await charges.add(self._db, self._budgets, payer, "embedding", amounts, facts, cost)
            self._forget(owner_id, tokens, calls)

    def _forget(self, owner_id: UUID, tokens: int, calls: int) -> None:
        """Subtract what is recorded: searches may have added to it meanwhile."""
        self._tokens[owner_id] -= tokens
        self._calls[owner_id] -= calls
        if not self._calls[owner_id]:
            del self._tokens[owner_id], self._calls[owner_id]

    async def run(self) -> None:
        """Record for ever."""
        while True:
            await asyncio.sleep(RECORD_SECONDS)
            try:
                await self.record()
            except Unavailable as error:
                log.warning("embeddings_not_recorded", reason=str(error))

    async def aclose(self) -> None:
        """Record the rest, when no more calls are made."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.record()
        except (Unavailable, TimeoutError) as error:
            log.warning("embeddings_not_recorded", reason=str(error), tokens=self._tokens.total())

    def _facts(self, tokens: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        model = {"provider": self._embedder.provider, "model": self._embedder.names[1]}
        return {**model, "usage": TokenUsage(input_tokens=tokens), **facts}

    def _amounts(self, tokens: int) -> dict[BudgetMeasure, Decimal]:
        return {"usd": self._cost(tokens) or Decimal(0), "tokens": Decimal(tokens)}

    def _cost(self, tokens: int) -> Decimal | None:
        return prices.cost(self._embedder.provider, self._embedder.names[1], TokenUsage(input_tokens=tokens))
