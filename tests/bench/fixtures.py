"""Context managers for workloads: a database, Khala's processes, an HTTP client, drivers."""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import asyncpg
import httpx
import msgspec

from khala.domain import ids
from khala.store.postgres.database import Driver, driver_url
from tests.bench.processes import Worker, worker
from tests.support import postgres, server
from tests.support.server import Server

START_TIMEOUT_SECONDS = 90.0
"""For a process to become ready."""
MAX_LOG_CHARACTERS = 6000
"""Of each log that is shown when a workload fails."""


class BenchEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Shared by all workloads: a Postgres with a migrated template, the model server, and Khala's process layout."""

    url: str
    template: str
    model: Worker
    model_url: str
    together: bool = False
    """One process serves and executes runs, instead of one each."""


class Khala(msgspec.Struct, frozen=True, kw_only=True):
    """Khala's processes; without an `executor`, the `web` process executes the runs."""

    web: Server
    executor: server.Worker | None

    @property
    def pids(self) -> Mapping[str, Sequence[int]]:
        """The pids by the name of the process in the figures."""
        return {"web": [self.web.pid]} | ({} if self.executor is None else {"executor": [self.executor.pid]})


@contextlib.asynccontextmanager
async def database(environment: BenchEnvironment, schema: str | None = None) -> AsyncIterator[str]:
    """A new database: a migrated one, or an empty one with this schema."""
    name = f"khala_bench_{ids.new().hex}"
    template = "template0" if schema else environment.template
    await postgres.execute(environment.url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    url = postgres.named(environment.url, name)
    try:
        if schema:
            await postgres.execute(url, schema)
        yield url
    finally:
        await postgres.execute(environment.url, f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.asynccontextmanager
async def khala(url: str, environment: BenchEnvironment, **settings: str) -> AsyncIterator[Khala]:
    """Run `khala serve --no-executor` and `khala work`, without limits that a benchmark would exceed."""
    env = {
        "DATABASE_URL": url,
        "KHALA_MODEL": "openai:bench",
        "KHALA_FALLBACK_MODELS": "",
        "KHALA_WELCOME": "",
        "OPENAI_BASE_URL": f"{environment.model_url}/v1",
        "OPENAI_API_KEY": "bench",
        "KHALA_CONCURRENCY": "10000",
        "KHALA_QUEUE_LIMIT": "10000",
        "KHALA_GRACE_SECONDS": "1",
        "KHALA_REQUESTS_PER_MINUTE": "0",
        "KHALA_ANON_RUNS_PER_HOUR": "0",
        "KHALA_ANON_USD_PER_DAY": "0",
        "KHALA_ANON_TOKENS_PER_DAY": "0",
        "KHALA_ANON_TOTAL_USD_PER_DAY": "0",
    } | settings
    with tempfile.TemporaryDirectory(prefix="khala-bench-") as folder:
        web = Server(Path(folder) / "web.log", env, *([] if environment.together else ["--no-executor"]), anew=True)
        executor = None if environment.together else server.Worker(Path(folder) / "executor.log", env, anew=True)
        processes: list[server.Process] = [web] if executor is None else [web, executor]
        try:
            starts = [asyncio.to_thread(_start, process) for process in processes]
            for failure in await asyncio.gather(*starts, return_exceptions=True):
                if failure is not None:
                    raise failure
            yield Khala(web=web, executor=executor)
        except Exception as error:
            for process in processes:
                error.add_note(f"The end of {process.log.name}:\n{process.log.read_text()[-MAX_LOG_CHARACTERS:]}")
            raise
        finally:
            await asyncio.gather(*(asyncio.to_thread(_end, process) for process in processes))


def _start(process: server.Process) -> None:
    """Start a process and wait until it is ready, which takes long on a busy machine."""
    if isinstance(process, Server):
        process.begin()
        process.wait_for("Khala is at", within=START_TIMEOUT_SECONDS)
        process.wait_until_ready()
    else:
        process.start()
        process.wait_for("Khala works as", within=START_TIMEOUT_SECONDS)


def _end(process: server.Process) -> None:
    if process.running():
        process.kill(signal.SIGTERM)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Driver]:
    """A connection for reading counters."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def client(web: Server) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client for creating threads and sending."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=web.url, timeout=30, limits=limits, trust_env=False) as http:
        yield http


@contextlib.asynccontextmanager
async def drivers(count: int) -> AsyncIterator[list[Worker]]:
    """Start so many drivers, the processes that run observers."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(worker("observers")) for _ in range(count)]
