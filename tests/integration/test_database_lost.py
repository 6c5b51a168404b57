"""A database that is lost in the middle of work is reported as unavailable; no process crashes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from khala.domain.errors import Unavailable
from khala.domain.flush_policy import FlushPolicy
from khala.memory.memory_service import MemoryService
from khala.models.model_names import parse
from khala.models.providers import ProviderConfig, Providers
from khala.models.token_counter import TokenCounter
from khala.runs.executor import Executor
from khala.runs.executor_options import ExecutorOptions
from khala.runs.model_turn import ModelDependencies
from khala.runs.run_execution import RunExecution
from khala.runs.run_executor import RunExecutor
from khala.runs.tool_executor import ToolDependencies
from khala.store.postgres.database import Database, asyncpg_url
from khala.store.runs.group_commit import Writer
from khala.store.threads import threads
from khala.tools.tool_registry import ToolRegistry, ToolRegistryOptions
from tests.support import postgres
from tests.support.blobs import blob_service_of
from tests.support.ports import free_port
from tests.support.store import CALLER, ask, claim, new_thread

WITHIN = 20.0
TERMINATE = b"X\0\0\0\4"
"""The client's own goodbye, after which it waits for the server to hang up."""


class LingeringProxy:
    """A proxy between clients and Postgres that keeps the client's connection open when Postgres has closed its own."""

    def __init__(self, database_url: str) -> None:
        self._there = asyncpg_url(database_url)
        self.url = ""
        self.closed_by_postgres = asyncio.Event()
        """Set when Postgres has closed a connection and all its earlier bytes were passed on."""
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["LingeringProxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        query = {name: value for name, value in self._there.query.items() if name != "host"}
        here = self._there.set(drivername="postgresql", host="127.0.0.1", query=query)
        self.url = here.set(port=server.sockets[0].getsockname()[1]).render_as_string(hide_password=False)
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        there_reader, there_writer = await self._connect()
        requests = asyncio.create_task(_pass_on(reader, there_writer))
        try:
            await _pass_on(there_reader, writer)
            if not requests.done():
                self.closed_by_postgres.set()
                await requests
        except (OSError, asyncio.CancelledError):
            pass  # the test or the client has ended
        finally:
            requests.cancel()
            writer.transport.abort()
            there_writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._there.query.get("host", self._there.host or "127.0.0.1"), self._there.port or 5432
        assert isinstance(host, str)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
        if data.endswith(TERMINATE):
            return


async def terminate_backend(between: LingeringProxy, database_url: str, pid: int) -> None:
    """Terminate this backend, and wait until the client's socket has received its last message."""
    await postgres.execute(database_url, f"SELECT pg_terminate_backend({pid})")
    async with asyncio.timeout(WITHIN):
        await between.closed_by_postgres.wait()
        # The client reads earlier bytes before the response to this query.
        await postgres.execute(between.url, "SELECT 1")


async def test_a_connection_that_postgres_has_closed_is_unavailable_for_the_driver(database_url: str) -> None:
    async with LingeringProxy(database_url).open() as between:
        db = Database(between.url, pool_size=2)

        async def ask_twice() -> None:
            async with db.driver() as driver:
                await terminate_backend(between, database_url, await driver.fetchval("SELECT pg_backend_pid()"))
                await driver.fetchval("SELECT 1")

        with pytest.raises(Unavailable):
            await ask_twice()
        async with db.driver() as driver:
            assert await driver.fetchval("SELECT 1") == 1
        await db.close()


async def test_a_connection_that_postgres_has_closed_is_unavailable_for_a_command(database_url: str) -> None:
    async with LingeringProxy(database_url).open() as between:
        db = Database(between.url, pool_size=2)

        async def ask_twice() -> None:
            async with db.transaction() as connection:
                pid = await connection.scalar(text("SELECT pg_backend_pid()"))
                assert pid is not None
                await terminate_backend(between, database_url, pid)
                await connection.execute(text("SELECT 1"))

        with pytest.raises(Unavailable):
            await ask_twice()
        async with db.transaction() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await db.close()


@asynccontextmanager
async def idle_executor(db: Database) -> AsyncIterator[Executor]:
    """An executor on this database, which is not started."""
    providers = Providers(ProviderConfig())
    options = ExecutorOptions(models=(parse("demo"),), system="")
    tool_registry = ToolRegistry(db, None, sandbox=None, connections=None, options=ToolRegistryOptions())
    async with blob_service_of(db) as blob_service:
        tool_dependencies = ToolDependencies(tool_registry=tool_registry, blob_service=blob_service)
        models = ModelDependencies(open=providers.open)
        memories = MemoryService(db, None)
        run_executor = RunExecutor(
            db, Writer(db, FlushPolicy()), models, TokenCounter(), tool_dependencies, memories, options
        )
        yield Executor(db, run_executor, options)
    await providers.aclose()


async def test_a_run_whose_database_is_lost_at_its_start_is_dropped_without_a_crash(db: Database) -> None:
    await ask(db, await new_thread(db))
    (claimed,) = await claim(db)
    nowhere = Database(f"postgresql://khala@127.0.0.1:{free_port()}/khala")
    async with idle_executor(nowhere) as executor:
        with capture_logs() as logs:
            await executor._execute(RunExecution(claimed))
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("run_dropped", "warning")]
    await nowhere.close()


async def test_a_run_whose_thread_is_reset_at_its_start_is_lost_without_a_crash(db: Database) -> None:
    thread_id = await new_thread(db)
    await ask(db, thread_id)
    (claimed,) = await claim(db)
    await threads.reset(db, thread_id, CALLER, welcome="")
    async with idle_executor(db) as executor:
        with capture_logs() as logs:
            await executor._execute(RunExecution(claimed))
    events = [(entry["event"], entry["log_level"]) for entry in logs if entry["log_level"] != "debug"]
    assert events == [("run_lease_lost", "info")]


async def test_the_drivers_error_for_a_connection_that_postgres_has_closed_is_the_known_one(database_url: str) -> None:
    """If a new version of asyncpg fails this test, change `app/khala/store/postgres/database.py`."""
    async with LingeringProxy(database_url).open() as between:
        connection = await asyncpg.connect(between.url)
        await terminate_backend(between, database_url, await connection.fetchval("SELECT pg_backend_pid()"))
        with pytest.raises(asyncpg.InternalClientError):
            await connection.fetchval("SELECT 1")
        connection.terminate()
