"""The bench: workloads one after the other, each through Khala and its baselines, on one Postgres and one model."""

import contextlib
import sys
import traceback
from collections.abc import AsyncIterator, Sequence

import asyncpg

from khala.store.postgres.database import driver_url
from tests.bench import beside, khala, machine, stage
from tests.bench.figures import Row, ratios
from tests.bench.processes import Address, Listen, Worker, worker
from tests.bench.report import Report
from tests.bench.stage import Stage
from tests.bench.workload import Options, Workload
from tests.support import postgres


@contextlib.asynccontextmanager
async def opened(url: str, template: str, *, together: bool = False) -> AsyncIterator[Stage]:
    """The stage, with its model server, for as long as this is open."""
    async with worker("model") as model:
        address = (await model.ask(Listen(), Address)).url
        yield Stage(url=url, template=template, model=model, model_url=address, together=together)


@contextlib.asynccontextmanager
async def template(url: str) -> AsyncIterator[str]:
    """A migrated database to clone."""
    name = await postgres.make_template(url)
    try:
        yield name
    finally:
        await postgres.execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def bench(workloads: Sequence[Workload], options: Options, place: Stage) -> Report:
    """Measure these. One that can't be carried through is told of as a failure."""
    connection = await asyncpg.connect(driver_url(place.url))
    try:
        facts = await machine.facts(connection)
    finally:
        await connection.close()
    report = Report(machine=facts, options=options)
    for workload in workloads:
        print(f"{workload.name} …", file=sys.stderr, flush=True)
        try:
            async with stage.drivers(options.drivers) as drivers:
                report.rows.append(await row(workload, options, place, drivers))
        except Exception as error:
            traceback.print_exc()
            report.failures[workload.name] = repr(error)
    return report


async def row(workload: Workload, options: Options, place: Stage, drivers: Sequence[Worker]) -> Row:
    """One workload, and what its baselines make of it."""
    system, seen = await khala.run(workload, options, place, drivers)
    problems, bare, naive = list(seen.problems), None, {}
    if "bare" in options.baselines:
        bare, played = await beside.bare(workload, seen.schedules, seen.deltas, drivers)
        if played.frames != seen.frames:
            problems.append(f"bare: {played.frames} frames came, {seen.frames} were expected")
    for way in ("flush", "token"):
        if way in options.baselines:
            naive[way], told = await beside.naively(workload, options, place, drivers, by_token=way == "token")
            problems += [f"naive, {way}: {problem}" for problem in told.problems]
    return Row(
        workload=workload.name,
        runs=workload.runs,
        observers=workload.observers,
        khala=system,
        bare=bare,
        naive_flush=naive.get("flush"),
        naive_token=naive.get("token"),
        ratios=ratios(system, bare, naive.get("flush"), naive.get("token")),
        problems=problems,
    )
