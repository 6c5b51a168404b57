"""Reads CPU time and memory of processes, and the counters of a Postgres cluster."""

import asyncio
import contextlib
import platform
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
import psutil

from khala.store.postgres.database import Driver

SAMPLE_INTERVAL_SECONDS = 0.1
"""Of the memory of a process."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of these processes, without their children."""
    return sum(_seconds(psutil.Process(pid)) for pid in pids)


def machine_seconds() -> float:
    """CPU time of all processes of the machine, including the kernel and time stolen by a hypervisor."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, name, 0.0) for name in names)


def cluster_seconds(postmaster: int) -> float:
    """CPU time of a postmaster and all its children, including those that have ended."""
    process = psutil.Process(postmaster)
    own = process.cpu_times()
    ended: float = own.children_user + own.children_system
    return _seconds(process) + ended + sum(_seconds_or_none(child) for child in process.children())


def _seconds(process: psutil.Process) -> float:
    """CPU time of a process. On Linux, clock_getcpuclockid(3) counts nanoseconds; psutil counts steps of 10 ms."""
    if platform.system() == "Linux":
        try:
            return time.clock_gettime((~process.pid << 3) | 2)
        except OSError as error:
            raise psutil.NoSuchProcess(process.pid) from error
    times = process.cpu_times()
    return times.user + times.system


def _seconds_or_none(process: psutil.Process) -> float:
    """CPU time, or 0 if the process has just ended: its parent's account includes it from the next reading on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return _seconds(process)
    return 0.0


def cluster_memory(postmaster: int) -> int | None:
    """Memory of a cluster's processes in bytes, by their proportional set sizes; None without permission to read them.

    It grows while sessions use pages of the shared buffers for the first time.
    """
    process = psutil.Process(postmaster)
    try:
        return sum(_proportional(one) for one in [process, *process.children()])
    except psutil.AccessDenied:
        return None


def _proportional(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        memory = process.memory_full_info()
        # macOS has no proportional set size; the unique set size is the closest figure.
        return int(getattr(memory, "pss", memory.uss))
    return 0


class Memory(msgspec.Struct):
    """Resident bytes of a process: at the start, and at the peak."""

    before: int
    peak: int


@contextlib.asynccontextmanager
async def memory(pid: int) -> AsyncIterator[Memory]:
    """Sample the memory of a process for as long as this is open."""
    process = psutil.Process(pid)
    now = process.memory_info().rss
    sampled = Memory(now, now)

    async def watch() -> None:
        while True:
            sampled.peak = max(sampled.peak, process.memory_info().rss)
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

    task = asyncio.create_task(watch())
    try:
        yield sampled
    finally:
        task.cancel()
        await asyncio.wait({task})


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a database: committed transactions, writing transactions, and bytes of WAL.

    The last two are those of the whole cluster. `cpu` is None if the server's processes are not visible here.
    """

    commits: int
    writes: int
    wal: int
    cpu: float | None


async def cluster(connection: Driver) -> Cluster:
    """The current counters. Sessions report theirs at most once a second, or after ten idle seconds."""
    row = await connection.fetchrow("""
        SELECT xact_commit AS commits, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS wal,
               pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS writes
        FROM pg_stat_database WHERE datname = current_database()
    """)
    assert row is not None
    pid = await postmaster(connection)
    return Cluster(**dict(row), cpu=None if pid is None else cluster_seconds(pid))


async def postmaster(connection: Driver) -> int | None:
    """The pid of the postmaster, if it runs on this machine and this process may inspect it."""
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    with contextlib.suppress(psutil.Error):
        backend = psutil.Process(pid)
        parent = backend.parent()
        if parent is not None and parent.name() == backend.name() == "postgres":
            return parent.pid
    return None


def percentile(values: Sequence[int], percent: float) -> float | None:
    """A percentile of sorted microseconds, in milliseconds, by nearest rank; None without values."""
    if not values:
        return None
    return values[min(len(values) - 1, int(len(values) * percent / 100))] / 1000


def per_thousand(amount: float, count: int) -> float | None:
    """The amount per 1,000 of `count`; None if that is 0."""
    return amount * 1000 / count if count else None
