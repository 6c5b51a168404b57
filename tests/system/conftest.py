"""Fixtures for tests that run Khala as processes of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, ended


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """`khala serve` with the demo model and a short lease, on a database of its own."""
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "1"}
    server = Server(tmp_path / "server.log", env)
    with ended(server):
        server.start()
        yield server
