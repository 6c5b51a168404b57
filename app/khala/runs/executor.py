"""The executor: claims runs, keeps their leases alive, and ends each in exactly one way."""

import asyncio
import time
from uuid import UUID

import structlog

from khala.domain import ids, run_progress
from khala.domain.errors import BudgetExhausted, Unavailable
from khala.domain.fold import fold
from khala.domain.isolation_policy import Interruption, IsolatedOutcome, isolated_outcome, outcome_in_other_process
from khala.domain.parts import Notice
from khala.domain.run_progress import RunProgress
from khala.domain.tools import ToolActor
from khala.models import model_names
from khala.models.model_names import ModelRef
from khala.models.token_counter import Counter
from khala.runs import prompt
from khala.runs.autopilot import Autopilot, RunConfig
from khala.runs.budget_meter import BudgetMeter
from khala.runs.executor_options import ExecutorOptions
from khala.runs.isolation import IsolatedExecutor, time_limit
from khala.runs.model_turn import ModelDependencies, ModelTurn, RunOutcome, failed, stopped, tell
from khala.runs.prompt_files import PromptFiles
from khala.runs.run_execution import RunExecution
from khala.runs.tool_executor import ToolDependencies, ToolExecutor
from khala.runs.usage_tally import UsageTally
from khala.signals import metrics
from khala.store.budgets import ledger
from khala.store.postgres.database import Database, Driver
from khala.store.runs import parts, run_queue
from khala.store.runs.group_commit import Writer
from khala.store.runs.leases import Lease
from khala.store.runs.run_buffer import LeaseLost, RunBuffer
from khala.store.runs.run_queue import ClaimedRun
from khala.store.threads import messages
from khala.store.tools import approvals

log = structlog.get_logger()


PACE = 0.025
"""Seconds between the end of one look at what there is to do and the next."""
INTERRUPTED = "The answer was interrupted too often. Please try again."
GUESTS_SHARE = 0.75
"""The part of an executor's places that runs of guests may take: some are left for who has an account."""


class Executor:
    """All runs that this process works on.

    Runs over which executors were lost are executed by `isolation`; without it, this process executes whatever it gets.
    """

    def __init__(
        self,
        db: Database,
        writer: Writer,
        models: ModelDependencies,
        counter: Counter,
        tool_dependencies: ToolDependencies,
        options: ExecutorOptions,
        isolation: IsolatedExecutor | None = None,
    ) -> None:
        self.id = f"executor-{ids.new()}"
        self._db = db
        self._writer = writer
        self._models = models
        self._counter = counter
        self._dependencies = tool_dependencies
        self._options = options
        self._isolation = isolation
        self._working: dict[UUID, RunExecution] = {}
        self._wake = asyncio.Event()
        self._free = asyncio.Event()
        self._draining = False
        self._expired_at = float("-inf")
        self._looking = asyncio.Lock()

    def notified(self, payload: str) -> None:
        """The listener's word that runs were queued, ended, answered or are to be canceled."""
        self._wake.set()

    async def run(self) -> None:
        """Work, for ever. Cancelled, it drops what it holds; `drain` first to end or hand over."""
        metrics.EXECUTOR_PLACES.set(self._options.concurrency)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            while True:
                try:
                    async with self._looking:
                        await self._look(group)
                except Unavailable as error:
                    log.warning("claim_failed", error=str(error.__cause__))
                except Exception:
                    # Left alone, it would end this loop and with it every answer under way.
                    log.exception("claim_crashed")
                await self._rest()

    async def drain(self) -> None:
        """Claim no more; wait for what is under way to end, and after the grace period hand it over."""
        async with self._looking:  # what is being claimed now is still to be drained
            self._draining = True
        metrics.EXECUTOR_PLACES.set(0)
        log.info("draining", runs=len(self._working), grace=self._options.grace)
        for wait in (self._options.grace, 5.0):
            try:
                async with asyncio.timeout(wait):
                    while self._working:
                        self._free.clear()
                        await self._free.wait()
            except TimeoutError:
                for work in self._working.values():
                    work.stop(Interruption.HAND_OVER)

    async def _rest(self) -> None:
        # Each look asks for all runs under way: where many begin and end, one look serves many of them.
        await asyncio.sleep(PACE)
        try:
            async with asyncio.timeout(self._options.sweep):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """See which of our runs are called off or answered, and claim as many as there is room for."""
        self._wake.clear()
        working = list(self._working.values())
        if time.monotonic() - self._expired_at > self._options.sweep:
            self._expired_at = time.monotonic()
            await approvals.expire(self._db)
        async with self._db.driver() as driver:
            called_off = await run_queue.find_revoked(driver, _leases(working)) if working else ()
            await _hear(driver, working)
            claimed = await self._claim(driver, working)
        for work in working:
            if work.claimed.lease.run_id in called_off:
                work.stop(Interruption.CANCEL)
        for one in claimed:
            self._working[one.lease.run_id] = work = RunExecution(one)
            group.create_task(self._work(work))

    async def _claim(self, driver: Driver, working: list[RunExecution]) -> list[ClaimedRun]:
        room = 0 if self._draining else self._options.concurrency - len(working)
        if not room:
            return []
        guests = sum(work.claimed.guest for work in working)
        return await run_queue.claim(
            driver,
            most=room,
            owner=self.id,
            lease_seconds=self._options.lease,
            held=[work.claimed.lease.run_id for work in working],
            max_guests=max(0, int(self._options.concurrency * GUESTS_SHARE) - guests),
            max_isolated=max(0, self._options.isolated - sum(work.isolated for work in working)),
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._options.lease / 4)
            working = list(self._working.values())
            if not working:
                continue
            try:
                async with self._db.driver() as driver:
                    held = await run_queue.renew_leases(driver, _leases(working), lease_seconds=self._options.lease)
            except Unavailable as error:
                metrics.HEARTBEATS_FAILED.inc()
                log.warning("heartbeat_failed", runs=len(working), error=str(error.__cause__))
                continue
            except Exception:
                # As above; what can't be renewed lapses, and the fence tells.
                log.exception("heartbeat_crashed")
                continue
            for work in working:
                if work.claimed.lease.run_id not in held:
                    work.stop(Interruption.LOST)

    async def execute(self, claimed: ClaimedRun) -> bool:
        """Execute this one run, whose lease the caller's parent renews, and claim none; False if that crashed."""
        self._draining = True
        self._working[claimed.lease.run_id] = work = RunExecution(claimed)
        await self._work(work)
        return not work.crashed

    async def _work(self, work: RunExecution) -> None:
        lease = work.claimed.lease
        apart = self._isolation if work.isolated and work.claimed.lost < self._options.attempts else None
        try:
            named = {"run_id": str(lease.run_id), "thread_id": str(lease.thread_id), "attempt": lease.epoch}
            with structlog.contextvars.bound_contextvars(**named):
                if apart is not None:
                    await self._isolate(work, apart)
                else:
                    with work.tracked():
                        await self._carry_out(work)
        except LeaseLost:
            metrics.RUNS_ENDED.labels("lost").inc()
            log.info("run_lost", run_id=str(lease.run_id))
        except Unavailable as error:
            # Nobody was told that it is let go of, so it goes on when the lease lapses.
            metrics.RUNS_ENDED.labels("dropped").inc()
            log.warning("run_dropped", run_id=str(lease.run_id), error=str(error.__cause__))
        except Exception:
            # Whatever it was: the lease lapses and another executor tries, `attempts` times once the parts can be read.
            log.exception("run_crashed", run_id=str(lease.run_id))
            work.crashed = True
            metrics.RUNS_ENDED.labels("crashed").inc()
        finally:
            if self._working.get(lease.run_id) is work:
                del self._working[lease.run_id]
            self._free.set()
            self._wake.set()

    async def _isolate(self, work: RunExecution, isolation: IsolatedExecutor) -> None:
        """Have a process of its own execute the run, and see to what that process has left undone."""
        lease = work.claimed.lease
        metrics.RUNS_CLAIMED.labels("yes" if work.claimed.taken_over else "no").inc()
        async with self._db.driver() as driver:
            limit = time_limit(await ledger.read_account(driver, lease.thread_id, lease.run_id))
        with metrics.ISOLATED_RUNS.track_inprogress():
            child = await isolation.execute(work, limit)
        # Read before the lease has a new epoch: a look or a heartbeat with the old one takes the run for lost.
        why = work.stopped.result() if work.stopped.done() else None
        async with self._db.driver() as driver:
            held = await run_queue.reclaim(driver, work.claimed, lease_seconds=self._options.lease)
            work.claimed = held or work.claimed
            status = await run_queue.read_status(driver, lease)
        found = isolated_outcome(held=held is not None, stopped=why, began=child.began, exit_code=child.code)
        metrics.ISOLATED_ENDED.labels(found.value).inc()
        log.info("isolated_run_ended", verdict=found.value, exit_code=child.code, began=child.began)
        if held is None:
            metrics.RUNS_ENDED.labels(outcome_in_other_process(status)).inc()
            return
        await self._conclude(work, found)

    async def _conclude(self, work: RunExecution, found: IsolatedOutcome) -> None:
        """End or let go of a run whose own process is gone."""
        if found is IsolatedOutcome.DROPPED:
            metrics.RUNS_ENDED.labels("dropped").inc()
            return
        stream, meter, _ = await self._resume(work)
        interrupted = failed("interrupted", INTERRUPTED) if found is IsolatedOutcome.INTERRUPTED else None
        await self._end(work, stream, meter.tally, interrupted)

    async def _resume(self, work: RunExecution) -> tuple[RunBuffer, BudgetMeter, RunProgress]:
        """The run as it is stored, ready to be gone on with."""
        claimed = work.claimed
        run_id = claimed.lease.run_id
        async with self._db.driver() as driver:
            stored = [part.read() for part in await parts.of_run(driver, claimed.lease.thread_id, run_id)]
            account = await ledger.read_account(driver, claimed.lease.thread_id, run_id)
            work.decisions.receive(await approvals.of_run(driver, claimed.lease.thread_id, run_id))
        stream = self._writer.open(
            claimed.lease,
            next_seq=claimed.next_seq,
            next_receipt=claimed.next_receipt,
            last_receipt_hash=claimed.last_receipt_hash,
            content=fold((), stored),
            on_lost=lambda: work.stop(Interruption.LOST),
        )
        meter = BudgetMeter(self._db, run_id, account, UsageTally(account.usage, account.usd))
        return stream, meter, run_progress.read(stored)

    async def _carry_out(self, work: RunExecution) -> None:
        stream, meter, progress = await self._resume(work)
        answer = asyncio.create_task(self._answer(work, stream, meter, progress))
        clock = asyncio.create_task(meter.watch())
        try:
            await asyncio.wait((answer, clock, work.stopped), return_when=asyncio.FIRST_COMPLETED)
            # Decided before the answer is cancelled, because what it then raises may be anything.
            outcome = next((_outcome(task) for task in (answer, clock) if task.done()), None)
        finally:
            await _stop(clock)
            await _stop(answer)
        await self._end(work, stream, meter.tally, outcome)

    async def _end(self, work: RunExecution, stream: RunBuffer, tally: UsageTally, outcome: RunOutcome | None) -> None:
        """The one place where work on a run ends: by its outcome, or by the reason for which it was stopped."""
        why = None if outcome else work.stopped.result()
        if outcome is not None and outcome.status != "blocked":
            if outcome.failure is not None:
                # Nothing is awaited between this and the end, so it is one commit.
                tell(stream, outcome.failure)
            await stream.end(outcome.status, tally.finish(outcome.reason))
        elif outcome is not None:
            await stream.wait_written()
            await run_queue.release(
                self._db, work.claimed.lease, stream.take_receipts(), awaited_approvals=outcome.awaits
            )
        elif why is Interruption.CANCEL:
            await stream.end("canceled", tally.finish("canceled"))
        elif why is Interruption.HAND_OVER:
            await stream.wait_written()
            await run_queue.release(self._db, work.claimed.lease, stream.take_receipts())
        ended = outcome.status if outcome else work.stopped.result().value
        metrics.RUNS_ENDED.labels(ended).inc()
        log.info("run_ended", outcome=ended, ms=tally.finish("").total_ms)

    async def _answer(
        self, work: RunExecution, stream: RunBuffer, meter: BudgetMeter, progress: RunProgress
    ) -> RunOutcome:
        claimed = work.claimed
        if claimed.lost >= self._options.attempts:
            return failed("interrupted", INTERRUPTED)
        if claimed.next_seq and (claimed.taken_over or not progress.waits):
            stream.append(Notice(code="resumed", message="The answer was interrupted here, and goes on."))
        async with self._db.driver() as driver:
            history = await messages.read_path(
                driver,
                claimed.lease.thread_id,
                claimed.user_message_id,
                most=prompt.MOST_MESSAGES,
                most_bytes=self._options.context_tokens * prompt.TOKEN_BYTES,
            )
        if not history:
            raise LeaseLost  # the thread was reset or deleted since the run was claimed
        system, history = prompt.instructed(self._options.system, history, asked=claimed.options.instructions)
        turn = ModelTurn(stream, meter, self._models, self._candidates(claimed))
        functions = claimed.options.functions
        return await Autopilot(
            stream=stream,
            progress=progress,
            meter=meter,
            turn=turn,
            tool_executor=ToolExecutor(
                stream, progress, lambda: self._actor(claimed), self._dependencies, work.decisions, functions
            ),
            counter=self._counter,
            files=PromptFiles(self._dependencies.blob_service, claimed.lease.thread_id),
            config=RunConfig(
                system=system,
                context_tokens=self._options.context_tokens,
                cooldown=self._options.cooldown,
            ),
            options=claimed.options,
            history=history,
        ).run()

    async def _actor(self, claimed: ClaimedRun) -> ToolActor:
        thread_id, run_id = claimed.lease.thread_id, claimed.lease.run_id
        async with self._db.driver() as driver:
            user_id = await run_queue.read_requester(driver, claimed.lease)
        return ToolActor(owner_id=user_id or thread_id, user_id=user_id, thread_id=thread_id, run_id=run_id)

    def _candidates(self, claimed: ClaimedRun) -> list[ModelRef]:
        first = self._options.models if claimed.options.model is None else (model_names.parse(claimed.options.model),)
        return list(dict.fromkeys([*first, *self._options.models]))


async def _hear(driver: Driver, working: list[RunExecution]) -> None:
    """Tell the runs that wait for approval what people have said."""
    asking = {work.claimed.lease.run_id: work for work in working if work.decisions.awaited}
    if asking:
        threads = {run_id: work.claimed.lease.thread_id for run_id, work in asking.items()}
        for run_id, found in (await approvals.of_runs(driver, threads)).items():
            asking[run_id].decisions.receive(found)


def _leases(working: list[RunExecution]) -> list[Lease]:
    return [work.claimed.lease for work in working]


async def _stop(answer: "asyncio.Task[RunOutcome]") -> None:
    """Cancel until it ends: a library that is closing a connection may swallow the first word."""
    while not answer.done():
        answer.cancel()
        await asyncio.wait({answer}, timeout=1)
    if not answer.cancelled() and answer.exception() is not None:
        log.debug("answer_stopped", error=repr(answer.exception()))


def _outcome(answer: "asyncio.Task[RunOutcome]") -> RunOutcome:
    """The answer's outcome; a fault of ours is told like any other failure, and logged."""
    try:
        return answer.result()
    except BudgetExhausted as reached:
        return stopped(reached)
    except (LeaseLost, Unavailable):
        raise
    except Exception:
        log.exception("turn_crashed")
        return failed("internal", "Something went wrong here. Please try again.")
