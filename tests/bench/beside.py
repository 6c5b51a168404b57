"""One workload through each baseline: the bare broadcast of the same frames, and the naive way from the same model."""

import asyncio
from collections.abc import Mapping, Sequence

from khala.domain import ids
from khala.store.postgres.database import driver_url
from tests.bench import naive, stage, storage
from tests.bench.baseline import Play, Played
from tests.bench.driving import SPARE, read, wait, watch
from tests.bench.figures import Bare, Cpu, Delivery, Latency, System
from tests.bench.khala import steady
from tests.bench.meters import metered, system
from tests.bench.model import Said, Texts
from tests.bench.observers import Target
from tests.bench.processes import Address, Listen, Worker, worker
from tests.bench.reading import Expected, Seen
from tests.bench.stage import Stage
from tests.bench.workload import WARM_UP, Options, Schedules, Workload


async def bare(workload: Workload, schedules: Schedules, deltas: int, drivers: Sequence[Worker]) -> tuple[Bare, Seen]:
    """Play to as many observers what one observer of each topic saw; among it were so many deltas, of all observers."""
    first = min((schedule[0][0] for schedule in schedules.values() if schedule), default=0)
    relative = {topic: [(at - first, size) for at, size in schedule] for topic, schedule in schedules.items()}
    span = max((schedule[-1][0] for schedule in relative.values() if schedule), default=0) / 1e9
    async with worker("baseline") as server:
        url = (await server.ask(Listen(), Address)).url
        topics = [topic for topic, schedule in relative.items() if schedule]
        await watch(drivers, _targets(url, topics, workload.observers))
        async with metered({"web": [server.pid], "driver": [driver.pid for driver in drivers]}) as spent:
            played = await server.ask(Play(schedules=relative), Played, within=span + SPARE)
            await wait(drivers, SPARE)
        seen = await read(drivers, "bare", {})
    return Bare(
        delivery=Delivery.of(seen, spent.seconds, deltas),
        latency=Latency.of(seen.sent),
        cpu=Cpu.of(spent.cpu, deltas),
        memory=spent.memory["web"],
        late_ms=played.latest / 1000,
    ), seen


async def naively(
    workload: Workload, options: Options, place: Stage, drivers: Sequence[Worker], *, by_token: bool
) -> tuple[System, Seen]:
    """The same runs the naive way."""
    prompts = {str(ids.new()): options.prompt(number) for number in range(workload.runs)}
    async with (
        stage.database(place, naive.SCHEMA) as database,
        stage.connected(database) as connection,
        worker("naive") as web,
        worker("naive") as executor,
    ):
        where = driver_url(database)
        url = (await web.ask(naive.Serve(database=where), Address)).url
        await watch(drivers, _targets(url, list(prompts), workload.observers))
        await executor.ask(naive.Open(database=where, model_url=place.model_url), naive.Spoken)
        first = naive.Speak(prompts={str(ids.new()): WARM_UP}, ramp=0, by_token=by_token)
        await executor.ask(first, naive.Spoken)
        request = naive.Speak(prompts=prompts, ramp=options.ramp(workload.runs), by_token=by_token)
        pids = {"web": [web.pid], "executor": [executor.pid], "model": [place.model.pid]}
        drivers_pids = {"driver": [driver.pid for driver in drivers]}
        async with metered({**pids, **drivers_pids}, connection) as spent, asyncio.TaskGroup() as group:
            stored = group.create_task(steady(connection, *options.steady(workload.runs)))
            spoken = await executor.ask(request, naive.Spoken, within=options.seconds + 2 * SPARE)
            await wait(drivers, SPARE)
        said = (await place.model.ask(Said(), Texts)).by_prompt
        committed = await storage.committed(connection, "run_id")
        seen = await read(drivers, "naive", _expected(prompts, said, spoken.began, committed))
    tokens = options.tokens * workload.runs
    return system(seen, spent, stored.result(), tokens=tokens, pause=options.pause), seen


def _targets(url: str, topics: list[str], observers: int) -> list[Target]:
    return [Target(topic=topic, url=f"{url}/{topic}") for topic in topics for _ in range(observers)]


def _expected(
    prompts: Mapping[str, str],
    said: Mapping[str, str],
    began: Mapping[str, int],
    committed: Mapping[str, Sequence[int]],
) -> dict[str, Expected]:
    return {
        topic: Expected(
            message_id="", text=said.get(prompt, ""), asked=began[topic], committed=committed.get(topic, ())
        )
        for topic, prompt in prompts.items()
    }
