"""Runs a workload through NATS JetStream, with a process that makes and publishes the tokens, for comparison.

It does less than Khala: nobody reads a model's stream, and there are no leases, receipts, budgets or access checks. The
CPU is that of the server and of the publishing process. Debian's package `nats-server` is enough.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from khala.domain import ids
from tests.bench.counters import per_thousand
from tests.bench.driver_requests import EXTRA_SECONDS
from tests.bench.figures import Figures, Latency
from tests.bench.jetstream_client import Collect, Done, Observe, Open, Publish, Received, Texts, differences
from tests.bench.processes import worker
from tests.bench.resource_usage import CpuSince, measured_usage
from tests.bench.workload import Options, Workload
from tests.support.ports import free_port

READY_TIMEOUT_SECONDS = 10.0
MISSING = "nats-server is not installed, so nothing is compared with NATS JetStream: apt-get install nats-server"


class Jetstream(Figures, frozen=True, kw_only=True):
    """One workload through NATS JetStream.

    `live_cpu` is CPU milliseconds of server and publisher per 1,000 deltas since the last run began, as Khala's is.
    """

    workload: str
    deltas: int
    live_cpu: float | None
    server_seconds: float
    publisher_seconds: float
    token: Latency
    problems: list[str]


def server_program() -> str | None:
    """The path of the NATS server; None if it is not installed."""
    return shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")


async def jetstream(workload: Workload, options: Options, program: str) -> Jetstream:
    """Measure a workload."""
    topics = [ids.new().hex for _ in range(workload.runs)]
    async with (
        _server(program) as (url, pid),
        worker("jetstream_client") as publisher,
        worker("jetstream_client") as observers,
    ):
        await publisher.ask(Open(url=url), Done)
        await observers.ask(Observe(url=url, topics=topics * workload.observers), Done)
        publish = Publish(topics=topics, tokens=options.tokens, rate=options.rate, ramp=options.ramp(workload.runs))
        pids = {"server": [pid], "publisher": [publisher.pid], "driver": [observers.pid]}
        async with measured_usage(pids) as usage, asyncio.TaskGroup() as group:
            published = group.create_task(publisher.ask(publish, Texts, within=options.seconds + EXTRA_SECONDS))
            await asyncio.sleep(publish.ramp)
            since = CpuSince({"server": [pid], "publisher": [publisher.pid]})
            texts = await published
            received = await observers.ask(Collect(seconds=EXTRA_SECONDS), Received, within=2 * EXTRA_SECONDS)
            spent = since.seconds()
    return Jetstream(
        workload=workload.name,
        deltas=len(received.arrivals),
        live_cpu=per_thousand(spent * 1000, sum(at > since.began for at in received.arrivals)),
        server_seconds=usage.cpu["server"],
        publisher_seconds=usage.cpu["publisher"],
        token=Latency.of(received.ages),
        problems=differences(texts.by_topic, received),
    )


@asynccontextmanager
async def _server(program: str) -> AsyncIterator[tuple[str, int]]:
    """Run a server with a stream on disk; yields its URL and pid."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="khala-bench-nats-") as folder:
        arguments = (program, "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", folder)
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(READY_TIMEOUT_SECONDS):
                while not await _listens(port):
                    await asyncio.sleep(0.05)
            yield f"nats://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
