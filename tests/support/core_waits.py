"""Measures how long the processes of a test wait for a core of the machine, so that its limits hold on a busy one.

A limit of seconds is a promise about Khala: it excludes the time in which the machine gives Khala no core. Linux
counts that time for each process; on an idle machine it is a few milliseconds a second.
"""

import asyncio
import bisect
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.1
SEARCH_SECONDS = 1.0
"""Between two searches for connections that Postgres has opened meanwhile."""


class CoreWaits:
    """How long some processes have waited for a core, all of them together."""

    def __init__(self, pids: Iterable[int], database: str) -> None:
        self._pids = set(pids)
        self._database = database
        self._searched_at = -SEARCH_SECONDS
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        """The counter of each process in seconds, when it was first and last read."""
        self._times: list[float] = []
        self._totals: list[float] = []

    def between(self, begin: float, end: float | None = None) -> float:
        """The seconds waited between two times of the monotonic clock; `end` is now by default.

        Includes the whole interval of a sample at either side.
        """
        if end is None:
            self.sample()
            end = self._times[-1]
        first = max(0, bisect.bisect_right(self._times, begin) - 1)
        last = min(len(self._times) - 1, bisect.bisect_left(self._times, end))
        return self._totals[last] - self._totals[first]

    def sample(self) -> None:
        """Read the counters of all processes."""
        now = time.monotonic()
        if now - self._searched_at >= SEARCH_SECONDS:
            self._searched_at = now
            self._pids |= _backends(self._database)
        for pid in self._pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._last[pid] = _seconds_waited(pid)
                self._first.setdefault(pid, self._last[pid])
        self._times.append(time.monotonic())
        self._totals.append(sum(self._last.values()) - sum(self._first.values()))


def _seconds_waited(pid: int) -> float:
    """The seconds for which a process's main thread was runnable and did not run, from `/proc/PID/schedstat`."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _backends(database: str) -> set[int]:
    """The process ids of Postgres' connections to a database on this machine."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if command.startswith("postgres:") and f" {database} " in command:
            found.add(process.pid)
    return found


@contextlib.asynccontextmanager
async def core_waits(database_url: str, *pids: int) -> AsyncIterator[CoreWaits]:
    """Measure these processes and the Postgres connections of a database for as long as this is open."""
    waits = CoreWaits(pids, database_url.rsplit("/", 1)[-1])

    async def measure() -> None:
        while True:
            waits.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    waits.sample()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(measure())
        yield waits
        task.cancel()
