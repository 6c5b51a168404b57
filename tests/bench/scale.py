"""Effect of more processes: `python -m tests.bench.scale`.

On a machine with few cores, more processes bring no computing power. But each executor adds slots for concurrent runs,
and each web process writes the frames of its share of the observers. So the first table measures runs that mostly wait,
and the second the CPU time of each web process.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import psutil

from khala.domain import ids
from khala.runs.executor import MAX_GUEST_SHARE
from tests.support import postgres
from tests.support.client import Observer, Thread
from tests.support.cluster import Cluster, cluster

CONCURRENCY = 8
GUEST_SLOTS = int(CONCURRENCY * MAX_GUEST_SHARE)
"""Concurrent runs of guests of one executor."""
RUNS_TIMEOUT_SECONDS = 300.0
"""For all runs together."""
SHORT_ANSWER = "/words=40 /pace=20"
"""Takes 2 s in any executor."""
LONG_ANSWER = "/words=400 /pace=80"
"""Takes 5 s."""


@contextlib.contextmanager
def running_cluster(url: str, template: str, *, webs: int, workers: int) -> Iterator[Cluster]:
    """Run a cluster on a new database."""
    name = f"khala_bench_{ids.new().hex}"
    asyncio.run(postgres.execute(url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    limits = {"KHALA_CONCURRENCY": str(CONCURRENCY), "KHALA_ANON_RUNS_PER_HOUR": "0", "KHALA_ANON_USD_PER_DAY": "0"}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="khala-scale-") as folder,
            cluster(postgres.named(url, name), Path(folder), webs=webs, workers=workers, **limits) as khala,
        ):
            yield khala
    finally:
        asyncio.run(postgres.execute(url, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def seconds_for(khala: Cluster, runs: int) -> float:
    """Seconds that so many concurrent answers take, each in a thread of its own."""
    async with httpx.AsyncClient(base_url=khala.url, timeout=60, trust_env=False) as http:
        threads = [await Thread.create(http) for _ in range(runs)]
        began = time.monotonic()
        sent = [await thread.send(SHORT_ANSWER) for thread in threads]
        for thread, one in zip(threads, sent, strict=True):
            await thread.ended(one["runId"], within=RUNS_TIMEOUT_SECONDS)
        return time.monotonic() - began


async def delivered(khala: Cluster, count: int) -> tuple[int, list[float]]:
    """Frames that so many observers of one answer received, and the CPU seconds of each web process."""
    async with (
        httpx.AsyncClient(base_url=khala.url, timeout=60, trust_env=False) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        thread = await Thread.create(http)
        observers = [
            await stack.enter_async_context(Observer(khala.socket_url, thread).following()) for _ in range(count)
        ]
        for observer in observers:
            await observer.until(lambda view: view.revision is not None)
        processes = [psutil.Process(web.pid) for web in khala.webs]
        before = [cpu_seconds(process) for process in processes]
        frames = sum(len(observer.arrivals) for observer in observers)
        answer = (await thread.send(LONG_ANSWER))["assistantMessageId"]
        for observer in observers:
            await observer.until(lambda view: answer in view.finished, within=RUNS_TIMEOUT_SECONDS)
        after = [cpu_seconds(process) for process in processes]
        frames = sum(len(observer.arrivals) for observer in observers) - frames
        return frames, [now - then for now, then in zip(after, before, strict=True)]


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of the process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def compare_executors(url: str, template: str, counts: Sequence[int]) -> None:
    """Print how long the same runs take with more executors."""
    runs = 2 * GUEST_SLOTS * max(counts)
    print(f"{runs} runs of 2 s; each worker has {GUEST_SLOTS} slots for guests")
    print("workers   slots  seconds  runs/s")
    for count in counts:
        with running_cluster(url, template, webs=1, workers=count) as khala:
            took = asyncio.run(seconds_for(khala, runs))
        print(f"{count:7}  {count * GUEST_SLOTS:6}  {took:7.1f}  {runs / took:6.2f}", flush=True)


def compare_webs(url: str, template: str, counts: Sequence[int], observers: int) -> None:
    """Print how the web processes share the work for the same observers."""
    print(f"\n{observers} observers of one answer of 5 s, behind nginx")
    print("webs  frames  CPU seconds of each process")
    for count in counts:
        with running_cluster(url, template, webs=count, workers=1) as khala:
            frames, seconds = asyncio.run(delivered(khala, observers))
        print(f"{count:4}  {frames:6}  {'  '.join(f'{one:.2f}' for one in seconds)}", flush=True)


def main() -> None:
    """Parse the command line, and measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--webs", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--observers", type=int, default=150)
    options = parser.parse_args()
    with postgres.server() as url:
        template = asyncio.run(postgres.make_template(url))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start")
        if options.workers:
            compare_executors(url, template, options.workers)
        if options.webs:
            compare_webs(url, template, options.webs, options.observers)


if __name__ == "__main__":
    main()
