"""Runs a workload through each baseline: the bare broadcast of the same frames, and the naive implementation."""

import asyncio
from collections.abc import Mapping, Sequence

from khala.domain import ids
from khala.store.postgres.database import driver_url
from tests.bench import fixtures, naive, storage
from tests.bench.driver_requests import EXTRA_SECONDS, read, wait, watch
from tests.bench.figures import Bare, Cpu, Delivery, Latency, System
from tests.bench.fixtures import BenchEnvironment
from tests.bench.khala import steady
from tests.bench.model_server import ReadTexts, SentTexts
from tests.bench.observations import Expected, Observations
from tests.bench.observers import Target
from tests.bench.processes import Address, Listen, Worker, worker
from tests.bench.replay_server import Replay, ReplayResult
from tests.bench.resource_usage import measured_usage, system_figures
from tests.bench.workload import WARM_UP, Options, Schedules, Workload


async def bare(
    workload: Workload, schedules: Schedules, deltas: int, drivers: Sequence[Worker]
) -> tuple[Bare, Observations]:
    """Replay to as many observers the frames that one observer of each topic received; `deltas` is the sum of all."""
    first = min((schedule[0][0] for schedule in schedules.values() if schedule), default=0)
    relative = {topic: [(at - first, size) for at, size in schedule] for topic, schedule in schedules.items()}
    span = max((schedule[-1][0] for schedule in relative.values() if schedule), default=0) / 1e9
    async with worker("replay_server") as server:
        url = (await server.ask(Listen(), Address)).url
        topics = [topic for topic, schedule in relative.items() if schedule]
        await watch(drivers, _targets(url, topics, workload.observers))
        async with measured_usage({"web": [server.pid], "driver": [driver.pid for driver in drivers]}) as usage:
            replayed = await server.ask(Replay(schedules=relative), ReplayResult, within=span + EXTRA_SECONDS)
            await wait(drivers, EXTRA_SECONDS)
        observations = await read(drivers, "bare", {})
    return Bare(
        delivery=Delivery.of(observations, usage.seconds, deltas),
        latency=Latency.of(observations.sent),
        cpu=Cpu.of(usage.cpu, deltas),
        memory=usage.memory["web"],
        late_ms=replayed.max_delay / 1000,
    ), observations


async def naive_runs(
    workload: Workload, options: Options, environment: BenchEnvironment, drivers: Sequence[Worker], *, by_token: bool
) -> tuple[System, Observations]:
    """The same runs through the naive implementation."""
    prompts = {str(ids.new()): options.prompt(number) for number in range(workload.runs)}
    async with (
        fixtures.database(environment, naive.SCHEMA) as database,
        fixtures.connected(database) as connection,
        worker("naive") as web,
        worker("naive") as executor,
    ):
        database_url = driver_url(database)
        url = (await web.ask(naive.Serve(database=database_url), Address)).url
        await watch(drivers, _targets(url, list(prompts), workload.observers))
        await executor.ask(naive.Connect(database=database_url, model_url=environment.model_url), naive.StartTimes)
        warm_up = naive.StartRuns(prompts={str(ids.new()): WARM_UP}, ramp=0, by_token=by_token)
        await executor.ask(warm_up, naive.StartTimes)
        request = naive.StartRuns(prompts=prompts, ramp=options.ramp(workload.runs), by_token=by_token)
        pids = {"web": [web.pid], "executor": [executor.pid], "model": [environment.model.pid]}
        driver_pids = {"driver": [driver.pid for driver in drivers]}
        async with measured_usage({**pids, **driver_pids}, connection) as usage, asyncio.TaskGroup() as group:
            stored = group.create_task(steady(connection, *options.steady(workload.runs)))
            started = await executor.ask(request, naive.StartTimes, within=options.seconds + 2 * EXTRA_SECONDS)
            await wait(drivers, EXTRA_SECONDS)
        sent = (await environment.model.ask(ReadTexts(), SentTexts)).by_prompt
        committed = await storage.committed(connection, "run_id")
        observations = await read(drivers, "naive", _expected(prompts, sent, started.began, committed))
    tokens = options.tokens * workload.runs
    return system_figures(observations, usage, stored.result(), tokens=tokens, pause=options.pause), observations


def _targets(url: str, topics: list[str], observers: int) -> list[Target]:
    return [Target(topic=topic, url=f"{url}/{topic}") for topic in topics for _ in range(observers)]


def _expected(
    prompts: Mapping[str, str],
    sent: Mapping[str, str],
    began: Mapping[str, int],
    committed: Mapping[str, Sequence[int]],
) -> dict[str, Expected]:
    return {
        topic: Expected(
            message_id="", text=sent.get(prompt, ""), sent_at=began[topic], committed=committed.get(topic, ())
        )
        for topic, prompt in prompts.items()
    }
