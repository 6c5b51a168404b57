"""Pinned and archived threads, folders, and the undo of a deletion."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy
from khala.store.postgres.database import Database
from tests.support.account_with_data import Account, account, join_by_link, own_thread
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(KHALA_UNDO_SECONDS="30")


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def member(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server, "Fenix") as made:
        yield made


async def keep(http: httpx.AsyncClient, thread: Thread, **changes: Any) -> dict[str, Any]:
    path = f"/api/threads/{thread.id}/listing"
    answer = await http.patch(path, json=changes, headers=thread.headers)
    return dict(answer.raise_for_status().json())


async def listed(http: httpx.AsyncClient, headers: dict[str, str] | None = None, **params: Any) -> list[dict[str, Any]]:
    answer = await http.get("/api/threads", params=params, headers=headers)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
    return found


def ids(items: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in items]


async def test_each_person_keeps_a_thread_where_they_want_and_filters_their_list(who: Account, member: Account) -> None:
    first, second, third = [await own_thread(who) for _ in range(3)]
    await join_by_link(who, first, member)
    assert await keep(who.http, first, pinned=True, folder="Trips") == {
        "pinned": True,
        "archived": False,
        "folder": "Trips",
    }
    await keep(who.http, second, archived=True)
    assert await keep(member.http, first, archived=True) == {"pinned": False, "archived": True}
    assert ids(await listed(who.http)) == [third.id, second.id, first.id]
    assert ids(await listed(who.http, pinned=True)) == [first.id]
    assert ids(await listed(who.http, archived=True)) == [second.id]
    assert ids(await listed(who.http, archived=False)) == [third.id, first.id]
    assert ids(await listed(who.http, folder="Trips")) == [first.id]
    assert ids(await listed(who.http, folder="", archived=False)) == [third.id]
    assert ids(await listed(member.http, archived=True)) == [first.id]
    assert ids(await listed(member.http, pinned=True)) == []
    (entry,) = await listed(who.http, pinned=True)
    assert (entry["pinned"], entry["folder"], "archived" in entry) == (True, "Trips", False)
    assert (await who.http.get("/api/me/folders")).json() == {"items": [{"name": "Trips", "threads": 1}]}
    assert await keep(who.http, first, folder=None) == {"pinned": True, "archived": False}
    assert (await who.http.get("/api/me/folders")).json() == {"items": []}
    for name in ("", "   ", "a\nb", "x" * 81):
        refused = await who.http.patch(f"/api/threads/{first.id}/listing", json={"folder": name})
        assert refused.status_code == 400, name


async def test_a_folder_that_cannot_be_stored_is_refused(who: Account) -> None:
    assert (await who.http.get("/api/threads?folder=%00")).status_code == 400
    assert await listed(who.http, folder="%") == []


async def test_the_account_feed_says_where_a_thread_is_kept(server: InProcessServer, who: Account) -> None:
    thread = await own_thread(who)
    cookies = "; ".join(f"{name}={value}" for name, value in who.http.cookies.items())
    async with socket(server, additional_headers={"Cookie": cookies}) as feed:
        await feed.send({"type": "watch"})
        whole = await feed.until("account")
        assert "pinned" not in whole["threads"][0]
        await keep(who.http, thread, pinned=True, folder="Trips")
        (entry,) = (await feed.until("account"))["threads"]
        assert (entry["thread"]["id"], entry["pinned"], entry["folder"]) == (thread.id, True, "Trips")
        await keep(who.http, thread, pinned=True)
        await feed.expect_nothing()


async def test_a_claim_keeps_what_the_guest_has_chosen(server: InProcessServer, who: Account) -> None:
    thread = await server.thread()
    await keep(server.http, thread, pinned=True, archived=True, folder="Trips")
    assert ids(await listed(server.http, thread.headers, folder="Trips", pinned=True)) == [thread.id]
    folders = await server.http.get("/api/me/folders", headers=thread.headers)
    assert folders.json()["items"] == [{"name": "Trips", "threads": 1}]
    body = {"anonKey": thread.key}
    (await who.http.post(f"/api/threads/{thread.id}/claim", json=body)).raise_for_status()
    (entry,) = await listed(who.http, folder="Trips")
    assert (entry["id"], entry["pinned"], entry["archived"]) == (thread.id, True, True)


async def test_a_deleted_thread_is_restored_with_its_members_and_a_canceled_answer(
    store: Database, who: Account, member: Account
) -> None:
    thread = await own_thread(who, "Aiur")
    await join_by_link(who, thread, member)
    await keep(who.http, thread, pinned=True)
    done = await thread.send("/echo Kept.")
    await thread.ended(done["runId"])
    active = await thread.send("/words=2000 /pace=50")
    async with asyncio.timeout(20):
        while (await thread.run(active["runId"]))["status"] != "running":
            await asyncio.sleep(0.05)
    (await who.http.delete(f"/api/threads/{thread.id}")).raise_for_status()
    assert (await who.http.get(f"/api/threads/{thread.id}")).status_code == 404
    await retention.purge(store, RetentionPolicy(idle=timedelta(0)))
    assert (await member.http.post(f"/api/threads/{thread.id}/restore")).status_code == 403
    restored = (await who.http.post(f"/api/threads/{thread.id}/restore")).raise_for_status().json()
    assert restored["title"] == "Aiur"
    assert (await who.http.post(f"/api/threads/{thread.id}/restore")).json()["revision"] == restored["revision"]
    messages = (await thread.snapshot())["messages"]
    assert [message["status"] for message in messages if message["role"] == "assistant"][1:] == ["final", "canceled"]
    run = await thread.run(active["runId"])
    assert (run["status"], run["finish"]["reason"]) == ("canceled", "canceled")
    assert ids(await listed(who.http, pinned=True)) == [thread.id]
    assert ids(await listed(member.http)) == [thread.id]
    sent = await thread.send("/echo Goes on.")
    assert (await thread.ended(sent["runId"]))["status"] == "final"


async def test_a_restore_that_meets_the_deletion_and_other_restores_finds_the_thread(who: Account) -> None:
    thread = await own_thread(who, "Aiur")
    url = f"/api/threads/{thread.id}"
    requests = [who.http.delete(url) if at % 2 else who.http.post(f"{url}/restore") for at in range(20)]
    responses = await asyncio.gather(*requests)
    restored = [response.status_code for response in responses if response.request.method == "POST"]
    assert restored == [200] * 10
    assert {response.status_code for response in responses if response.request.method == "DELETE"} <= {204, 404}


async def test_a_deletion_is_final_after_its_time_and_with_the_account(
    server: InProcessServer, store: Database, who: Account
) -> None:
    late, erased, anonymous = await own_thread(who), await own_thread(who), await server.thread()
    brief = await own_thread(who)
    async with store.driver() as driver:
        end = "INSERT INTO ephemeral_threads (thread_id, expires_at) VALUES ($1, now() + interval '1 hour')"
        await driver.execute(end, UUID(brief.id))
    for thread in (late, erased, anonymous, brief):
        await thread.http.delete(f"/api/threads/{thread.id}", headers=thread.headers)
    again = await server.http.post(f"/api/threads/{anonymous.id}/restore", headers=anonymous.headers)
    assert again.status_code == 200
    assert (await anonymous.snapshot())["messages"], "the guest has the thread again"
    async with store.driver() as driver:
        await driver.execute("UPDATE thread_deletions SET expires_at = now() WHERE thread_id = $1", UUID(late.id))
    for thread in (late, brief):
        assert (await who.http.post(f"/api/threads/{thread.id}/restore")).status_code == 404
    await retention.purge(store, RetentionPolicy(idle=timedelta(0)))
    async with store.driver() as driver:
        query = "SELECT thread_id FROM messages WHERE thread_id = ANY ($1)"
        left = {row["thread_id"] for row in await driver.fetch(query, [UUID(late.id), UUID(erased.id)])}
    assert left == {UUID(erased.id)}
    (await who.http.request("DELETE", "/api/me", json={"password": "en taro adun"})).raise_for_status()
    async with store.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM thread_deletions WHERE owner_id = $1", UUID(who.id)) == 0
