"""One server for all tests of a module, with a new database: a start takes longer than most tests."""

import contextlib
from collections.abc import AsyncIterator

from khala.domain import ids
from tests.support import postgres
from tests.support.in_process import InProcessServer, khala


@contextlib.asynccontextmanager
async def shared(
    postgres_url: str, template: str, *, with_executor: bool = True, **env: str
) -> AsyncIterator[InProcessServer]:
    """Serve on a new database, which is dropped at the end."""
    name = f"khala_test_{ids.new().hex}"
    await postgres.execute(postgres_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        async with khala(postgres.named(postgres_url, name), with_executor=with_executor, **env) as inside:
            yield inside
    finally:
        await postgres.execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)')
