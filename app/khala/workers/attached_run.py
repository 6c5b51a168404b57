"""A run for whose worker this process writes: checks what the worker sends, and adds it to the run's buffer."""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from khala.domain import worker_parts
from khala.domain.errors import BudgetExhausted, Conflict, PayloadTooLarge, Unavailable, WrongSeq
from khala.domain.executor_protocol import (
    AppendAnswer,
    AppendPartsRequest,
    AskApproval,
    DecidedApproval,
    FinishRequest,
    HeartbeatState,
    WorkerReceipt,
)
from khala.domain.fold import Content
from khala.domain.parts import Notice, PartData, ReasoningDelta, RunFailure, TextDelta, ToolStatus
from khala.domain.tools import call_digest
from khala.domain.worker_parts import CallStates
from khala.signals import metrics
from khala.store.runs.run_buffer import LeaseLost, RunBuffer
from khala.store.runs.run_queue import ClaimedRun
from khala.workers.run_blobs import RunBlobs
from khala.workers.worker_meter import WorkerMeter

MAX_RUN_PARTS = 100_000
MAX_RUN_BYTES = 16 << 20
"""Bytes of JSON in the parts of one run."""
MAX_UNWRITTEN_BYTES = 512 << 10
"""Bytes of one run that wait for their commit. While there are more, requests wait."""
WRITE_TIMEOUT_SECONDS = 30.0
"""Time that a request waits for its commit. Then the worker repeats it."""
RunStatus = Literal["final", "error", "canceled"]
STATUSES: Mapping[str, tuple[RunStatus, str]] = {
    "completed": ("final", "stop"), "failed": ("error", "error"), "cancelled": ("canceled", "canceled"),
}  # fmt: skip
"""The status that a worker ends a run with, as stored, and the reason if it gives none."""


class AttachedRun:
    """One run that a worker holds, attached to this process. `claim` is the worker's claim, and `epoch` its epoch."""

    def __init__(
        self,
        claimed: ClaimedRun,
        *,
        claim: str,
        epoch: int,
        stored: Sequence[PartData],
        content: Content,
        meter: WorkerMeter,
        decisions: Mapping[str, DecidedApproval],
        receipts_outside_calls: int,
        blobs: RunBlobs,
        reasoning: bool,
        open_buffer: Callable[[Callable[[], None], Callable[[], None]], RunBuffer],
    ) -> None:
        self.claimed = claimed
        self.claim = claim
        self.epoch = epoch
        self.content = content
        self.decisions = dict(decisions)
        self.cancelled = claimed.canceled
        self.subscriber: Callable[[HeartbeatState], None] | None = None
        """Receives the state of the run when it changes: the worker's socket."""
        self.lost = False
        self.ended: RunStatus | None = None
        self._meter = meter
        self._blobs = blobs
        self._reasoning = reasoning
        self._calls = CallStates(content)
        self._digests = array("Q", [worker_parts.digest(_comparable(part)) for part in stored])
        self._sizes: dict[int, int] = {}
        self._bytes = sum(map(worker_parts.size_of, stored))
        self._unwritten = 0
        self._next_receipt = claimed.next_receipt
        self._receipts_outside_calls = receipts_outside_calls
        self._changing = asyncio.Lock()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.buffer = open_buffer(self._handle_lost, self._handle_written)

    @property
    def next_seq(self) -> int:
        """The seq of the worker's next part."""
        return len(self._digests)

    @property
    def next_receipt(self) -> int:
        """The seq of the worker's next receipt."""
        return self._next_receipt

    @property
    def receipts_outside_calls(self) -> int:
        """The number of stored receipts that name no tool call."""
        return self._receipts_outside_calls

    @property
    def awaits_decision(self) -> bool:
        """Whether a call of the run waits for an approval."""
        return self._calls.blocked()

    def state(self) -> HeartbeatState:
        """The state of the run, as a heartbeat returns it."""
        return HeartbeatState(
            run_id=self.claimed.lease.run_id,
            epoch=self.epoch,
            held=not self.lost,
            cancelled=self.cancelled,
            approvals=list(self.decisions.values()),
        )

    def receive(self, *, cancelled: bool, decisions: Mapping[str, DecidedApproval]) -> None:
        """Receive the state as stored, and tell the worker's socket about changes."""
        if cancelled != self.cancelled or decisions.keys() != self.decisions.keys():
            self.cancelled, self.decisions = cancelled, dict(decisions)
            self._publish()

    def append_resumed(self) -> None:
        """Add the notice that another worker goes on, if a former one has written something."""
        if self.next_seq and self.claimed.taken_over:
            self._add(Notice(code="resumed", message="The answer was interrupted here, and goes on."))

    async def append(self, request: AppendPartsRequest) -> AppendAnswer:
        """Store the parts and receipts, and return when they are committed. A repeated request changes nothing.

        Raises `InvalidInput`, `PayloadTooLarge`, `WrongSeq`, `Conflict`, `BudgetExhausted` and `LeaseLost`.
        """
        parts = [
            worker_parts.read_part(part, index, reasoning=self._reasoning) for index, part in enumerate(request.parts)
        ]
        async with self._changing:
            await self._wait_room()
            self._check_active()
            new = self._new_parts(request.seq, parts)
            self._check_size(new)
            await self._blobs.check(new)
            receipts = self._new_receipts(request.receipt_seq, request.receipts)
            calls = self._calls.copy()
            stored = [calls.apply(part, self.decisions) for part in new]
            self._add_receipts(receipts)
            for part in stored:
                self._add(part)
            self._calls = calls
            await self._cover()
        await self._wait_written(request.seq + len(parts))
        return AppendAnswer(next_seq=self.next_seq, next_receipt=self._next_receipt)

    async def ask(self, request: AskApproval, expires_after_seconds: float) -> AppendAnswer:
        """Block the call until a person decides. A repeated request changes nothing. Raises as `append`."""
        async with self._changing:
            self._check_active()
            if request.seq < self.next_seq and self._repeats_ask(request):
                return await self._answer(request.seq + 1)
            if request.seq != self.next_seq:
                raise WrongSeq("The parts of a run have consecutive seqs.", expected_seq=self.next_seq)
            block = self._calls.open_call(request.tool_call_id)
            if request.tool_call_id in self.decisions:
                raise Conflict("This call was decided before.")
            args = block.args or ({} if block.args_blob is None else await self._blobs.read_arguments(block.args_blob))
            status = ToolStatus(
                tool_call_id=request.tool_call_id,
                state="blocked",
                reason=request.reason or f"{block.tool} needs approval.",
                digest=call_digest(block.tool, args),
                expires_at=datetime.now(UTC) + timedelta(seconds=expires_after_seconds),
            )
            self._calls.apply(status, self.decisions)
            self._digests.append(_ask_digest(request))
            self.buffer.request_approval(status, block.tool, args, request.parameters)
        return await self._answer(request.seq + 1)

    async def finish(self, request: FinishRequest) -> RunStatus:
        """End the run, and return when that is committed. Raises as `append`."""
        status, default = STATUSES[request.status]
        async with self._changing:
            self._check_active()
            if request.seq != self.next_seq:
                raise WrongSeq("Append all parts before the end.", expected_seq=self.next_seq)
            self._add_receipts(self._new_receipts(request.receipt_seq, request.receipts))
            if request.error is not None:
                self._write_failure(RunFailure(code=request.error.code, message=request.error.message))
            reason = request.reason if status == "final" else default
            await self._end(status, reason)
        return status

    async def fail(self, code: str, message: str, *, status: RunStatus = "error", reason: str = "error") -> None:
        """End the run for the server's own reason. Raises `LeaseLost`."""
        async with self._changing:
            self._check_active()
            if status == "error":
                self._write_failure(RunFailure(code=code, message=message))
            await self._end(status, reason)

    async def settle(self) -> None:
        """Return when everything that was added is committed. Raises `LeaseLost` and `Unavailable`."""
        async with self._changing:
            await self._wait_written(self.next_seq)

    async def _answer(self, seq: int) -> AppendAnswer:
        await self._wait_written(seq)
        return AppendAnswer(next_seq=self.next_seq, next_receipt=self._next_receipt)

    def _check_active(self) -> None:
        if self.lost or self.ended is not None:
            raise LeaseLost

    def _new_parts(self, seq: int, parts: Sequence[PartData]) -> Sequence[PartData]:
        """The parts that are not stored yet. Raises `WrongSeq` after a gap, `Conflict` for other parts at a seq."""
        if seq > self.next_seq:
            raise WrongSeq("The parts of a run have consecutive seqs.", expected_seq=self.next_seq)
        repeated = min(len(parts), self.next_seq - seq)
        for index, part in enumerate(parts[:repeated]):
            if self._digests[seq + index] != worker_parts.digest(self._as_stored(part)):
                raise Conflict(f"Another part is stored at seq {seq + index}.")
        return parts[repeated:]

    def _as_stored(self, part: PartData) -> PartData:
        """A repeated part, with what the server adds to the status of an approved call."""
        if isinstance(part, ToolStatus) and part.state == "running" and part.tool_call_id in self.decisions:
            return worker_parts.with_decision(part, self.decisions[part.tool_call_id])
        return part

    def _check_size(self, new: Sequence[PartData]) -> None:
        size = sum(map(worker_parts.size_of, new))
        if self.next_seq + len(new) > MAX_RUN_PARTS or self._bytes + size > MAX_RUN_BYTES:
            raise PayloadTooLarge(f"A run has at most {MAX_RUN_PARTS:,} parts and {MAX_RUN_BYTES:,} bytes.")

    def _new_receipts(self, seq: int, receipts: Sequence[WorkerReceipt]) -> Sequence[WorkerReceipt]:
        if not receipts:
            return ()
        if seq > self._next_receipt:
            raise WrongSeq("The receipts of a run have consecutive seqs.", expected_seq=self._next_receipt)
        return receipts[self._next_receipt - seq :]

    def _add_receipts(self, receipts: Sequence[WorkerReceipt]) -> None:
        for receipt in receipts:
            facts, cost = self._meter.add_receipt(receipt, self.claimed.lease.epoch)
            self.buffer.append_receipt(receipt.type, facts, cost, receipt.tool_call_id)
            self._next_receipt += 1
            self._receipts_outside_calls += receipt.tool_call_id is None

    def _add(self, part: PartData) -> None:
        size = worker_parts.size_of(part)
        self._digests.append(worker_parts.digest(part))
        self._sizes[self.next_seq] = size
        self._unwritten += size
        self._bytes += size
        if isinstance(part, TextDelta | ReasoningDelta):
            self._meter.add_text(len(part.text.encode()))
        self.buffer.append(part)

    async def _cover(self) -> None:
        """Reserve the budget for what was added; if none is left, end the run. Raises `BudgetExhausted`."""
        try:
            self._meter.check_calls(self._calls.calls)
            await self._meter.cover()
        except BudgetExhausted as error:
            self._write_failure(RunFailure(code=error.code, message=error.message))
            await self._end("error", "budget")
            raise

    def _write_failure(self, failure: RunFailure) -> None:
        """Add the failure as text, which every client shows, and as an error for programs."""
        text = f"\n\n{failure.message}" if self.buffer.has_text else failure.message
        self.buffer.append(TextDelta(text=text))
        self.buffer.append(failure)

    async def _end(self, status: RunStatus, reason: str) -> None:
        self.ended = status
        await self.buffer.end(status, self._meter.finish(reason))
        metrics.RUNS_ENDED.labels(status).inc()

    def _repeats_ask(self, request: AskApproval) -> bool:
        if self._digests[request.seq] != _ask_digest(request):
            raise Conflict(f"Another part is stored at seq {request.seq}.")
        return True

    async def _wait_room(self) -> None:
        """Wait until little of the run waits for its commit."""
        while self._unwritten > MAX_UNWRITTEN_BYTES and not self.lost:
            await self._wait_written(self.next_seq)

    async def _wait_written(self, seq: int) -> None:
        """Return when all parts before `seq` are committed. Raises `LeaseLost`, and `Unavailable` after a time."""
        if self.buffer.written_seq >= seq:
            return
        if self.lost:
            raise LeaseLost
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((seq, waiter))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                await waiter
        except TimeoutError as error:
            raise Unavailable("The parts could not be stored in time. Repeat the request.", retry_after=1) from error

    def _handle_written(self) -> None:
        written = self.buffer.written_seq
        for seq in [seq for seq in self._sizes if seq <= written]:
            self._unwritten -= self._sizes.pop(seq)
        waiting, self._waiters = self._waiters, []
        for seq, waiter in waiting:
            if waiter.done():
                continue
            if seq <= written:
                waiter.set_result(None)
            else:
                self._waiters.append((seq, waiter))

    def _handle_lost(self) -> None:
        self.lost = True
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(LeaseLost())
        self._waiters.clear()

    def _publish(self) -> None:
        if self.subscriber is not None:
            self.subscriber(self.state())

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self.claimed.lease.run_id


def _ask_digest(request: AskApproval) -> int:
    """The digest of the part that an `AskApproval` adds. The server's expiry is no part of it."""
    asked = ToolStatus(tool_call_id=request.tool_call_id, state="blocked")
    return worker_parts.digest(asked)


def _comparable(part: PartData) -> PartData:
    """A stored part as it is compared with repeated ones: a blocked status without what the server has added."""
    if isinstance(part, ToolStatus) and part.state == "blocked":
        return msgspec.structs.replace(part, reason=None, digest=None, expires_at=None)
    return part
