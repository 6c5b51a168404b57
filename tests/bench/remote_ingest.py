"""Throughput of a remote worker: `python -m tests.bench.remote_ingest`. One socket, compared with the writer alone.

Both store the same text parts in runs of one database: a worker over one WebSocket to a server process, and the writer
of an executor, in this process, that gets all parts at once.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec
from websockets import Subprotocol
from websockets.asyncio.client import ClientConnection, connect

from khala.domain.flush_policy import FlushPolicy
from khala.domain.parts import TextDelta
from khala.store.postgres.database import Database
from khala.store.runs.group_commit import Writer
from tests.bench.ingest import TEXT
from tests.support import postgres
from tests.support.account_with_data import account, own_thread
from tests.support.in_process import InProcessServer
from tests.support.remote_workers import create_agent, create_token
from tests.support.server import Server, ended
from tests.support.store import ask, claim, new_thread

ROUNDS = 5
PARTS_PER_FRAME = 100
FRAMES_IN_FLIGHT = 4
"""Of one run."""


class RemoteThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Parts a second with so many runs, and the ratio of the remote worker to the writer."""

    runs: int
    parts: int
    writer: float
    remote: float
    ratio: float


class _Connection:
    """A worker's socket, whose answers are matched to requests."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._id = 0

    async def read(self) -> None:
        """Read answers, until the socket is closed."""
        async for message in self._socket:
            frame = json.loads(message)
            if frame["type"] == "problem":
                raise RuntimeError(frame["problem"]["detail"])
            if frame["type"] == "result":
                self._waiting.pop(frame["id"]).set_result(frame["result"])

    async def ask(self, kind: str, **fields: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a request; returns its future answer."""
        self._id += 1
        answer = self._waiting[self._id] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"type": kind, "id": self._id} | fields))
        return answer


async def measure(url: str, folder: Path, runs: int, parts: int) -> RemoteThroughput:
    """Measure both in turn, each with so many runs of so many parts. Returns the medians."""
    writer, remote = [], []
    env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_RUNS_PER_OWNER": "1000"}
    # Without an executor: it would execute the runs of the writer.
    server = Server(folder / "server.log", env, "--no-executor", anew=True)
    with ended(server):
        await asyncio.to_thread(server.start)
        for _ in range(ROUNDS):
            writer.append(await _by_writer(url, runs, parts))
            remote.append(await _by_worker(server, url, runs, parts))
    medians = median(writer), median(remote)
    ratio = medians[1] / medians[0]
    return RemoteThroughput(runs=runs, parts=runs * parts, writer=medians[0], remote=medians[1], ratio=ratio)


async def _by_writer(url: str, runs: int, parts: int) -> float:
    db = Database(url)
    for _ in range(runs):
        await ask(db, await new_thread(db))
    writer = Writer(db, FlushPolicy())
    buffers = [writer.open(one.lease, next_seq=one.next_seq) for one in await claim(db, most=runs, lease=600)]
    loop = asyncio.create_task(writer.run())
    assert len(buffers) == runs
    began = time.monotonic()
    for buffer in buffers:
        for _ in range(parts):
            buffer.append(TextDelta(text=TEXT))
    for buffer in buffers:
        await buffer.wait_written()
    seconds = time.monotonic() - began
    loop.cancel()
    await asyncio.wait({loop})
    await db.close()
    return runs * parts / seconds


@asynccontextmanager
async def _connection(server: Server, token: str) -> AsyncIterator[_Connection]:
    url, protocol = f"ws://127.0.0.1:{server.port}/api/executor/ws", Subprotocol("khala.executor.v1")
    headers = {"Authorization": f"Bearer {token}"}
    async with connect(url, subprotocols=[protocol], additional_headers=headers, compression=None) as socket:
        connection = _Connection(socket)
        reading = asyncio.create_task(connection.read())
        try:
            yield connection
        finally:
            reading.cancel()


async def _by_worker(server: Server, url: str, runs: int, parts: int) -> float:
    async with account(InProcessServer(server.url, httpx.AsyncClient(), url)) as who:
        await create_agent(who, "bench")
        token = (await create_token(who, "bench"))["token"]
        for _ in range(runs):
            await (await own_thread(who)).send("?", options={"agent": "bench"})
        async with _connection(server, token) as connection:
            claimed: list[dict[str, Any]] = []
            while len(claimed) < runs:
                answer = await connection.ask("claim", claimId=str(uuid.uuid4()), maxRuns=50, waitSeconds=5)
                claimed += (await answer)["runs"]
            began = time.monotonic()
            await asyncio.gather(*(_write(connection, run, parts) for run in claimed))
            return runs * parts / (time.monotonic() - began)


async def _write(connection: _Connection, run: dict[str, Any], parts: int) -> None:
    batch = [{"kind": "text-delta", "data": {"text": TEXT}}] * PARTS_PER_FRAME
    answers = []
    for seq in range(0, parts, PARTS_PER_FRAME):
        frame = {"runId": run["runId"], "epoch": run["epoch"], "seq": seq, "parts": batch[: parts - seq]}
        answers.append(await connection.ask("append", **frame))
        if len(answers) >= FRAMES_IN_FLIGHT:
            await answers.pop(0)
    for answer in answers:
        await answer


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remote_ingest", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="concurrent runs (%(default)s)")
    parser.add_argument("--parts", type=int, default=1000, help="of each run (%(default)s)")
    args = parser.parse_args()
    with postgres.server() as server_url, tempfile.TemporaryDirectory() as folder:
        url = postgres.named(server_url, asyncio.run(postgres.make_template(server_url)))
        found = asyncio.run(measure(url, Path(folder), args.runs, args.parts))
    print(f"{found.runs} runs, {found.parts:,} parts: the writer {found.writer:,.0f} parts/s, a worker on one socket "
          f"{found.remote:,.0f} parts/s, ratio {found.ratio:.2f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
