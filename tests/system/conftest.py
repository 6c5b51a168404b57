"""Fixtures for tests that run Khala in separate processes and look at it through a browser."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.support import postgres
from tests.support.server import Server, ended
from tests.system.browser import Chat, new_browser

SETTINGS = {"KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "1"}


FREE_EMAILS = "UPDATE passwords SET email = user_id || '@example.net'"


@pytest.fixture(scope="module")
def shared_server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`khala serve` with the demo model and a short lease, for all tests of a module: a start takes seconds."""
    with postgres.sync_database(postgres_url, template) as url:
        server = Server(tmp_path_factory.mktemp("server") / "server.log", {"DATABASE_URL": url} | SETTINGS)
        with ended(server):
            server.start()
            yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The module's server, which the test may restart. Emails of earlier tests can be used again."""
    asyncio.run(postgres.execute(shared_server.env["DATABASE_URL"], FREE_EMAILS))
    return shared_server


@pytest.fixture
def own_server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """The same with the database of a single test, which may end it."""
    server = Server(tmp_path / "server.log", {"DATABASE_URL": database_url} | SETTINGS)
    with ended(server):
        server.start()
        yield server


@pytest.fixture
def browser(server: Server) -> Iterator[BrowserContext]:
    """One person's browser, started for each test: a sync Playwright that stays open would disturb async tests.

    It depends on the server, because the server's fixtures run their own event loop.
    """
    with new_browser() as context:
        yield context


@pytest.fixture
def chat(browser: BrowserContext, server: Server) -> Chat:
    """The page in that browser."""
    return Chat(browser, server.url)
