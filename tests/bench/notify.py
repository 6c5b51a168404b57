"""Cost of wake-ups: `python -m tests.bench.notify`. NOTIFY by number of listeners, its effect on commits, and NATS.

CPU figures hardly depend on other load. Commits a second do, and depend on the disk: `--home` chooses the folder of the
cluster. Only a real disk shows the effect of Postgres serialising the commits that notify.
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
from tests.bench import counters, machine
from tests.support.nats import NatsServer
from tests.support.required_programs import program

LISTENERS = (0, 1, 4, 16, 64)
COMMITTERS = (1, 4, 16)
THREADS_PER_PAYLOAD = 100
NOTIFICATIONS = 1000
MESSAGES = 5000
COMMIT_SECONDS = 3.0
"""Time for which commits are counted."""
NOTIFY = "SELECT pg_notify($1, $2)"


class Notified(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one NOTIFY: CPU of Postgres beyond that of the same transaction without it, in microseconds."""

    listeners: int
    database_us: float


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """Commits a second of so many connections that update a row each, without and with NOTIFY."""

    committers: int
    silent: float
    notifying: float


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one message over NATS: CPU of the publisher, the server and the subscriber in microseconds."""

    publisher_us: float
    server_us: float
    subscriber_us: float


class WakeUpCosts(msgspec.Struct, frozen=True, kw_only=True):
    """All figures."""

    machine: dict[str, str]
    notified: Sequence[Notified]
    committed: Sequence[Committed]
    published: Published


def payload() -> str:
    """A payload like that of a group commit."""
    return ",".join(str(ids.new()) for _ in range(THREADS_PER_PAYLOAD))


async def notified(url: str, listeners: int) -> Notified:
    """Measure NOTIFY, one after the other."""
    async with AsyncExitStack() as stack:
        watch = await _connected(stack, url)
        for _ in range(listeners):
            listener = await _connected(stack, url)
            await listener.add_listener(THREADS_CHANNEL, lambda *_: None)
        text = payload()
        without = await _database_seconds(watch, lambda: watch.execute("SELECT length($1 || $2)", "x", text))
        with_notify = await _database_seconds(watch, lambda: watch.execute(NOTIFY, THREADS_CHANNEL, text))
    return Notified(listeners=listeners, database_us=(with_notify - without) / NOTIFICATIONS * 1e6)


async def _connected(stack: AsyncExitStack, url: str) -> Driver:
    connection = await asyncpg.connect(driver_url(url))
    stack.push_async_callback(connection.close)
    return connection


async def _database_seconds(watch: Driver, step: Callable[[], Awaitable[object]]) -> float:
    before = (await counters.cluster(watch)).cpu
    for _ in range(NOTIFICATIONS):
        await step()
    after = (await counters.cluster(watch)).cpu
    assert before is not None
    assert after is not None
    return after - before


async def committed(url: str, committers: int) -> Committed:
    """Count commits of connections that update different rows, so that only NOTIFY makes them wait for each other."""
    async with AsyncExitStack() as stack:
        connections = [await _connected(stack, url) for _ in range(committers)]
        await connections[0].execute("DROP TABLE IF EXISTS counted")
        await connections[0].execute("CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)")
        await connections[0].execute("INSERT INTO counted SELECT generate_series(0, $1::int)", committers)
        rates = [await _rate(connections, notify=notify) for notify in (False, True)]
    return Committed(committers=committers, silent=rates[0], notifying=rates[1])


async def _rate(connections: Sequence[Driver], *, notify: bool) -> float:
    text, until = payload(), time.monotonic() + COMMIT_SECONDS

    async def commit(row: int, connection: Driver) -> int:
        count = 0
        while time.monotonic() < until:
            async with connection.transaction():
                await connection.execute("UPDATE counted SET n = n + 1 WHERE id = $1", row)
                if notify:
                    await connection.execute(NOTIFY, THREADS_CHANNEL, text)
            count += 1
        return count

    counts = await asyncio.gather(*(commit(*each) for each in enumerate(connections)))
    return sum(counts) / COMMIT_SECONDS


async def published() -> Published:
    """Measure messages of one process to itself, first without a subscriber, to separate the two costs."""
    server = NatsServer(program("nats-server"))
    server.start()
    try:
        publisher_only = await _published(server, {})
        both = await _published(server, {THREADS_CHANNEL: lambda _: None})
    finally:
        server.kill()
    return Published(publisher_us=publisher_only[0], server_us=both[1], subscriber_us=both[0] - publisher_only[0])


async def _published(server: NatsServer, handlers: dict[str, Callable[[str], None]]) -> tuple[float, float]:
    bus = NatsBus(parse(server.url()))
    task, text = asyncio.create_task(bus.run(handlers)), payload()
    try:
        async with asyncio.timeout(10):
            while not bus.connected:
                await asyncio.sleep(0.01)
        server_process = psutil.Process(server.pid)
        began, server_before = time.process_time(), sum(server_process.cpu_times()[:2])
        for _ in range(MESSAGES):
            await bus.publish(THREADS_CHANNEL, text)
            # As in a process that does other work between two flushes: each message is a separate write.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
        ended, server_after = time.process_time(), sum(server_process.cpu_times()[:2])
    finally:
        task.cancel()
        await asyncio.wait({task})
    return (ended - began) / MESSAGES * 1e6, (server_after - server_before) / MESSAGES * 1e6


async def measured(url: str) -> WakeUpCosts:
    """Measure all figures, one after the other."""
    watch = await asyncpg.connect(driver_url(url))
    try:
        facts = await machine.facts(watch)
    finally:
        await watch.close()
    return WakeUpCosts(
        machine=facts,
        notified=[await notified(url, count) for count in LISTENERS],
        committed=[await committed(url, count) for count in COMMITTERS],
        published=await published(),
    )


def table(found: WakeUpCosts) -> str:
    """The figures as text."""
    lines = [f"{name}: {fact}" for name, fact in found.machine.items()]
    lines += ["", f"listeners | µs of Postgres' CPU a NOTIFY of {THREADS_PER_PAYLOAD} threads"]
    lines += [f"{one.listeners:>9} | {one.database_us:.0f}" for one in found.notified]
    lines += ["", "committers | commits/s | commits/s that notify | ratio"]
    for one in found.committed:
        ratio = one.notifying / one.silent
        lines.append(f"{one.committers:>10} | {one.silent:>9.0f} | {one.notifying:>21.0f} | {ratio:.2f}")
    nats = found.published
    lines += ["", "NATS, µs of CPU a message: "]
    lines[-1] += f"publisher {nats.publisher_us:.0f}, server {nats.server_us:.0f}, subscriber {nats.subscriber_us:.0f}"
    return "\n".join(lines)


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.notify", description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("/var/tmp"), help="folder of the cluster (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to this file")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="khala-bench-", dir=args.home))
    cluster = EmbeddedPostgres.start(home)
    try:
        found = asyncio.run(measured(cluster.url))
    finally:
        cluster.stop()
        shutil.rmtree(home, ignore_errors=True)
    print(table(found))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
