"""The executor of a process: claims runs, renews their leases, and has each executed."""

import asyncio
import socket
import time
from uuid import UUID

import structlog

from khala.domain import ids
from khala.domain.errors import Unavailable
from khala.domain.isolation_policy import Interruption, isolated_outcome, outcome_in_other_process
from khala.live.polling import wait_until_set
from khala.runs.executor_options import ExecutorOptions
from khala.runs.isolation import IsolatedExecutor, time_limit
from khala.runs.run_execution import RunExecution
from khala.runs.run_executor import RunExecutor
from khala.signals import metrics
from khala.store.budgets import ledger
from khala.store.console import executors
from khala.store.console.executors import ExecutorReport
from khala.store.postgres.database import Database, Driver
from khala.store.runs import run_queue
from khala.store.runs.leases import Lease
from khala.store.runs.run_buffer import LeaseLost
from khala.store.runs.run_queue import ClaimedRun
from khala.store.tools import approvals
from khala.version import KHALA_VERSION

log = structlog.get_logger()

MIN_POLL_INTERVAL_SECONDS = 0.025
"""Minimum time between two polls of the database. One poll serves all runs that begin or end in this time."""
HAND_OVER_TIMEOUT_SECONDS = 5.0
"""Time for handing runs over after the grace period."""
REPORT_INTERVAL_SECONDS = 10.0
"""Time between two reports that the executor is alive."""
HOST = socket.gethostname()
MAX_GUEST_SHARE = 0.75
"""Share of an executor's places that runs of guests may take. The rest is for users with an account."""


class Executor:
    """Executes all runs that this process claims.

    `isolation` executes the runs that have lost executors. Without it, this process executes them itself.
    """

    def __init__(
        self,
        db: Database,
        run_executor: RunExecutor,
        options: ExecutorOptions,
        isolation: IsolatedExecutor | None = None,
    ) -> None:
        self.id = f"executor-{ids.new()}"
        self._db = db
        self._run_executor = run_executor
        self._options = options
        self._isolation = isolation
        self._executions: dict[UUID, RunExecution] = {}
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._draining = False
        self._last_sweep_at = float("-inf")
        self._polling = asyncio.Lock()

    def handle_notification(self, payload: str) -> None:
        """Handle a notification that runs were queued, ended or canceled, or that approvals were decided."""
        self._wake.set()

    async def run(self) -> None:
        """Claim and execute runs, until cancelled. A cancellation drops all runs: call `drain` before."""
        metrics.EXECUTOR_PLACES.set(self._options.concurrency)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew_leases())
            group.create_task(self._report())
            while True:
                try:
                    async with self._polling:
                        await self._poll(group)
                except Unavailable as error:
                    log.warning("claim_failed", error=str(error.__cause__))
                except Exception:
                    # Caught, because it would end this loop and all runs of this process.
                    log.exception("claim_crashed")
                await self._wait()

    async def drain(self) -> None:
        """Claim no more runs. Wait for the runs to end; after the grace period, hand over those that have not."""
        async with self._polling:  # Waits for a poll in progress, whose claimed runs have to be drained, too.
            self._draining = True
        metrics.EXECUTOR_PLACES.set(0)
        log.info("executor_draining", runs=len(self._executions), grace=self._options.grace_seconds)
        for seconds in (self._options.grace_seconds, HAND_OVER_TIMEOUT_SECONDS):
            try:
                async with asyncio.timeout(seconds):
                    while self._executions:
                        self._ended.clear()
                        await self._ended.wait()
            except TimeoutError:
                for execution in self._executions.values():
                    execution.stop(Interruption.HAND_OVER)

    async def execute(self, claimed: ClaimedRun) -> bool:
        """Execute only this run. The parent process renews its lease. Returns False if the execution crashed."""
        self._draining = True
        self._executions[claimed.lease.run_id] = execution = RunExecution(claimed)
        await self._execute(execution)
        return not execution.crashed

    async def _wait(self) -> None:
        """Return after a notification, or when the next sweep for lapsed leases is due."""
        await asyncio.sleep(MIN_POLL_INTERVAL_SECONDS)
        await wait_until_set(self._wake, self._options.sweep_interval_seconds)

    async def _poll(self, group: asyncio.TaskGroup) -> None:
        """Read cancellations and decisions about approvals, and claim as many runs as there are free places."""
        notified = self._wake.is_set()
        self._wake.clear()
        executions = list(self._executions.values())
        if time.monotonic() - self._last_sweep_at > self._options.sweep_interval_seconds:
            self._last_sweep_at = time.monotonic()
            await approvals.expire(self._db)
        async with self._db.driver() as driver:
            cancelled = await run_queue.find_revoked(driver, _leases(executions)) if executions else ()
            await _receive_decisions(driver, executions)
            # Without a notification, there is nearly always nothing to claim.
            may_claim = notified or await run_queue.are_waiting(driver)
            claimed = await self._claim(driver, executions) if may_claim else []
        for execution in executions:
            if execution.claimed.lease.run_id in cancelled:
                execution.stop(Interruption.CANCEL)
        for run in claimed:
            self._executions[run.lease.run_id] = execution = RunExecution(run)
            group.create_task(self._execute(execution))

    async def _claim(self, driver: Driver, executions: list[RunExecution]) -> list[ClaimedRun]:
        places = 0 if self._draining else self._options.concurrency - len(executions)
        if not places:
            return []
        guests = sum(execution.claimed.guest for execution in executions)
        began = time.monotonic()
        claimed = await run_queue.claim(
            driver,
            most=places,
            owner=self.id,
            lease_seconds=self._options.lease_seconds,
            held=[execution.claimed.lease.run_id for execution in executions],
            max_guests=max(0, int(self._options.concurrency * MAX_GUEST_SHARE) - guests),
            max_isolated=max(0, self._options.max_isolated - sum(execution.isolated for execution in executions)),
        )
        metrics.CLAIM.observe(time.monotonic() - began)
        return claimed

    async def _renew_leases(self) -> None:
        """Renew the leases of all runs, for ever, and stop the runs whose lease is lost."""
        while True:
            await asyncio.sleep(self._options.lease_seconds / 4)
            executions = list(self._executions.values())
            if not executions:
                continue
            try:
                async with self._db.driver() as driver:
                    held = await run_queue.renew_leases(
                        driver, _leases(executions), lease_seconds=self._options.lease_seconds
                    )
            except Unavailable as error:
                metrics.HEARTBEATS_FAILED.inc()
                log.warning("heartbeat_failed", runs=len(executions), error=str(error.__cause__))
                continue
            except Exception:
                # Caught, because it would end all runs. A lease that lapses is safe: its epoch fences the writes.
                log.exception("heartbeat_crashed")
                continue
            for execution in executions:
                if execution.claimed.lease.run_id not in held:
                    execution.stop(Interruption.LOST)

    async def _report(self) -> None:
        """Report to the console that this executor is alive, for ever."""
        while True:
            places = 0 if self._draining else self._options.concurrency
            active = len(self._executions)
            report = ExecutorReport(id=self.id, host=HOST, version=KHALA_VERSION, places=places, active=active)
            try:
                async with self._db.driver() as driver:
                    await executors.report(driver, report)
            except Unavailable as error:
                log.warning("executor_not_reported", error=str(error.__cause__))
            except Exception:
                # Caught, because it would end all runs. The console shows an executor that does not report as gone.
                log.exception("executor_report_crashed")
            await asyncio.sleep(REPORT_INTERVAL_SECONDS)

    async def _execute(self, execution: RunExecution) -> None:
        """Execute the run, here or isolated. Logs and counts every error, and raises none."""
        lease = execution.claimed.lease
        context = {"run_id": str(lease.run_id), "thread_id": str(lease.thread_id), "attempt": lease.epoch}
        try:
            with structlog.contextvars.bound_contextvars(**context):
                if self._isolation is not None and self._is_isolated(execution):
                    await self._execute_isolated(execution, self._isolation)
                else:
                    with execution.tracked():
                        await self._run_executor.execute(execution)
        except LeaseLost:
            metrics.RUNS_ENDED.labels("lost").inc()
            log.info("run_lease_lost", run_id=str(lease.run_id))
        except Unavailable as error:
            # The run could not be handed over, so another executor takes it when the lease lapses.
            metrics.RUNS_ENDED.labels("dropped").inc()
            log.warning("run_dropped", run_id=str(lease.run_id), error=str(error.__cause__))
        except Exception:
            # The lease lapses, and another executor takes the run over, up to `max_lost_executors` in all.
            log.exception("run_crashed", run_id=str(lease.run_id))
            execution.crashed = True
            metrics.RUNS_ENDED.labels("crashed").inc()
        finally:
            if self._executions.get(lease.run_id) is execution:
                del self._executions[lease.run_id]
            self._ended.set()
            self._wake.set()

    def _is_isolated(self, execution: RunExecution) -> bool:
        """Whether a child process executes the run. A run that is given up needs none."""
        return execution.isolated and execution.claimed.lost < self._options.max_lost_executors

    async def _execute_isolated(self, execution: RunExecution, isolation: IsolatedExecutor) -> None:
        """Execute the run in a child process, and end the run if the child did not."""
        lease = execution.claimed.lease
        metrics.RUNS_CLAIMED.labels("yes" if execution.claimed.taken_over else "no").inc()
        async with self._db.driver() as driver:
            seconds = time_limit(await ledger.read_account(driver, lease.thread_id, lease.run_id))
        with metrics.ISOLATED_RUNS.track_inprogress():
            child = await isolation.execute(execution, seconds)
        # Read before the epoch changes: after that, a poll or a heartbeat with the old epoch stops the run as lost.
        stopped = execution.stopped.result() if execution.stopped.done() else None
        async with self._db.driver() as driver:
            held = await run_queue.reclaim(driver, execution.claimed, lease_seconds=self._options.lease_seconds)
            execution.claimed = held or execution.claimed
            status = await run_queue.read_status(driver, lease)
        outcome = isolated_outcome(held=held is not None, stopped=stopped, began=child.began, exit_code=child.code)
        metrics.ISOLATED_ENDED.labels(outcome.value).inc()
        log.info("isolated_run_ended", verdict=outcome.value, exit_code=child.code, began=child.began)
        if held is None:
            metrics.RUNS_ENDED.labels(outcome_in_other_process(status)).inc()
        else:
            await self._run_executor.end_isolated(execution, outcome)


async def _receive_decisions(driver: Driver, executions: list[RunExecution]) -> None:
    """Pass the decisions of people on to the runs that wait for approval."""
    waiting = {execution.claimed.lease.run_id: execution for execution in executions if execution.decisions.is_awaited}
    if waiting:
        threads = {run_id: execution.claimed.lease.thread_id for run_id, execution in waiting.items()}
        for run_id, decisions in (await approvals.of_runs(driver, threads)).items():
            waiting[run_id].decisions.receive(decisions)


def _leases(executions: list[RunExecution]) -> list[Lease]:
    return [execution.claimed.lease for execution in executions]
