"""Reads off what processes and a database use while something is measured."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from khala.store.postgres.database import Driver
from tests.bench import measure
from tests.bench.figures import Cpu, Delivery, Latency, System
from tests.bench.measure import Memory
from tests.bench.reading import Seen
from tests.bench.storage import Storage

INTERVAL = 1.0
"""Seconds between two looks at the database's memory."""


class Spent(msgspec.Struct, kw_only=True):
    """What was used: seconds of the wall's clock, and by name CPU seconds, part of a core at most, and memory."""

    seconds: float = 0.0
    cpu: dict[str, float] = msgspec.field(default_factory=dict)
    busy: dict[str, float] = msgspec.field(default_factory=dict)
    memory: dict[str, Memory] = msgspec.field(default_factory=dict)


@contextlib.asynccontextmanager
async def metered(pids: Mapping[str, Sequence[int]], connection: "Driver | None" = None) -> AsyncIterator[Spent]:
    """What these processes and the connection's cluster use for as long as this is open; known when it closes.

    Whoever measures is a driver, too: it sends what begins the runs.
    """
    pids = {**pids, "driver": [*pids.get("driver", ()), os.getpid()]}
    postmaster = None if connection is None else await measure.postmaster(connection)
    spent = Spent()
    async with contextlib.AsyncExitStack() as stack:
        for name in pids.keys() - {"model", "driver"}:
            spent.memory[name] = await stack.enter_async_context(measure.memory(pids[name][0]))
        if postmaster is not None:
            database = await stack.enter_async_context(_database(postmaster))
            spent.memory |= {} if database is None else {"database": database}
        cpu, machine, began = _cpu(pids, postmaster), measure.machine_seconds(), time.monotonic()
        yield spent
        spent.seconds = time.monotonic() - began
        whole = measure.machine_seconds() - machine
        used = {name: [now - then for now, then in zip(after, cpu[name], strict=True)]
                for name, after in _cpu(pids, postmaster).items()}  # fmt: skip
        spent.cpu = {name: sum(each) for name, each in used.items()}
        spent.busy = {name: max(each) / spent.seconds for name, each in used.items()}
        spent.busy["others"] = max(0.0, whole - sum(spent.cpu.values())) / spent.seconds


def _cpu(pids: Mapping[str, Sequence[int]], postmaster: int | None) -> dict[str, list[float]]:
    seconds = {name: [measure.cpu_seconds([pid]) for pid in each] for name, each in pids.items()}
    return seconds if postmaster is None else seconds | {"database": [measure.cluster_seconds(postmaster)]}


@contextlib.asynccontextmanager
async def _database(postmaster: int) -> AsyncIterator[Memory | None]:
    now = await asyncio.to_thread(measure.cluster_memory, postmaster)
    if now is None:
        yield None
        return
    seen = Memory(now, now)

    async def watch() -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            held = await asyncio.to_thread(measure.cluster_memory, postmaster)
            seen.peak = max(seen.peak, held or 0)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


def system(seen: Seen, spent: Spent, storage: Storage, *, tokens: int, pause: float) -> System:
    """The figures. The model was to send so many `tokens` in all, and to wait `pause` seconds before each first one."""
    return System(
        delivery=Delivery.of(seen, spent.seconds, seen.deltas),
        first=Latency.of([latency - round(pause * 1e6) for latency in seen.first]),
        token=Latency.of(seen.tokens),
        newest=Latency.of(seen.newest),
        written=Latency.of(seen.written),
        committed=Latency.of(seen.committed),
        cpu=Cpu.of(spent.cpu, seen.deltas),
        cpu_by_tokens=Cpu.of(spent.cpu, tokens),
        busy=spent.busy,
        cpu_seconds=spent.cpu,
        memory=spent.memory,
        storage=storage,
    )
