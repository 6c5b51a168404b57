"""Fixtures for tests that run Khala in separate processes and look at it through a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.support.server import Server, ended
from tests.system.browser import Chat, new_browser


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """`khala serve` with the demo model and a short lease, on a separate database."""
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "1"}
    server = Server(tmp_path / "server.log", env)
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
