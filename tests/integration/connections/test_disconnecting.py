"""Disconnected accounts, and those of deleted people and removed services."""

import asyncio

import pytest

from khala.store.postgres.database import Database
from khala.store.tools import mcp_accounts
from khala.tools.mcp.oauth import AuthorizationError
from tests.support.connections import (
    TOOL,
    called,
    connect,
    connection,
    new_thread,
    servers_of,
    stored_account,
    tokens_of,
)
from tests.support.in_process import InProcessServer, khala
from tests.support.mcp_accounts import PersonalServer
from tests.support.mcp_client import eventually
from tests.support.oauth import PASSWORD, signed_in

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_disconnected_account_and_a_deleted_one_are_used_no_more_and_revoked(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    issuer = personal.issuer
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "faye")
        thread = await new_thread(alice)
        assert await called(thread, TOOL) == (True, "whoami for faye")
        account = await stored_account(store, alice)
        tokens = tokens_of(store, personal, account)
        async with store.driver() as driver:
            for at, expected in (("now()", None), ("NULL", account.id)):
                await driver.execute(f"UPDATE users SET blocked_at = {at} WHERE id = $1", account.user_id)
                found = await mcp_accounts.read(driver, account.id)
                assert (found and found.id) == expected, "a blocked person's tokens are used by nobody"
            lease = await mcp_accounts.lease_refresh(driver, account.id, account.version)
            assert lease is not None
        assert (await alice.delete("/api/connections/notes")).status_code == 204
        async with store.driver() as driver:
            assert await mcp_accounts.claim_revocation(driver) is None, "the refreshed tokens are revoked, too"
            await mcp_accounts.release_refresh(driver, account.id, lease)
        # The server's own revoker may be first.
        await servers_of(store, personal)._revoker.revoke_next()
        with pytest.raises(AuthorizationError):
            await tokens.current()
        assert not (await called(thread, TOOL))[0]
        await eventually(lambda: not [one for one in issuer.access.values() if one.subject == "faye"], seconds=10)
        assert (await alice.delete("/api/connections/notes")).status_code == 404
        await connect(alice, personal, "faye")
        revoked = len(issuer.revoked)
        (await alice.request("DELETE", "/api/me", json={"password": PASSWORD})).raise_for_status()
        await servers_of(store, personal)._revoker.revoke_next()
        await eventually(lambda: len(issuer.revoked) == revoked + 1, seconds=10)
    async with store.driver() as driver:
        for _ in range(50):
            if await driver.fetchval("SELECT count(*) FROM mcp_accounts WHERE user_id IS NULL") == 0:
                return
            await asyncio.sleep(0.1)
    pytest.fail("a revoked row is left")


async def test_an_account_at_a_removed_service_can_be_disconnected(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "liam")
        async with khala(server.database_url, with_executor=False) as without:
            there = f"{without.url}/api/connections"
            [item] = (await alice.get(there)).raise_for_status().json()["items"]
            assert (item["name"], item["state"], item["tools"]) == ("notes", "removed", 0)
            assert (await alice.delete(f"{there}/notes")).status_code == 204
            assert (await alice.get(there)).json()["items"] == []
        assert (await connection(alice))["state"] == "disconnected"
