"""Measures what processes and a database use during a workload."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from khala.store.postgres.database import Driver
from tests.bench import counters
from tests.bench.counters import Memory
from tests.bench.figures import Cpu, Delivery, Latency, System
from tests.bench.observations import Observations
from tests.bench.storage import Storage

MEMORY_INTERVAL_SECONDS = 1.0
"""Of the samples of the database's memory."""


class ResourceUsage(msgspec.Struct, kw_only=True):
    """Seconds of wall-clock time; and by process CPU seconds, used cores (of the busiest pid), and memory."""

    seconds: float = 0.0
    cpu: dict[str, float] = msgspec.field(default_factory=dict)
    busy: dict[str, float] = msgspec.field(default_factory=dict)
    memory: dict[str, Memory] = msgspec.field(default_factory=dict)


@contextlib.asynccontextmanager
async def measured_usage(
    pids: Mapping[str, Sequence[int]], connection: "Driver | None" = None
) -> AsyncIterator[ResourceUsage]:
    """Measure these processes and the connection's cluster while this is open; the result is set when it closes.

    The calling process counts as a driver, because it sends the requests that start the runs.
    """
    pids = {**pids, "driver": [*pids.get("driver", ()), os.getpid()]}
    postmaster = None if connection is None else await counters.postmaster(connection)
    usage = ResourceUsage()
    async with contextlib.AsyncExitStack() as stack:
        for name in pids.keys() - {"model", "driver"}:
            usage.memory[name] = await stack.enter_async_context(counters.memory(pids[name][0]))
        if postmaster is not None:
            database = await stack.enter_async_context(_database(postmaster))
            usage.memory |= {} if database is None else {"database": database}
        cpu, machine, began = _cpu(pids, postmaster), counters.machine_seconds(), time.monotonic()
        yield usage
        usage.seconds = time.monotonic() - began
        total = counters.machine_seconds() - machine
        used = {name: [now - then for now, then in zip(after, cpu[name], strict=True)]
                for name, after in _cpu(pids, postmaster).items()}  # fmt: skip
        usage.cpu = {name: sum(each) for name, each in used.items()}
        usage.busy = {name: max(each) / usage.seconds for name, each in used.items()}
        usage.busy["others"] = max(0.0, total - sum(usage.cpu.values())) / usage.seconds


class CpuSince:
    """The CPU seconds of these processes, and of the connection's cluster, from now on."""

    def __init__(self, pids: Mapping[str, Sequence[int]], postmaster: int | None = None) -> None:
        self.began = time.monotonic_ns()
        self._pids = pids
        self._postmaster = postmaster
        self._before = _total(pids, postmaster)

    def seconds(self) -> float:
        """The seconds until now."""
        return _total(self._pids, self._postmaster) - self._before


def _total(pids: Mapping[str, Sequence[int]], postmaster: int | None) -> float:
    return sum(seconds for each in _cpu(pids, postmaster).values() for seconds in each)


def _cpu(pids: Mapping[str, Sequence[int]], postmaster: int | None) -> dict[str, list[float]]:
    seconds = {name: [counters.cpu_seconds([pid]) for pid in each] for name, each in pids.items()}
    return seconds if postmaster is None else seconds | {"database": [counters.cluster_seconds(postmaster)]}


@contextlib.asynccontextmanager
async def _database(postmaster: int) -> AsyncIterator[Memory | None]:
    now = await asyncio.to_thread(counters.cluster_memory, postmaster)
    if now is None:
        yield None
        return
    sampled = Memory(now, now)

    async def watch() -> None:
        while True:
            await asyncio.sleep(MEMORY_INTERVAL_SECONDS)
            current = await asyncio.to_thread(counters.cluster_memory, postmaster)
            sampled.peak = max(sampled.peak, current or 0)

    task = asyncio.create_task(watch())
    try:
        yield sampled
    finally:
        task.cancel()
        await asyncio.wait({task})


def system_figures(
    observations: Observations, usage: ResourceUsage, storage: Storage, *, tokens: int, pause: float
) -> System:
    """The figures of a workload of `tokens` tokens; the model waits `pause` seconds before the first token of a run."""
    return System(
        delivery=Delivery.of(observations, usage.seconds, observations.deltas),
        first=Latency.of([latency - round(pause * 1e6) for latency in observations.first]),
        token=Latency.of(observations.tokens),
        newest=Latency.of(observations.newest),
        written=Latency.of(observations.written),
        committed=Latency.of(observations.committed),
        cpu=Cpu.of(usage.cpu, observations.deltas),
        cpu_by_tokens=Cpu.of(usage.cpu, tokens),
        busy=usage.busy,
        cpu_seconds=usage.cpu,
        memory=usage.memory,
        storage=storage,
    )
