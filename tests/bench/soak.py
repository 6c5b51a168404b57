"""Soak test: starts runs again and again for minutes, and measures whether the memory of any process grows."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping

import psutil

from tests.bench import counters, fixtures
from tests.bench.driver_requests import EXTRA_SECONDS, read, wait, watch
from tests.bench.figures import Figures
from tests.bench.fixtures import BenchEnvironment
from tests.bench.growth import fit
from tests.bench.khala import begin, expected, new_threads, targets
from tests.bench.tables import align_columns, format_number
from tests.bench.workload import Options

RUN_SECONDS = 30.0
"""Length of each answer."""
WARM_UP_SECONDS = 60.0
"""Time at the beginning that is not measured: caches fill, and allocators reserve memory."""
SAMPLE_INTERVAL_SECONDS = 1.0
MAX_FLAT_GROWTH = 0.02
"""Growth over the whole measured time, as a part of the mean, up to which memory counts as flat."""
KIB = 1024


class Trend(Figures, frozen=True, kw_only=True):
    """The memory of one process. `growth` is the slope times the measured minutes, as a part of the mean."""

    mean_mib: float
    kib_per_minute: float
    growth: float
    flat: bool


class Soak(Figures, frozen=True, kw_only=True):
    """Result of a soak test: `minutes` without the warm-up, and `samples` as (second, bytes).

    `database` is the whole cluster, with each shared page counted once: it grows until the shared buffers are full.
    """

    minutes: float
    runs: int
    trends: dict[str, Trend]
    samples: dict[str, list[tuple[float, int]]]
    problems: list[str]

    @property
    def flat(self) -> bool:
        """Whether the memory of Khala's own processes is flat."""
        return all(self.trends[name].flat for name in ("web", "executor") if name in self.trends)


Samples = dict[str, list[tuple[float, int]]]


async def soak(minutes: float, runs: int, options: Options, environment: BenchEnvironment) -> Soak:
    """Start `runs` concurrent runs in new threads, again and again, each with an observer that reads everything."""
    done, problems = 0, list[str]()
    async with (
        fixtures.database(environment) as url,
        fixtures.khala(url, environment) as khala,
        fixtures.connected(url) as connection,
        fixtures.client(khala.web) as http,
        fixtures.drivers(options.drivers) as drivers,
    ):
        pids = {name: pid for name, (pid,) in khala.pids.items()}
        async with _sampled(pids, await counters.postmaster(connection)) as samples:
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                threads = await new_threads(http, runs)
                await watch(drivers, targets(threads, khala.web.socket_url, 1))
                conversations = await begin(threads, options)
                await wait(drivers, options.seconds + EXTRA_SECONDS)
                problems += (await read(drivers, "khala", await expected(conversations, environment.model))).problems
                done += runs
                minutes_left = max(0.0, end - time.monotonic()) / 60
                print(f"{done} runs, {minutes_left:.1f} minutes left", file=sys.stderr, flush=True)
    measured = {name: [one for one in each if one[0] >= WARM_UP_SECONDS] for name, each in samples.items()}
    return Soak(
        minutes=minutes - WARM_UP_SECONDS / 60,
        runs=done,
        trends={name: trend(each) for name, each in measured.items()},
        samples=samples,
        problems=problems,
    )


@contextlib.asynccontextmanager
async def _sampled(pids: Mapping[str, int], postmaster: int | None) -> AsyncIterator[Samples]:
    samples: Samples = {name: [] for name in pids}
    began = time.monotonic()

    async def watch() -> None:
        while True:
            at = time.monotonic() - began
            for name, pid in pids.items():
                samples[name].append((at, psutil.Process(pid).memory_info().rss))
            cluster = postmaster and await asyncio.to_thread(counters.cluster_memory, postmaster)
            if cluster:
                samples.setdefault("database", []).append((at, cluster))
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        yield samples
        task.cancel()


def trend(samples: list[tuple[float, int]]) -> Trend:
    """The trend of at least two samples, by least squares."""
    line = fit([(at / 60, float(size)) for at, size in samples])
    mean = sum(size for _, size in samples) / len(samples)
    growth = line.slope * (samples[-1][0] - samples[0][0]) / 60 / mean
    return Trend(mean_mib=mean / KIB**2, kib_per_minute=line.slope / KIB, growth=growth, flat=growth < MAX_FLAT_GROWTH)


def table(soaked: Soak) -> str:
    """The trends as a table."""
    head = ["process", "", "mean MiB", "KiB/min", "growth %"]
    rows = [
        [
            name,
            "flat" if one.flat else "GROWS",
            format_number(one.mean_mib),
            format_number(one.kib_per_minute),
            format_number(one.growth * 100),
        ]
        for name, one in soaked.trends.items()
    ]
    return "\n".join([f"{soaked.runs} runs; {soaked.minutes:g} minutes measured", *align_columns([head, *rows])])
