"""The parent's side of the watchdog: a heartbeat of the event loop, and signals that work without the GIL.

A process whose event loop hangs cannot end itself reliably: C code may hold the GIL for ever, and then no thread runs
Python code. So a small separate process counts the heartbeats, and ends this process by two signals whose handlers
are C functions: SIGUSR1 dumps all stacks (`faulthandler`), SIGALRM calls `_exit(EXIT_CODE)`. Handlers also work if this
process is PID 1 of a container, for which the kernel ignores the default actions of signals from inside.
"""

import asyncio
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import structlog

from khala.signals import metrics
from khala.watchdog.process import STARTED

log = structlog.get_logger()

EXIT_CODE = int(signal.SIGALRM)
"""The exit code of a process that the watchdog ended: 14. The handler is libc's `_exit`, called with the signal."""
PROCESS = Path(__file__).with_name("process.py")
MAX_HEARTBEAT_INTERVAL_SECONDS = 1.0
MIN_HEARTBEATS = 5
"""Heartbeats within the time limit, at least."""
MAX_LAGS = 60
"""Heartbeats over which the longest lag is measured."""
CLOSE_TIMEOUT_SECONDS = 2.0
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The only environment variables of the watchdog process, because others may hold secrets."""


@asynccontextmanager
async def watched_loop(
    seconds: float, *, log_format: str, folder: Path, counts_marks: bool = True
) -> AsyncIterator[Callable[[], None]]:
    """While the context is open, the process exits with `EXIT_CODE` if its event loop hangs for this many seconds.

    Yields a function that the caller calls when the process has started; until then the limit is at least a minute.
    With 0 seconds the lag of the loop is only measured. `folder`: holds a file for each process that the watchdog
    ended. `counts_marks`: whether this process counts and deletes these files.
    """
    if counts_marks:
        _count_marks(folder)
    interval = (
        min(MAX_HEARTBEAT_INTERVAL_SECONDS, seconds / MIN_HEARTBEATS) if seconds else MAX_HEARTBEAT_INTERVAL_SECONDS
    )
    with _process(seconds, log_format, folder) as process:
        heartbeat = asyncio.create_task(_run_heartbeat(process, interval), name="watchdog")
        try:
            yield process.started if process is not None else _do_nothing
        finally:
            heartbeat.cancel()
            await asyncio.wait({heartbeat})


def _do_nothing() -> None:
    """Called when the process has started, if there is no watchdog."""


async def _run_heartbeat(process: "_WatchdogProcess | None", interval: float) -> None:
    lags: deque[float] = deque(maxlen=MAX_LAGS)
    while True:
        if process is not None:
            process.send_heartbeat()
        began = time.monotonic()
        await asyncio.sleep(interval)
        lags.append(max(0.0, time.monotonic() - began - interval))
        metrics.LOOP_LAG.observe(lags[-1])
        metrics.LOOP_LAG_LONGEST.set(max(lags))


@contextmanager
def _process(seconds: float, log_format: str, folder: Path) -> "Iterator[_WatchdogProcess | None]":
    if not seconds:
        yield None
        return
    process = _WatchdogProcess(seconds, log_format, folder)
    try:
        yield process
    finally:
        process.close()


class _WatchdogProcess:
    """The process that counts the heartbeats. It is restarted if it ends."""

    def __init__(self, seconds: float, log_format: str, folder: Path) -> None:
        self._arguments = [str(os.getpid()), str(seconds), log_format, str(folder)]
        self._started = False
        self._start()
        _exit_on_alarm()

    def started(self) -> None:
        """Apply the configured time limit, instead of the longer one for starting."""
        self._started = True
        self.send_heartbeat()

    def send_heartbeat(self) -> None:
        """Report to the watchdog process that the event loop runs."""
        try:
            self._write()
        except BlockingIOError:
            pass  # The pipe is full of heartbeats: the watchdog process is stopped, and will read them.
        except OSError:
            self._replace()

    def _replace(self) -> None:
        """Start another watchdog process. If that fails, the next heartbeat tries again."""
        log.warning("watchdog_process_lost", exit_code=self._process.poll())
        self._close()
        try:
            self._start()
            # Report at once that this process has started: the loop may hang before the next heartbeat.
            self._write()
        except BrokenPipeError:
            pass  # It has already ended; the next heartbeat restarts it.
        except OSError as error:
            log.error("watchdog_process_not_started", error=str(error))

    def _write(self) -> None:
        os.write(self._pipe, STARTED if self._started else b".")

    def close(self) -> None:
        """End the watchdog process and restore the default actions of the signals."""
        self._close()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _start(self) -> None:
        read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, "-I", "-S", str(PROCESS), *self._arguments],
                stdin=read,
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in LOADER_VARIABLES if name in os.environ},
                # Ctrl-C on a terminal goes to this process alone.
                start_new_session=True,
            )
        finally:
            os.close(read)
        faulthandler.register(signal.SIGUSR1, self._pipe, all_threads=True, chain=False)

    def _close(self) -> None:
        faulthandler.unregister(signal.SIGUSR1)
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_TIMEOUT_SECONDS)
            return
        self._process.kill()
        self._process.wait()


def _exit_on_alarm() -> None:
    """Make SIGALRM end this process at once, even if the GIL is held."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGALRM, ctypes.cast(libc["_exit"], ctypes.c_void_p))


def _count_marks(folder: Path) -> None:
    """Count the files of processes that the watchdog ended, and delete them, so that each is counted once."""
    counted = 0
    for mark in folder.glob("*.txt"):
        with suppress(FileNotFoundError):  # another process has just counted it
            mark.unlink()
            counted += 1
    metrics.WATCHDOG_ENDED.set(counted)
    if counted:
        log.warning("watchdog_killed_processes", count=counted)
