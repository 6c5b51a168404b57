"""One workload: R runs of one model server through Khala to O observers each, and then the baseline's turn."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence

import httpx
import msgspec

from app.store.db import Driver
from tests.bench import measure, stage
from tests.bench.baseline import Play, Played
from tests.bench.measure import Cluster, Memory, cpu_seconds, difference, per_thousand
from tests.bench.model import Said, Texts
from tests.bench.observers import Count, Expected, Read, Seen, Target, Wait, Watch
from tests.bench.processes import Address, Listen, Worker, worker
from tests.bench.report import Baseline, Cpu, Delivery, Khala, Latency, Row, ratios
from tests.bench.stage import Stage
from tests.support.client import Thread

SPARE = 60.0
"""Seconds that a workload may take longer than its answers do."""
SETTING_UP = 60.0
"""Seconds that all observers have to connect."""
STATISTICS = 1.1
"""Seconds after which a session of Postgres is ready to tell its counters again."""


class Workload(msgspec.Struct, frozen=True):
    """So many runs, each in a thread of its own with so many observers."""

    runs: int
    observers: int

    @property
    def name(self) -> str:
        """As it is given and shown."""
        return f"{self.runs}x{self.observers}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How each run goes: tokens a second, and for how many seconds. `ramp`: seconds in which all runs are begun."""

    rate: float = 30.0
    seconds: float = 10.0
    ramp: float = 1.0
    drivers: int = 1

    @property
    def tokens(self) -> int:
        """Of one run."""
        return max(1, round(self.rate * self.seconds))

    def prompt(self, run: int) -> str:
        """What the model is asked; it knows the run by it."""
        return f"/words={self.tokens} /pace={self.rate:g} /stamp /run={run}"


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A thread in which one run was begun."""

    thread: Thread
    prompt: str
    message_id: str


class Cast(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part in a measurement, by pid."""

    pids: Mapping[str, Sequence[int]]

    def cpu(self) -> dict[str, float]:
        """CPU seconds used so far, by name."""
        return {name: cpu_seconds(pids) for name, pids in self.pids.items()}


async def run(workload: Workload, options: Options, place: Stage) -> Row:
    """Measure it."""
    khala, seen = await _khala(workload, options, place)
    baseline = await _baseline(workload, options, seen.schedules)
    return Row(
        workload=workload.name,
        runs=workload.runs,
        observers=workload.observers,
        khala=khala,
        baseline=baseline,
        ratios=ratios(khala, baseline),
        problems=seen.problems,
    )


async def _khala(workload: Workload, options: Options, place: Stage) -> tuple[Khala, Seen]:
    async with (
        stage.database(place) as url,
        stage.server(url, place) as server,
        stage.connected(url) as connection,
        stage.client(server) as http,
        stage.drivers(options.drivers) as drivers,
    ):
        threads = [await Thread.create(http) for _ in range(workload.runs)]
        await watch(drivers, _targets(threads, server.socket_url, workload.observers))
        cast = Cast(
            pids={"server": [server.pid], "model": [place.model.pid], "driver": [driver.pid for driver in drivers]}
        )
        await settle(http, connection)
        async with measure.memory(server.pid) as rss:
            before, cpu, began = await measure.cluster(connection), cast.cpu(), time.monotonic()
            conversations = await _begin(threads, options)
            await wait(drivers, options.seconds + SPARE)
            seconds = time.monotonic() - began
            spent = difference(cast.cpu(), cpu)
            cluster_cpu = (await measure.cluster(connection)).cpu
        await settle(http, connection)
        after = msgspec.structs.replace(await measure.cluster(connection), cpu=cluster_cpu)
        seen = await read(drivers, await _expected(conversations, place.model))
        meters = Meters(
            seconds=seconds,
            spent=spent,
            before=before,
            after=after,
            rss=rss,
            parts=await connection.fetchval("SELECT count(*) FROM message_parts"),
            tokens=options.tokens * workload.runs,
        )
    return _figures(seen, meters), seen


class Meters(msgspec.Struct, frozen=True, kw_only=True):
    """What was read off beside the observers: wall and CPU seconds, counters, memory, and how much was said."""

    seconds: float
    spent: dict[str, float]
    before: Cluster
    after: Cluster
    rss: Memory
    parts: int
    tokens: int


def _figures(seen: Seen, meters: Meters) -> Khala:
    before, after, seconds, parts = meters.before, meters.after, meters.seconds, meters.parts
    database = {} if before.cpu is None or after.cpu is None else {"database": after.cpu - before.cpu}
    return Khala(
        delivery=_delivery(seen, seconds),
        token=Latency.of(seen.tokens),
        newest=Latency.of(seen.newest),
        written=Latency.of(seen.written),
        cpu=Cpu.of(meters.spent | database, seen.frames),
        cpu_ms_per_1000_tokens=per_thousand(meters.spent["server"] * 1000, meters.tokens),
        rss=meters.rss,
        commits_per_second=(after.commits - before.commits) / seconds,
        writes_per_second=(after.writes - before.writes) / seconds,
        parts=parts,
        wal_bytes_per_1000_parts=per_thousand(after.wal - before.wal, parts),
    )


def _delivery(seen: Seen, seconds: float) -> Delivery:
    return Delivery(
        deltas=seen.frames,
        seconds=seconds,
        deltas_per_second=seen.frames / seconds,
        bytes_per_delta=seen.bytes / max(1, seen.frames),
    )


async def _baseline(workload: Workload, options: Options, schedules: Mapping[str, list[tuple[int, int]]]) -> Baseline:
    """Play to as many observers what one observer of each topic saw."""
    first = min((schedule[0][0] for schedule in schedules.values() if schedule), default=0)
    relative = {topic: [(at - first, size) for at, size in schedule] for topic, schedule in schedules.items()}
    span = max((schedule[-1][0] for schedule in relative.values() if schedule), default=0) / 1e9
    async with worker("baseline") as server, stage.drivers(options.drivers) as drivers:
        url = (await server.ask(Listen(), Address)).url
        targets = [
            Target(topic=topic, url=f"{url}/{topic}")
            for topic, schedule in relative.items()
            if schedule
            for _ in range(workload.observers)
        ]
        await watch(drivers, targets)
        cast = Cast(pids={"server": [server.pid], "driver": [driver.pid for driver in drivers]})
        async with measure.memory(server.pid) as rss:
            cpu, began = cast.cpu(), time.monotonic()
            played = await server.ask(Play(schedules=relative), Played, within=span + SPARE)
            await wait(drivers, SPARE)
            seconds, spent = time.monotonic() - began, difference(cast.cpu(), cpu)
        seen = await read(drivers, None)
    return Baseline(
        delivery=_delivery(seen, seconds),
        latency=Latency.of(seen.sent),
        cpu=Cpu.of(spent, seen.frames),
        rss=rss,
        late_ms=played.latest / 1000,
    )


def _targets(threads: Sequence[Thread], url: str, observers: int) -> list[Target]:
    def hello(thread: Thread) -> str:
        return json.dumps({"type": "subscribe", "threadId": thread.id, "anonKey": thread.key})

    return [Target(topic=thread.id, url=url, hello=hello(thread)) for thread in threads for _ in range(observers)]


async def watch(drivers: Sequence[Worker], targets: Sequence[Target]) -> None:
    """Let the drivers share the observers among them. Raises if one can't connect."""
    shares = [targets[at :: len(drivers)] for at in range(len(drivers))]
    asked = [
        driver.ask(Watch(targets=share), Count, within=SETTING_UP)
        for driver, share in zip(drivers, shares, strict=True)
    ]
    connected = sum(count.observers for count in await asyncio.gather(*asked))
    if connected < len(targets):
        raise RuntimeError(f"only {connected} of {len(targets)} observers could connect")


async def wait(drivers: Sequence[Worker], seconds: float) -> None:
    """Wait until all observers have seen the end, or it is in vain; `read` tells which."""
    await asyncio.gather(*(driver.ask(Wait(seconds=seconds), Count, within=seconds + 5) for driver in drivers))


async def read(drivers: Sequence[Worker], expected: Mapping[str, Expected] | None) -> Seen:
    """What all observers saw."""
    seen = Seen()
    for part in await asyncio.gather(*(driver.ask(Read(expected=expected), Seen) for driver in drivers)):
        seen.add(part)
    return seen


async def _begin(threads: Sequence[Thread], options: Options) -> list[Conversation]:
    """Ask in all threads, evenly over the ramp, so that runs don't flush in step."""

    async def begin(number: int, thread: Thread) -> Conversation:
        await asyncio.sleep(options.ramp * number / len(threads))
        prompt = options.prompt(number)
        sent = await thread.send(prompt)
        return Conversation(thread=thread, prompt=prompt, message_id=sent["assistantMessageId"])

    return await asyncio.gather(*(begin(number, thread) for number, thread in enumerate(threads)))


async def _expected(conversations: Sequence[Conversation], model: Worker) -> dict[str, Expected]:
    said = (await model.ask(Said(), Texts)).by_prompt
    return {one.thread.id: Expected(message_id=one.message_id, text=said.get(one.prompt, "")) for one in conversations}


async def settle(http: httpx.AsyncClient, connection: Driver) -> None:
    """Have each session of the server's pool tell Postgres its counters, as it does when its next transaction ends."""
    await asyncio.sleep(STATISTICS)
    for _ in range(await measure.sessions(connection)):
        (await http.get("/api/health/ready")).raise_for_status()
