"""The composition root of a process that executes a single run, which its parent process has claimed."""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from khala.components import WorkerRuntime, open_components, open_watchdog
from khala.lifecycle import stopped_by_signal
from khala.runs.isolation import BEGAN, CRASHED
from khala.settings import ISOLATED_POOL_SIZE, Settings
from khala.store.runs.run_queue import ClaimedRun
from khala.telemetry.tracing import tracing

PR_SET_PDEATHSIG = 1
MAX_DATA_BYTES = 768 << 20
"""The most memory that the process may take for data (RLIMIT_DATA), and each program that it starts."""
NICENESS = 5
"""Gives other processes precedence for the CPU."""
OOM_SCORE = Path("/proc/self/oom_score_adj")
MAX_CLAIM_BYTES = 64 << 20


def confine() -> None:
    """Limit the memory and CPU of this process, and end it when its parent ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_DATA_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_DATA_BYTES)
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    os.nice(NICENESS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):  # read-only in some containers
            OOM_SCORE.write_text("1000")


def claim() -> ClaimedRun:
    """The claim that the parent wrote to standard input. Raises `EOFError` if the parent ended before."""
    text = b""
    while not text.endswith(b"\n"):
        # Not `sys.stdin`, whose lock the thread of `end_with_parent` would hold.
        chunk = os.read(0, 65_536)
        if not chunk or len(text) > MAX_CLAIM_BYTES:
            raise EOFError("The parent wrote no claim.")
        text += chunk
    return msgspec.json.decode(text, type=ClaimedRun)


def end_with_parent() -> None:
    """End this process at once when the parent has closed its end of standard input."""

    def wait() -> None:
        while os.read(0, 65_536):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


async def execute(settings: Settings, claimed: ClaimedRun) -> int:
    """Execute the run until it ends, or until SIGTERM asks for its hand-over. Returns the exit code."""
    stop = stopped_by_signal()
    if settings.database.url is None:
        raise RuntimeError("DATABASE_URL must name the parent's database.")
    async with (
        open_watchdog(settings, counts_marks=False) as started,
        tracing(on=settings.traces),
        open_components(settings, pool_size=ISOLATED_POOL_SIZE, migrate=False) as components,
    ):
        worker = WorkerRuntime(components, components.db, isolated_environment=None, grace_seconds=0.0)
        async with worker.working(), asyncio.TaskGroup() as group:
            _report_start()
            started()
            executing = group.create_task(worker.executor.execute(claimed))
            stopping = group.create_task(stop.wait())
            await asyncio.wait({executing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not executing.done():
                await worker.executor.drain()
            stopping.cancel()
        return 0 if executing.result() else CRASHED


def _report_start() -> None:
    """Tell the parent that the run is being executed. Later output to standard output goes to the log."""
    os.write(1, BEGAN)
    os.dup2(2, 1)
