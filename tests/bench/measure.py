"""Meters: CPU seconds and memory of processes, and what a Postgres cluster has committed and logged."""

import asyncio
import contextlib
import platform
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
import psutil

from khala.store.postgres.database import Driver

INTERVAL = 0.1
"""Seconds between two looks at a process's memory."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time that these processes have used, their children's not included."""
    return sum(_seconds(psutil.Process(pid)) for pid in pids)


def machine_seconds() -> float:
    """What all processes of the machine have used, the kernel's own work and what a hypervisor took away included."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, name, 0.0) for name in names)


def cluster_seconds(postmaster: int) -> float:
    """The same of a postmaster and all its children, those that have ended included."""
    process = psutil.Process(postmaster)
    own = process.cpu_times()
    ended: float = own.children_user + own.children_system
    return _seconds(process) + ended + sum(_seconds_or_none(child) for child in process.children())


def _seconds(process: psutil.Process) -> float:
    """Linux tells nanoseconds by the clock of clock_getcpuclockid(3); what psutil reads comes in steps of 10 ms."""
    if platform.system() == "Linux":
        try:
            return time.clock_gettime((~process.pid << 3) | 2)
        except OSError as error:
            raise psutil.NoSuchProcess(process.pid) from error
    times = process.cpu_times()
    return times.user + times.system


def _seconds_or_none(process: psutil.Process) -> float:
    """Nothing for a process that ended just now: then it is in its parent's account, from the next look on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return _seconds(process)
    return 0.0


def cluster_memory(postmaster: int) -> int | None:
    """Bytes that a cluster's processes hold, each shared page once: their proportional set sizes. None if kept secret.

    It grows for as long as sessions touch pages of the shared buffers that nobody had touched before.
    """
    process = psutil.Process(postmaster)
    try:
        return sum(_proportional(one) for one in [process, *process.children()])
    except psutil.AccessDenied:
        return None


def _proportional(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        memory = process.memory_full_info()
        # macOS tells no proportional set size; what a process would give back if it ended comes nearest.
        return int(getattr(memory, "pss", memory.uss))
    return 0


class Memory(msgspec.Struct):
    """Resident bytes of a process: at first, and at most."""

    before: int
    peak: int


@contextlib.asynccontextmanager
async def memory(pid: int) -> AsyncIterator[Memory]:
    """Watch a process's memory for as long as this is open."""
    process = psutil.Process(pid)
    now = process.memory_info().rss
    seen = Memory(now, now)

    async def watch() -> None:
        while True:
            seen.peak = max(seen.peak, process.memory_info().rss)
            await asyncio.sleep(INTERVAL)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A database's counters: transactions that committed, those of them that wrote, and bytes of WAL since ever.

    The last two are the cluster's. `cpu` is None where the server isn't a process that we can see.
    """

    commits: int
    writes: int
    wal: int
    cpu: float | None


async def cluster(connection: Driver) -> Cluster:
    """The counters now. Sessions tell theirs once a second at most, or after ten idle ones."""
    row = await connection.fetchrow("""
        SELECT xact_commit AS commits, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS wal,
               pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS writes
        FROM pg_stat_database WHERE datname = current_database()
    """)
    assert row is not None
    pid = await postmaster(connection)
    return Cluster(**dict(row), cpu=None if pid is None else cluster_seconds(pid))


async def postmaster(connection: Driver) -> int | None:
    """The pid of the server's first process, if it runs on this machine and we may look at it."""
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    with contextlib.suppress(psutil.Error):
        backend = psutil.Process(pid)
        parent = backend.parent()
        if parent is not None and parent.name() == backend.name() == "postgres":
            return parent.pid
    return None


def percentile(values: Sequence[int], percent: float) -> float | None:
    """Of sorted microseconds, the nearest-ranked one in milliseconds; None of none."""
    if not values:
        return None
    return values[min(len(values) - 1, int(len(values) * percent / 100))] / 1000


def per_thousand(amount: float, count: int) -> float | None:
    """An amount for each 1,000 of what was counted; None where nothing was."""
    return amount * 1000 / count if count else None
