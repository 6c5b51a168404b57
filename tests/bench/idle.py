"""What watching costs while nothing happens: transactions and CPU of the database, with few and many idle threads."""

import asyncio
import time

import httpx

from khala.store.postgres.database import Driver
from tests.bench import measure, stage
from tests.bench.driving import leave, watch
from tests.bench.figures import Figures
from tests.bench.khala import new_threads, targets
from tests.bench.processes import Worker
from tests.bench.stage import Khala, Stage

MANY = 50
"""Idle threads, each watched by one observer."""
SECONDS = 12.0
"""How long each state is looked at, twice: longer than anything waits that looks by the clock."""
CALM = 11.0
"""Seconds after which sessions have told all that they did before: one that idles tells it 10 s later at the latest."""

ALONE = """
    DO $$ DECLARE it regclass; BEGIN
        FOR it IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', it);
        END LOOP;
    END $$
"""
"""Autovacuum's transactions count like all others, and it comes when there are fifty new threads."""


class Idle(Figures, frozen=True, kw_only=True):
    """Transactions a second with no thread watched, with one, and with many; and what each more thread adds to one.

    Sessions of Postgres tell of some transactions later than they were. So each is the lower one of two looks.
    `cpu_ms_per_second` is of the cluster, with many watched.
    """

    none: float
    one: float
    many: float
    each_adds: float
    cpu_ms_per_second: float | None


async def idle(place: Stage) -> Idle:
    """Watch none, one, and many."""
    async with (
        stage.database(place) as url,
        stage.connected(url) as connection,
        stage.khala(url, place) as khala,
        stage.client(khala.web) as http,
        stage.drivers(1) as (driver,),
    ):
        await connection.execute(ALONE)
        none, _ = await _rate(connection)
        one, _ = await _watched(1, connection, http, khala, driver)
        many, cpu = await _watched(MANY, connection, http, khala, driver)
    return Idle(none=none, one=one, many=many, each_adds=(many - one) / (MANY - 1), cpu_ms_per_second=cpu)


async def _watched(
    count: int, connection: Driver, http: httpx.AsyncClient, khala: Khala, driver: Worker
) -> tuple[float, float | None]:
    threads = await new_threads(http, count)
    await watch([driver], targets(threads, khala.web.socket_url, 1))
    measured = await _rate(connection)
    if (followed := await leave([driver])) < count:
        raise RuntimeError(f"{count - followed} of {count} idle observers were lost")
    return measured


async def _rate(connection: Driver) -> tuple[float, float | None]:
    """Transactions a second of this database, our own not counted, and the cluster's CPU milliseconds a second."""
    await asyncio.sleep(CALM)
    looks = [await _look(connection) for _ in range(2)]
    return min(looks, key=lambda look: look[0])


async def _look(connection: Driver) -> tuple[float, float | None]:
    before, began = await measure.cluster(connection), time.monotonic()
    await asyncio.sleep(SECONDS)
    after, seconds = await measure.cluster(connection), time.monotonic() - began
    # Of ours, those of the first look are told by the second one at the latest: three statements.
    commits = max(0, after.commits - before.commits - 3)
    cpu = None if before.cpu is None or after.cpu is None else (after.cpu - before.cpu) * 1000 / seconds
    return commits / seconds, cpu
