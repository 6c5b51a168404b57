"""What waking costs: `python -m tests.bench.notify`. NOTIFY by the number of listeners and against commits; NATS.

CPU figures hardly depend on what else a machine does. Commits a second do, and on the disk: `--home` says where the
cluster lies, and only a real disk shows what it means that a commit which notifies waits for the one before.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import msgspec
import psutil

from khala.domain import ids
from khala.live.nats_bus import NatsBus
from khala.live.nats_url import parse
from khala.store.embedded import EmbeddedPostgres
from khala.store.postgres.database import (
    Driver,
    driver_url,
)
from khala.store.postgres.notifications import (
    THREADS_CHANNEL,
)
from tests.bench import machine, measure
from tests.support.nats import NatsServer
from tests.support.required import program

LISTENERS = (0, 1, 4, 16, 64)
COMMITTERS = (1, 4, 16)
NAMED = 100
"""Threads that a payload names."""
NOTIFIES = 1000
PUBLISHED = 5000
SECONDS = 3.0
"""How long commits are counted."""
NOTIFY = "SELECT pg_notify($1, $2)"


class Notified(msgspec.Struct, frozen=True, kw_only=True):
    """One NOTIFY: Postgres' CPU, over that of the same transaction without it, in microseconds."""

    listeners: int
    database_us: float


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """Commits a second of so many who update a row each, without and with NOTIFY."""

    committers: int
    silent: float
    notifying: float


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One message over NATS: CPU of who tells, of the server, and of who hears, in microseconds."""

    teller_us: float
    server_us: float
    hearer_us: float


class Waking(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    machine: dict[str, str]
    notified: Sequence[Notified]
    committed: Sequence[Committed]
    published: Published


def payload() -> str:
    """As a group commit's."""
    return ",".join(str(ids.new()) for _ in range(NAMED))


async def notified(url: str, listeners: int) -> Notified:
    """Measure one NOTIFY after the other."""
    async with AsyncExitStack() as stack:
        watch = await _connected(stack, url)
        for _ in range(listeners):
            ear = await _connected(stack, url)
            await ear.add_listener(THREADS_CHANNEL, lambda *_: None)
        words = payload()
        silent = await _database_seconds(watch, lambda: watch.execute("SELECT length($1 || $2)", "x", words))
        loud = await _database_seconds(watch, lambda: watch.execute(NOTIFY, THREADS_CHANNEL, words))
    return Notified(listeners=listeners, database_us=(loud - silent) / NOTIFIES * 1e6)


async def _connected(stack: AsyncExitStack, url: str) -> Driver:
    connection = await asyncpg.connect(driver_url(url))
    stack.push_async_callback(connection.close)
    return connection


async def _database_seconds(watch: Driver, step: Callable[[], Awaitable[object]]) -> float:
    before = (await measure.cluster(watch)).cpu
    for _ in range(NOTIFIES):
        await step()
    after = (await measure.cluster(watch)).cpu
    assert before is not None
    assert after is not None
    return after - before


async def committed(url: str, committers: int) -> Committed:
    """Count commits of rows that nobody else touches, so that nothing but NOTIFY makes one wait for another."""
    async with AsyncExitStack() as stack:
        connections = [await _connected(stack, url) for _ in range(committers)]
        await connections[0].execute("DROP TABLE IF EXISTS counted")
        await connections[0].execute("CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)")
        await connections[0].execute("INSERT INTO counted SELECT generate_series(0, $1::int)", committers)
        rates = [await _rate(connections, notify=notify) for notify in (False, True)]
    return Committed(committers=committers, silent=rates[0], notifying=rates[1])


async def _rate(connections: Sequence[Driver], *, notify: bool) -> float:
    words, until = payload(), time.monotonic() + SECONDS

    async def commit(place: int, connection: Driver) -> int:
        count = 0
        while time.monotonic() < until:
            async with connection.transaction():
                await connection.execute("UPDATE counted SET n = n + 1 WHERE id = $1", place)
                if notify:
                    await connection.execute(NOTIFY, THREADS_CHANNEL, words)
            count += 1
        return count

    counts = await asyncio.gather(*(commit(*each) for each in enumerate(connections)))
    return sum(counts) / SECONDS


async def published() -> Published:
    """Measure messages from one process to itself; who tells and who hears are told apart by an empty hearing."""
    server = NatsServer(program("nats-server"))
    server.start()
    try:
        deaf = await _published(server, {})
        whole = await _published(server, {THREADS_CHANNEL: lambda _: None})
    finally:
        server.kill()
    return Published(teller_us=deaf[0], server_us=whole[1], hearer_us=whole[0] - deaf[0])


async def _published(server: NatsServer, handlers: dict[str, Callable[[str], None]]) -> tuple[float, float]:
    bus = NatsBus(parse(server.url()))
    task, words = asyncio.create_task(bus.run(handlers)), payload()
    try:
        async with asyncio.timeout(10):
            while not bus.connected:
                await asyncio.sleep(0.01)
        there = psutil.Process(server.pid)
        began, theirs = time.process_time(), sum(there.cpu_times()[:2])
        for _ in range(PUBLISHED):
            await bus.publish(THREADS_CHANNEL, words)
            # As in a process that does something else between two flushes: each message is a write of its own.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
        ended, theirs_after = time.process_time(), sum(there.cpu_times()[:2])
    finally:
        task.cancel()
        await asyncio.wait({task})
    return (ended - began) / PUBLISHED * 1e6, (theirs_after - theirs) / PUBLISHED * 1e6


async def measured(url: str) -> Waking:
    """All of it, one after the other."""
    watch = await asyncpg.connect(driver_url(url))
    try:
        facts = await machine.facts(watch)
    finally:
        await watch.close()
    return Waking(
        machine=facts,
        notified=[await notified(url, count) for count in LISTENERS],
        committed=[await committed(url, count) for count in COMMITTERS],
        published=await published(),
    )


def table(found: Waking) -> str:
    """For people."""
    lines = [f"{name}: {fact}" for name, fact in found.machine.items()]
    lines += ["", f"listeners | µs of Postgres' CPU a NOTIFY of {NAMED} threads"]
    lines += [f"{one.listeners:>9} | {one.database_us:.0f}" for one in found.notified]
    lines += ["", "committers | commits/s | commits/s that notify | ratio"]
    for one in found.committed:
        ratio = one.notifying / one.silent
        lines.append(f"{one.committers:>10} | {one.silent:>9.0f} | {one.notifying:>21.0f} | {ratio:.2f}")
    said = found.published
    lines += ["", "NATS, µs of CPU a message: "]
    lines[-1] += f"who tells {said.teller_us:.0f}, server {said.server_us:.0f}, who hears {said.hearer_us:.0f}"
    return "\n".join(lines)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.notify", description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("/var/tmp"), help="folder of the cluster (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there, too")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="khala-bench-", dir=asked.home))
    cluster = EmbeddedPostgres.start(home)
    try:
        found = asyncio.run(measured(cluster.url))
    finally:
        cluster.stop()
        shutil.rmtree(home, ignore_errors=True)
    print(table(found))
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
