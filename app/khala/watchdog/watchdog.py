"""The parent's side of the watchdog: a heartbeat of the event loop, and signals that work without the GIL.

A process whose loop hangs can't be trusted to end itself: C code may hold the GIL for ever, and then no Python code of
any thread runs. So a small process of its own counts the heartbeats, and ends this one by two signals whose handlers
are C functions: SIGUSR1 dumps all stacks (`faulthandler`), SIGALRM calls `_exit(EXIT_CODE)`. A handler works where this
process is the first of a container, too, on which the kernel spends no default action and no kill from inside.
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
"""The exit code of a process that the watchdog ended: 14. libc's `_exit` is the handler, and gets the signal."""
PROCESS = Path(__file__).with_name("process.py")
BEAT_SECONDS = 1.0
"""Time between two heartbeats, at most."""
BEATS = 5
"""Heartbeats within the time after which the process is ended, at least."""
LAGS = 60
"""Heartbeats of which the longest lag is told."""
CLOSING_SECONDS = 2.0
LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that the watchdog process gets of the environment: it may hold secrets."""


@asynccontextmanager
async def watched_loop(
    seconds: float, *, log_format: str, folder: Path, counts_marks: bool = True
) -> AsyncIterator[Callable[[], None]]:
    """While this is open, the process exits with `EXIT_CODE` when its event loop does not turn for so many seconds.

    The caller calls what this yields when it has started; until then a minute is allowed. With 0 seconds the lag of the
    loop is measured, and nothing more. `folder` keeps marks of the processes that were ended; the next process that
    `counts_marks` counts them.
    """
    if counts_marks:
        _count_marks(folder)
    interval = min(BEAT_SECONDS, seconds / BEATS) if seconds else BEAT_SECONDS
    with _process(seconds, log_format, folder) as process:
        beating = asyncio.create_task(_beat(process, interval), name="watchdog")
        try:
            yield process.started if process is not None else _nothing
        finally:
            beating.cancel()
            await asyncio.wait({beating})


def _nothing() -> None:
    """Is called when the process has started, where no watchdog wants to know."""


async def _beat(process: "_WatchdogProcess | None", interval: float) -> None:
    lags: deque[float] = deque(maxlen=LAGS)
    while True:
        if process is not None:
            process.beat()
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
    """The process that counts the heartbeats. Started again if it dies."""

    def __init__(self, seconds: float, log_format: str, folder: Path) -> None:
        self._arguments = [str(os.getpid()), str(seconds), log_format, str(folder)]
        self._started = False
        self._start()
        _exit_on_alarm()

    def started(self) -> None:
        """From now on the loop may hang for as long as it was said, and not for as long as a start may take."""
        self._started = True
        self.beat()

    def beat(self) -> None:
        """Tell the watchdog process that the loop has turned."""
        try:
            self._tell()
        except BlockingIOError:
            pass  # The pipe is full of heartbeats: the watchdog process is stopped, and will read them.
        except OSError:
            self._replace()

    def _replace(self) -> None:
        """Start another watchdog process. Where that is impossible now, the next heartbeat tries again."""
        log.warning("watchdog_process_lost", exit_code=self._process.poll())
        self._close()
        try:
            self._start()
            # It must know at once that no start is under way: the loop may hang before the next heartbeat.
            self._tell()
        except BrokenPipeError:
            pass  # It has died already, which the next heartbeat finds.
        except OSError as error:
            log.error("watchdog_process_not_started", error=str(error))

    def _tell(self) -> None:
        os.write(self._pipe, STARTED if self._started else b".")

    def close(self) -> None:
        """End the watchdog process; the signals have their default actions again."""
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
                env={name: os.environ[name] for name in LOADER if name in os.environ},
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
            self._process.wait(CLOSING_SECONDS)
            return
        self._process.kill()
        self._process.wait()


def _exit_on_alarm() -> None:
    """Have SIGALRM end this process at once, whatever holds the GIL."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGALRM, ctypes.cast(libc["_exit"], ctypes.c_void_p))


def _count_marks(folder: Path) -> None:
    """Count the processes that the watchdog ended since some process of this home looked last; each is counted once."""
    counted = 0
    for mark in folder.glob("*.txt"):
        with suppress(FileNotFoundError):  # another process has just counted it
            mark.unlink()
            counted += 1
    metrics.WATCHDOG_ENDED.set(counted)
    if counted:
        log.warning("watchdog_killed_processes", count=counted)
