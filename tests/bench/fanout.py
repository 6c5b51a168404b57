"""Cost of a frame per observer of one thread, compared with a bare broadcast: `python -m tests.bench.fanout`.

Khala's web process, without an executor, follows a thread to which this process appends parts. The bare server sends
frames of the same size to as many sockets by uvicorn. The two take turns, so that other load affects both alike. The
observers run in separate processes.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import httpx
import msgspec
import psutil
import uvloop

from khala.domain import ids
from khala.domain.frames import Subscribe, encode
from khala.store.postgres.database import Database, driver_url
from tests.bench import counters, machine
from tests.bench.fanout_observers import Connect, ObserverCount, Read, Received, Wait
from tests.bench.processes import Worker, worker
from tests.support import postgres
from tests.support.ports import free_port
from tests.support.server import READY_TIMEOUT_SECONDS, ROOT, Server, ended
from tests.support.store import KEY, ask, batch, claim, new_thread, write

OBSERVERS = (500, 2000)
BASE_OBSERVERS = 100
"""The number of observers from which the memory of each further one is computed."""
TURNS, FRAMES = 6, 20
"""Measured turns of each server, after one as a warm-up; and frames in each turn."""
INTERVAL_PER_OBSERVER_SECONDS = 60e-6
"""The interval of frames, per observer: long enough that neither server is saturated."""
MIN_INTERVAL_SECONDS = 0.05
TEXT = "some sixty characters, as a model says them in a third of a s"
DELIVERY_TIMEOUT_SECONDS = 30.0
"""For the last frame of a turn to reach all observers."""

Post = Callable[[], Awaitable[int]]
"""Causes the next frame; returns the frame's revision."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one server: CPU microseconds per frame and observer, and age of the rows on arrival in milliseconds."""

    frames: int
    frame_bytes: float
    cpu_us: float
    frames_per_cpu_second: float
    p50_ms: float
    p99_ms: float


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one server: costs by number of observers, and kilobytes (1,000 bytes) of memory per observer."""

    costs: dict[int, Cost]
    kilobytes: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both servers; `ratios` are Khala's frames per CPU second as multiples of the bare broadcast's."""

    machine: dict[str, str]
    khala: ServerFigures
    bare: ServerFigures
    ratios: dict[int, float]
    problems: list[str]


class ServerUnderTest:
    """One server under test, its observers, and the measurements since the last `cost`."""

    def __init__(self, pid: int, observers: Worker, connect: Connect, post: Post) -> None:
        self._pid = pid
        self._observers = observers
        self._connect = connect
        self._post = post
        self._memory: list[tuple[int, int]] = []
        self._received: list[Received] = []
        self._spent = 0.0
        self.problems: list[str] = []

    async def connect_observers(self, count: int) -> None:
        """Connect observers until there are `count`, and record the memory of the server."""
        self._connect = msgspec.structs.replace(self._connect, observers=count)
        await self._observers.ask(self._connect, ObserverCount, within=120)
        self._memory.append((count, psutil.Process(self._pid).memory_info().rss))

    async def turn(self) -> str:
        """Send some frames to all observers; returns the last one."""
        before = counters.cpu_seconds([self._pid])
        revision, due = 0, time.monotonic()
        interval = max(MIN_INTERVAL_SECONDS, INTERVAL_PER_OBSERVER_SECONDS * self._connect.observers)
        for _ in range(FRAMES):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += interval
            revision = await self._post()
        reached = await self._observers.ask(Wait(revision=revision, seconds=DELIVERY_TIMEOUT_SECONDS), ObserverCount)
        self._spent += counters.cpu_seconds([self._pid]) - before
        if missing := self._connect.observers - reached.observers:
            raise RuntimeError(f"{missing} of {self._connect.observers} observers did not see revision {revision}")
        received = await self._observers.ask(Read(), Received)
        self.problems += received.problems
        self._received.append(received)
        return received.sample

    def cost(self) -> Cost:
        """The cost of the turns since the last call."""
        received, spent = self._received, self._spent
        self._received, self._spent = [], 0.0
        frames, ages = sum(one.frames for one in received), sorted(age for one in received for age in one.ages)
        return Cost(
            frames=frames,
            frame_bytes=sum(one.bytes for one in received) / frames,
            cpu_us=spent / frames * 1e6,
            frames_per_cpu_second=frames / spent,
            p50_ms=counters.percentile(ages, 50) or 0.0,
            p99_ms=counters.percentile(ages, 99) or 0.0,
        )

    def kilobytes(self) -> float | None:
        """The memory of one more observer, from the lowest to the highest number of observers."""
        (few, before), (many, after) = self._memory[0], self._memory[-1]
        return (after - before) / (many - few) / 1000 if many > few else None


@contextlib.asynccontextmanager
async def khala(url: str) -> AsyncIterator[ServerUnderTest]:
    """Run Khala's web process on this database."""
    db, seq = Database(url), iter(range(sys.maxsize))
    env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_WELCOME": "", "KHALA_REQUESTS_PER_MINUTE": "0"}
    with tempfile.TemporaryDirectory(prefix="khala-fanout-") as directory:
        server = Server(Path(directory) / "server.log", env, "--no-executor", anew=True)
        with ended(server):
            await asyncio.to_thread(server.start)
            sent = await ask(db, await new_thread(db))
            (lease,) = [one.lease for one in await claim(db, lease=3600) if one.lease.run_id == sent.run_id]
            async with db.driver() as driver:
                first: int = await driver.fetchval("SELECT revision FROM threads WHERE id = $1", sent.thread_id)

            async def post() -> int:
                at = next(seq)
                await write(db, batch(lease, at, TEXT))
                return first + 1 + at

            hello = encode(Subscribe(thread_id=sent.thread_id, anon_key=KEY))
            async with worker("fanout_observers") as observers:
                yield ServerUnderTest(
                    server.pid, observers, Connect(url=server.socket_url, observers=0, hello=hello), post
                )
    await db.close()


@contextlib.asynccontextmanager
async def bare(sample: str) -> AsyncIterator[ServerUnderTest]:
    """Run the bare server, which broadcasts frames like this one."""
    frame, port, numbers = json.loads(sample), free_port(), iter(range(sys.maxsize))
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.broadcast_server", str(port)], cwd=ROOT)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as http:
            await _wait_for_port(port)

            async def post() -> int:
                since = next(numbers)
                frame["parts"][-1]["createdAt"] = datetime.now(UTC).isoformat()
                body = json.dumps(frame | {"from": since, "revision": since + 1}, separators=(",", ":"))
                (await http.post("/", content=body)).raise_for_status()
                return since + 1

            async with worker("fanout_observers") as observers:
                yield ServerUnderTest(
                    process.pid, observers, Connect(url=f"ws://127.0.0.1:{port}/", observers=0, hello="{}"), post
                )
    finally:
        process.terminate()
        process.wait(10)


async def _wait_for_port(port: int) -> None:
    async with asyncio.timeout(READY_TIMEOUT_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


@contextlib.asynccontextmanager
async def _database(url: str) -> AsyncIterator[str]:
    template, name = await postgres.make_template(url), f"khala_fanout_{ids.new().hex}"
    await postgres.execute(url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        yield postgres.named(url, name)
    finally:
        for database in (name, template):
            await postgres.execute(url, f'DROP DATABASE "{database}" WITH (FORCE)')


async def run(url: str, observers: Sequence[int]) -> Report:
    """Measure both servers with each of these numbers of observers."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        facts = await machine.facts(connection)
    finally:
        await connection.close()
    async with _database(url) as database, khala(database) as ours:
        await ours.connect_observers(min(BASE_OBSERVERS, *observers))
        async with bare(await ours.turn()) as theirs:
            await theirs.connect_observers(min(BASE_OBSERVERS, *observers))
            costs = {count: await _side_by_side(ours, theirs, count) for count in sorted(observers)}
            khala_costs, bare_costs = ({count: pair[index] for count, pair in costs.items()} for index in (0, 1))
            return Report(
                machine=facts,
                khala=ServerFigures(costs=khala_costs, kilobytes=ours.kilobytes()),
                bare=ServerFigures(costs=bare_costs, kilobytes=theirs.kilobytes()),
                ratios={
                    count: one.frames_per_cpu_second / two.frames_per_cpu_second for count, (one, two) in costs.items()
                },
                problems=ours.problems + theirs.problems,
            )


async def _side_by_side(ours: ServerUnderTest, theirs: ServerUnderTest, count: int) -> tuple[Cost, Cost]:
    servers = (ours, theirs)
    for server in servers:
        await server.connect_observers(count)
        await server.turn()
        server.cost()
    for _ in range(TURNS):
        for server in servers:
            await server.turn()
    return ours.cost(), theirs.cost()


def table(report: Report) -> str:
    """The report as text."""
    lines = [f"{'':8} {'observers':>9} {'B/frame':>8} {'µs CPU':>8} {'frames/CPU s':>13} {'p50 ms':>8} {'p99 ms':>8}"]
    both = (("khala", report.khala), ("bare", report.bare))
    for name, served in both:
        lines += [
            f"{name:8} {count:9} {cost.frame_bytes:8.0f} {cost.cpu_us:8.1f} {cost.frames_per_cpu_second:13,.0f}"
            f" {cost.p50_ms:8.2f} {cost.p99_ms:8.2f}"
            for count, cost in served.costs.items()
        ]
    lines += [f"{count} observers: {ratio:.2f} × the bare broadcast's frames" for count, ratio in report.ratios.items()]
    lines += [f"{name}: {served.kilobytes:.1f} kB an observer" for name, served in both if served.kilobytes]
    return "\n".join(lines)


def main() -> int:
    """Measure and print; returns exit status 1 if an observer missed a frame."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fanout", description=__doc__)
    parser.add_argument("--observers", type=int, nargs="+", default=OBSERVERS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report to this file")
    args = parser.parse_args()
    with postgres.server() as url:
        report = uvloop.run(run(url, args.observers))
    print(table(report))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    for problem in report.problems[:20]:
        print(f"WRONG {problem}", file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
