"""How fast parts get into Postgres: the writer, beside bare asyncpg with `unnest` of 100 rows a commit.

`python -m tests.bench.ingest`. Both write the same rows into tables of the same shape in one database. The writer also
fences by lease, numbers, folds, stamps revisions and notifies. Both are given all parts at once: what is measured is
how fast they go, not when they are due.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import asyncpg
import msgspec
import uvloop

from khala.domain.flush_policy import FlushPolicy
from khala.store.postgres.database import Database, Driver, driver_url
from khala.store.runs.group_commit import Writer
from khala.store.runs.leases import Lease
from khala.store.runs.run_buffer import RunBuffer
from tests.bench import machine, measure
from tests.support import postgres
from tests.support.store import ask, claim, new_thread

TEXT = "a few words as a model says them, about forty "
BATCH = 100
"""Rows of one commit of the bare way."""

BARE = """
    INSERT INTO bare_parts (run_id, seq, message_id, thread_id, kind, data, revision, created_at)
    SELECT run_id, seq, message_id, thread_id, kind, data::jsonb, revision, clock_timestamp()
    FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bigint[])
      AS part (run_id, seq, message_id, thread_id, kind, data, revision)
"""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to write: parts and commits a second; CPU microseconds a part, here and in Postgres; bytes a part."""

    parts: int
    parts_per_second: float
    client_us: float
    database_us: float | None
    wal_bytes: float
    table_bytes: float
    commits_per_second: float


class Ingest(msgspec.Struct, frozen=True, kw_only=True):
    """Both ways at so many runs, and the writer's figures as ratios to the bare one's."""

    runs: int
    writer: Way
    bare: Way
    speed: float
    cpu: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, and where."""

    machine: dict[str, str]
    rows: Sequence[Ingest]


async def ingest(db: Database, driver: Driver, runs: int, parts: int) -> Ingest:
    """Measure both ways with so many runs of so many parts each."""
    async with _writing(db, runs) as buffers:
        writer = await _measured(driver, "message_parts", runs * parts, lambda: _by_writer(buffers, parts))
    bare = await _measured(driver, "bare_parts", runs * parts, lambda: _bare(driver, [s.lease for s in buffers], parts))
    return Ingest(
        runs=runs,
        writer=writer,
        bare=bare,
        speed=writer.parts_per_second / bare.parts_per_second,
        cpu=_cpu(writer, bare),
    )


def _cpu(one: Way, other: Way) -> float | None:
    if one.database_us is None or other.database_us is None:
        return None
    return (one.client_us + one.database_us) / (other.client_us + other.database_us)


@contextlib.asynccontextmanager
async def _writing(db: Database, runs: int) -> AsyncIterator[list[RunBuffer]]:
    for _ in range(runs):
        await ask(db, await new_thread(db))
    claimed = await claim(db, most=runs, lease=600)
    writer = Writer(db, FlushPolicy())
    buffers = [writer.open(one.lease, next_seq=one.next_seq) for one in claimed]
    loop = asyncio.create_task(writer.run())
    try:
        yield buffers
    finally:
        loop.cancel()
        await asyncio.wait({loop})


async def _by_writer(buffers: Sequence[RunBuffer], parts: int) -> None:
    for buffer in buffers:
        for _ in range(parts):
            buffer.append_reasoning(TEXT)
    for buffer in buffers:
        await buffer.wait_written()


async def _bare(driver: Driver, leases: Sequence[Lease], parts: int) -> None:
    data = msgspec.json.encode({"text": TEXT}).decode()
    rows = [
        (lease.run_id, seq, lease.message_id, lease.thread_id, "reasoning-delta", data, seq // BATCH)
        for lease in leases
        for seq in range(parts)
    ]
    for at in range(0, len(rows), BATCH):
        await driver.execute(BARE, *zip(*rows[at : at + BATCH], strict=True))


async def _measured(driver: Driver, table: str, parts: int, write: Callable[[], Awaitable[None]]) -> Way:
    size = await _size(driver, table)
    before, cpu, began = await measure.cluster(driver), time.process_time(), time.monotonic()
    await write()
    seconds, spent = time.monotonic() - began, time.process_time() - cpu
    after = await measure.cluster(driver)
    there = None if before.cpu is None or after.cpu is None else after.cpu - before.cpu
    return Way(
        parts=parts,
        parts_per_second=parts / seconds,
        client_us=spent * 1e6 / parts,
        database_us=None if there is None else there * 1e6 / parts,
        wal_bytes=(after.wal - before.wal) / parts,
        table_bytes=(await _size(driver, table) - size) / parts,
        commits_per_second=(after.writes - before.writes) / seconds,
    )


async def _size(driver: Driver, table: str) -> int:
    """Bytes of the table with its indexes."""
    size: int = await driver.fetchval("SELECT pg_table_size($1::regclass) + pg_indexes_size($1::regclass)", table)
    return size


async def report(url: str, runs: Sequence[int], parts: int) -> Report:
    """Measure on a database of its own on this server."""
    template = await postgres.make_template(url)
    own = postgres.named(url, template)
    db, driver = Database(own), await asyncpg.connect(driver_url(own))
    try:
        await driver.execute("CREATE TABLE bare_parts (LIKE message_parts INCLUDING ALL)")
        facts = await machine.facts(driver)
        rows = []
        for count in runs:
            await driver.execute("CHECKPOINT")
            rows.append(await ingest(db, driver, count, max(1, parts // count)))
        return Report(machine=facts, rows=rows)
    finally:
        await driver.close()
        await db.close()
        await postgres.execute(url, f'DROP DATABASE "{template}" WITH (FORCE)')


def table(report: Report) -> str:
    """The report for people."""
    lines = [f"{name}: {said}" for name, said in report.machine.items()]
    lines.append(" runs way       parts/s  client µs   db µs  WAL B     B  commits/s")
    for row in report.rows:
        for name, way in (("writer", row.writer), ("bare", row.bare)):
            there = "–" if way.database_us is None else f"{way.database_us:.1f}"
            lines.append(
                f"{row.runs:>5} {name:<7} {way.parts_per_second:>9,.0f} {way.client_us:>10.1f} {there:>7}"
                f" {way.wal_bytes:>6.0f} {way.table_bytes:>5.0f} {way.commits_per_second:>10.1f}"
            )
        cpu = "–" if row.cpu is None else f"{row.cpu:.2f}"
        lines.append(f"{row.runs:>5} ratio   speed {row.speed:.2f}, CPU {cpu}")
    return "\n".join(lines)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest", description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 10, 100, 500], help="at the same time (%(default)s)")
    parser.add_argument("--parts", type=int, default=100_000, help="in all (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report there, too")
    asked = parser.parse_args()
    with postgres.server() as url:
        found = uvloop.run(report(url, asked.runs, asked.parts))
    print(table(found))
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
