"""Fixtures for tests that run Khala in separate processes and look at it through a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.support import postgres
from tests.support.server import Server, ended
from tests.system.browser import Chat, new_chromium, new_profile

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
    postgres.sync_execute(shared_server.env["DATABASE_URL"], FREE_EMAILS)
    return shared_server


@pytest.fixture
def own_server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """The same with the database of a single test, which may end it."""
    server = Server(tmp_path / "server.log", {"DATABASE_URL": database_url} | SETTINGS)
    with ended(server):
        server.start()
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium for all tests of a module: a start takes a second of a core.

    It ends with the module, because no async test can run while a sync Playwright is open.
    """
    with new_chromium() as started:
        yield started


@pytest.fixture
def browser(server: Server, chromium: Browser) -> Iterator[BrowserContext]:
    """One person's browser: a new profile for each test."""
    with new_profile(chromium) as profile:
        yield profile


@pytest.fixture
def chat(browser: BrowserContext, server: Server) -> Chat:
    """The page in that browser."""
    return Chat(browser, server.url)
