"""One server for all tests of a module, with a new database: a start takes longer than most tests."""

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest_asyncio

from tests.support import postgres
from tests.support.in_process import InProcessServer, khala


@contextlib.asynccontextmanager
async def shared(
    postgres_url: str, template: str, *, with_executor: bool = True, **env: str
) -> AsyncIterator[InProcessServer]:
    """Serve on a new database, which is dropped at the end."""
    async with (
        postgres.database(postgres_url, template) as url,
        khala(url, with_executor=with_executor, **env) as inside,
    ):
        yield inside


def server_fixture(*, with_executor: bool = True, **env: str) -> Callable[[str, str], AsyncIterator[InProcessServer]]:
    """A fixture of such a server. A module assigns it to the name of the fixture."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
        async with shared(postgres_url, template, with_executor=with_executor, **env) as inside:
            yield inside

    return server
