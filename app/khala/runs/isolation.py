"""Executes single runs in child processes, so that a run that hangs, crashes or eats memory takes nobody with it.

The parent claims the run and renews its lease for as long as the child lives; the child writes under that lease, fenced
by its epoch like any executor. So a child that hangs keeps its run until the watchdog ends it, and no other executor
takes the run meanwhile. The child ends with its parent.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import structlog

from khala.domain.isolation_policy import Interruption
from khala.runs.run_execution import RunExecution
from khala.store.budgets.ledger import RunAccount
from khala.store.runs.run_queue import ClaimedRun

log = structlog.get_logger()

COMMAND = "execute-run"
"""The subcommand of `khala` that executes the run whose claim is the first line of its standard input."""
BEGAN = b"began\n"
"""What the child writes to standard output when it begins to execute the run."""
CRASHED = 3
"""The child's exit code where execution ended with an error that nobody has named."""
BEGIN_SECONDS = 120.0
"""Time that the child has to begin. Servers of tools are given up to 15 s of it."""
LIMIT_SLACK_SECONDS = 60.0
"""Time beyond the run's own limit after which the child is killed: it ends the run at its limit by itself."""
HAND_OVER_SECONDS = 3.0
"""Time that the child has to hand its run over; shorter than what `Executor.drain` waits."""
LAST_WORD_SECONDS = 5.0
"""Time between the end of a child and that of its output, at most."""
STOP_SECONDS = 10.0
"""Time that the child has to end when its run has."""


class ChildExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended: its exit code, less than 0 for a signal, and whether it had begun to execute its run."""

    began: bool
    code: int


class IsolatedExecutor:
    """Starts children. `environment` is theirs: what this process was configured by, and where its database is."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def execute(self, work: RunExecution, seconds: float | None) -> ChildExit:
        """Execute the run in a child and return how that ended. It is killed after `seconds`, if there is a limit.

        Where the work is stopped, the child is asked to hand over, or is given time to end by itself, and then killed.
        """
        try:
            process = await self._started()
        except OSError as error:
            log.warning("isolated_run_not_started", run_id=str(work.claimed.lease.run_id), error=str(error))
            return ChildExit(began=False, code=1)
        log.info("isolated_run_begins", run_id=str(work.claimed.lease.run_id), pid=process.pid, lost=work.claimed.lost)
        try:
            began = await _watch(process, work, seconds)
        finally:
            if process.returncode is None:
                process.kill()
            code = await process.wait()
        return ChildExit(began=began, code=code)

    async def _started(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "khala", COMMAND, stdin=PIPE, stdout=PIPE, env=self._environment,
            # Signals of a terminal are for this process, which passes on what the child has to know.
            start_new_session=True,
        )  # fmt: skip


async def _watch(process: Process, work: RunExecution, seconds: float | None) -> bool:
    """Return when the child has ended or has to; whether it had begun."""
    assert process.stdout is not None
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_tell(process, work.claimed))
        ended = group.create_task(process.wait())
        beginning = group.create_task(process.stdout.readline())
        try:
            await _first(ended, beginning, work.stopped, within=BEGIN_SECONDS)
            if ended.done() or (beginning.done() and not beginning.result()):
                # It has ended. Its exit code, or what it said before, comes in a moment.
                await asyncio.wait((ended, beginning), timeout=LAST_WORD_SECONDS)
            began = beginning.done() and beginning.result() == BEGAN
            if began:
                await _first(ended, work.stopped, within=seconds)
            await _wind_down(process, work, ended)
        finally:
            for task in (telling, ended, beginning):
                task.cancel()
    return began


async def _tell(process: Process, claimed: ClaimedRun) -> None:
    """Give the child its claim. Standard input stays open: its end is this process's end."""
    assert process.stdin is not None
    with suppress(ConnectionError):  # it has ended already, which its exit code tells
        process.stdin.write(msgspec.json.encode(claimed) + b"\n")
        await process.stdin.drain()


async def _wind_down(process: Process, work: RunExecution, ended: "asyncio.Task[int]") -> None:
    if ended.done() or not work.stopped.done():
        return
    hand_over = work.stopped.result() is Interruption.HAND_OVER
    if hand_over:
        process.terminate()
    await _first(ended, within=HAND_OVER_SECONDS if hand_over else STOP_SECONDS)


async def _first(
    *futures: "asyncio.Future[int] | asyncio.Future[bytes] | asyncio.Future[Interruption]", within: float | None
) -> None:
    await asyncio.wait(futures, timeout=within, return_when=asyncio.FIRST_COMPLETED)


def time_limit(account: RunAccount) -> float | None:
    """Seconds after which a child is killed; None where no limit on the run's time is set."""
    left = [float(entry.most - account.seconds) for entry in account.entries if entry.measure == "seconds"]
    return max(0.0, min(left)) + LIMIT_SLACK_SECONDS if left else None


def environment(database_url: str, direct_url: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a child of a process with these settings is configured by: the same, and the database that is at hand.

    Its metrics would need an address of their own.
    """
    own = {"DATABASE_URL": database_url, "KHALA_METRICS": ""}
    return {**given, **own, "DATABASE_DIRECT_URL": direct_url if direct_url != database_url else ""}
