"""The id of an account is the id of no thread of others: guests have the files and memories of their thread's id."""

from typing import Any

import pytest

from tests.support.account_with_data import account
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture()


@pytest.mark.parametrize("more", [{}, {"temporary": True}])
async def test_nobody_creates_a_thread_with_the_id_of_an_account(server: InProcessServer, more: dict[str, Any]) -> None:
    async with account(server, "Aldaris") as victim, account(server, "Ulrezaj") as attacker:
        for http in (server.http, attacker.http):
            refused = await http.post("/api/threads", json={"id": victim.id, **more})
            assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "id")
            assert (await http.get(f"/api/threads/{victim.id}")).status_code in (401, 403, 404)
