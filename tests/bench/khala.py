"""One workload through Khala."""

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
from tests.bench import stage, storage
from tests.bench.driving import SPARE, read, wait, watch
from tests.bench.figures import System
from tests.bench.meters import metered, system
from tests.bench.model import Said, Texts
from tests.bench.observers import Target
from tests.bench.processes import Worker
from tests.bench.reading import Expected, Seen
from tests.bench.stage import Stage
from tests.bench.storage import Storage
from tests.bench.workload import WARM_UP, Options, Workload
from tests.support.client import Thread

AGAIN = 0.5
"""Seconds before what was refused is sent again."""
MAKING = 8
"""Threads that are being made at once."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A thread in which one run was begun; `asked` is when, in nanoseconds of the monotonic clock."""

    thread: Thread
    prompt: str
    message_id: str
    asked: int


async def run(workload: Workload, options: Options, place: Stage, drivers: Sequence[Worker]) -> tuple[System, Seen]:
    """Measure it."""
    async with (
        stage.database(place) as url,
        stage.khala(url, place) as khala,
        stage.connected(url) as connection,
        stage.client(khala.web) as http,
    ):
        threads = await new_threads(http, workload.runs)
        await watch(drivers, targets(threads, khala.web.socket_url, workload.observers))
        await warm_up(http)
        others = {"model": [place.model.pid], "driver": [driver.pid for driver in drivers]}
        async with metered({**khala.pids, **others}, connection) as spent, asyncio.TaskGroup() as group:
            stored = group.create_task(steady(connection, *options.steady(workload.runs)))
            conversations = await begin(threads, options)
            await wait(drivers, options.seconds + SPARE)
        seen = await read(drivers, "khala", await expected(conversations, place.model, connection))
    tokens = options.tokens * workload.runs
    return system(seen, spent, stored.result(), tokens=tokens, pause=options.pause), seen


async def new_threads(http: httpx.AsyncClient, count: int) -> list[Thread]:
    """So many threads, a few of which are made at the same time."""
    permits = asyncio.Semaphore(MAKING)

    async def one() -> Thread:
        async with permits:
            return await Thread.create(http)

    return await asyncio.gather(*(one() for _ in range(count)))


async def warm_up(http: httpx.AsyncClient) -> None:
    """One short run to its end: what a process does only once is no figure of a workload."""
    thread = await Thread.create(http)
    sent = await thread.send(WARM_UP)
    await thread.ended(sent["runId"])


def targets(threads: Sequence[Thread], url: str, observers: int) -> list[Target]:
    """So many observers of each thread."""

    def hello(thread: Thread) -> str:
        return json.dumps({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key})

    return [Target(topic=thread.id, url=url, hello=hello(thread)) for thread in threads for _ in range(observers)]


async def begin(threads: Sequence[Thread], options: Options) -> list[Conversation]:
    """Ask in all threads, evenly over the ramp."""
    ramp = options.ramp(len(threads))

    async def one(number: int, thread: Thread) -> Conversation:
        await asyncio.sleep(ramp * number / len(threads))
        prompt, asked = options.prompt(number), time.monotonic_ns()
        sent = await _sent(thread, prompt)
        return Conversation(thread=thread, prompt=prompt, message_id=sent["assistantMessageId"], asked=asked)

    return await asyncio.gather(*(one(number, thread) for number, thread in enumerate(threads)))


async def _sent(thread: Thread, prompt: str) -> dict[str, Any]:
    """As every client may: what was not answered, or refused for want of a connection, is sent again."""
    message_id = str(ids.new())
    async with asyncio.timeout(SPARE):
        while True:
            try:
                return await thread.send(prompt, messageId=message_id)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    raise
            except httpx.TransportError as error:
                print(f"sending again after {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(AGAIN)


async def expected(
    conversations: Sequence[Conversation], model: Worker, connection: "Driver | None" = None
) -> Mapping[str, Expected]:
    """By topic, what the model said since it was last asked; with a connection, also when it was committed."""
    said = (await model.ask(Said(), Texts)).by_prompt
    committed = {} if connection is None else await storage.committed(connection, "thread_id")
    return {
        one.thread.id: Expected(
            message_id=one.message_id,
            text=said.get(one.prompt, ""),
            asked=one.asked,
            committed=committed.get(one.thread.id, ()),
        )
        for one in conversations
    }


async def steady(connection: Driver, start: float, end: float) -> Storage:
    """What is stored between so many seconds from now."""
    began = time.monotonic()
    await asyncio.sleep(start)
    before = await storage.moment(connection)
    await asyncio.sleep(max(0.0, began + end - time.monotonic()))
    return await storage.between(connection, before, await storage.moment(connection))
