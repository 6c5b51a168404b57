"""The naive baseline: each run inserts and notifies by itself, and the server reads each new row and sends it.

The module runs as two processes, as Khala does: one serves observers (`Serve`), one executes runs (`StartRuns`). It is
a simple but careful implementation: one statement inserts and notifies, so a part costs one round trip and one commit;
the pools do not reset their sessions; a frame is encoded once for all observers. It has no leases, revisions, receipts
or budgets, does not check access, and does not fold.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, assert_never
from uuid import UUID

import asyncpg
import msgspec
import uvloop
from websockets.asyncio.server import Server, ServerConnection, broadcast, serve

from khala.domain.flush_policy import FlushPolicy
from tests.bench.processes import Address, Request, serve_requests

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from khala.store.postgres.database import Driver

SCHEMA = """
    CREATE TABLE message_parts (
        run_id uuid, seq int, data jsonb NOT NULL, created_at timestamptz NOT NULL, PRIMARY KEY (run_id, seq)
    )
"""
WRITE = """
    WITH part AS (INSERT INTO message_parts VALUES ($1, $2, $3, clock_timestamp()) RETURNING run_id)
    SELECT pg_notify('parts', run_id::text) FROM part
"""
READ = "SELECT seq, data, created_at FROM message_parts WHERE run_id = $1 AND seq > $2 ORDER BY seq"
SNAPSHOT = '{"type":"snapshot"}'
MAX_CONNECTIONS = 8
"""Connections of each process to the database, as many as Khala's hot path has."""


class Serve(Request, frozen=True, kw_only=True):
    """Serve the parts in this database to observers, on a free port; answered by `Address`.

    Here and below, `database` is a URL for asyncpg.
    """

    database: str


class StartRuns(Request, frozen=True, kw_only=True):
    """Execute one run for each topic, and write its parts; answered by `StartTimes` when all runs have ended.

    The runs start evenly within `ramp` seconds. A part has one token; or the tokens of one flush by the time of Khala's
    own policy: the first token at once, and then what is up to 350 ms old.
    """

    prompts: Mapping[str, str]
    ramp: float
    by_token: bool


class Connect(Request, frozen=True, kw_only=True):
    """Open the model's client and the connections that runs need; answered by empty `StartTimes`."""

    database: str
    model_url: str


class StartTimes(msgspec.Struct, frozen=True):
    """The start of each topic's run, in nanoseconds of the monotonic clock."""

    began: dict[str, int]


class Topic:
    """The observers of one run, and the last part that was sent to them."""

    def __init__(self) -> None:
        self.observers: set[ServerConnection] = set()
        self.last_seq = -1
        self.woken = asyncio.Event()
        self.follower: asyncio.Task[None] | None = None


class NaiveServer:
    """The web process: a notification wakes the task of a topic, which reads the new parts and sends them to all."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._topics: dict[str, Topic] = defaultdict(Topic)
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._listener: Driver | None = None

    async def listen(self, database: str) -> None:
        """Connect to the database, and listen for notifications."""
        self._pool = await _pool(database)
        self._listener = await asyncpg.connect(database)
        await self._listener.add_listener("parts", self._notified)

    async def close(self) -> None:
        """Stop all tasks, and close the connections."""
        for topic in self._topics.values():
            if topic.follower:
                topic.follower.cancel()
        if self._pool and self._listener:
            await self._listener.close()
            await self._pool.close()

    async def join(self, connection: ServerConnection) -> None:
        """Add a connection to its topic until it closes."""
        assert connection.request
        run_id = connection.request.path.removeprefix("/")
        topic = self._topics[run_id]
        await connection.send(SNAPSHOT)
        topic.observers.add(connection)
        if topic.follower is None:
            topic.follower = self._group.create_task(self._follow(UUID(run_id), topic))
        try:
            await connection.wait_closed()
        finally:
            topic.observers.discard(connection)

    def _notified(self, connection: object, pid: int, channel: str, payload: object) -> None:
        topic = self._topics.get(str(payload))
        if topic is not None:
            topic.woken.set()

    async def _follow(self, run_id: UUID, topic: Topic) -> None:
        assert self._pool
        while True:
            await topic.woken.wait()
            topic.woken.clear()
            for row in await self._pool.fetch(READ, run_id, topic.last_seq):
                topic.last_seq = row["seq"]
                broadcast(topic.observers, _frame(row), text=True)


def _frame(row: asyncpg.Record) -> bytes:
    at = row["created_at"].isoformat()
    return f'{{"type":"part","seq":{row["seq"]},"createdAt":"{at}","data":{row["data"]}}}'.encode()


class Run:
    """One run: it writes the tokens of the model to the table."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", topic: str) -> None:
        self._pool = pool
        self._id = UUID(topic)
        self._seq = 0
        self._texts: list[str] = []
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    async def by_token(self, tokens: AsyncIterator[str]) -> None:
        """Write a part for each token."""
        async for token in tokens:
            await self._write({"text": token})
        await self._write({"finish": "stop"})

    async def by_time(self, tokens: AsyncIterator[str], seconds: float) -> None:
        """Write the first token at once, and then a part every so many seconds."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._flush(seconds))
            async for token in tokens:
                self._texts.append(token)
                self._changed.set()
            self._ended.set()
            self._changed.set()
        await self._write({"finish": "stop"})

    async def _flush(self, seconds: float) -> None:
        while not self._ended.is_set() or self._texts:
            await self._changed.wait()
            if self._seq:
                await self._until_ended(seconds)
            self._changed.clear()
            text = "".join(self._texts)
            self._texts.clear()
            if text:
                await self._write({"text": text})

    async def _until_ended(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    async def _write(self, data: Mapping[str, str]) -> None:
        await self._pool.execute(WRITE, self._id, self._seq, msgspec.json.encode(data).decode())
        self._seq += 1


class NaiveExecutor:
    """The executor process: it calls the model and writes the parts."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", client: "AsyncOpenAI") -> None:
        self._pool = pool
        self._client = client

    @classmethod
    async def connect(cls, request: Connect) -> "NaiveExecutor":
        """Open the model's client and the connections."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # takes a second, which the web process does not need

        http = DefaultAsyncHttpxClient(trust_env=False)
        client = AsyncOpenAI(api_key="bench", base_url=f"{request.model_url}/v1", max_retries=0, http_client=http)
        return cls(await _pool(request.database), client)

    async def close(self) -> None:
        """Close the client and the connections."""
        await self._client.close()
        await self._pool.close()

    async def start_runs(self, request: StartRuns) -> StartTimes:
        """Start all runs, and wait until they have ended."""
        began: dict[str, int] = {}

        async def begin(number: int, topic: str, prompt: str) -> None:
            await asyncio.sleep(request.ramp * number / len(request.prompts))
            began[topic] = time.monotonic_ns()
            run, tokens = Run(self._pool, topic), self._tokens(prompt)
            await (run.by_token(tokens) if request.by_token else run.by_time(tokens, FlushPolicy().seconds))

        async with asyncio.TaskGroup() as group:
            for number, (topic, prompt) in enumerate(request.prompts.items()):
                group.create_task(begin(number, topic, prompt))
        return StartTimes(began)

    async def _tokens(self, prompt: str) -> AsyncIterator[str]:
        stream = await self._client.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": prompt}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and (text := chunk.choices[0].delta.content):
                yield text


async def _pool(database: str) -> "asyncpg.Pool[asyncpg.Record]":
    return await asyncpg.create_pool(database, min_size=1, max_size=MAX_CONNECTIONS, reset=_no_reset)


async def _no_reset(connection: object) -> None:
    """Do not reset sessions: nothing changes them, and a reset would cost each statement another round trip."""


class Process:
    """One of the two processes."""

    def __init__(self, server: Server, web_server: NaiveServer) -> None:
        self._server = server
        self._web_server = web_server
        self._executor: NaiveExecutor | None = None

    async def answer(self, request: Serve | Connect | StartRuns) -> Address | StartTimes:
        """Answer one request of the benchmark. `Connect` comes before `StartRuns`."""
        match request:
            case Serve():
                await self._web_server.listen(request.database)
                return Address(f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}")
            case Connect():
                self._executor = await NaiveExecutor.connect(request)
                return StartTimes({})
            case StartRuns():
                assert self._executor
                return await self._executor.start_runs(request)
            case _:
                assert_never(request)

    async def close(self) -> None:
        """Close everything that was opened."""
        await self._web_server.close()
        if self._executor:
            await self._executor.close()


requests: msgspec.json.Decoder[Serve | Connect | StartRuns] = msgspec.json.Decoder(Serve | Connect | StartRuns)


async def main() -> None:
    """Serve, or execute runs, until the input ends."""
    async with asyncio.TaskGroup() as group:
        web_server = NaiveServer(group)
        async with serve(web_server.join, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
            process = Process(server, web_server)
            await serve_requests(requests, process.answer)
            await process.close()


if __name__ == "__main__":
    uvloop.run(main())
