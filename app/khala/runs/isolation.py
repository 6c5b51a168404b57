"""Executes single runs in child processes, so that a run that hangs, crashes or exhausts memory harms no other run.

The parent claims the run and renews its lease while the child lives. The child writes under that lease, fenced by its
epoch like any executor. So a child that hangs keeps its run until the watchdog ends the child, and no other executor
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
"""Output by which the child reports that it begins to execute the run."""
CRASHED = 3
"""The child's exit code after an unexpected error."""
BEGIN_TIMEOUT_SECONDS = 120.0
"""Time for the child to begin. It includes up to 15 s for starting MCP servers."""
LIMIT_SLACK_SECONDS = 60.0
"""Time beyond the run's own limit after which the child is killed. Normally the child ends the run before."""
HAND_OVER_TIMEOUT_SECONDS = 3.0
"""Time for the child to hand its run over. It must be shorter than the time that `Executor.drain` waits."""
LAST_OUTPUT_TIMEOUT_SECONDS = 5.0
"""Time between the end of the child and the end of its output."""
STOP_TIMEOUT_SECONDS = 10.0
"""Time for the child to end after its run has ended."""


class ChildExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a child: whether it had begun to execute its run, and its exit code (negative for a signal)."""

    began: bool
    code: int


class IsolatedExecutor:
    """Starts child processes with this environment: the parent's configuration, and the address of its database."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def execute(self, execution: RunExecution, seconds: float | None) -> ChildExit:
        """Execute the run in a child process, which is killed after `seconds`. None: there is no limit.

        If the execution is stopped, the child is requested to hand over, or gets time to end by itself, and is then
        killed.
        """
        run_id = str(execution.claimed.lease.run_id)
        try:
            process = await self._start()
        except OSError as error:
            log.warning("isolated_run_not_started", run_id=run_id, error=str(error))
            return ChildExit(began=False, code=1)
        log.info("isolated_run_started", run_id=run_id, pid=process.pid, lost_executors=execution.claimed.lost)
        try:
            began = await _watch(process, execution, seconds)
        finally:
            if process.returncode is None:
                process.kill()
            code = await process.wait()
        return ChildExit(began=began, code=code)

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "khala", COMMAND, stdin=PIPE, stdout=PIPE, env=self._environment,
            # Signals of a terminal go only to this process, which signals the child itself if necessary.
            start_new_session=True,
        )  # fmt: skip


async def _watch(process: Process, execution: RunExecution, seconds: float | None) -> bool:
    """Wait until the child has ended or has to be killed. Returns whether it had begun."""
    assert process.stdout is not None
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(_send_claim(process, execution.claimed))
        ended = group.create_task(process.wait())
        beginning = group.create_task(process.stdout.readline())
        try:
            await _wait_for_any(ended, beginning, execution.stopped, timeout_seconds=BEGIN_TIMEOUT_SECONDS)
            if ended.done() or (beginning.done() and not beginning.result()):
                # The child has ended. Its exit code, or its last output, arrives in a moment.
                await asyncio.wait((ended, beginning), timeout=LAST_OUTPUT_TIMEOUT_SECONDS)
            began = beginning.done() and beginning.result() == BEGAN
            if began:
                await _wait_for_any(ended, execution.stopped, timeout_seconds=seconds)
            await _stop(process, execution, ended)
        finally:
            for task in (sending, ended, beginning):
                task.cancel()
    return began


async def _send_claim(process: Process, claimed: ClaimedRun) -> None:
    """Send the child its claim. Standard input stays open: its end tells the child that the parent has ended."""
    assert process.stdin is not None
    with suppress(ConnectionError):  # The child has ended already, which its exit code reports.
        process.stdin.write(msgspec.json.encode(claimed) + b"\n")
        await process.stdin.drain()


async def _stop(process: Process, execution: RunExecution, ended: asyncio.Task[int]) -> None:
    """If the execution was stopped, give the child time to hand over or to end."""
    if ended.done() or not execution.stopped.done():
        return
    hand_over = execution.stopped.result() is Interruption.HAND_OVER
    if hand_over:
        process.terminate()
    await _wait_for_any(ended, timeout_seconds=HAND_OVER_TIMEOUT_SECONDS if hand_over else STOP_TIMEOUT_SECONDS)


async def _wait_for_any(
    *futures: asyncio.Future[int] | asyncio.Future[bytes] | asyncio.Future[Interruption], timeout_seconds: float | None
) -> None:
    await asyncio.wait(futures, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)


def time_limit(account: RunAccount) -> float | None:
    """Seconds after which the child is killed. None if the run's time is not limited."""
    left = [float(entry.most - account.seconds) for entry in account.entries if entry.measure == "seconds"]
    return max(0.0, min(left)) + LIMIT_SLACK_SECONDS if left else None


def environment(database_url: str, direct_url: str, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child: the `inherited` one, with the URLs of the database that is in use.

    Metrics are disabled, because the child would need an address of its own for them.
    """
    own = {"DATABASE_URL": database_url, "KHALA_METRICS": ""}
    return {**inherited, **own, "DATABASE_DIRECT_URL": direct_url if direct_url != database_url else ""}
