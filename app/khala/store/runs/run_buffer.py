"""The buffer of one run: what its executor has produced and no commit has stored yet, cut into batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from typing import Any, Literal

import msgspec

from khala.domain.flush_policy import PendingText, replace_unstorable, split_by_json_bytes
from khala.domain.fold import Content, cancelled_statuses, fold, text_of
from khala.domain.parts import (
    MAX_INLINE_BYTES,
    Finish,
    PartData,
    ReasoningDelta,
    Step,
    TextDelta,
    ToolStatus,
    encode,
    json_text,
)
from khala.store.runs.endings import RunEnding
from khala.store.runs.leases import Lease
from khala.store.runs.parts import ApprovalRequest, Batch
from khala.store.runs.receipts import ReceiptChain, ReceiptEntry

MAX_PARTS_PER_BATCH = 320
"""Parts of one run in one transaction. A step's parts fit into one; what an outage has held back takes several."""
MAX_BUFFERED_CHARS = 1 << 20
"""Characters that one run may hold back, in an outage for example, before its executor has to wait."""
MAX_TEXT_PART_BYTES = MAX_INLINE_BYTES - 32
"""Bytes of text in one part, which leaves room for the JSON around it."""


class LeaseLost(Exception):
    """The run belongs to another executor now, or is gone; nothing more may be written to it."""


class RunBuffer:
    """Parts and receipts of one run on their way into the store.

    `on_gathered` is called after each addition, `on_lost` once if the lease turns out to be lost.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        next_seq: int,
        receipts: ReceiptChain,
        content: Content,
        on_gathered: Callable[["RunBuffer"], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.gathered = PendingText()
        self._next_seq = next_seq
        self._receipts = receipts
        self._content = content
        self._texts: list[str] = []
        self._unwritten: deque[tuple[PartData, str, str]] = deque()
        self._approvals: list[ApprovalRequest] = []
        self._ending: tuple[Literal["final", "error", "canceled"], Finish] | None = None
        self._batch: Batch | None = None
        self._on_gathered = on_gathered
        self._on_lost = on_lost
        self._lost = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_text(self) -> bool:
        """Whether the answer has any text so far."""
        unwritten = any(isinstance(part, TextDelta) for part, _, _ in self._unwritten)
        return bool(self._texts or unwritten or text_of(self._content))

    @property
    def batch_size(self) -> int:
        """About how many parts the next batch has."""
        return min(MAX_PARTS_PER_BATCH, len(self._unwritten) + 1) if self._batch is None else len(self._batch.parts)

    @property
    def in_flight(self) -> bool:
        """Whether a batch was taken and is not acknowledged yet."""
        return self._batch is not None

    @property
    def full(self) -> bool:
        """Whether the executor should wait in `wait_written` before it adds more."""
        return self.gathered.chars > MAX_BUFFERED_CHARS

    def append_text(self, text: str) -> None:
        """Add text to the answer. Every token takes this path, so it only gathers. Raises `LeaseLost`."""
        self._texts.append(text)
        self._gather(len(text))

    def append(self, part: PartData) -> None:
        """Add a part of another kind than text. It is due at once. Raises `LeaseLost`."""
        self._flush_text()
        self._store(part)
        self.gathered.urgent = True
        self._gather(0)

    def append_reasoning(self, text: str) -> None:
        """Add to the model's reasoning. Raises `LeaseLost`."""
        self._flush_text()
        for piece in split_by_json_bytes(replace_unstorable(text), MAX_TEXT_PART_BYTES):
            self._store(ReasoningDelta(text=piece))
        self._gather(len(text))

    def append_receipt(
        self,
        kind: Literal["model", "tool"],
        facts: dict[str, Any],
        cost_usd: Decimal | None,
        tool_call_id: str | None = None,
    ) -> None:
        """Add a call's receipt; it is committed with the run's next parts, at the latest with its finish."""
        self._receipts.append(kind, facts, cost_usd, tool_call_id)

    def request_approval(self, status: ToolStatus, tool: str, args: dict[str, Any], parameters: dict[str, Any]) -> None:
        """Block a tool call until it is approved; the request is committed with the part that says so.

        Raises `ValueError` for a status without a digest or an expiry.
        """
        if status.digest is None or status.expires_at is None:
            raise ValueError("a tool call that waits for approval needs a digest and an expiry")
        self._approvals.append(
            ApprovalRequest(
                tool_call_id=status.tool_call_id,
                tool=tool,
                args=json_text(args),
                parameters=json_text(parameters),
                digest=status.digest,
                expires_at=status.expires_at,
            )
        )
        self.append(status)

    async def end(self, status: Literal["final", "error", "canceled"], finish: Finish) -> None:
        """Write the finish, the status and the folded message in one commit with what was gathered; return after it.

        Tool calls that have not ended are cancelled in that commit. Raises `LeaseLost`.
        """
        self._flush_text()
        for part in cancelled_statuses(fold(self._content, [part for part, _, _ in self._unwritten])):
            self._store(part)
        last_hash = self._receipts.last_hash
        finish = msgspec.structs.replace(finish, witness=last_hash.hex() if last_hash else None)
        self._ending = (status, finish)
        self.append(finish)
        await self.wait_written()

    def take_receipts(self) -> list[ReceiptEntry]:
        """The receipts that no batch has taken along."""
        return self._receipts.take()

    async def wait_written(self) -> None:
        """Wait until everything that was added is committed. Raises `LeaseLost`."""
        await self._idle.wait()
        if self._lost:
            raise LeaseLost

    def next_batch(self) -> Batch:
        """The batch to be written next; the same batch again until it is acknowledged."""
        if self._batch is None:
            self._flush_text()
            parts = list(islice(self._unwritten, MAX_PARTS_PER_BATCH))
            for _ in parts:
                self._unwritten.popleft()
            numbered = [(self._next_seq + at, kind, data) for at, (_, kind, data) in enumerate(parts)]
            self._next_seq += len(numbered)
            self._content = fold(self._content, [part for part, _, _ in parts])
            self._batch = Batch(
                lease=self.lease,
                parts=numbered,
                receipts=self._receipts.take(),
                approvals=self._approvals,
                steps=max((part.step for part, _, _ in parts if isinstance(part, Step)), default=None),
                ending=self._due_ending(),
            )
            self._approvals = []
            self.gathered.taken(at_once=bool(self._unwritten), now=time.monotonic())
        return self._batch

    def acknowledge(self, *, held: bool) -> None:
        """The batch is committed; or never will be, if the run is no longer held."""
        self._batch = None
        if not held:
            self._texts.clear()
            self._unwritten.clear()
            self.gathered.taken(at_once=False, now=0)
            self._lost = True
            self._on_lost()
        if self.gathered.since is None:
            self._idle.set()

    def _due_ending(self) -> RunEnding | None:
        if self._ending is None or self._unwritten:
            return None
        status, finish = self._ending
        return RunEnding(status=status, finish=finish, content=self._content, seq=self._next_seq)

    def _gather(self, chars: int) -> None:
        if self._lost:
            raise LeaseLost
        self.gathered.add(chars, time.monotonic())
        self._idle.clear()
        self._on_gathered(self)

    def _flush_text(self) -> None:
        """Turn the gathered text into parts."""
        text = replace_unstorable("".join(self._texts))
        self._texts.clear()
        for piece in split_by_json_bytes(text, MAX_TEXT_PART_BYTES):
            self._store(TextDelta(text=piece))

    def _store(self, part: PartData) -> None:
        # Encoded here, where an error belongs to the executor that made the part, and not in a batch with other runs.
        self._unwritten.append((part, *encode(part)))
