"""Cost of idle observed threads: transactions and CPU of the database, with none, one and many."""

import asyncio
import time

import httpx

from khala.store.postgres.database import Driver
from tests.bench import counters, fixtures
from tests.bench.driver_requests import disconnect, watch
from tests.bench.figures import Figures
from tests.bench.fixtures import BenchEnvironment, Khala
from tests.bench.khala import new_threads, targets
from tests.bench.processes import Worker

MANY = 50
"""Idle threads, each with one observer."""
SAMPLE_SECONDS = 12.0
"""Length of each of the two samples: longer than the interval of any periodic query."""
SETTLE_SECONDS = 11.0
"""An idle session of Postgres reports its counters after 10 s at the latest."""

DISABLE_AUTOVACUUM = """
    DO $$ DECLARE it regclass; BEGIN
        FOR it IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', it);
        END LOOP;
    END $$
"""
"""The transactions of autovacuum would count like all others, and fifty new threads trigger it."""


class Idle(Figures, frozen=True, kw_only=True):
    """Transactions a second with no observed thread, with one, and with many; and the increase per further thread.

    Sessions of Postgres report some transactions late, so each figure is the lower one of two samples.
    `cpu_ms_per_second` is that of the cluster, with many observed threads.
    """

    none: float
    one: float
    many: float
    each_adds: float
    cpu_ms_per_second: float | None


async def idle(environment: BenchEnvironment) -> Idle:
    """Measure with no, one, and many observed threads."""
    async with (
        fixtures.database(environment) as url,
        fixtures.connected(url) as connection,
        fixtures.khala(url, environment) as khala,
        fixtures.client(khala.web) as http,
        fixtures.drivers(1) as (driver,),
    ):
        await connection.execute(DISABLE_AUTOVACUUM)
        none, _ = await _rate(connection)
        one, _ = await _rate_with(1, connection, http, khala, driver)
        many, cpu = await _rate_with(MANY, connection, http, khala, driver)
    return Idle(none=none, one=one, many=many, each_adds=(many - one) / (MANY - 1), cpu_ms_per_second=cpu)


async def _rate_with(
    count: int, connection: Driver, http: httpx.AsyncClient, khala: Khala, driver: Worker
) -> tuple[float, float | None]:
    threads = await new_threads(http, count)
    await watch([driver], targets(threads, khala.web.socket_url, 1))
    measured = await _rate(connection)
    if (connected := await disconnect([driver])) < count:
        raise RuntimeError(f"{count - connected} of {count} idle observers were lost")
    return measured


async def _rate(connection: Driver) -> tuple[float, float | None]:
    """Transactions a second of this database, without ours, and CPU milliseconds a second of the cluster."""
    await asyncio.sleep(SETTLE_SECONDS)
    samples = [await _sample(connection) for _ in range(2)]
    return min(samples, key=lambda sample: sample[0])


async def _sample(connection: Driver) -> tuple[float, float | None]:
    before, began = await counters.cluster(connection), time.monotonic()
    await asyncio.sleep(SAMPLE_SECONDS)
    after, seconds = await counters.cluster(connection), time.monotonic() - began
    # Our own transactions: the three statements of the first reading, which Postgres has reported by the second.
    commits = max(0, after.commits - before.commits - 3)
    cpu = None if before.cpu is None or after.cpu is None else (after.cpu - before.cpu) * 1000 / seconds
    return commits / seconds, cpu
