"""The naive way, as a baseline: each run inserts and notifies by itself, and whoever serves reads the row and sends it.

One module for two processes, as Khala's are two: one `Serve`s observers, one `Speak`s. It is what one would write in an
afternoon, and written well: one statement inserts and notifies, so a part costs one round trip and one commit; the
pools don't reset their sessions; a frame is encoded once for all observers. It keeps no leases, revisions, receipts or
budgets, checks no access, and folds nothing.
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
from tests.bench.processes import Address, Request, answering

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
CONNECTIONS = 8
"""Of each process to the database; Khala's hot path has as many."""


class Serve(Request, frozen=True, kw_only=True):
    """Serve what is written in this database to observers, on a free port; answered by `Address`.

    Here and below `database` is a URL as asyncpg reads it.
    """

    database: str


class Speak(Request, frozen=True, kw_only=True):
    """Ask the model, one run a topic, and write what it says; answered by `Spoken` when all has been said.

    The runs begin evenly within `ramp` seconds. A part has one token, or what has come in the time of Khala's own
    flush policy: the first token at once, and then what is up to 350 ms old.
    """

    prompts: Mapping[str, str]
    ramp: float
    by_token: bool


class Open(Request, frozen=True, kw_only=True):
    """Have all at hand for speaking, the model's client and the connections; answered by `Spoken` of nothing."""

    database: str
    model_url: str


class Spoken(msgspec.Struct, frozen=True):
    """By topic, when its run began, in nanoseconds of the monotonic clock."""

    began: dict[str, int]


class Topic:
    """Who watches one run, and up to where it was read."""

    def __init__(self) -> None:
        self.observers: set[ServerConnection] = set()
        self.told = -1
        self.woken = asyncio.Event()
        self.follower: asyncio.Task[None] | None = None


class Observed:
    """The process that serves: a notification wakes the topic's task, which reads what is new and sends it to all."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._topics: dict[str, Topic] = defaultdict(Topic)
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._listener: Driver | None = None

    async def listen(self, database: str) -> None:
        """Read from here, and look again whenever it is said that something is new."""
        self._pool = await _pool(database)
        self._listener = await asyncpg.connect(database)
        await self._listener.add_listener("parts", self._notified)

    async def close(self) -> None:
        """Follow nothing any more."""
        for topic in self._topics.values():
            if topic.follower:
                topic.follower.cancel()
        if self._pool and self._listener:
            await self._listener.close()
            await self._pool.close()

    async def join(self, connection: ServerConnection) -> None:
        """Hold a connection for as long as it lasts."""
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
            for row in await self._pool.fetch(READ, run_id, topic.told):
                topic.told = row["seq"]
                broadcast(topic.observers, _frame(row), text=True)


def _frame(row: asyncpg.Record) -> bytes:
    at = row["created_at"].isoformat()
    return f'{{"type":"part","seq":{row["seq"]},"createdAt":"{at}","data":{row["data"]}}}'.encode()


class Run:
    """One answer on its way from the model into the table."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", topic: str) -> None:
        self._pool = pool
        self._id = UUID(topic)
        self._seq = 0
        self._texts: list[str] = []
        self._came = asyncio.Event()
        self._ended = asyncio.Event()

    async def by_token(self, tokens: AsyncIterator[str]) -> None:
        """A part a token."""
        async for token in tokens:
            await self._write({"text": token})
        await self._write({"finish": "stop"})

    async def by_time(self, tokens: AsyncIterator[str], seconds: float) -> None:
        """A part for what came in so many seconds; the first token at once."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._flush(seconds))
            async for token in tokens:
                self._texts.append(token)
                self._came.set()
            self._ended.set()
            self._came.set()
        await self._write({"finish": "stop"})

    async def _flush(self, seconds: float) -> None:
        while not self._ended.is_set() or self._texts:
            await self._came.wait()
            if self._seq:
                await self._until_ended(seconds)
            self._came.clear()
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


class Speaking:
    """The process that asks the model and writes what it says."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", client: "AsyncOpenAI") -> None:
        self._pool = pool
        self._client = client

    @classmethod
    async def opened(cls, request: Open) -> "Speaking":
        """With all at hand."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # a second's work; the process that serves is spared it

        http = DefaultAsyncHttpxClient(trust_env=False)
        client = AsyncOpenAI(api_key="bench", base_url=f"{request.model_url}/v1", max_retries=0, http_client=http)
        return cls(await _pool(request.database), client)

    async def close(self) -> None:
        """Speak no more."""
        await self._client.close()
        await self._pool.close()

    async def speak(self, request: Speak) -> Spoken:
        """Begin all runs, and wait for their ends."""
        began: dict[str, int] = {}

        async def begin(number: int, topic: str, prompt: str) -> None:
            await asyncio.sleep(request.ramp * number / len(request.prompts))
            began[topic] = time.monotonic_ns()
            run, tokens = Run(self._pool, topic), self._tokens(prompt)
            await (run.by_token(tokens) if request.by_token else run.by_time(tokens, FlushPolicy().seconds))

        async with asyncio.TaskGroup() as group:
            for number, (topic, prompt) in enumerate(request.prompts.items()):
                group.create_task(begin(number, topic, prompt))
        return Spoken(began)

    async def _tokens(self, prompt: str) -> AsyncIterator[str]:
        stream = await self._client.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": prompt}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and (text := chunk.choices[0].delta.content):
                yield text


async def _pool(database: str) -> "asyncpg.Pool[asyncpg.Record]":
    return await asyncpg.create_pool(database, min_size=1, max_size=CONNECTIONS, reset=_as_it_is)


async def _as_it_is(connection: object) -> None:
    """No session is ever changed here, so none is reset: that would cost each statement another round trip."""


class Process:
    """Either of the two."""

    def __init__(self, server: Server, observed: Observed) -> None:
        self._server = server
        self._observed = observed
        self._speaking: Speaking | None = None

    async def answer(self, request: Serve | Open | Speak) -> Address | Spoken:
        """One request of the bench. `Open` comes before `Speak`."""
        match request:
            case Serve():
                await self._observed.listen(request.database)
                return Address(f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}")
            case Open():
                self._speaking = await Speaking.opened(request)
                return Spoken({})
            case Speak():
                assert self._speaking
                return await self._speaking.speak(request)
            case _:
                assert_never(request)

    async def close(self) -> None:
        """End all that goes on."""
        await self._observed.close()
        if self._speaking:
            await self._speaking.close()


requests: msgspec.json.Decoder[Serve | Open | Speak] = msgspec.json.Decoder(Serve | Open | Speak)


async def main() -> None:
    """Serve, or speak, until the input ends."""
    async with asyncio.TaskGroup() as group:
        observed = Observed(group)
        async with serve(observed.join, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
            process = Process(server, observed)
            await answering(requests, process.answer)
            await process.close()


if __name__ == "__main__":
    uvloop.run(main())
