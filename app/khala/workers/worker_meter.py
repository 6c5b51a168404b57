"""Meters a run of a remote worker against its budget: by the worker's receipts, and by the text since the last one."""

import time
from datetime import UTC, datetime
from decimal import ROUND_UP, Decimal
from typing import Any
from uuid import UUID

from khala.domain.budgets import SMALLEST_AMOUNT, BudgetMeasure
from khala.domain.decimals import format_optional
from khala.domain.errors import BudgetExhausted, ReachedLimit
from khala.domain.executor_protocol import WorkerReceipt
from khala.domain.parts import Finish
from khala.models import prices
from khala.store.budgets import ledger
from khala.store.budgets.ledger import LedgerEntry, RunAccount
from khala.store.postgres.database import Database
from khala.store.runs.run_buffer import LeaseLost

BYTES_PER_TOKEN = 4
"""Approximate bytes of text per token, until the worker reports the usage."""


class WorkerMeter:
    """The usage and budget of one run. `max_calls` is the limit of tool calls, None for no limit."""

    def __init__(self, db: Database, run_id: UUID, account: RunAccount, max_calls: int | None) -> None:
        self._db = db
        self._run_id = run_id
        self._account = account
        self._max_calls = max_calls
        self._reserved = _smallest_reserved(account.entries)
        self._usage = account.usage
        self._cost = account.usd
        self._model: tuple[str | None, str | None] = (None, None)
        self._most_usd = min((entry.most for entry in account.entries if entry.measure == "usd"), default=None)
        self._is_over = False
        self._unreported_bytes = 0
        self._began = time.monotonic()

    def add_text(self, size: int) -> None:
        """Count `size` bytes of text, whose usage is estimated until the next receipt of a model call."""
        self._unreported_bytes += size

    def add_receipt(self, receipt: WorkerReceipt, attempt: int) -> tuple[dict[str, Any], Decimal | None]:
        """Count a receipt. Returns what is stored of it, and its cost in USD, None if that is unknown.

        A cost over the smallest limit of the run counts as what is left of it, whatever the worker reports: otherwise a
        worker could use up the budgets of the people who use its agent.
        """
        cost = None if receipt.cost_usd is None else Decimal(receipt.cost_usd)
        usage = receipt.usage.total()
        if cost is None and receipt.provider is not None and receipt.model is not None:
            cost = prices.cost(receipt.provider, receipt.model, usage)
        if receipt.type == "model":
            self._unreported_bytes = 0
            self._model = receipt.provider, receipt.model
        self._usage += usage
        if cost is not None:
            before = self._cost or Decimal(0)
            if self._most_usd is not None and before + cost > self._most_usd:
                cost, self._is_over = max(Decimal(0), self._most_usd - before), True
            self._cost = before + cost
        facts = {
            "provider": receipt.provider or "worker",
            "model": receipt.model or "unknown",
            "attempt": attempt,
            "outcome": receipt.outcome,
            "usage": usage,
            "estimated": False,
            "timeToFirstTokenMs": None,
            "totalMs": receipt.total_ms,
        }
        return facts, cost

    def check_calls(self, calls: int) -> None:
        """Raise `BudgetExhausted` if the run may not make so many tool calls."""
        if self._max_calls is not None and calls > self._max_calls:
            limit = ReachedLimit("tool_calls_per_run", "run", self._max_calls)
            raise BudgetExhausted(f"This run may make {self._max_calls} tool calls.", limit=limit)

    async def cover(self) -> None:
        """Reserve what the run has used, if that exceeds the reservation. Raises `BudgetExhausted`, `LeaseLost`."""
        if self._is_over and self._most_usd is not None:
            limit = ReachedLimit("usd_per_run", "run", self._most_usd)
            raise BudgetExhausted("This answer has reached its budget.", limit=limit)
        needs = {measure: need.quantize(SMALLEST_AMOUNT, ROUND_UP) for measure, need in self._needs().items()}
        if not any(need > self._reserved.get(measure, need) for measure, need in needs.items()):
            return
        entries = await ledger.extend(self._db, self._run_id, needs, datetime.now(UTC))
        if not entries:
            raise LeaseLost  # The budget is settled, so another process has ended the run.
        self._reserved = _smallest_reserved(entries)

    def finish(self, reason: str) -> Finish:
        """The run's finish as of now."""
        provider, model = self._model
        return Finish(
            reason=reason,
            usage=self._usage,
            cost_usd=format_optional(self._cost),
            provider=provider,
            model=model,
            total_ms=int((time.monotonic() - self._began) * 1000),
        )

    def _needs(self) -> dict[BudgetMeasure, Decimal]:
        tokens = self._usage.input_tokens + self._usage.output_tokens
        return {
            "tokens": Decimal(tokens) + Decimal(self._unreported_bytes) / BYTES_PER_TOKEN,
            "usd": self._cost or Decimal(0),
            "seconds": self._account.seconds + Decimal(str(time.monotonic() - self._began)),
        }


def _smallest_reserved(entries: tuple[LedgerEntry, ...]) -> dict[BudgetMeasure, Decimal]:
    """For each measure, the smallest amount that is reserved from any of its limits."""
    reserved: dict[BudgetMeasure, Decimal] = {}
    for entry in entries:
        reserved[entry.measure] = min(entry.reserved, reserved.get(entry.measure, entry.reserved))
    return reserved
