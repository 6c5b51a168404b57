"""What more processes bring: `python -m tests.bench.scale`.

On a machine of few cores, computing power is not what grows. What does is what each process adds whatever the machine:
places for runs, which are bounded for each worker, and somebody else to write the frames of some of the observers. So
the first table has runs that wait and do not compute, and the second the computing time of each process that serves.
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
PLACES = int(CONCURRENCY * MAX_GUEST_SHARE)
"""Runs of guests that one worker takes at once."""
PATIENCE = 300.0
"""Seconds that all runs together may take."""
WAITING = "/words=40 /pace=20"
"""An answer that takes 2 s, whoever gives it."""
TELLING = "/words=400 /pace=80"
"""An answer of 5 s."""


@contextlib.contextmanager
def stage(url: str, template: str, *, webs: int, workers: int) -> Iterator[Cluster]:
    """Processes on a database of their own."""
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
    """How long so many answers take together, each in a thread of its own."""
    async with httpx.AsyncClient(base_url=khala.url, timeout=60, trust_env=False) as http:
        threads = [await Thread.create(http) for _ in range(runs)]
        began = time.monotonic()
        sent = [await thread.send(WAITING) for thread in threads]
        for thread, one in zip(threads, sent, strict=True):
            await thread.ended(one["runId"], within=PATIENCE)
        return time.monotonic() - began


async def delivered(khala: Cluster, count: int) -> tuple[int, list[float]]:
    """Frames that came to so many observers of one answer, and the seconds that each serving process computed."""
    async with (
        httpx.AsyncClient(base_url=khala.url, timeout=60, trust_env=False) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        thread = await Thread.create(http)
        watching = [
            await stack.enter_async_context(Observer(khala.socket_url, thread).following()) for _ in range(count)
        ]
        for observer in watching:
            await observer.until(lambda view: view.revision is not None)
        processes = [psutil.Process(web.pid) for web in khala.webs]
        before = [computed(process) for process in processes]
        frames = sum(len(observer.arrivals) for observer in watching)
        answer = (await thread.send(TELLING))["assistantMessageId"]
        for observer in watching:
            await observer.until(lambda view: answer in view.finished, within=PATIENCE)
        after = [computed(process) for process in processes]
        frames = sum(len(observer.arrivals) for observer in watching) - frames
        return frames, [now - then for now, then in zip(after, before, strict=True)]


def computed(process: psutil.Process) -> float:
    """Seconds that the process has had a core for itself."""
    times = process.cpu_times()
    return float(times.user + times.system)


def places(url: str, template: str, counts: Sequence[int]) -> None:
    """Print how much sooner the same runs have ended with more workers."""
    runs = 2 * PLACES * max(counts)
    print(f"{runs} runs of 2 s; each worker has {PLACES} places for guests")
    print("workers  places  seconds  runs/s")
    for count in counts:
        with stage(url, template, webs=1, workers=count) as khala:
            took = asyncio.run(seconds_for(khala, runs))
        print(f"{count:7}  {count * PLACES:6}  {took:7.1f}  {runs / took:6.2f}", flush=True)


def frames(url: str, template: str, counts: Sequence[int], observers: int) -> None:
    """Print how the work for the same observers is shared."""
    print(f"\n{observers} observers of one answer of 5 s, behind nginx")
    print("webs  frames  CPU seconds of each process")
    for count in counts:
        with stage(url, template, webs=count, workers=1) as khala:
            came, spent = asyncio.run(delivered(khala, observers))
        print(f"{count:4}  {came:6}  {'  '.join(f'{one:.2f}' for one in spent)}", flush=True)


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--webs", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--observers", type=int, default=150)
    options = parser.parse_args()
    with postgres.server() as url:
        template = asyncio.run(postgres.make_template(url))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
        if options.workers:
            places(url, template, options.workers)
        if options.webs:
            frames(url, template, options.webs, options.observers)


if __name__ == "__main__":
    main()
