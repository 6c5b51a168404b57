"""Throughput of appends: `python -m tests.bench.ingest`. The writer, compared with `unnest` of 100 rows a commit.

Both write the same rows to tables of the same definition in one database; the baseline uses bare asyncpg. The writer
also checks leases, numbers parts, folds, increments revisions and notifies. Both get all parts at once, so flush times
do not matter.
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
from tests.bench import counters, machine
from tests.support import postgres
from tests.support.store import ask, claim, new_thread

TEXT = "a few words as a model says them, about forty "
ROWS_PER_COMMIT = 100
"""Of the bare baseline."""

BARE_INSERT = """
    INSERT INTO bare_parts (run_id, seq, message_id, thread_id, kind, data, revision, created_at)
    SELECT run_id, seq, message_id, thread_id, kind, data::jsonb, revision, clock_timestamp()
    FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bigint[])
      AS part (run_id, seq, message_id, thread_id, kind, data, revision)
"""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Parts and commits a second; CPU microseconds a part, in this process and in Postgres; bytes a part."""

    parts: int
    parts_per_second: float
    client_us: float
    database_us: float | None
    wal_bytes: float
    table_bytes: float
    commits_per_second: float


class Ingest(msgspec.Struct, frozen=True, kw_only=True):
    """Writer and baseline with so many runs, and the ratios of the writer to the baseline."""

    runs: int
    writer: Throughput
    bare: Throughput
    speed: float
    cpu: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All figures, and the machine."""

    machine: dict[str, str]
    rows: Sequence[Ingest]


async def ingest(db: Database, driver: Driver, runs: int, parts: int) -> Ingest:
    """Measure the writer and the baseline with so many runs of so many parts each."""
    async with _writing(db, runs) as buffers:
        writer = await _measured(driver, "message_parts", runs * parts, lambda: _by_writer(buffers, parts))
    bare = await _measured(
        driver, "bare_parts", runs * parts, lambda: _bare(driver, [buffer.lease for buffer in buffers], parts)
    )
    return Ingest(
        runs=runs,
        writer=writer,
        bare=bare,
        speed=writer.parts_per_second / bare.parts_per_second,
        cpu=_cpu(writer, bare),
    )


def _cpu(one: Throughput, other: Throughput) -> float | None:
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
        (lease.run_id, seq, lease.message_id, lease.thread_id, "reasoning-delta", data, seq // ROWS_PER_COMMIT)
        for lease in leases
        for seq in range(parts)
    ]
    for at in range(0, len(rows), ROWS_PER_COMMIT):
        await driver.execute(BARE_INSERT, *zip(*rows[at : at + ROWS_PER_COMMIT], strict=True))


async def _measured(driver: Driver, table: str, parts: int, write: Callable[[], Awaitable[None]]) -> Throughput:
    size = await _size(driver, table)
    before, cpu, began = await counters.cluster(driver), time.process_time(), time.monotonic()
    await write()
    seconds, spent = time.monotonic() - began, time.process_time() - cpu
    after = await counters.cluster(driver)
    database_seconds = None if before.cpu is None or after.cpu is None else after.cpu - before.cpu
    return Throughput(
        parts=parts,
        parts_per_second=parts / seconds,
        client_us=spent * 1e6 / parts,
        database_us=None if database_seconds is None else database_seconds * 1e6 / parts,
        wal_bytes=(after.wal - before.wal) / parts,
        table_bytes=(await _size(driver, table) - size) / parts,
        commits_per_second=(after.writes - before.writes) / seconds,
    )


async def _size(driver: Driver, table: str) -> int:
    """Bytes of the table and its indexes."""
    size: int = await driver.fetchval("SELECT pg_table_size($1::regclass) + pg_indexes_size($1::regclass)", table)
    return size


async def report(url: str, runs: Sequence[int], parts: int) -> Report:
    """Measure on a new database of this server."""
    template = await postgres.make_template(url)
    database_url = postgres.named(url, template)
    db, driver = Database(database_url), await asyncpg.connect(driver_url(database_url))
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
    """The report as text."""
    lines = [f"{name}: {fact}" for name, fact in report.machine.items()]
    lines.append(" runs writer    parts/s  client µs   db µs  WAL B     B  commits/s")
    for row in report.rows:
        for name, figures in (("writer", row.writer), ("bare", row.bare)):
            database_us = "–" if figures.database_us is None else f"{figures.database_us:.1f}"
            lines.append(
                f"{row.runs:>5} {name:<7} {figures.parts_per_second:>9,.0f} {figures.client_us:>10.1f} {database_us:>7}"
                f" {figures.wal_bytes:>6.0f} {figures.table_bytes:>5.0f} {figures.commits_per_second:>10.1f}"
            )
        cpu = "–" if row.cpu is None else f"{row.cpu:.2f}"
        lines.append(f"{row.runs:>5} ratio   speed {row.speed:.2f}, CPU {cpu}")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest", description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 10, 100, 500], help="concurrent runs (%(default)s)")
    parser.add_argument("--parts", type=int, default=100_000, help="in total (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report to this file")
    args = parser.parse_args()
    with postgres.server() as url:
        found = uvloop.run(report(url, args.runs, args.parts))
    print(table(found))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
