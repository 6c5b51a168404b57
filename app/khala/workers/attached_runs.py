"""The runs that are attached to this process: for their workers, it alone writes their parts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.domain.access import Caller
from khala.domain.errors import (
    Conflict,
    Forbidden,
    RunEnded,
    RunNotFound,
    StaleLease,
    Unauthorized,
    Unavailable,
    WrongSeq,
)
from khala.domain.executor_protocol import DecidedApproval
from khala.domain.fold import fold
from khala.domain.parts import PartData
from khala.store.budgets import ledger
from khala.store.postgres.database import Database, Driver
from khala.store.runs import parts, receipts, remote_runs
from khala.store.runs.group_commit import Writer
from khala.store.runs.remote_runs import RemoteState, claim_key
from khala.store.runs.run_buffer import LeaseLost
from khala.store.runs.run_queue import ClaimedRun
from khala.workers.attached_run import AttachedRun
from khala.workers.run_blobs import RunBlobs
from khala.workers.worker_meter import WorkerMeter

MAX_ATTACH_ATTEMPTS = 3
"""Attempts of one request, while other processes attach to the same run."""
ENDED = ("final", "error", "canceled")
GIVEN_BACK = "This worker has given the run back, or has lost it."

T = TypeVar("T")


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the gateway. Times are seconds."""

    lease_seconds: float = 10.0
    wait_seconds: float = 300.0
    """Time that a run waits for a worker before it fails."""
    approval_seconds: float = 86_400.0
    """Time that a call waits for an approval."""
    reasoning: bool = False
    """Whether reasoning is stored."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that made a request: its token, the token's owner, and the agents that the token names."""

    token_id: UUID
    owner_id: UUID
    name: str
    agents: frozenset[str]


def worker_of(caller: Caller) -> Worker:
    """The worker that this caller is. Raises `Unauthorized` and `Forbidden` unless they have a worker's token."""
    if caller.user_id is None:
        raise Unauthorized("Send the token of a worker as Authorization: Bearer.")
    if "execute" not in caller.scopes or caller.credential is None or not caller.agents:
        raise Forbidden("Only the token of a worker may execute runs. Create one with the scope execute, and agents.")
    return Worker(
        token_id=caller.credential,
        owner_id=caller.user_id,
        name=caller.name or "",
        agents=caller.agents,
    )


class AttachedRuns:
    """The attached runs of one process, by their ids."""

    def __init__(self, db: Database, writer: Writer, blob_service: BlobService, options: GatewayOptions) -> None:
        self._db = db
        self._writer = writer
        self._blob_service = blob_service
        self._options = options
        self._runs: dict[UUID, AttachedRun] = {}
        self._attaching: dict[UUID, asyncio.Lock] = {}

    @property
    def active(self) -> list[AttachedRun]:
        """The runs that have not ended."""
        return [run for run in self._runs.values() if run.ended is None and not run.lost]

    def find(self, run_id: UUID) -> AttachedRun | None:
        """The run, if it is attached."""
        return self._runs.get(run_id)

    async def act(self, worker: Worker, run_id: UUID, epoch: int, action: Callable[[AttachedRun], Awaitable[T]]) -> T:
        """Do this with the run that the worker holds, attaching to it if another process was.

        Raises `RunNotFound`, `StaleLease` and `RunEnded`.
        """
        for _ in range(MAX_ATTACH_ATTEMPTS):
            run = self._runs.get(run_id)
            if run is None or run.lost or run.ended is not None or run.claim != claim_key(worker.token_id, epoch):
                run = await self._attach_held(worker, run_id, epoch)
            known = frozenset(run.decisions)
            try:
                return await action(run)
            except LeaseLost:
                self.detach(run)
            except (WrongSeq, Conflict):
                # Another process may have written since: then this one knows neither the next seq nor the last parts.
                if not await self._is_current(run):
                    self.detach(run)
                elif not await self._find_decisions(run, known):
                    raise
            finally:
                if run.ended is not None:
                    self.detach(run)
        raise Unavailable("Several servers write to this run at once. Try again.", retry_after=1)

    async def open(self, claimed: ClaimedRun, claim: str, epoch: int) -> AttachedRun:
        """Attach this process to the claimed run, whose parts and budget are read."""
        thread_id, run_id = claimed.lease.thread_id, claimed.lease.run_id
        stored: list[PartData] = []
        decisions: dict[str, DecidedApproval] = {}
        account = claimed.first_account
        outside = 0
        if account is None:
            async with self._db.driver() as driver:
                read = [part.read() for part in await parts.of_active_run(driver, thread_id, run_id)]
                account = await ledger.read_account(driver, thread_id, run_id)
                decisions = (await remote_runs.read_decisions(driver, {run_id: thread_id}))[run_id]
                if claimed.next_receipt:
                    outside = await receipts.count_outside_calls(driver, thread_id, run_id)
            stored = [part for part in read if part is not None]
            if len(stored) != claimed.next_seq:
                raise Unavailable("This server's version cannot continue the run.")
        budget = claimed.options.budget
        content = fold((), stored)
        run = AttachedRun(
            claimed,
            claim=claim,
            epoch=epoch,
            stored=stored,
            content=content,
            meter=WorkerMeter(self._db, run_id, account, None if budget is None else budget.tool_calls),
            decisions=decisions,
            receipts_outside_calls=outside,
            blobs=RunBlobs(self._blob_service, thread_id, run_id, claim),
            reasoning=self._options.reasoning,
            open_buffer=lambda on_lost, on_written: self._writer.open(
                claimed.lease,
                next_seq=claimed.next_seq,
                next_receipt=claimed.next_receipt,
                last_receipt_hash=claimed.last_receipt_hash,
                content=content,
                on_lost=on_lost,
                on_written=on_written,
            ),
        )
        self._runs[run_id] = run
        return run

    async def attach(self, worker: Worker, run_id: UUID, thread_id: UUID, epoch: int) -> AttachedRun | None:
        """The run, attached to this process; None if the worker does not hold it. One request at a time attaches."""
        claim = claim_key(worker.token_id, epoch)
        lock = self._attaching.setdefault(run_id, asyncio.Lock())
        try:
            async with lock:
                run = self._runs.get(run_id)
                if run is not None and run.claim == claim and not run.lost and run.ended is None:
                    return run
                async with self._db.driver() as driver:
                    claimed = await remote_runs.attach(
                        driver, run_id, thread_id, claim, lease_seconds=self._options.lease_seconds
                    )
                return None if claimed is None else await self.open(claimed, claim, epoch)
        finally:
            if not lock.locked() and self._attaching.get(run_id) is lock:
                del self._attaching[run_id]

    def detach(self, run: AttachedRun) -> None:
        """Forget the run, unless the process has attached to it anew."""
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]

    async def refresh(self, driver: Driver) -> None:
        """Read which of the attached runs are cancelled, lost or decided."""
        runs = [run for run in self._runs.values() if run.ended is None]
        if not runs:
            return
        held = await remote_runs.read_held(driver, [run.claimed.lease for run in runs])
        asking = {run.run_id: run.claimed.lease.thread_id for run in runs if run.awaits_decision}
        decisions = await remote_runs.read_decisions(driver, asking)
        for run in runs:
            cancelled = held.get(run.run_id)
            if cancelled is None:
                self.detach(run)
            else:
                run.receive(cancelled=cancelled, decisions=decisions.get(run.run_id, run.decisions))

    async def read_state(self, worker: Worker, run_id: UUID) -> RemoteState:
        """The run. Raises `RunNotFound` unless it is one of the worker's agents."""
        async with self._db.driver() as driver:
            state = await remote_runs.read_state(driver, run_id)
        if state is None or state.owner_id != worker.owner_id or state.agent not in worker.agents:
            raise RunNotFound("There is no such run.")
        return state

    async def blobs(self, worker: Worker, run_id: UUID, epoch: int) -> RunBlobs:
        """The blobs of a run that the worker holds. Raises `RunNotFound`, `StaleLease` and `RunEnded`."""
        state = await self._read_held(worker, run_id, epoch)
        if state.status != "running":
            raise StaleLease(GIVEN_BACK)
        return RunBlobs(self._blob_service, state.thread_id, run_id, claim_key(worker.token_id, epoch))

    async def _attach_held(self, worker: Worker, run_id: UUID, epoch: int) -> AttachedRun:
        state = await self._read_held(worker, run_id, epoch)
        run = await self.attach(worker, run_id, state.thread_id, epoch)
        if run is None:
            raise StaleLease(GIVEN_BACK)
        return run

    async def _read_held(self, worker: Worker, run_id: UUID, epoch: int) -> RemoteState:
        state = await self.read_state(worker, run_id)
        if state.claim != claim_key(worker.token_id, epoch):
            raise StaleLease("This worker does not hold the run under this epoch.")
        if state.status in ENDED:
            raise RunEnded(f"The run has ended with the status {state.status}.")
        return state

    async def _find_decisions(self, run: AttachedRun, known: frozenset[str]) -> bool:
        """Read decisions that the worker may have heard of before this process.

        Returns whether there are others than the `known` ones. Some may have been read since the worker's request.
        """
        if not run.awaits_decision:
            return False
        async with self._db.driver() as driver:
            found = await remote_runs.read_decisions(driver, {run.run_id: run.claimed.lease.thread_id})
        decisions = found[run.run_id]
        run.receive(cancelled=run.cancelled, decisions=decisions)
        return decisions.keys() != known

    async def _is_current(self, run: AttachedRun) -> bool:
        """Whether no other process has attached to the run since this one."""
        async with self._db.driver() as driver:
            return run.run_id in await remote_runs.read_held(driver, [run.claimed.lease])
