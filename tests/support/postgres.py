"""The Postgres server of tests: TEST_DATABASE_URL, or a container if Docker runs, or the embedded Postgres."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import asyncpg
from docker import from_env
from docker.errors import DockerException
from testcontainers.community.postgres import PostgresContainer

from khala.domain import ids
from khala.store.embedded import EmbeddedPostgres
from khala.store.postgres import migrations
from khala.store.postgres.database import asyncpg_url, driver_url

T = TypeVar("T")
TEMPLATE = "khala_test_template"
COMMIT_TIMES = "track_commit_timestamp=on"
PARAMETERS = {"shared_buffers": "64MB", "max_wal_size": "512MB"}
"""Sizes that are the same on all machines: the data of tests is small, and is in memory."""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a Postgres server for a test session. Without TEST_DATABASE_URL it tracks commit timestamps."""
    configured = os.environ.get("TEST_DATABASE_URL")
    if configured:
        yield configured
    elif _docker_runs():
        with PostgresContainer("pgvector/pgvector:pg17", driver=None).with_command(f"-c {COMMIT_TIMES}") as container:
            yield container.get_connection_url()
    else:
        with _embedded() as url:
            yield url


def _docker_runs() -> bool:
    try:
        client = from_env(timeout=3)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (DockerException, OSError):
        return False


@contextlib.contextmanager
def _embedded() -> Iterator[str]:
    memory = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="khala-test-", dir=memory if memory.is_dir() else None))
    postgres = EmbeddedPostgres.start(home, PARAMETERS)
    try:
        asyncio.run(execute(postgres.url, f"ALTER SYSTEM SET {COMMIT_TIMES}"))
        postgres.stop()
        postgres = EmbeddedPostgres.start(home, PARAMETERS)
        yield postgres.url
    finally:
        postgres.stop()
        shutil.rmtree(home, ignore_errors=True)


def named(url: str, database: str) -> str:
    """The URL of another database of the same server."""
    return driver_url(asyncpg_url(url).set(database=database).render_as_string(hide_password=False))


async def make_template(url: str) -> str:
    """Create a migrated template database; returns its unique name."""
    name = f"{TEMPLATE}_{ids.new().hex}"
    await execute(url, f'CREATE DATABASE "{name}"')
    await migrations.upgrade(named(url, name))
    return name


@contextlib.asynccontextmanager
async def database(url: str, template: str) -> AsyncIterator[str]:
    """The URL of a new database, copied from a template and dropped at the end."""
    copy = await _make_copy(url, template)
    try:
        yield copy
    finally:
        await _drop(url, copy)


@contextlib.contextmanager
def sync_database(url: str, template: str) -> Iterator[str]:
    """Like `database`, for fixtures of tests that are not async."""
    copy = _run(_make_copy(url, template))
    try:
        yield copy
    finally:
        _run(_drop(url, copy))


def sync_execute(url: str, command: str) -> None:
    """Like `execute`, for fixtures of tests that are not async."""
    _run(execute(url, command))


def _run(doing: Coroutine[None, None, T]) -> T:
    """Run this in a thread of its own: an open sync Playwright occupies the event loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, doing).result()


async def _make_copy(url: str, template: str) -> str:
    """Copy a template to a new database; returns its URL. Copying files takes a quarter of the time of logged pages."""
    name = f"khala_test_{ids.new().hex}"
    await execute(url, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
    return named(url, name)


async def _drop(url: str, database_url: str) -> None:
    """Drop a database of the same server, and end all connections to it."""
    name = asyncpg_url(database_url).database
    await execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def execute(url: str, command: str) -> None:
    """Run one command outside any transaction."""
    async with connected(url) as connection:
        await connection.execute(command)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is closed at the end."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        yield connection
    finally:
        await connection.close()
