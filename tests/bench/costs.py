"""Unit costs of the store: `python -m tests.bench.costs`. CPU time and bytes, which hardly depend on other load.

A flush is one `append` of one part for each of several runs. A part has about 50 characters, as many as an answer at 30
tokens a second has in 350 ms. The costs include its statements, its transaction and, if stated, its NOTIFY, in the
executor and in Postgres.
"""

import argparse
import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import asyncpg
import msgspec

from khala.domain import ids
from khala.operations.partitions import FOLDER as SQL
from khala.settings import from_environment
from khala.store.postgres.database import Database, driver_url
from khala.store.runs.leases import Lease
from khala.store.runs.parts import append
from tests.bench import counters, machine
from tests.support import postgres
from tests.support.store import ask, batch, claim, ending, new_thread, write

SIZES = (1, 10, 50, 200)
TEXT = "And then the tide turned, as it always does, w.. "
SENDS = 500
"""Number of measured sends; a fifth as many come before them as a warm-up."""
CLAIMED_RUNS = 8
"""Runs of one claim, and of one commit that ends runs."""
MIN_PARTS = 60_000
"""Number of parts that are written to measure their size."""
NO_CPU_TIMES = "Postgres has to run on this machine, under a user whose processes this program may inspect."
LAYOUTS = {"whole": None, "by hash": "partition_parts.sql", "by month": "partition_parts_by_month.sql"}


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one flush: CPU time of the executor and of Postgres in microseconds, WAL in bytes a part."""

    runs: int
    notify: bool
    executor_us: float
    database_us: float
    wal_bytes_a_part: float


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a part on disk and in WAL, for one layout of the table: whole or partitioned."""

    layout: str
    heap: float
    indexes: float
    wal: float
    delete_wal: float


class CommandCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a command: CPU time of this process and of Postgres in microseconds."""

    process_us: float
    database_us: float

    def __str__(self) -> str:
        return f"{self.process_us:.0f} µs, database {self.database_us:.0f} µs"


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """All unit costs. `connections` is the most that one `khala serve` opens to Postgres with default settings.

    A send is without HTTP; about 350 runs wait meanwhile, and each send counts them. A claim and an end are those of
    one run.
    """

    machine: dict[str, str]
    send: CommandCost
    claim: CommandCost
    end: CommandCost
    flushes: Sequence[Flush]
    parts: Sequence[Part]
    connections: int


class Runs:
    """Claimed runs, and the next seq of each."""

    def __init__(self, db: Database, leases: Sequence[Lease]) -> None:
        self._db = db
        self._leases = leases
        self._seq = dict.fromkeys((lease.run_id for lease in leases), 0)

    @classmethod
    async def begin(cls, db: Database, count: int) -> "Runs":
        for _ in range(count):
            await ask(db, await new_thread(db))
        return cls(db, [one.lease for one in await claim(db, most=count, lease=3600.0)])

    async def flush(self, size: int, count: int, *, notify: bool) -> None:
        """Flush the first `size` runs `count` times, over one connection."""
        async with self._db.driver() as driver:
            for _ in range(count):
                batches = [batch(lease, self._seq[lease.run_id], TEXT) for lease in self._leases[:size]]
                written = (await append(driver, batches, notify=notify)).stored
                assert set(written.values()) == {1}, "Each part is new."
                for lease in self._leases[:size]:
                    self._seq[lease.run_id] += 1


def own_seconds() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def flushed(runs: Runs, watch: asyncpg.Connection, size: int, *, notify: bool) -> Flush:
    """Measure flushes of this size."""
    count = max(100, 4000 // size)
    await runs.flush(size, 20, notify=notify)
    before, began = await counters.cluster(watch), own_seconds()
    await runs.flush(size, count, notify=notify)
    ended, after = own_seconds(), await counters.cluster(watch)
    if before.cpu is None or after.cpu is None:
        raise RuntimeError(NO_CPU_TIMES)
    return Flush(
        runs=size,
        notify=notify,
        executor_us=(ended - began) / count * 1e6,
        database_us=(after.cpu - before.cpu) / count * 1e6,
        wal_bytes_a_part=(after.wal - before.wal) / count / size,
    )


async def sent(db: Database, watch: asyncpg.Connection) -> CommandCost:
    """Measure sends, one after the other, each to a thread of its own. No executor claims their runs."""
    for thread_id in [await new_thread(db) for _ in range(SENDS // 5)]:
        await ask(db, thread_id)
    threads = [await new_thread(db) for _ in range(SENDS)]

    async def send() -> None:
        for thread_id in threads:
            await ask(db, thread_id)

    return await _cost(watch, SENDS, send)


async def claimed_and_ended(db: Database, watch: asyncpg.Connection) -> tuple[CommandCost, CommandCost]:
    """Measure claims of `CLAIMED_RUNS` runs while at most 600 wait, and ends of as many runs in one commit."""
    leases: list[list[Lease]] = []

    async def claim_all() -> None:
        while claimed := await claim(db, most=CLAIMED_RUNS, lease=3600.0):
            leases.append([one.lease for one in claimed])

    async def end_all() -> None:
        for some in leases:
            await write(db, *(ending(lease, 0, ()) for lease in some))

    runs = SENDS + SENDS // 5
    return await _cost(watch, runs, claim_all), await _cost(watch, runs, end_all)


async def _cost(watch: asyncpg.Connection, count: int, work: Callable[[], Awaitable[None]]) -> CommandCost:
    """The cost of each of the `count` commands that this work consists of."""
    before, began = await counters.cluster(watch), own_seconds()
    await work()
    ended, after = own_seconds(), await counters.cluster(watch)
    if before.cpu is None or after.cpu is None:
        raise RuntimeError(NO_CPU_TIMES)
    return CommandCost(process_us=(ended - began) / count * 1e6, database_us=(after.cpu - before.cpu) / count * 1e6)


ON_DISK = """
    WITH leaves AS (
        SELECT relid FROM pg_partition_tree('message_parts') WHERE isleaf UNION SELECT 'message_parts'::regclass
    )
    SELECT sum(pg_relation_size(relid))::bigint AS heap, sum(pg_indexes_size(relid))::bigint AS indexes FROM leaves
"""


async def stored(runs: Runs, watch: asyncpg.Connection, layout: str) -> Part:
    """Measure the size of a part while many runs write concurrently, and the WAL of deleting parts row by row."""
    size = max(SIZES)
    count = MIN_PARTS // size
    await watch.execute("CHECKPOINT")
    before, began = await counters.cluster(watch), await watch.fetchrow(ON_DISK)
    await runs.flush(size, count, notify=True)
    after, ended = await counters.cluster(watch), await watch.fetchrow(ON_DISK)
    await watch.execute("DELETE FROM message_parts")
    deleted = await counters.cluster(watch)
    assert began is not None
    assert ended is not None
    parts = count * size
    grown = {name: (ended[name] - began[name]) / parts for name in ("heap", "indexes")}
    return Part(
        layout=layout, wal=(after.wal - before.wal) / parts, delete_wal=(deleted.wal - after.wal) / parts, **grown
    )


async def measured(url: str, *, quick: bool) -> Costs:
    """All costs, each layout on a database of its own."""
    template = await postgres.make_template(url)
    try:
        found = [await _layout_costs(url, template, layout, flushes=not quick) for layout in LAYOUTS]
        async with _database(url, template) as (db, watch):
            send = await sent(db, watch)
            claims, ends = await claimed_and_ended(db, watch)
    finally:
        await postgres.execute(url, f'DROP DATABASE "{template}" WITH (FORCE)')
    return Costs(
        machine=found[0][0],
        send=send,
        claim=claims,
        end=ends,
        flushes=found[0][2],
        parts=[part for _, part, _ in found],
        connections=from_environment({}).max_connections,
    )


async def _layout_costs(
    url: str, template: str, layout: str, *, flushes: bool
) -> tuple[dict[str, str], Part, list[Flush]]:
    """Measure one layout; measure flushes too if it is the default layout."""
    async with _database(url, template) as (db, watch):
        facts, script = await machine.facts(watch), LAYOUTS[layout]
        if script is not None:
            await watch.execute((SQL / script).read_text())
        runs = await Runs.begin(db, max(SIZES))
        part = await stored(runs, watch, layout)
        cases = [(size, notify) for size in SIZES for notify in (True, False)] if flushes and script is None else []
        return facts, part, [await flushed(runs, watch, size, notify=notify) for size, notify in cases]


@contextlib.asynccontextmanager
async def _database(url: str, template: str) -> AsyncIterator[tuple[Database, asyncpg.Connection]]:
    """A new database, and a second connection to observe it."""
    name = f"khala_bench_{ids.new().hex}"
    await postgres.execute(url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    database_url = postgres.named(url, name)
    db, watch = Database(database_url), await asyncpg.connect(driver_url(database_url))
    try:
        yield db, watch
    finally:
        await watch.close()
        await db.close()
        await postgres.execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


def table(costs: Costs) -> str:
    """The costs as text."""
    lines = [f"{name}: {fact}" for name, fact in costs.machine.items()]
    lines += ["", f"connections of one process, at most: {costs.connections}"]
    lines += [f"a send, without HTTP, while 350 runs wait: {costs.send}"]
    lines += [f"a run's claim: {costs.claim}", f"a run's end: {costs.end}", ""]
    lines += ["runs a flush | NOTIFY | executor µs | database µs | both, µs a run | WAL B a part"]
    for one in costs.flushes:
        each = (one.executor_us + one.database_us) / one.runs
        lines.append(
            f"{one.runs:>12} | {'yes' if one.notify else 'no':>6} | {one.executor_us:>11.0f} | {one.database_us:>11.0f}"
            f" | {each:>14.1f} | {one.wal_bytes_a_part:>12.0f}"
        )
    lines += ["", "message_parts | heap B a part | indexes B | WAL B, 200 runs a flush | WAL B to delete"]
    for part in costs.parts:
        lines.append(
            f"{part.layout:>13} | {part.heap:>13.0f} | {part.indexes:>9.0f}"
            f" | {part.wal:>23.0f} | {part.delete_wal:>15.0f}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.costs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure bytes only")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to this file")
    args = parser.parse_args()
    with postgres.server() as url:
        costs = asyncio.run(measured(url, quick=args.quick))
    print(table(costs))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(costs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
