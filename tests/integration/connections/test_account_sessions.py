"""Sessions at connected services: a slow service or a missing database affects no other."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from khala.domain.access import Caller
from khala.domain.errors import Unavailable
from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.tools.mcp import McpConfig
from khala.tools.mcp.accounts import account_tools
from khala.tools.mcp.accounts.compose import open_account_servers
from tests.support.connections import (
    TOOL,
    config_of,
    connect,
    connect_directly,
    listed_account,
    secret_box,
    servers_of,
)
from tests.support.in_process import InProcessServer
from tests.support.mcp_accounts import PersonalServer
from tests.support.mcp_client import eventually
from tests.support.oauth import signed_in
from tests.support.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="package")


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The address of a server that accepts connections and never answers."""
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with silent:
        yield f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/mcp"


async def test_slow_services_delay_the_tools_of_others_by_one_common_limit(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2.0
    monkeypatch.setattr(account_tools, "FIRST_LIST_SECONDS", limit)
    async with silent_server() as silent, signed_in(server.url) as alice:
        await connect(alice, personal, "peter")
        account = await listed_account(store, alice)
        notes = config_of(personal).servers["notes"]
        slow = {name: msgspec.structs.replace(notes, name=name, url=silent) for name in ("first", "second", "third")}
        broken = msgspec.structs.replace(notes, name="broken", url=f"http://127.0.0.1:{free_port()}/mcp")
        others = slow | {"broken": broken}
        for config in others.values():
            await connect_directly(store, Caller(user_id=account.user_id), config, account)
        async with store.driver() as driver:
            await driver.execute("UPDATE mcp_accounts SET tools_hash = NULL WHERE id = $1", account.id)
        services = open_account_servers(
            McpConfig(servers=others | {"notes": notes}), store, secret_box(), allow=(), public_url=None
        )
        running = asyncio.create_task(services.run())
        try:
            await eventually(lambda: services._sessions._group is not None)
            assert account.user_id is not None
            for max_seconds in (2 * limit, limit):
                began = time.monotonic()
                assert set(await services.tools.of_user(account.user_id)) == {TOOL, "notes__privileged"}
                assert time.monotonic() - began < max_seconds, "a slow service is waited for once"
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_without_a_database_sessions_stay_open(
    server: InProcessServer, personal: PersonalServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "kate")
        account, servers = await listed_account(store, alice), servers_of(store, personal)
        [service] = servers._servers.values()
        looks: list[int] = []

        async def unavailable(*given: Any) -> bool:
            looks.append(len(given))
            raise Unavailable("The database is out of reach.")

        monkeypatch.setattr(mcp_accounts, "set_tools", unavailable)
        monkeypatch.setattr(servers._revoker, "revoke_next", unavailable)
        running = asyncio.create_task(servers.run())
        try:
            await eventually(lambda: looks == [0])
            opened = await servers._sessions.open(service, account)
            assert opened.state.state == "ready", opened.state.error
            assert looks == [0, 5], "its tools are not stored"
            servers._revoker.wake()
            await eventually(lambda: looks == [0, 5, 0])
            assert not running.done()
            assert opened.state.state == "ready"
        finally:
            running.cancel()
            await asyncio.wait({running})
