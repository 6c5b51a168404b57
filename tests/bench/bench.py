"""Runs workloads one after the other, each through Khala and its baselines, on one Postgres and one model server."""

import contextlib
import sys
import traceback
from collections.abc import AsyncIterator, Sequence

import asyncpg

from khala.store.postgres.database import driver_url
from tests.bench import baseline_runs, fixtures, khala, machine
from tests.bench.figures import Row, ratios
from tests.bench.fixtures import BenchEnvironment
from tests.bench.processes import Address, Listen, Worker, worker
from tests.bench.report import Report
from tests.bench.workload import Options, Workload
from tests.support import postgres


@contextlib.asynccontextmanager
async def open_environment(url: str, template: str, *, together: bool = False) -> AsyncIterator[BenchEnvironment]:
    """The environment of a benchmark, whose model server runs for as long as this is open."""
    async with worker("model_server") as model:
        address = (await model.ask(Listen(), Address)).url
        yield BenchEnvironment(url=url, template=template, model=model, model_url=address, together=together)


@contextlib.asynccontextmanager
async def template(url: str) -> AsyncIterator[str]:
    """The name of a migrated template database, which is dropped at the end."""
    name = await postgres.make_template(url)
    try:
        yield name
    finally:
        await postgres.execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def bench(workloads: Sequence[Workload], options: Options, environment: BenchEnvironment) -> Report:
    """Measure these workloads. If one fails, the report lists the failure and the others go on."""
    connection = await asyncpg.connect(driver_url(environment.url))
    try:
        facts = await machine.facts(connection)
    finally:
        await connection.close()
    report = Report(machine=facts, options=options)
    for workload in workloads:
        print(f"{workload.name} …", file=sys.stderr, flush=True)
        try:
            async with fixtures.drivers(options.drivers) as drivers:
                report.rows.append(await row(workload, options, environment, drivers))
        except Exception as error:
            traceback.print_exc()
            report.failures[workload.name] = repr(error)
    return report


async def row(workload: Workload, options: Options, environment: BenchEnvironment, drivers: Sequence[Worker]) -> Row:
    """Measure one workload through Khala and its baselines."""
    system, observations = await khala.run(workload, options, environment, drivers)
    problems, bare, naive = list(observations.problems), None, {}
    if "bare" in options.baselines:
        bare, replayed = await baseline_runs.bare(workload, observations.schedules, observations.deltas, drivers)
        if replayed.frames != observations.frames:
            problems.append(f"bare: {replayed.frames} frames came, {observations.frames} were expected")
    for commits in ("flush", "token"):
        if commits in options.baselines:
            naive[commits], received = await baseline_runs.naive_runs(
                workload, options, environment, drivers, by_token=commits == "token"
            )
            problems += [f"naive, {commits}: {problem}" for problem in received.problems]
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
