"""One server with a connected service, and that service, for all tests of this folder."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.support.connections import KEYS
from tests.support.in_process import InProcessServer
from tests.support.mcp_accounts import PersonalServer, personal_server
from tests.support.shared_server import shared


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def personal() -> AsyncIterator[PersonalServer]:
    async with personal_server() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def server(
    postgres_url: str, template: str, personal: PersonalServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InProcessServer]:
    config: Path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    oauth = {"flow": "authorization_code", "issuer": personal.issuer.issuer}
    notes = {"url": personal.url, "oauth": oauth, "description": "Notes of people."}
    config.write_text(json.dumps({"mcpServers": {"notes": notes}}))
    settings = {"KHALA_MCP_CONFIG": str(config), "KHALA_SECRET_KEYS": KEYS, "KHALA_FETCH_ALLOW": "127.0.0.0/8"}
    async with shared(postgres_url, template, with_executor=True, **settings) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


@pytest_asyncio.fixture(loop_scope="package", autouse=True)
async def usual(personal: PersonalServer) -> None:
    issuer = personal.issuer
    issuer.error, issuer.returned_issuer, issuer.lifetime, issuer.delay = None, issuer.issuer, 3600, 0.0
    issuer.token_answer = None
