"""What a workload needs around it, each for as long as it is open: a database, `khala serve`, clients and drivers."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import msgspec

from app.domain import ids
from app.store.db import Driver, driver_url
from tests.bench.processes import Worker, worker
from tests.support import postgres
from tests.support.server import Server

LOG_SHOWN = 6000
"""Characters of the server's log that are shown when a workload fails."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What all workloads share: a Postgres with a migrated template, and the model server."""

    url: str
    template: str
    model: Worker
    model_url: str


@contextlib.asynccontextmanager
async def database(stage: Stage) -> AsyncIterator[str]:
    """A migrated database of its own."""
    name = f"khala_bench_{ids.new().hex}"
    await postgres.execute(stage.url, f'CREATE DATABASE "{name}" TEMPLATE "{stage.template}"')
    try:
        yield postgres.named(stage.url, name)
    finally:
        await postgres.execute(stage.url, f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.asynccontextmanager
async def server(url: str, stage: Stage) -> AsyncIterator[Server]:
    """`khala serve`, without limits that a bench would run into."""
    env = {
        "DATABASE_URL": url,
        "KHALA_MODEL": "openai:bench",
        "KHALA_FALLBACK_MODELS": "",
        "KHALA_WELCOME": "",
        "OPENAI_BASE_URL": f"{stage.model_url}/v1",
        "OPENAI_API_KEY": "bench",
        "KHALA_CONCURRENCY": "10000",
        "KHALA_QUEUE_LIMIT": "10000",
        "KHALA_GRACE_SECONDS": "1",
        "KHALA_REQUESTS_PER_MINUTE": "0",
        "KHALA_ANON_RUNS_PER_HOUR": "0",
        "KHALA_ANON_USD_PER_DAY": "0",
    }
    with tempfile.TemporaryDirectory(prefix="khala-bench-") as directory:
        server = Server(Path(directory) / "server.log", env)
        try:
            await asyncio.to_thread(server.start)
            yield server
        except Exception as error:
            error.add_note(f"The end of the server's log:\n{server.log.read_text()[-LOG_SHOWN:]}")
            raise
        finally:
            if server.running():
                await asyncio.to_thread(server.kill, 15)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Driver]:
    """A connection to read counters with."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """REST, for making threads and asking."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http:
        yield http


@contextlib.asynccontextmanager
async def drivers(count: int) -> AsyncIterator[list[Worker]]:
    """So many processes for observers."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(worker("observers")) for _ in range(count)]
