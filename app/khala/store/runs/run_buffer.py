"""The buffer of one run: the output of its executor that is not committed yet, divided into batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from typing import Any, Literal

import msgspec

from khala.domain.backoff import Backoff
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
"""Parts of one run in one transaction. The parts of a step fit; those held back by an outage may take several."""
MAX_BUFFERED_CHARS = 1 << 20
"""Characters that one run may buffer, for example in an outage, before its executor has to wait."""
MAX_TEXT_PART_BYTES = MAX_INLINE_BYTES - 32
"""Bytes of text in one part. The remaining bytes are for the JSON around the text."""


class LeaseLost(Exception):
    """Another executor holds the run now, or the run was deleted. Nothing more may be written to it."""


class RunBuffer:
    """The parts and receipts of one run that are not committed yet.

    `on_added` is called after each addition, `on_written` after each commit, and `on_lost` once if the lease turns out
    to be lost.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        next_seq: int,
        receipts: ReceiptChain,
        content: Content,
        on_added: Callable[["RunBuffer"], None],
        on_lost: Callable[[], None],
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self.lease = lease
        self.pending = PendingText()
        self._next_seq = next_seq
        self.written_seq = next_seq
        """All parts before this seq are committed."""
        self._receipts = receipts
        self._content = content
        self._texts: list[str] = []
        self._unwritten: deque[tuple[PartData, str, str]] = deque()
        self._approvals: list[ApprovalRequest] = []
        self._ending: tuple[Literal["final", "error", "canceled"], Finish] | None = None
        self._batch: Batch | None = None
        self.batch_since = 0.0
        """The monotonic time at which the oldest part of the batch in flight was added."""
        self.retry_at = 0.0
        """The monotonic time before which the batch in flight is not tried again."""
        self._delays = 0
        self._on_added = on_added
        self._on_lost = on_lost
        self._on_written = on_written
        self._lost = False
        self._deliver: Callable[[], bool] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_text(self) -> bool:
        """Whether the answer has any text so far."""
        unwritten = any(isinstance(part, TextDelta) for part, _, _ in self._unwritten)
        return bool(self._texts or unwritten or text_of(self._content))

    @property
    def batch_size(self) -> int:
        """The approximate number of parts of the next batch."""
        return min(MAX_PARTS_PER_BATCH, len(self._unwritten) + 1) if self._batch is None else len(self._batch.parts)

    @property
    def in_flight(self) -> bool:
        """Whether a batch was taken and is not acknowledged yet."""
        return self._batch is not None

    @property
    def is_held(self) -> bool:
        """Whether text may arrive that is read only in the commit in which it is due."""
        return self._deliver is not None

    @property
    def full(self) -> bool:
        """Whether the executor should wait in `wait_written` before it adds more."""
        return self.pending.chars > MAX_BUFFERED_CHARS

    def append_text(self, text: str) -> None:
        """Add text to the answer. It is called for every token, so it only appends. Raises `LeaseLost`."""
        self._texts.append(text)
        self._mark_added(len(text), self._end_hold())

    def hold_text(self, deliver: Callable[[], bool], deltas_per_second: float, chars_per_second: float) -> None:
        """The model's text is not read from now on, until the commit in which it is due calls `deliver`.

        `deliver` returns whether text has arrived, which is then added within moments. The rates are those of the text
        before.
        """
        if not self._lost:
            self._deliver = deliver
            self.pending.hold(time.monotonic(), (deltas_per_second, chars_per_second))
            self._on_added(self)

    def request_held_text(self) -> bool:
        """Have held text read. Returns whether some will be added within moments."""
        deliver, self._deliver = self._deliver, None
        if deliver is None:
            return False
        has_text = deliver()
        if not has_text:
            self.pending.drop_hold()
        return has_text

    def append(self, part: PartData) -> None:
        """Add a part that is not text. It is due at once. Raises `LeaseLost`."""
        self._flush_text()
        self._enqueue(part)
        self.pending.urgent = True
        self._mark_added(0, time.monotonic())

    def append_reasoning(self, text: str) -> None:
        """Add to the model's reasoning. Raises `LeaseLost`."""
        self._flush_text()
        for piece in split_by_json_bytes(replace_unstorable(text), MAX_TEXT_PART_BYTES):
            self._enqueue(ReasoningDelta(text=piece))
        self._mark_added(len(text), self._end_hold())

    def append_receipt(
        self,
        kind: Literal["model", "tool"],
        facts: dict[str, Any],
        cost_usd: Decimal | None,
        tool_call_id: str | None = None,
    ) -> None:
        """Add a call's receipt; it is committed with the run's next parts, at the latest with its finish."""
        self._receipts.append(kind, facts, cost_usd, tool_call_id)

    def request_approval(
        self,
        status: ToolStatus,
        tool: str,
        args: dict[str, Any],
        parameters: dict[str, Any],
        *,
        approval_id: str | None = None,
    ) -> None:
        """Block a tool call until it is approved. The request is committed with the part that reports `status`.

        With an `approval_id`, it is a question of a call that goes on, and not about the call itself.

        Raises `ValueError` for a status without a digest or an expiry.
        """
        if status.digest is None or status.expires_at is None:
            raise ValueError("a tool call that waits for approval needs a digest and an expiry")
        self._approvals.append(
            ApprovalRequest(
                tool_call_id=approval_id or status.tool_call_id,
                tool=tool,
                args=json_text(args),
                parameters=json_text(parameters),
                digest=status.digest,
                expires_at=status.expires_at,
            )
        )
        self.append(status)

    async def end(self, status: Literal["final", "error", "canceled"], finish: Finish) -> None:
        """Write all pending parts, the finish, the status and the folded message in one commit, and wait for it.

        Tool calls that have not ended are cancelled in that commit. Raises `LeaseLost`.
        """
        self._flush_text()
        for part in cancelled_statuses(fold(self._content, [part for part, _, _ in self._unwritten])):
            self._enqueue(part)
        last_hash = self._receipts.last_hash
        finish = msgspec.structs.replace(finish, witness=last_hash.hex() if last_hash else None)
        self._ending = (status, finish)
        self.append(finish)
        await self.wait_written()

    def take_receipts(self) -> list[ReceiptEntry]:
        """Remove and return the receipts that are in no batch."""
        return self._receipts.take()

    async def wait_written(self) -> None:
        """Wait until everything that was added is committed. Raises `LeaseLost`."""
        await self._idle.wait()
        if self._lost:
            raise LeaseLost

    def next_batch(self) -> Batch:
        """The batch to be written next. Returns the same batch until it is acknowledged."""
        if self._batch is None:
            self._flush_text()
            parts = list(islice(self._unwritten, MAX_PARTS_PER_BATCH))
            for _ in parts:
                self._unwritten.popleft()
            numbered = [(self._next_seq + offset, kind, data) for offset, (_, kind, data) in enumerate(parts)]
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
            now = time.monotonic()
            self.batch_since = now if self.pending.since is None else self.pending.since
            self.pending.mark_taken(at_once=bool(self._unwritten), now=now)
        return self._batch

    def delay(self, backoff: Backoff, now: float) -> None:
        """The batch in flight was left out of a commit: try it again later."""
        self._delays += 1
        self.retry_at = now + backoff.delay(self._delays)

    def acknowledge(self, *, held: bool) -> None:
        """Remove the batch, which was committed; or drop everything, if the run is no longer `held`."""
        if held and self._batch is not None:
            self.written_seq = self._batch.parts[-1][0] + 1
        self._batch = None
        self.retry_at, self._delays = 0.0, 0
        if not held:
            self._texts.clear()
            self._unwritten.clear()
            self.pending.mark_taken(at_once=False, now=0)
            self._lost = True
            self._on_lost()
        if self.pending.since is None:
            self._idle.set()
        if held:
            self._on_written()

    def _due_ending(self) -> RunEnding | None:
        if self._ending is None or self._unwritten:
            return None
        status, finish = self._ending
        return RunEnding(status=status, finish=finish, content=self._content, seq=self._next_seq)

    def _end_hold(self) -> float:
        """Text arrives, so none is held. Returns the earliest time at which it can have arrived."""
        self._deliver = None
        return self.pending.end_hold(time.monotonic())

    def _mark_added(self, chars: int, arrived: float) -> None:
        if self._lost:
            raise LeaseLost
        self.pending.add(chars, arrived)
        self._idle.clear()
        self._on_added(self)

    def _flush_text(self) -> None:
        """Convert the pending text into parts."""
        text = replace_unstorable("".join(self._texts))
        self._texts.clear()
        for piece in split_by_json_bytes(text, MAX_TEXT_PART_BYTES):
            self._enqueue(TextDelta(text=piece))

    def _enqueue(self, part: PartData) -> None:
        # Encoded here, so that an error is raised in the executor of this run, and not in a commit with other runs.
        self._unwritten.append((part, *encode(part)))
