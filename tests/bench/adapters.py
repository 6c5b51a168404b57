"""CPU of each adapter per delta, beside that of the native event stream: `python -m tests.bench --adapters`.

Khala's web process, without an executor, serves runs to which this process appends deltas. Clients in another process
read them by one protocol after the other, in turns, so that other load affects all alike. Each delta is appended when
all clients have the one before, so that no stream joins two. Only the web process is measured: the executor and
Postgres do not know by which protocol a run is read.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar
from urllib.parse import urlsplit

import asyncpg
import httpx
import msgspec

from khala.domain import ids
from khala.store.postgres.database import Database, driver_url
from khala.store.runs.leases import Lease
from tests.bench import counters, fixtures, machine
from tests.bench.adapter_observers import Attach, Await, Reached
from tests.bench.fixtures import BenchEnvironment
from tests.bench.processes import Worker, worker
from tests.support.callers import person
from tests.support.server import Server, ended
from tests.support.store import batch, claim, write

SHAPES = ((1, 100), (100, 1))
"""Runs and clients of each run."""
ROUNDS, DELTAS = 7, 40
"""Turns of each protocol, and deltas of a run in a turn."""
MAX_RATIO = 1.3
DELIVERY_TIMEOUT_SECONDS = 30.0
TEXT = "some sixty characters, as a model says them in a third of a s"
NATIVE = "native"


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and the request by which clients read it."""

    request: str
    lease: Lease


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """How clients of a protocol start a run and read it. `read` is a path with the thread's id; None: they start it."""

    name: str
    path: str
    read: str | None = None

    def post(self, key: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the headers and the body that start a run. The same request again joins it."""
        return BODIES[self.path](key)


def _chat_completion(key: str) -> tuple[dict[str, str], dict[str, Any]]:
    messages = [{"role": "user", "content": "?"}]
    return {"Idempotency-Key": key}, {"model": "khala", "messages": messages, "stream": True}


def _response(key: str) -> tuple[dict[str, str], dict[str, Any]]:
    return {"Idempotency-Key": key}, {"model": "khala", "input": "?", "stream": True}


def _ai_sdk(key: str) -> tuple[dict[str, str], dict[str, Any]]:
    message = {"id": key, "role": "user", "parts": [{"type": "text", "text": "?"}]}
    return {}, {"id": key, "messages": [message], "trigger": "submit-message"}


def _ag_ui(key: str) -> tuple[dict[str, str], dict[str, Any]]:
    messages = [{"id": key, "role": "user", "content": "?"}]
    body = {"threadId": key, "runId": f"run-{key}", "state": {}, "messages": messages, "tools": [], "context": []}
    return {"X-Run-Id": f"run-{key}"}, body | {"forwardedProps": {}}


BODIES = {
    "/v1/chat/completions": _chat_completion,
    "/v1/responses": _response,
    "/api/chat": _ai_sdk,
    "/api/ag-ui": _ag_ui,
    "/api/ag-ui/ndjson": _ag_ui,
}
PROTOCOLS = (
    Protocol(name=NATIVE, path="/api/chat", read="/api/threads/{}/events"),
    Protocol(name="OpenAI chat completions", path="/v1/chat/completions"),
    Protocol(name="OpenAI responses", path="/v1/responses"),
    Protocol(name="AI SDK", path="/api/chat"),
    Protocol(name="AG-UI, TanStack AI", path="/api/ag-ui"),
    Protocol(name="TanStack AI, lines", path="/api/ag-ui/ndjson"),
    Protocol(name="Durable Streams", path="/api/chat", read="/v1/stream/threads/{}?offset=-1&live=sse"),
)


class AdapterCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one protocol: CPU microseconds of the web process per delta and client, and bytes on the wire.

    `ratio` is the median of the CPU of each turn, divided by that of the native stream in the same round.
    """

    protocol: str
    cpu_us: float
    bytes: float
    ratio: float


class ShapeCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of all protocols with so many runs and clients of each."""

    runs: int
    clients: int
    costs: tuple[AdapterCost, ...]


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of all shapes."""

    machine: dict[str, str]
    shapes: tuple[ShapeCosts, ...]
    problems: ClassVar[list[str]] = []
    """None: a client that does not get a delta ends the measurement."""

    @property
    def met(self) -> bool:
        """Whether no adapter costs more than the target."""
        return all(cost.ratio <= MAX_RATIO for shape in self.shapes for cost in shape.costs)


class AdapterBench:
    """One server, one process of clients, and an account whose runs they read."""

    def __init__(self, server: Server, db: Database, clients: Worker, token: str) -> None:
        self._server = server
        self._db = db
        self._clients = clients
        self._headers = {"Authorization": f"Bearer {token}"}

    async def measure(self, protocol: Protocol, runs: int, clients: int) -> tuple[float, float]:
        """Return the CPU microseconds and the bytes of one turn, per delta and client."""
        started = await self._start(protocol, runs)
        split = urlsplit(self._server.url)
        assert split.hostname
        assert split.port
        await self._append(started, 0)
        attached = Attach(
            host=split.hostname,
            port=split.port,
            requests=tuple(run.request for run in started for _ in range(clients)),
            number=0,
        )
        await self._reached(attached, runs * clients)
        await self._turn(started, range(1, 6), runs * clients)
        before = counters.cpu_seconds([self._server.pid])
        received = await self._turn(started, range(6, 6 + DELTAS), runs * clients)
        spent = counters.cpu_seconds([self._server.pid]) - before
        deliveries = DELTAS * runs * clients
        return spent / deliveries * 1e6, received / deliveries

    async def _turn(self, started: Sequence[StartedRun], numbers: range, clients: int) -> int:
        received = 0
        for number in numbers:
            await self._append(started, number)
            received += await self._reached(Await(number=number, seconds=DELIVERY_TIMEOUT_SECONDS), clients)
        return received

    async def _append(self, started: Sequence[StartedRun], number: int) -> None:
        await write(self._db, *(batch(run.lease, number, f"{TEXT} #{number}#") for run in started))

    async def _reached(self, request: Attach | Await, clients: int) -> int:
        reached = await self._clients.ask(request, Reached, within=120)
        if reached.clients < clients:
            missing = f"{clients - reached.clients} of {clients} clients did not get delta {request.number}"
            raise RuntimeError(f"{missing}:\n{reached.problem}")
        return reached.bytes

    async def _start(self, protocol: Protocol, count: int) -> list[StartedRun]:
        requests: dict[str, str] = {}
        async with httpx.AsyncClient(base_url=self._server.url, timeout=30, trust_env=False) as http:
            for _ in range(count):
                run_id, request = await self._start_run(http, protocol, ids.new().hex)
                requests[run_id] = request
        claimed = await claim(self._db, most=count, lease=3600)
        return [StartedRun(request=requests[str(one.lease.run_id)], lease=one.lease) for one in claimed]

    async def _start_run(self, http: httpx.AsyncClient, protocol: Protocol, key: str) -> tuple[str, str]:
        headers, body = protocol.post(key)
        headers |= self._headers
        async with http.stream("POST", protocol.path, json=body, headers=headers) as response:
            if response.status_code != 200:
                raise RuntimeError((await response.aread()).decode())
            thread_id, run_id = response.headers["x-thread-id"], response.headers["x-run-id"]
        if protocol.read is not None:
            return run_id, _request("GET", protocol.read.format(thread_id), self._headers, "")
        headers["Content-Type"] = "application/json"
        return run_id, _request("POST", protocol.path, headers, json.dumps(body, separators=(",", ":")))


def _request(method: str, path: str, headers: Mapping[str, str], body: str) -> str:
    sent = {"Host": "127.0.0.1", "Accept": "text/event-stream", **headers, "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    return "\r\n".join(lines) + "\r\n\r\n" + body


@contextlib.asynccontextmanager
async def _opened(environment: BenchEnvironment) -> AsyncIterator[AdapterBench]:
    names = ("REQUESTS_PER_MINUTE", "USER_RUNS_PER_HOUR", "USER_USD_PER_DAY", "USER_TOKENS_PER_DAY")
    limits = {"KHALA_QUEUE_LIMIT": "10000", "KHALA_RUNS_PER_OWNER": "10000"} | {f"KHALA_{name}": "0" for name in names}
    async with fixtures.database(environment) as url:
        env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_WELCOME": "", **limits}
        with tempfile.TemporaryDirectory(prefix="khala-adapters-") as folder:
            server = Server(Path(folder) / "server.log", env, "--no-executor", anew=True)
            db = Database(url)
            try:
                with ended(server):
                    await asyncio.to_thread(server.start)
                    async with worker("adapter_observers") as clients:
                        yield AdapterBench(server, db, clients, (await person(db)).token)
            finally:
                await db.close()


async def measure(environment: BenchEnvironment, shapes: Sequence[tuple[int, int]] = SHAPES) -> AdapterReport:
    """Measure all protocols with these numbers of runs and clients."""
    connection = await asyncpg.connect(driver_url(environment.url))
    try:
        facts = await machine.facts(connection)
    finally:
        await connection.close()
    async with _opened(environment) as bench:
        measured = [await _shape_costs(bench, runs, clients) for runs, clients in shapes]
    return AdapterReport(machine=facts, shapes=tuple(measured))


async def _shape_costs(bench: AdapterBench, runs: int, clients: int) -> ShapeCosts:
    turns: dict[str, list[tuple[float, float]]] = {protocol.name: [] for protocol in PROTOCOLS}
    for at in range(ROUNDS):
        for protocol in PROTOCOLS if at % 2 else reversed(PROTOCOLS):
            turns[protocol.name].append(await bench.measure(protocol, runs, clients))
    native = [cpu for cpu, _ in turns[NATIVE]]
    costs = [
        AdapterCost(
            protocol=name,
            cpu_us=median(cpu for cpu, _ in measured),
            bytes=median(size for _, size in measured),
            ratio=median(cpu / base for (cpu, _), base in zip(measured, native, strict=True)),
        )
        for name, measured in turns.items()
    ]
    return ShapeCosts(runs=runs, clients=clients, costs=tuple(costs))


def table(report: AdapterReport) -> str:
    """Return the report as text."""
    lines = [f"{'runs × clients':14} {'protocol':24} {'µs CPU':>8} {'bytes':>8} {'ratio':>6}"]
    for shape in report.shapes:
        lines += [
            f"{f'{shape.runs}×{shape.clients}':14} {cost.protocol:24} {cost.cpu_us:8.1f} {cost.bytes:8.0f}"
            f" {cost.ratio:6.2f}{'' if cost.ratio <= MAX_RATIO else '  more than ' + str(MAX_RATIO)}"
            for cost in shape.costs
        ]
    return "\n".join(lines)
