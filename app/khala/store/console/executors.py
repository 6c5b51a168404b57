"""Executors: they report that they are alive, and the console shows them with their leases.

A report is one row of an unlogged table, which its executor alone writes, every few seconds.
"""

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from khala.store.console.pages import ConsoleStruct
from khala.store.postgres.database import Driver

ALIVE_SECONDS = 30
"""Seconds after its last report in which an executor counts as alive."""
SHOWN_SECONDS = 60
FORGOTTEN = timedelta(days=1)
MAX_RUNS = 20
"""Runs of an executor that are named."""

REPORT = """
    INSERT INTO executors (id, host, version, places, active, started_at, seen_at)
    VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET places = excluded.places, active = excluded.active, seen_at = excluded.seen_at
"""
FORGET = "DELETE FROM executors WHERE seen_at < clock_timestamp() - $1::interval"
ALL = f"""
    WITH holder AS (
        SELECT lease_owner AS id, count(*) AS running,
               count(*) FILTER (WHERE lease_expires_at < clock_timestamp()) AS lapsed,
               min(created_at) AS oldest_run_at, min(lease_expires_at) AS lease_expires_at,
               (array_agg(id ORDER BY id))[1:{MAX_RUNS}] AS runs
        FROM runs WHERE status = 'running' AND lease_owner IS NOT NULL GROUP BY lease_owner
    ), alive AS (
        SELECT * FROM executors WHERE seen_at > clock_timestamp() - make_interval(secs => {SHOWN_SECONDS})
    )
    SELECT id, coalesce(alive.host, known.host) AS host, coalesce(alive.version, known.version) AS version,
           alive.places, coalesce(holder.running, 0) AS running, coalesce(holder.lapsed, 0) AS lapsed,
           holder.oldest_run_at, holder.lease_expires_at, coalesce(holder.runs, '{{}}') AS runs,
           coalesce(alive.started_at, known.started_at) AS started_at, coalesce(alive.seen_at, known.seen_at) AS seen_at
    FROM holder FULL JOIN alive USING (id) LEFT JOIN executors AS known USING (id)
    ORDER BY id LIMIT 1000
"""
LOAD = f"""
    SELECT count(*) AS alive, coalesce(sum(places), 0)::bigint AS places, coalesce(sum(active), 0)::bigint AS active
    FROM executors WHERE seen_at > clock_timestamp() - make_interval(secs => {ALIVE_SECONDS})
"""


class ExecutorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an executor: how many runs it executes at once, and how many it executes now."""

    id: str
    host: str
    version: str
    places: int
    active: int


class ConsoleExecutor(ConsoleStruct, frozen=True, kw_only=True):
    """An executor, or another holder of leases. What only a report has is null for workers."""

    id: str
    kind: Literal["executor", "worker"]
    host: str | None
    version: str | None
    places: int | None
    running: int
    lapsed: int
    oldest_run_at: datetime | None
    lease_expires_at: datetime | None
    started_at: datetime | None
    seen_at: datetime | None
    runs: list[UUID]


class ExecutorLoad(ConsoleStruct, frozen=True, kw_only=True):
    """All executors that are alive: their number, and the sums of their places and runs."""

    alive: int
    places: int
    active: int


async def report(driver: Driver, executor: ExecutorReport) -> None:
    """Store that the executor is alive. The first report is the time of its start."""
    await driver.execute(REPORT, *msgspec.structs.astuple(executor))


async def forget(driver: Driver) -> None:
    """Remove executors that have not reported for a day."""
    await driver.execute(FORGET, FORGOTTEN)


async def read_all(driver: Driver) -> list[ConsoleExecutor]:
    """Return executors that are alive, and holders of leases."""
    return [
        ConsoleExecutor(**{**row, "runs": list(row["runs"])}, kind=_kind(row["id"])) for row in await driver.fetch(ALL)
    ]


def _kind(holder: str) -> Literal["executor", "worker"]:
    """The kind of the holder of a lease: the name of an executor begins with its kind."""
    return "executor" if holder.startswith("executor-") else "worker"


async def read_load(driver: Driver) -> ExecutorLoad:
    """Return how many executors are alive, and their load."""
    row = await driver.fetchrow(LOAD)
    assert row is not None
    return ExecutorLoad(**row)
