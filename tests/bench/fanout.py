"""Fan-out: what a frame costs for each observer of one thread, beside a bare broadcast by uvicorn.

`python -m tests.bench.fanout`. Khala's web process, without an executor, follows a thread that this process writes to,
part by part; the bare server sends frames of the same size to as many sockets. They take turns, so that what else the
machine does is the same for both, and their observers are in a process of their own.
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
from tests.bench import machine, measure
from tests.bench.crowd import Count, Gather, Heard, Read, Wait
from tests.bench.processes import Worker, worker
from tests.support import postgres
from tests.support.ports import free_port
from tests.support.server import READY, ROOT, Server, ended
from tests.support.store import KEY, ask, batch, claim, new_thread, write

OBSERVERS = (500, 2000)
FEW = 100
"""Observers from which on the memory of one more is reckoned."""
ROUNDS, FRAMES = 6, 20
"""Turns of each server, and frames in each; a turn before those is not counted."""
PACE = 60e-6
"""Seconds between two frames for each observer: neither server is to be the bottleneck."""
SHORTEST = 0.05
TEXT = "some sixty characters, as a model says them in a third of a s"
PATIENCE = 30.0
"""Seconds for the last frame to come to all."""

Post = Callable[[], Awaitable[int]]
"""Cause the next frame; the revision that it brings."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one server needed: microseconds of CPU a frame and observer, and ages of rows in milliseconds."""

    frames: int
    frame_bytes: float
    cpu_us: float
    frames_per_cpu_second: float
    p50_ms: float
    p99_ms: float


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One server: by number of observers, and the kilobytes (1,000 bytes) of memory that each of them takes."""

    costs: dict[int, Cost]
    kilobytes: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both, and Khala's frames a CPU second as a ratio to the bare broadcast's."""

    machine: dict[str, str]
    khala: Served
    bare: Served
    ratios: dict[int, float]
    problems: list[str]


class Stand:
    """One server under test, with its crowd, and what was measured since the last `cost`."""

    def __init__(self, pid: int, crowd: Worker, gather: Gather, post: Post) -> None:
        self._pid = pid
        self._crowd = crowd
        self._gather = gather
        self._post = post
        self._memory: list[tuple[int, int]] = []
        self._heard: list[Heard] = []
        self._spent = 0.0
        self.problems: list[str] = []

    async def have(self, count: int) -> None:
        """Have so many observers; what they take is noted."""
        self._gather = msgspec.structs.replace(self._gather, observers=count)
        await self._crowd.ask(self._gather, Count, within=120)
        self._memory.append((count, psutil.Process(self._pid).memory_info().rss))

    async def turn(self) -> str:
        """Send some frames to all; the last of them."""
        before = measure.cpu_seconds([self._pid])
        revision, due, pace = 0, time.monotonic(), max(SHORTEST, PACE * self._gather.observers)
        for _ in range(FRAMES):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += pace
            revision = await self._post()
        there = await self._crowd.ask(Wait(revision=revision, seconds=PATIENCE), Count)
        self._spent += measure.cpu_seconds([self._pid]) - before
        if missing := self._gather.observers - there.observers:
            raise RuntimeError(f"{missing} of {self._gather.observers} observers did not see revision {revision}")
        heard = await self._crowd.ask(Read(), Heard)
        self.problems += heard.problems
        self._heard.append(heard)
        return heard.sample

    def cost(self) -> Cost:
        """What the turns since the last time have cost."""
        heard, spent = self._heard, self._spent
        self._heard, self._spent = [], 0.0
        frames, ages = sum(one.frames for one in heard), sorted(age for one in heard for age in one.ages)
        return Cost(
            frames=frames,
            frame_bytes=sum(one.bytes for one in heard) / frames,
            cpu_us=spent / frames * 1e6,
            frames_per_cpu_second=frames / spent,
            p50_ms=measure.percentile(ages, 50) or 0.0,
            p99_ms=measure.percentile(ages, 99) or 0.0,
        )

    def kilobytes(self) -> float | None:
        """The memory of one more observer, from the fewest to the most there were."""
        (few, before), (many, after) = self._memory[0], self._memory[-1]
        return (after - before) / (many - few) / 1000 if many > few else None


@contextlib.asynccontextmanager
async def khala(url: str) -> AsyncIterator[Stand]:
    """Khala's web process, on this database."""
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
            async with worker("crowd") as crowd:
                yield Stand(server.pid, crowd, Gather(url=server.socket_url, observers=0, hello=hello), post)
    await db.close()


@contextlib.asynccontextmanager
async def bare(sample: str) -> AsyncIterator[Stand]:
    """The bare server, which is given frames like this one."""
    frame, port, numbers = json.loads(sample), free_port(), iter(range(sys.maxsize))
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.bare", str(port)], cwd=ROOT)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as http:
            await _listening(port)

            async def post() -> int:
                since = next(numbers)
                frame["parts"][-1]["createdAt"] = datetime.now(UTC).isoformat()
                body = json.dumps(frame | {"from": since, "revision": since + 1}, separators=(",", ":"))
                (await http.post("/", content=body)).raise_for_status()
                return since + 1

            async with worker("crowd") as crowd:
                yield Stand(process.pid, crowd, Gather(url=f"ws://127.0.0.1:{port}/", observers=0, hello="{}"), post)
    finally:
        process.terminate()
        process.wait(10)


async def _listening(port: int) -> None:
    async with asyncio.timeout(READY):
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
        for one in (name, template):
            await postgres.execute(url, f'DROP DATABASE "{one}" WITH (FORCE)')


async def run(url: str, observers: Sequence[int]) -> Report:
    """Measure both at each of these numbers of observers."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        facts = await machine.facts(connection)
    finally:
        await connection.close()
    async with _database(url) as database, khala(database) as ours:
        await ours.have(min(FEW, *observers))
        async with bare(await ours.turn()) as theirs:
            await theirs.have(min(FEW, *observers))
            costs = {count: await _side_by_side(ours, theirs, count) for count in sorted(observers)}
            mine, other = ({count: pair[place] for count, pair in costs.items()} for place in (0, 1))
            return Report(
                machine=facts,
                khala=Served(costs=mine, kilobytes=ours.kilobytes()),
                bare=Served(costs=other, kilobytes=theirs.kilobytes()),
                ratios={
                    count: one.frames_per_cpu_second / two.frames_per_cpu_second for count, (one, two) in costs.items()
                },
                problems=ours.problems + theirs.problems,
            )


async def _side_by_side(ours: Stand, theirs: Stand, count: int) -> tuple[Cost, Cost]:
    stands = (ours, theirs)
    for stand in stands:
        await stand.have(count)
        await stand.turn()
        stand.cost()
    for _ in range(ROUNDS):
        for stand in stands:
            await stand.turn()
    return ours.cost(), theirs.cost()


def table(report: Report) -> str:
    """The report for people."""
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
    """Measure and tell; the exit code is 1 if an observer missed anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fanout", description=__doc__)
    parser.add_argument("--observers", type=int, nargs="+", default=OBSERVERS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report there, too")
    asked = parser.parse_args()
    with postgres.server() as url:
        report = uvloop.run(run(url, asked.observers))
    print(table(report))
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    for problem in report.problems[:20]:
        print(f"WRONG {problem}", file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
