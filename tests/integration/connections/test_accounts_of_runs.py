"""Runs call a connected service with the account of the person who asks, and ask for what is missing."""

import msgspec
import pytest

from khala.domain import ids
from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.tools.mcp.oauth import AuthorizationError
from khala.tools.port import ToolError, UserAnswer, UserQuestion
from tests.support.client import Thread, client
from tests.support.connections import (
    CONNECT,
    TOOL,
    called,
    connect,
    connection,
    new_thread,
    offered,
    servers_of,
    stored_account,
    tokens_of,
    user_id_of,
)
from tests.support.in_process import InProcessServer
from tests.support.mcp_accounts import PersonalServer
from tests.support.mcp_client import call_context
from tests.support.oauth import signed_in

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_each_persons_runs_call_the_service_with_their_own_account(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice, signed_in(server.url) as bob:
        assert await offered(alice) == {CONNECT}
        assert (await connection(alice))["state"] == "disconnected"
        ok, told = await called(await new_thread(alice), CONNECT)
        assert not ok
        assert "Settings" in told
        await connect(alice, personal, "alice")
        shown = await connection(alice)
        assert (shown["state"], shown["scopes"]) == ("connected", ["read"])
        assert shown["issuer"] == personal.issuer.issuer
        assert await called(await new_thread(alice), TOOL) == (True, "whoami for alice")
        assert await offered(bob) == {CONNECT}, "the account of another person is offered to nobody"
        await connect(bob, personal, "bob")
        assert await called(await new_thread(bob), TOOL) == (True, "whoami for bob")
    asked = personal.issuer.asked[-1]
    assert asked.resource == personal.url
    back = [str(uri) for one in personal.issuer.clients.values() for uri in one.redirect_uris or ()]
    assert back.count(f"{server.url}/api/connections/notes/callback") == 1, "one registration serves all accounts"


async def test_in_a_shared_thread_the_account_is_that_of_the_person_who_asks(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice, signed_in(server.url) as bob, client(server.url) as guest:
        await connect(alice, personal, "alice")
        theirs = await new_thread(alice)
        bob_id = (await bob.get("/api/me")).json()["id"]
        (await alice.put(f"/api/threads/{theirs.id}/members/{bob_id}", json={"role": "editor"})).raise_for_status()
        (await bob.post(f"/api/threads/{theirs.id}/join", json={})).raise_for_status()
        of_bob = Thread(bob, theirs.id, "")
        of_bob.headers = {}
        ok, told = await called(of_bob, TOOL)
        assert not ok
        assert "isn't available" in told
        await connect(bob, personal, "bob")
        assert await called(of_bob, TOOL) == (True, "whoami for bob")
        assert await called(theirs, TOOL) == (True, "whoami for alice")
        unknown = await Thread.create(guest)
        listed = await guest.get("/api/tools", params={"threadId": unknown.id}, headers=unknown.headers)
        assert not [one for one in listed.json()["items"] if one["source"] == "notes"], "guests are offered nothing"
        assert (await guest.get("/api/connections")).status_code == 401


async def test_a_run_asks_the_person_to_connect_and_goes_on(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    async with signed_in(server.url) as alice:
        user_id = await user_id_of(alice)
        tools = await servers_of(store, personal, public_url=server.url).tools.of_user(user_id)
        asked: list[UserQuestion] = []

        async def ask(question: UserQuestion) -> UserAnswer:
            asked.append(question)
            await connect(alice, personal, "hana")
            return UserAnswer(action="accept")

        context = msgspec.structs.replace(call_context(), actor=ToolActor(owner_id=user_id, user_id=user_id), ask=ask)
        assert "is connected" in (await tools[CONNECT].run({}, context)).output
        assert asked[0].url == f"{server.url}/api/connections/notes/start"
        stranger = msgspec.structs.replace(context, actor=ToolActor(owner_id=ids.new(), user_id=ids.new()))
        with pytest.raises(ToolError, match="another account"):
            await tools[CONNECT].run({}, stranger)


async def test_a_call_that_requires_more_permissions_has_them_asked_for(
    server: InProcessServer, personal: PersonalServer
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "erin")
        thread = await new_thread(alice)
        ok, told = await called(thread, "notes__privileged")
        assert (ok, "further permissions" in told) == (False, True)
        assert await called(thread, TOOL) == (True, "whoami for erin"), "other calls go on"
        assert (await connection(alice))["needsScope"]
        await connect(alice, personal, "erin")
        assert await called(thread, "notes__privileged") == (True, "privileged for erin")
        assert not (await connection(alice))["needsScope"]


async def test_a_connection_that_its_issuer_ended_asks_to_be_connected_again(
    server: InProcessServer, personal: PersonalServer, store: Database
) -> None:
    async with signed_in(server.url) as alice:
        await connect(alice, personal, "dora")
        thread = await new_thread(alice)
        assert await called(thread, TOOL) == (True, "whoami for dora")
        personal.issuer._end("dora")
        ok, told = await called(thread, TOOL)
        assert not ok
        assert "Settings, under Connected services" in told
        assert (await connection(alice))["state"] == "expired"
        assert await offered(alice) == {CONNECT}
        with pytest.raises(AuthorizationError, match="not connected"):
            await tokens_of(store, personal, await stored_account(store, alice)).current()
        await connect(alice, personal, "dora")
        assert await called(thread, TOOL) == (True, "whoami for dora")
