"""The server's side of the executor protocol: gives runs of remote agents to workers, and writes what they send.

A run that a worker holds is attached to one process, which has its buffer. If the worker sends to another process,
that one attaches to the run first, and reads from the tables where it goes on. The gateway also ends runs for which no
worker comes in time, and those whose worker is gone while they are being cancelled.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

import structlog

from khala.blobs.blob_service import BlobService
from khala.domain import ids
from khala.domain.agents import AgentDefinition
from khala.domain.chat import RunOptions, StoredRunOptions
from khala.domain.errors import (
    Conflict,
    Forbidden,
    RunEnded,
    Unavailable,
)
from khala.domain.executor_protocol import (
    AppendAnswer,
    AppendPartsRequest,
    AskApproval,
    ClaimAnswer,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    HeartbeatState,
    LeaseRef,
    ReleaseRequest,
    RunClaimRequest,
    RunEnd,
    WorkerAgent,
    WorkerRun,
)
from khala.signals import metrics
from khala.store.agents import agents
from khala.store.postgres.database import Database
from khala.store.runs import remote_runs, run_queue
from khala.store.runs.group_commit import Writer
from khala.store.runs.remote_runs import claim_key
from khala.store.runs.run_buffer import LeaseLost
from khala.store.runs.run_queue import ClaimedRun, RemoteClaim
from khala.store.threads import messages
from khala.workers.attached_run import STATUSES, AttachedRun
from khala.workers.attached_runs import AttachedRuns, GatewayOptions, Worker
from khala.workers.run_blobs import RunBlobs

log = structlog.get_logger()

MAX_MESSAGES = 200
MAX_MESSAGE_BYTES = 512 << 10
"""Bytes of the messages that a worker is told. Of longer threads, it gets the newest."""
MAX_LOST_WORKERS = 8
"""Workers that a run may lose before it is ended."""
MIN_POLL_INTERVAL_SECONDS = 0.025
"""Minimum time between two polls of the database."""
SWEEP_INTERVAL_SECONDS = 1.0
"""Time between two searches for runs that wait for a worker, without a notification."""
IDLE_SWEEP_INTERVAL_SECONDS = 5.0
"""The same while there are neither such runs nor workers."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""Time to commit what workers have sent, when the process stops."""
NO_WORKER = "No worker has taken this answer in time. Please try again."
INTERRUPTED = "The answer was interrupted too often. Please try again."
AGENT_NOT_FOUND = "The agent of this message does not exist any more."


class WorkerGateway:
    """Serves the workers of remote agents in one process."""

    def __init__(self, db: Database, writer: Writer, blob_service: BlobService, options: GatewayOptions) -> None:
        self.id = f"gateway-{ids.new()}"
        self.options = options
        self._db = db
        self._runs = AttachedRuns(db, writer, blob_service, options)
        self._wake = asyncio.Event()
        self._waiting: dict[asyncio.Event, tuple[UUID, frozenset[str]]] = {}
        self._last_sweep_at = float("-inf")
        self._are_waiting = False
        """Whether runs waited for a worker at the last search."""

    def handle_notification(self, payload: str) -> None:
        """Handle a notification that runs were queued, ended or canceled, or that approvals were decided."""
        self._wake.set()

    async def run(self) -> None:
        """Wake waiting claims, pass cancellations and decisions on, and end overdue runs, for ever."""
        while True:
            self._wake.clear()
            try:
                await self._poll()
            except Unavailable as error:
                log.warning("worker_poll_failed", error=str(error.__cause__))
            except Exception:
                # Caught, because it would end this loop, and no worker would hear of runs any more.
                log.exception("worker_poll_crashed")
            await asyncio.sleep(MIN_POLL_INTERVAL_SECONDS)
            is_used = self._are_waiting or self._waiting or self._runs.active
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_INTERVAL_SECONDS if is_used else IDLE_SWEEP_INTERVAL_SECONDS):
                    await self._wake.wait()

    async def aclose(self) -> None:
        """Commit what workers have sent. The workers go on with another process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await asyncio.gather(*(run.settle() for run in self._runs.active), return_exceptions=True)

    async def claim(
        self, worker: Worker, request: RunClaimRequest, left: "asyncio.Future[Any] | None" = None
    ) -> ClaimAnswer:
        """Claim runs for the worker. Raises `Forbidden` for an agent that its token does not name.

        `left` is done when the worker has left. Then nothing more is claimed for it.
        """
        names = worker.agents if request.agents is None else frozenset(request.agents)
        if not names <= worker.agents:
            raise Forbidden(f"This token may not execute runs of {min(names - worker.agents)}.")
        again = await self._claimed_before(worker, request)
        if again:
            return ClaimAnswer(runs=again)
        found = asyncio.Event()
        self._waiting[found] = (worker.owner_id, names)
        if left is not None:
            left.add_done_callback(lambda _: found.set())
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait_seconds
        try:
            while True:
                found.clear()
                if left is not None and left.done():
                    return ClaimAnswer(runs=[])
                runs = await self._claim(worker, names, request)
                seconds = until - loop.time()
                if runs or seconds <= 0:
                    return ClaimAnswer(runs=runs)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await found.wait()
        finally:
            del self._waiting[found]

    async def append(self, worker: Worker, run_id: UUID, request: AppendPartsRequest) -> AppendAnswer:
        """Store parts of the run. Raises `RunNotFound`, `StaleLease`, `RunEnded`, and as `AttachedRun.append`."""
        return await self._runs.act(worker, run_id, request.epoch, lambda run: run.append(request))

    async def ask(self, worker: Worker, run_id: UUID, request: AskApproval) -> AppendAnswer:
        """Have a person decide about a call. Raises as `append`."""
        seconds = self.options.approval_seconds
        return await self._runs.act(worker, run_id, request.epoch, lambda run: run.ask(request, seconds))

    async def finish(self, worker: Worker, run_id: UUID, request: FinishRequest) -> RunEnd:
        """End the run. Repeating the request changes nothing. Raises as `append`."""
        try:
            status = await self._runs.act(worker, run_id, request.epoch, lambda run: run.finish(request))
        except RunEnded:
            state = await self._runs.read_state(worker, run_id)
            if state.claim != claim_key(worker.token_id, request.epoch) or state.status != STATUSES[request.status][0]:
                raise
            return RunEnd(status=STATUSES[request.status][0])
        return RunEnd(status=status)

    async def release(self, worker: Worker, run_id: UUID, request: ReleaseRequest) -> RunEnd:
        """Give the run back to the queue. Repeating the request changes nothing. Raises as `append`."""
        state = await self._runs.read_state(worker, run_id)
        if state.claim == claim_key(worker.token_id, request.epoch) and state.status in ("queued", "blocked"):
            return RunEnd(status="queued" if state.status == "queued" else "blocked")
        await self._runs.act(worker, run_id, request.epoch, lambda run: self._release(run, request.awaits))
        state = await self._runs.read_state(worker, run_id)
        return RunEnd(status="blocked" if state.status == "blocked" else "queued")

    async def blobs(self, worker: Worker, run_id: UUID, epoch: int) -> RunBlobs:
        """The blobs of a run that the worker holds. Raises `RunNotFound`, `StaleLease` and `RunEnded`."""
        return await self._runs.blobs(worker, run_id, epoch)

    async def heartbeat(self, worker: Worker, request: HeartbeatRequest) -> HeartbeatAnswer:
        """Renew the leases of these runs, and return what has changed for each."""
        claims = {ref.run_id: claim_key(worker.token_id, ref.epoch) for ref in request.runs}
        if len(claims) < len(request.runs):
            raise Conflict("Name each run only once.")
        async with self._db.driver() as driver:
            held = await remote_runs.renew(driver, claims, lease_seconds=self.options.lease_seconds) if claims else {}
        states = [_state(ref, held.get(ref.run_id)) for ref in request.runs]
        return HeartbeatAnswer(lease_seconds=self.options.lease_seconds, runs=states)

    def subscribe(self, worker: Worker, run_id: UUID, epoch: int, subscriber: Callable[[HeartbeatState], None]) -> None:
        """Have a worker's socket hear at once when the run is cancelled or lost, or a call of it is decided."""
        run = self._runs.find(run_id)
        if run is not None and run.claim == claim_key(worker.token_id, epoch):
            run.subscriber = subscriber

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._db.driver() as driver:
            waiting = await remote_runs.waiting_agents(driver)
            self._are_waiting = bool(waiting)
            is_sweep = loop.time() - self._last_sweep_at > SWEEP_INTERVAL_SECONDS
            if is_sweep and waiting:
                await remote_runs.mark_waiting(driver, wait_seconds=self.options.wait_seconds)
            await self._runs.refresh(driver)
            overdue = []
            if waiting:
                overdue = await remote_runs.claim_overdue(
                    driver, owner=self.id, lease_seconds=self.options.lease_seconds
                )
        if is_sweep:
            self._last_sweep_at = loop.time()
        for found, (owner_id, names) in self._waiting.items():
            if any(owner == owner_id and name in names for owner, name in waiting):
                found.set()
        for claimed in overdue:
            await self._end_overdue(claimed)

    async def _claimed_before(self, worker: Worker, request: RunClaimRequest) -> list[WorkerRun]:
        """The runs that this request has claimed before, if its answer was lost."""
        async with self._db.driver() as driver:
            found = await remote_runs.of_request(driver, worker.owner_id, request.claim_id)
        again = []
        for run_id, thread_id, claim in found:
            token_id, _, epoch = claim.partition(":")
            if token_id != str(worker.token_id):
                continue
            run = await self._runs.attach(worker, run_id, thread_id, int(epoch))
            answer = None if run is None else await self._describe(run, taken_over=False)
            if answer is not None:
                again.append(answer)
        return again

    async def _claim(self, worker: Worker, names: frozenset[str], request: RunClaimRequest) -> list[WorkerRun]:
        async with self._db.driver() as driver:
            claimed = await run_queue.claim(
                driver,
                most=request.max_runs,
                owner=f"worker {worker.token_id}",
                lease_seconds=self.options.lease_seconds,
                remote=RemoteClaim(
                    owner_id=worker.owner_id,
                    agents=sorted(names),
                    token_id=worker.token_id,
                    request_id=request.claim_id,
                ),
            )
        answers = []
        for one in claimed:
            metrics.RUNS_CLAIMED.labels("yes" if one.taken_over else "no").inc()
            answer = await self._begin(worker, one)
            if answer is not None:
                answers.append(answer)
        return answers

    async def _begin(self, worker: Worker, claimed: ClaimedRun) -> WorkerRun | None:
        """Attach to a run that was just claimed, and describe it. None if it had to be ended instead."""
        epoch = claimed.lease.epoch
        run = await self._runs.open(claimed, claim_key(worker.token_id, epoch), epoch)
        if claimed.lost >= MAX_LOST_WORKERS:
            await self._end(run, "interrupted", INTERRUPTED)
            return None
        run.append_resumed()
        return await self._describe(run, taken_over=claimed.taken_over)

    async def _describe(self, run: AttachedRun, *, taken_over: bool) -> WorkerRun | None:
        claimed = run.claimed
        async with self._db.driver() as driver:
            history = await messages.read_path(
                driver,
                claimed.lease.thread_id,
                claimed.user_message_id,
                max_messages=MAX_MESSAGES,
                max_bytes=MAX_MESSAGE_BYTES,
            )
            agent = await agents.version(driver, claimed.options.agent_id) if claimed.options.agent_id else None
        if not history:  # The thread was reset or deleted.
            self._runs.detach(run)
            return None
        if agent is None:
            await self._end(run, "agent_not_found", AGENT_NOT_FOUND)
            return None
        definition = {name: getattr(agent, name) for name in AgentDefinition.__struct_fields__}
        return WorkerRun(
            run_id=run.run_id,
            thread_id=claimed.lease.thread_id,
            message_id=claimed.lease.message_id,
            agent=WorkerAgent(**definition, name=agent.name, version=agent.version),
            options=_public(claimed.options),
            messages=history,
            epoch=run.epoch,
            lease_seconds=self.options.lease_seconds,
            next_seq=run.next_seq,
            next_receipt=run.next_receipt,
            receipts_outside_calls=run.receipts_outside_calls,
            content=run.content,
            approvals=list(run.decisions.values()),
            taken_over=taken_over,
            cancelled=run.cancelled,
            reasoning=self.options.reasoning,
        )

    async def _release(self, run: AttachedRun, awaits: Sequence[str]) -> None:
        await run.settle()
        self._runs.detach(run)
        await run_queue.release(self._db, run.claimed.lease, run.buffer.take_receipts(), awaited_approvals=list(awaits))

    async def _end_overdue(self, claimed: ClaimedRun) -> None:
        """End a run that waited too long for a worker, or whose worker is gone while it is being cancelled."""
        run = await self._runs.open(claimed, "", claimed.lease.epoch)
        if claimed.canceled:
            await self._end(run, "", "", status="canceled", reason="canceled")
        else:
            log.info("run_without_worker", run_id=str(run.run_id), agent=claimed.options.agent)
            await self._end(run, "no_worker", NO_WORKER)

    async def _end(
        self,
        run: AttachedRun,
        code: str,
        message: str,
        *,
        status: Literal["error", "canceled"] = "error",
        reason: str = "error",
    ) -> None:
        try:
            await run.fail(code, message, status=status, reason=reason)
        except LeaseLost:
            log.info("run_lease_lost", run_id=str(run.run_id))
        finally:
            self._runs.detach(run)


def _state(ref: LeaseRef, renewal: remote_runs.Renewal | None) -> HeartbeatState:
    if renewal is None:
        return HeartbeatState(run_id=ref.run_id, epoch=ref.epoch, held=False)
    return HeartbeatState(
        run_id=ref.run_id,
        epoch=ref.epoch,
        held=True,
        cancelled=renewal.cancelled,
        approvals=list(renewal.decisions.values()),
    )


def _public(options: StoredRunOptions) -> RunOptions:
    """The options as the sender gave them."""
    return RunOptions(**{name: getattr(options, name) for name in RunOptions.__struct_fields__})
