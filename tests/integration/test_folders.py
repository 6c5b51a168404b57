"""Folders of threads: their instructions and agents, a new name for all threads at once, and their deletion."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy
from khala.store.postgres.database import Database
from khala.store.threads import thread_folders
from tests.integration.test_context import context_of, section, serve
from tests.support.account_with_data import Account, account, join_by_link, own_thread
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.providers import Server

RULE = "We go by train."


async def put(
    http: httpx.AsyncClient, folder: str, *, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    return await http.patch("/api/me/folder", params={"name": folder}, json=body, headers=headers)


async def made(http: httpx.AsyncClient, folder: str, **changes: Any) -> dict[str, Any]:
    answer = await put(http, folder, **changes)
    return dict(answer.raise_for_status().json())


async def folders(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    answer = await http.get("/api/me/folders", headers=headers)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
    return found


async def file(thread: Thread, name: str | None) -> None:
    path = f"/api/threads/{thread.id}/listing"
    (await thread.http.patch(path, json={"folder": name}, headers=thread.headers)).raise_for_status()


async def in_folder(thread: Thread, name: str) -> list[str]:
    answer = await thread.http.get("/api/threads", params={"folder": name}, headers=thread.headers)
    return [item["id"] for item in answer.raise_for_status().json()["items"]]


async def told(thread: Thread, provider: Server, **options: Any) -> str:
    """The instructions that the model gets with the next question."""
    sent = await thread.send("Where to?", options=options)
    await thread.ended(sent["runId"])
    messages = provider.calls[-1].body["messages"]
    return "\n".join(message["content"] for message in messages if message["role"] == "system")


@asynccontextmanager
async def served(database_url: str) -> AsyncIterator[tuple[InProcessServer, Account, Server]]:
    env: dict[str, Any] = {
        "KHALA_UNDO_SECONDS": "30",
        "KHALA_SYSTEM_PROMPT": "Be brief. Answer in the language of the question.",
    }
    async with serve(database_url, **env) as (server, provider), account(server) as who:
        yield server, who, provider


async def test_a_folder_with_settings_exists_without_threads(database_url: str) -> None:
    async with served(database_url) as (_, who, _provider):
        http = who.http
        assert await made(http, "Trips", instructions=f" {RULE} ", agent="researcher") == {
            "name": "Trips", "threads": 0, "agent": "researcher", "instructions": RULE,
        }  # fmt: skip
        listed = {"name": "Trips", "threads": 0, "agent": "researcher", "hasInstructions": True}
        assert await folders(http) == [listed], "the list has no texts"
        await file(await own_thread(who), "Trips")
        await file(await own_thread(who), "Work")
        assert await folders(http) == [
            listed | {"threads": 1},
            {"name": "Work", "threads": 1},
        ]
        assert await made(http, "Trips", agent=None) == {"name": "Trips", "threads": 1, "instructions": RULE}
        assert await made(http, "Trips", instructions=" ") == {"name": "Trips", "threads": 1}
        assert await made(http, "Empty") == {"name": "Empty", "threads": 0}
        read = await http.get("/api/me/folder", params={"name": "Trips"})
        assert read.json() == {"name": "Trips", "threads": 1}
        assert (await http.get("/api/me/folder", params={"name": "trips"})).status_code == 404
        assert (await put(http, "Trips", instructions="x" * 8000)).status_code == 200
        for name, body in (
            ("Trips", {"instructions": "x" * 8001}),
            ("Trips", {"instructions": "\0"}),
            ("Trips", {"agent": "nobody"}),
            ("Trips", {"agent": "x" * 64}),
            ("Trips", {"name": ""}),
            ("Trips", {"name": "a\nb"}),
            ("Trips", {"name": None}),
            ("", {}),
            ("  ", {}),
            ("a\nb", {}),
            ("\0", {}),
            ("x" * 81, {}),
        ):
            assert (await put(http, name, **body)).status_code == 400, (name, body)
        for name in ("a/b", "..", "100 %?", "Ünterwegs"):
            assert (await made(http, name, instructions=RULE))["name"] == name


async def test_a_new_name_is_that_of_all_threads_and_the_settings(database_url: str) -> None:
    async with served(database_url) as (server, who, _):
        first, second, other = [await own_thread(who) for _ in range(3)]
        for thread in (first, second):
            await file(thread, "Trips")
        await file(other, "Work")
        await made(who.http, "Trips", instructions=RULE)
        cookies = "; ".join(f"{name}={value}" for name, value in who.http.cookies.items())
        async with socket(server, additional_headers={"Cookie": cookies}) as feed:
            await feed.send({"type": "watch"})
            await feed.until("account")
            assert await made(who.http, "Trips", name="Journeys") == {
                "name": "Journeys", "threads": 2, "instructions": RULE,
            }  # fmt: skip
            entries = (await feed.until("account"))["threads"]
            assert {(entry["thread"]["id"], entry["folder"]) for entry in entries} == {
                (first.id, "Journeys"), (second.id, "Journeys"),
            }  # fmt: skip
        assert [folder["name"] for folder in await folders(who.http)] == ["Journeys", "Work"]
        assert (await put(who.http, "Trips", name="Travels")).status_code == 404
        taken = await put(who.http, "Journeys", name="Work", instructions="Lost?")
        assert (taken.status_code, taken.json()["code"]) == (409, "conflict")
        assert (await made(who.http, "Journeys"))["instructions"] == RULE
        assert await made(who.http, "Work", name="Work") == {"name": "Work", "threads": 1}
        assert await made(who.http, "Work", name="Job", agent="writer") == {
            "name": "Job", "threads": 1, "agent": "writer",
        }  # fmt: skip


async def test_the_threads_of_a_deleted_folder_stay(database_url: str) -> None:
    async with served(database_url) as (_, who, provider):
        thread, deleted = await own_thread(who), await own_thread(who)
        for one in (thread, deleted):
            await file(one, "Trips")
        await made(who.http, "Trips", instructions=RULE)
        (await who.http.delete(f"/api/threads/{deleted.id}")).raise_for_status()
        for _ in range(2):
            gone = await who.http.delete("/api/me/folder", params={"name": "Trips"})
            assert gone.status_code == 204
        assert await folders(who.http) == []
        assert set(await in_folder(thread, "")) == {thread.id}
        (await who.http.post(f"/api/threads/{deleted.id}/restore")).raise_for_status()
        assert await folders(who.http) == [], "also for a thread that comes back"
        assert RULE not in await told(thread, provider)


async def test_instructions_of_a_folder_come_after_the_persons_and_before_the_agents(database_url: str) -> None:
    async with served(database_url) as (_, who, provider):
        thread = await own_thread(who)
        await made(who.http, "Trips", instructions=RULE)
        before = await told(thread, provider)
        assert RULE not in before
        await file(thread, "Trips")
        (await who.http.patch("/api/me/preferences", json={"instructions": "Rhyme."})).raise_for_status()
        agent = {"name": "guide", "title": "Guide", "instructions": "You are a guide."}
        (await who.http.post("/api/agents", json=agent)).raise_for_status()
        text = await told(thread, provider, agent="guide")
        places = [text.index(part) for part in ("Be brief.", "Rhyme.", 'folder "Trips"', RULE, "You are a guide.")]
        assert places == sorted(places)
        assert RULE not in await told(thread, provider, personal=False)
        run_id = (await thread.send("And then?"))["runId"]
        await thread.ended(run_id)
        (call,) = await context_of(thread, run_id)
        assert section(call, "instructions")["items"] == 3, "the server's, the person's and the folder's"
        await file(thread, None)
        assert RULE not in await told(thread, provider)


async def test_a_folder_is_that_of_the_person_who_asks(database_url: str) -> None:
    async with served(database_url) as (server, who, provider), account(server, "Fenix") as member:
        thread = await own_thread(who)
        await join_by_link(who, thread, member)
        theirs = Thread(member.http, thread.id, "")
        await file(thread, "Trips")
        await made(who.http, "Trips", instructions=RULE)
        assert RULE not in await told(theirs, provider)
        await made(member.http, "Trips", instructions="We fly.")
        text = await told(theirs, provider)
        assert not {"We fly.", RULE} & set(text.splitlines()), "the member keeps it in no folder"
        await file(theirs, "Flights")
        await made(member.http, "Flights", instructions="First class only.")
        text = await told(theirs, provider)
        assert {"First class only.", RULE} & set(text.splitlines()) == {"First class only."}
        text = await told(thread, provider)
        assert {"First class only.", RULE} & set(text.splitlines()) == {RULE}
        later = await who.http.post(f"/api/threads/{thread.id}/send", json={"text": "Later?", "after": 1})
        assert later.status_code == 202
        async with asyncio.timeout(30):
            while provider.calls[-1].body["messages"][-1]["content"] != "Later?":
                await asyncio.sleep(0.1)
        assert RULE in str(provider.calls[-1].body["messages"])


async def test_a_guests_folder_is_that_of_the_threads_key(database_url: str) -> None:
    async with served(database_url) as (server, who, provider):
        thread, other = await server.thread(), await server.thread()
        await file(thread, "Trips")
        assert (await put(server.http, "Trips", headers=thread.headers, instructions=RULE)).status_code == 200
        assert (await put(server.http, "Trips", headers=other.headers, instructions="We fly.")).status_code == 200
        assert await folders(server.http, thread.headers) == [{"name": "Trips", "threads": 1, "hasInstructions": True}]
        text = await told(thread, provider)
        assert {"We fly.", RULE} & set(text.splitlines()) == {RULE}
        assert "We fly." not in await told(other, provider)
        link = await thread.post("links", {"role": "editor"})
        visitor = Thread(server.http, thread.id, other.key)
        visitor.headers["X-Share-Key"] = link.raise_for_status().json()["shareKey"]
        text = await told(visitor, provider)
        assert not {"We fly.", RULE} & set(text.splitlines()), "a visitor keeps it in no folder"
        renamed = await put(server.http, "Trips", headers=thread.headers, name="Journeys")
        assert renamed.json() == {"name": "Journeys", "threads": 1, "instructions": RULE}
        assert await in_folder(thread, "Journeys") == [thread.id]
        assert RULE in await told(thread, provider)
        (await who.http.post(f"/api/threads/{thread.id}/claim", json={"anonKey": thread.key})).raise_for_status()
        assert await made(who.http, "Journeys") == {"name": "Journeys", "threads": 1, "instructions": RULE}
        assert RULE in await told(Thread(who.http, thread.id, ""), provider)


async def test_a_claim_does_not_replace_the_accounts_settings(database_url: str) -> None:
    async with served(database_url) as (server, who, _):
        thread = await server.thread()
        for name in ("Trips", "Work"):
            (await put(server.http, name, headers=thread.headers, instructions=RULE)).raise_for_status()
        await made(who.http, "Trips", instructions="We fly.")
        (await who.http.post(f"/api/threads/{thread.id}/claim", json={"anonKey": thread.key})).raise_for_status()
        assert (await made(who.http, "Trips"))["instructions"] == "We fly."
        assert (await made(who.http, "Work"))["instructions"] == RULE


async def test_settings_go_with_the_account_and_with_the_last_thread_of_a_key(database_url: str) -> None:
    async with served(database_url) as (server, who, _):
        db = Database(database_url)
        await made(who.http, "Trips", instructions=RULE)
        used = await server.thread()
        (await put(server.http, "Trips", headers=used.headers, instructions=RULE)).raise_for_status()
        invented = {"X-Anon-Key": "0123456789" * 5}
        assert (await put(server.http, "Trips", headers=invented, instructions=RULE)).status_code == 404
        claimed = await server.thread()
        unused = claimed.headers
        (await put(server.http, "Trips", headers=unused, instructions=RULE)).raise_for_status()
        body = {"anonKey": unused["X-Anon-Key"]}
        (await who.http.post(f"/api/threads/{claimed.id}/claim", json=body)).raise_for_status()
        count = "SELECT count(*) FROM thread_folders"
        async with db.driver() as driver:
            await driver.execute("UPDATE thread_folders SET changed_at = now() - interval '2 days'")
            assert await driver.fetchval(count) == 3
        await retention.purge(db, RetentionPolicy(idle=timedelta(0)))
        assert await folders(server.http, unused) == []
        assert len(await folders(server.http, used.headers)) == 1
        (await who.http.request("DELETE", "/api/me", json={"password": "en taro adun"})).raise_for_status()
        async with db.driver() as driver:
            assert await driver.fetchval(f"{count} WHERE subject_id = $1", UUID(who.id)) == 0
            assert await driver.fetchval(count) == 1
        await db.close()


async def test_a_folder_keeps_no_agent_that_was_deleted(database_url: str) -> None:
    async with served(database_url) as (_, who, _provider):
        for name in ("guide", "poet"):
            (await who.http.post("/api/agents", json={"name": name, "title": name})).raise_for_status()
            await made(who.http, f"Of {name}", agent=name)
        (await who.http.delete("/api/agents/guide")).raise_for_status()
        assert await folders(who.http) == [
            {"name": "Of guide", "threads": 0},
            {"name": "Of poet", "threads": 0, "agent": "poet"},
        ]


async def test_there_are_at_most_so_many_folders(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_folders, "MAX_FOLDERS", 2)
    async with served(database_url) as (_, who, _provider):
        await file(await own_thread(who), "Trips")
        await made(who.http, "Work")
        refused = await put(who.http, "More")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert (await made(who.http, "Trips", instructions=RULE))["instructions"] == RULE
        assert (await made(who.http, "Work", name="More"))["name"] == "More"


async def test_simultaneous_changes_of_a_folder_are_made_one_after_the_other(database_url: str) -> None:
    async with served(database_url) as (_, who, _provider):
        threads = [await own_thread(who) for _ in range(3)]
        for thread in threads:
            await file(thread, "Trips")
        names = [f"Trip {number}" for number in range(6)]
        answers = await asyncio.gather(*(put(who.http, "Trips", name=name) for name in names))
        assert sorted(answer.status_code for answer in answers) == [200, *[404] * 5]
        ((renamed, count),) = [(folder["name"], folder["threads"]) for folder in await folders(who.http)]
        assert (renamed in names, count) == (True, 3)
