"""Receipts: records of a run's calls and their costs, in a chain of hashes that reveals changes."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import structlog

from khala.domain.budgets import SMALLEST_AMOUNT
from khala.domain.chat import Receipt
from khala.domain.context import ContextCall, ContextRecord
from khala.domain.parts import TokenUsage, json_text
from khala.domain.receipts import FIRST_HASH, chained_hash
from khala.store.postgres import rows
from khala.store.postgres.array_arguments import unnested
from khala.store.postgres.database import Driver
from khala.store.runs.leases import IS_HELD, Lease

log = structlog.get_logger()

INSERT = f"""
    INSERT INTO receipts (run_id, seq, thread_id, type, tool_call_id, data, cost_usd, hash)
    SELECT run.id, entry.seq, run.thread_id, entry.type, entry.tool_call_id, entry.data::jsonb, entry.cost_usd,
           entry.hash
    FROM {unnested(1, "uuid", "uuid", "int", "int", "text", "text", "numeric", "bytea", "text")}
      AS entry (run_id, thread_id, epoch, seq, type, data, cost_usd, hash, tool_call_id)
    JOIN runs AS run ON run.id = entry.run_id AND {IS_HELD.format("entry")}
    ON CONFLICT DO NOTHING
"""


class ReceiptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that is not stored yet. `data` is JSON text; `hash` also covers the run's previous receipts."""

    seq: int
    type: str
    data: str
    cost_usd: Decimal | None = None
    hash: bytes
    tool_call_id: str | None = None


class ReceiptChain:
    """Numbers and chains the new receipts of one run, and holds them until a batch takes them."""

    def __init__(self, run_id: UUID, *, next_seq: int = 0, last_hash: bytes = FIRST_HASH) -> None:
        """`last_hash` is the hash of the receipt before `next_seq`."""
        self.last_hash = last_hash
        self._run_id = run_id
        self._next_seq = next_seq
        self._entries: list[ReceiptEntry] = []

    def append(
        self,
        kind: Literal["model", "tool"],
        facts: dict[str, Any],
        cost_usd: Decimal | None,
        tool_call_id: str | None = None,
    ) -> None:
        """Add the receipt of a call."""
        data = json_text(facts)
        cost = None if cost_usd is None else cost_usd.quantize(SMALLEST_AMOUNT)
        self.last_hash = chained_hash(
            self.last_hash,
            run_id=self._run_id,
            seq=self._next_seq,
            kind=kind,
            tool_call_id=tool_call_id,
            data=msgspec.json.decode(data),
            cost_usd=cost,
        )
        self._entries.append(
            ReceiptEntry(
                seq=self._next_seq,
                type=kind,
                data=data,
                cost_usd=cost,
                hash=self.last_hash,
                tool_call_id=tool_call_id,
            )
        )
        self._next_seq += 1

    def take(self) -> list[ReceiptEntry]:
        """Remove and return the receipts that were not taken yet."""
        entries, self._entries = self._entries, []
        return entries


async def insert(driver: Driver, entries: Sequence[tuple[Lease, ReceiptEntry]]) -> None:
    """Store these receipts, for runs that are still held. A receipt that is stored already is not changed."""
    if entries:
        columns = [
            (lease.run_id, lease.thread_id, lease.epoch, *msgspec.structs.astuple(entry)) for lease, entry in entries
        ]
        await driver.execute(INSERT, *zip(*columns, strict=True))


class _ModelReceipt(msgspec.Struct, frozen=True):
    """The part of a model call's receipt that says what the model was told."""

    provider: str
    model: str
    outcome: str
    context: ContextRecord
    usage: TokenUsage = TokenUsage()
    estimated: bool = False


async def contexts_of_run(driver: Driver, thread_id: UUID, run_id: UUID) -> list[ContextCall]:
    """The contexts of the model calls of a run of this thread, in order.

    Calls of earlier versions, which recorded nothing, are left out, and so are records that an import brought and that
    are not readable.
    """
    query = """
        SELECT data FROM receipts
        WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2 AND type = 'model' AND data ? 'context'
        ORDER BY run_id, seq LIMIT 1000
    """
    calls = [_read_call(row["data"]) for row in await driver.fetch(query, run_id, thread_id)]
    return [call for call in calls if call is not None]


def _read_call(data: str) -> ContextCall | None:
    try:
        receipt = msgspec.json.decode(data, type=_ModelReceipt)
    except msgspec.ValidationError as error:
        log.warning("context_unreadable", error=str(error))
        return None
    return ContextCall(
        **msgspec.structs.asdict(receipt.context),
        model=f"{receipt.provider}:{receipt.model}",
        outcome=receipt.outcome,
        input_tokens=None if receipt.estimated else receipt.usage.input_tokens,
    )


async def of_run(driver: Driver, thread_id: UUID, run_id: UUID) -> list[Receipt]:
    """The receipts of a run of this thread, in order."""
    query = """
        SELECT * FROM receipts WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2
        ORDER BY run_id, seq LIMIT 1000
    """
    return [rows.receipt(row) for row in await driver.fetch(query, run_id, thread_id)]


async def count_outside_calls(driver: Driver, thread_id: UUID, run_id: UUID) -> int:
    """The number of the run's receipts that name no tool call."""
    query = """
        SELECT count(*) FROM receipts
        WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2 AND tool_call_id IS NULL
    """
    return int(await driver.fetchval(query, run_id, thread_id))
