"""Fixtures for modules whose tests share a server."""

from collections.abc import AsyncIterator

import pytest_asyncio

from khala.store.postgres.database import Database
from tests.support.in_process import InProcessServer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    """The database of the module's server."""
    database = Database(server.database_url)
    yield database
    await database.close()
