"""The soak: runs begun again and again for many minutes, and whether any process's memory grows."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Mapping

import psutil

from tests.bench import measure, stage
from tests.bench.driving import SPARE, read, wait, watch
from tests.bench.figures import Figures
from tests.bench.growth import fit
from tests.bench.khala import begin, expected, new_threads, targets
from tests.bench.stage import Stage
from tests.bench.tables import aligned, shown
from tests.bench.workload import Options

RUN_SECONDS = 30.0
"""How long each run speaks."""
WARM_UP = 60.0
"""Seconds at the beginning that don't count: caches fill, and allocators take what they need."""
INTERVAL = 1.0
"""Seconds between two looks."""
FLAT = 0.02
"""Growth over the whole measured time, as a part of the mean, up to which memory is called flat."""
KIB = 1024


class Trend(Figures, frozen=True, kw_only=True):
    """The memory of one process: `growth` is the slope times the measured minutes, as a part of the mean."""

    mean_mib: float
    kib_per_minute: float
    growth: float
    flat: bool


class Soak(Figures, frozen=True, kw_only=True):
    """`database` is the whole cluster, each shared page once: it grows until the shared buffers are full.

    `minutes` are those that were measured, after the warm-up; `samples` are (second, bytes).
    """

    minutes: float
    runs: int
    trends: dict[str, Trend]
    samples: dict[str, list[tuple[float, int]]]
    problems: list[str]

    @property
    def flat(self) -> bool:
        """Whether Khala's own processes are."""
        return all(self.trends[name].flat for name in ("web", "executor") if name in self.trends)


Samples = dict[str, list[tuple[float, int]]]


async def soak(minutes: float, runs: int, options: Options, place: Stage) -> Soak:
    """So many runs at once, in new threads, round after round, each with an observer that reads all."""
    done, problems = 0, list[str]()
    async with (
        stage.database(place) as url,
        stage.khala(url, place) as khala,
        stage.connected(url) as connection,
        stage.client(khala.web) as http,
        stage.drivers(options.drivers) as drivers,
    ):
        pids = {name: pid for name, (pid,) in khala.pids.items()}
        async with _sampled(pids, await measure.postmaster(connection)) as samples:
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                threads = await new_threads(http, runs)
                await watch(drivers, targets(threads, khala.web.socket_url, 1))
                conversations = await begin(threads, options)
                await wait(drivers, options.seconds + SPARE)
                problems += (await read(drivers, "khala", await expected(conversations, place.model))).problems
                done += runs
                left = max(0.0, end - time.monotonic()) / 60
                print(f"{done} runs, {left:.1f} minutes to go", file=sys.stderr, flush=True)
    measured = {name: [one for one in each if one[0] >= WARM_UP] for name, each in samples.items()}
    return Soak(
        minutes=minutes - WARM_UP / 60,
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
            cluster = postmaster and await asyncio.to_thread(measure.cluster_memory, postmaster)
            if cluster:
                samples.setdefault("database", []).append((at, cluster))
            await asyncio.sleep(INTERVAL)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        yield samples
        task.cancel()


def trend(samples: list[tuple[float, int]]) -> Trend:
    """The slope of at least two samples, by least squares."""
    line = fit([(at / 60, float(size)) for at, size in samples])
    mean = sum(size for _, size in samples) / len(samples)
    growth = line.slope * (samples[-1][0] - samples[0][0]) / 60 / mean
    return Trend(mean_mib=mean / KIB**2, kib_per_minute=line.slope / KIB, growth=growth, flat=growth < FLAT)


def told(soaked: Soak) -> str:
    """A table of it."""
    head = ["process", "", "mean MiB", "KiB/min", "growth %"]
    rows = [
        [name, "flat" if one.flat else "GROWS", shown(one.mean_mib), shown(one.kib_per_minute), shown(one.growth * 100)]
        for name, one in soaked.trends.items()
    ]
    return "\n".join([f"{soaked.runs} runs; {soaked.minutes:g} minutes measured", *aligned([head, *rows])])
