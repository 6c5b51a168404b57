"""Runs one workload through Khala."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec

from khala.domain import ids
from khala.store.postgres.database import Driver
from tests.bench import counters, fixtures, storage
from tests.bench.counters import per_thousand
from tests.bench.driver_requests import EXTRA_SECONDS, read, wait, watch
from tests.bench.figures import System
from tests.bench.fixtures import BenchEnvironment
from tests.bench.model_server import ReadTexts, SentTexts
from tests.bench.observations import Expected, Observations
from tests.bench.observers import Target
from tests.bench.processes import Worker
from tests.bench.resource_usage import CpuSince, measured_usage, system_figures
from tests.bench.storage import Storage
from tests.bench.workload import WARM_UP, Options, Workload
from tests.support.client import Thread

RETRY_SECONDS = 0.5
"""Delay before a refused send is repeated."""
MAX_CONCURRENT_CREATES = 8
"""Of threads."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A thread with one run; `sent_at` is the time of the send in nanoseconds of the monotonic clock."""

    thread: Thread
    prompt: str
    message_id: str
    sent_at: int


async def run(
    workload: Workload, options: Options, environment: BenchEnvironment, drivers: Sequence[Worker]
) -> tuple[System, Observations]:
    """Measure a workload."""
    async with (
        fixtures.database(environment) as url,
        fixtures.khala(url, environment) as khala,
        fixtures.connected(url) as connection,
        fixtures.client(khala.web) as http,
    ):
        threads = await new_threads(http, workload.runs)
        await watch(drivers, targets(threads, khala.web.socket_url, workload.observers))
        await warm_up(http)
        window = options.steady(workload.runs)
        others = {"model": [environment.model.pid], "driver": [driver.pid for driver in drivers]}
        async with measured_usage({**khala.pids, **others}, connection) as usage, asyncio.TaskGroup() as group:
            stored = group.create_task(steady(connection, *window))
            live = group.create_task(used_cores(khala.pids.get("executor", khala.pids["web"]), *window))
            conversations = await begin(threads, options)
            since = CpuSince(khala.pids, await counters.postmaster(connection))
            await wait(drivers, options.seconds + EXTRA_SECONDS)
            spent = since.seconds()
        observations = await read(drivers, "khala", await expected(conversations, environment.model, connection))
    tokens = options.tokens * workload.runs
    figures = system_figures(observations, usage, stored.result(), tokens=tokens, pause=options.pause)
    arrivals = [at for schedule in observations.schedules.values() for at, _ in schedule]
    deltas = sum(at > since.began for at in arrivals) * workload.observers
    live_cpu = per_thousand(spent * 1000, deltas)
    return msgspec.structs.replace(figures, live_executor=live.result(), live_cpu=live_cpu), observations


async def new_threads(http: httpx.AsyncClient, count: int) -> list[Thread]:
    """Create so many threads, a few concurrently."""
    permits = asyncio.Semaphore(MAX_CONCURRENT_CREATES)

    async def create() -> Thread:
        async with permits:
            return await Thread.create(http)

    return await asyncio.gather(*(create() for _ in range(count)))


async def warm_up(http: httpx.AsyncClient) -> None:
    """Complete one short run, so that work that a process does only once is not measured."""
    thread = await Thread.create(http)
    sent = await thread.send(WARM_UP)
    await thread.ended(sent["runId"])


def targets(threads: Sequence[Thread], url: str, observers: int) -> list[Target]:
    """The targets of so many observers of each thread."""

    def hello(thread: Thread) -> str:
        return json.dumps({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key})

    return [Target(topic=thread.id, url=url, hello=hello(thread)) for thread in threads for _ in range(observers)]


async def begin(threads: Sequence[Thread], options: Options) -> list[Conversation]:
    """Send to all threads, evenly over the ramp."""
    ramp = options.ramp(len(threads))

    async def send(number: int, thread: Thread) -> Conversation:
        await asyncio.sleep(ramp * number / len(threads))
        prompt, sent_at = options.prompt(number), time.monotonic_ns()
        sent = await _send(thread, prompt)
        return Conversation(thread=thread, prompt=prompt, message_id=sent["assistantMessageId"], sent_at=sent_at)

    return await asyncio.gather(*(send(number, thread) for number, thread in enumerate(threads)))


async def _send(thread: Thread, prompt: str) -> dict[str, Any]:
    """Send; repeat the send if it is not answered, or refused with status 503, as any client may."""
    message_id = str(ids.new())
    async with asyncio.timeout(EXTRA_SECONDS):
        while True:
            try:
                return await thread.send(prompt, messageId=message_id)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    raise
            except httpx.TransportError as error:
                print(f"sending again after {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_SECONDS)


async def expected(
    conversations: Sequence[Conversation], model: Worker, connection: "Driver | None" = None
) -> Mapping[str, Expected]:
    """By topic, the text that the model sent since the last call; with a connection, also its commit times."""
    sent = (await model.ask(ReadTexts(), SentTexts)).by_prompt
    committed = {} if connection is None else await storage.committed(connection, "thread_id")
    return {
        one.thread.id: Expected(
            message_id=one.message_id,
            text=sent.get(one.prompt, ""),
            sent_at=one.sent_at,
            committed=committed.get(one.thread.id, ()),
        )
        for one in conversations
    }


async def used_cores(pids: Sequence[int], start: float, end: float) -> float:
    """The cores that these processes use between `start` and `end` seconds from now, on average."""
    began = time.monotonic()
    await asyncio.sleep(start)
    before, since = counters.cpu_seconds(pids), time.monotonic()
    await asyncio.sleep(max(0.0, began + end - since))
    return (counters.cpu_seconds(pids) - before) / (time.monotonic() - since)


async def steady(connection: Driver, start: float, end: float) -> Storage:
    """Storage figures of the time between `start` and `end` seconds from now."""
    began = time.monotonic()
    await asyncio.sleep(start)
    before = await storage.read_counters(connection)
    await asyncio.sleep(max(0.0, began + end - time.monotonic()))
    return await storage.between(connection, before, await storage.read_counters(connection))
