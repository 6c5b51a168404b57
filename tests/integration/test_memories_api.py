"""Memories over REST and by tools: whose they are, and that nobody else finds them."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.domain.memories import MAX_TEXT_CHARACTERS
from tests.support.account_with_data import Account, account, join_by_link, own_thread
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


async def store(http: httpx.AsyncClient, text: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
    answer = await http.post("/api/memories", json={"text": text} | more, headers=headers or {})
    return answer.raise_for_status().json()


async def texts(http: httpx.AsyncClient, headers: dict[str, str] | None = None, **params: Any) -> list[str]:
    answer = await http.get("/api/memories", params=params, headers=headers or {})
    return [memory["text"] for memory in answer.raise_for_status().json()["items"]]


async def tool(thread: Thread, name: str, args: dict[str, Any]) -> Any:
    """Let a run call this tool; returns the outcome of the call."""
    sent = await thread.send(f"/call {name} {json.dumps(args)}", options={"autopilot": True})
    await thread.ended(sent["runId"])
    parts = await thread.parts(sent["runId"])
    return next(part["data"] for part in parts if part["kind"] == "tool-result")


async def test_a_memory_is_stored_listed_corrected_and_forgotten(who: Account) -> None:
    made = await store(who.http, "I live in Aiur", kind="fact", keywords="home address")
    assert {"id", "scope", "kind", "text", "keywords", "createdAt", "uses"} == set(made)
    assert (made["scope"], made["kind"], made["uses"]) == ("user", "fact", 0)
    again = await who.http.post("/api/memories", json={"text": "I live in AIUR."})
    assert (again.status_code, again.json()["id"], again.json()["uses"]) == (200, made["id"], 1)
    assert await texts(who.http) == ["I live in Aiur"]
    assert await texts(who.http, q="what is my home") == ["I live in Aiur"], "by a keyword"
    found = (await who.http.get("/api/memories", params={"q": "Aiur"})).json()["items"]
    assert 0 < found[0]["score"] <= 1
    path = f"/api/memories/{made['id']}"
    newer = (await who.http.patch(path, json={"text": "I live in Shakuras"})).raise_for_status().json()
    assert newer["supersedes"] == made["id"]
    assert await texts(who.http) == ["I live in Shakuras"]
    assert (await who.http.patch(path, json={"text": "I live in Char"})).status_code == 409
    expiry = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    kept = (await who.http.patch(f"/api/memories/{newer['id']}", json={"expiresAt": expiry})).raise_for_status().json()
    assert kept["text"] == "I live in Shakuras"
    assert (await who.http.delete(f"/api/memories/{kept['id']}")).status_code == 204
    assert (await who.http.delete(f"/api/memories/{kept['id']}")).status_code == 404
    assert await texts(who.http) == []


async def test_what_was_true_before_is_found_with_what_is_true_now(who: Account) -> None:
    first = await store(who.http, "I live in Aiur")
    path = "/api/memories/{}"
    second = (await who.http.patch(path.format(first["id"]), json={"text": "I live in Shakuras"})).json()
    third = (await who.http.patch(path.format(second["id"]), json={"text": "I live in Char"})).json()
    await store(who.http, "Zeratul also lives somewhere")
    assert await texts(who.http, q="where did I live") == ["I live in Char"]
    found = await who.http.get("/api/memories", params={"q": "where did I live", "superseded": "include"})
    listed = [(memory["text"], memory.get("supersededBy"), memory["score"]) for memory in found.json()["items"]]
    score = listed[0][2]
    assert listed == [
        ("I live in Char", None, score),
        ("I live in Shakuras", third["id"], score),
        ("I live in Aiur", second["id"], score),
    ]
    assert len(await texts(who.http, q="where did I live", superseded="include", limit=2)) == 2
    assert await texts(who.http, superseded="include") == [
        "Zeratul also lives somewhere", "I live in Char", "I live in Shakuras", "I live in Aiur",
    ]  # fmt: skip
    by_tool = await tool(await own_thread(who), "memory_search", {"query": "I live", "superseded": "include"})
    assert [memory["text"] for memory in by_tool["output"]["memories"]][:3] == [text for text, _, _ in listed]
    assert by_tool["output"]["memories"][1]["supersededBy"] == third["id"]


async def test_a_list_has_pages_and_all_can_be_forgotten(who: Account) -> None:
    for number in range(5):
        await store(who.http, f"Number {number}")
    seen, params = [], {"limit": "2"}
    while True:
        page = (await who.http.get("/api/memories", params=params)).json()
        seen += [memory["text"] for memory in page["items"]]
        if "nextCursor" not in page:
            break
        params["cursor"] = page["nextCursor"]
    assert seen == [f"Number {number}" for number in (4, 3, 2, 1, 0)]
    assert (await who.http.delete("/api/memories")).status_code == 204
    assert await texts(who.http) == []


async def test_memories_of_an_agent_are_listed_with_those_of_the_user(who: Account) -> None:
    await store(who.http, "Cites sources", scope="agent", agent="researcher")
    await store(who.http, "Cites nobody")
    assert sorted(await texts(who.http)) == ["Cites nobody", "Cites sources"]
    assert await texts(who.http, scope="agent") == ["Cites sources"]
    assert await texts(who.http, scope="user") == ["Cites nobody"]
    assert sorted(await texts(who.http, q="cites")) == ["Cites nobody", "Cites sources"]
    assert await texts(who.http, q="cites", scope="agent") == ["Cites sources"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": ""}, 400),
        ({"text": " \n "}, 400),
        ({"text": "a\u0000b"}, 400),
        ({"text": "a" * (MAX_TEXT_CHARACTERS + 1)}, 400),
        ({"text": "a" * (1 << 20)}, 413),
        ({"text": "a", "kind": "rumour"}, 400),
        ({"text": "a", "scope": "thread"}, 400),
        ({"text": "a", "scope": "agent"}, 400),
        ({"text": "a", "agent": "researcher"}, 400),
        ({"text": "a", "scope": "agent", "agent": "No Name"}, 400),
        ({"text": "a", "expiresAt": "2001-01-01T00:00:00Z"}, 400),
        ({"text": "a", "threadId": "00000000-0000-0000-0000-000000000000"}, 404),
        ({}, 400),
    ],
)
async def test_bad_memories_are_refused(who: Account, body: dict[str, Any], status: int) -> None:
    answer = await who.http.post("/api/memories", json=body)
    assert answer.status_code == status, answer.text
    assert await texts(who.http) == []


async def test_nobody_reads_or_changes_the_memories_of_another_account(server: InProcessServer, who: Account) -> None:
    made = await store(who.http, "The password is a secret")
    async with account(server, "Zeratul") as other:
        assert await texts(other.http) == await texts(other.http, q="password") == []
        for answer in (
            await other.http.patch(f"/api/memories/{made['id']}", json={"text": "changed"}),
            await other.http.delete(f"/api/memories/{made['id']}"),
            await server.http.delete(f"/api/memories/{made['id']}"),
        ):
            assert answer.status_code == 404
    assert await texts(who.http) == ["The password is a secret"]


async def test_a_guests_memories_belong_to_the_key_and_come_along_with_a_claim(
    server: InProcessServer, who: Account
) -> None:
    thread = await server.thread()
    await store(server.http, "I am a guest", thread.headers, threadId=thread.id, scope="user")
    await store(server.http, "This chat is about tea", thread.headers, threadId=thread.id)
    assert await texts(server.http, thread.headers, threadId=thread.id, scope="user") == ["I am a guest"]
    assert await texts(server.http, thread.headers, threadId=thread.id) == ["This chat is about tea"]
    assert (await server.http.get("/api/memories", headers=thread.headers)).status_code == 401
    link = await server.http.post(f"/api/threads/{thread.id}/links", json={"role": "editor"}, headers=thread.headers)
    holder = {"X-Share-Key": link.raise_for_status().json()["shareKey"]}
    assert await texts(server.http, holder, threadId=thread.id, q="tea guest") == ["This chat is about tea"]
    refused = await server.http.get("/api/memories", params={"threadId": thread.id, "scope": "user"}, headers=holder)
    assert refused.status_code == 403
    forgotten = await server.http.delete("/api/memories", params={"threadId": thread.id}, headers=holder)
    assert forgotten.status_code == 204
    assert await texts(server.http, thread.headers, threadId=thread.id, scope="user") == ["I am a guest"], (
        "an editor forgets the memories of the thread only"
    )
    await store(server.http, "This chat is about tea", thread.headers, threadId=thread.id)
    body = {"anonKey": thread.key}
    (await who.http.post(f"/api/threads/{thread.id}/claim", json=body)).raise_for_status()
    assert await texts(who.http) == ["I am a guest"]
    assert await texts(who.http, threadId=thread.id) == ["This chat is about tea"]


async def test_members_share_the_threads_memories_and_one_who_left_finds_nothing(
    server: InProcessServer, who: Account
) -> None:
    thread = await own_thread(who)
    await store(who.http, "We meet on Monday", threadId=thread.id)
    async with account(server, "Zeratul") as member:
        await join_by_link(who, thread, member)
        assert await texts(member.http, threadId=thread.id, q="Monday") == ["We meet on Monday"]
        await store(member.http, "Bring crystals", threadId=thread.id)
        (await who.http.delete(f"/api/threads/{thread.id}/members/{member.id}")).raise_for_status()
        refused = await member.http.get("/api/memories", params={"threadId": thread.id, "q": "Monday"})
        assert refused.status_code == 403
    assert await texts(who.http, threadId=thread.id) == ["Bring crystals", "We meet on Monday"]


async def test_a_tool_stores_in_one_thread_and_finds_in_another(who: Account) -> None:
    first, second = await own_thread(who), await own_thread(who)
    stored = await tool(first, "memory_store", {"text": "Tassadar likes tea", "kind": "preference"})
    assert stored["ok"]
    found = await tool(second, "memory_search", {"query": "what does Tassadar like"})
    (memory,) = found["output"]["memories"]
    assert (memory["text"], memory["kind"]) == ("Tassadar likes tea", "preference")
    (listed,) = (await who.http.get("/api/memories")).json()["items"]
    assert (listed["threadId"], listed["uses"]) == (first.id, 1)
    corrected = await tool(second, "memory_store", {"text": "Tassadar likes coffee", "supersedes": memory["id"]})
    assert corrected["ok"]
    assert await texts(who.http) == ["Tassadar likes coffee"]
    forgotten = await tool(second, "memory_forget", {"id": corrected["output"]["id"]})
    assert forgotten["ok"]
    assert await texts(who.http) == []


async def test_no_personal_memory_enters_a_thread_that_others_read(server: InProcessServer, who: Account) -> None:
    await store(who.http, "My salary is a secret")
    thread = await own_thread(who)
    async with account(server, "Zeratul") as member:
        assert (await tool(thread, "memory_search", {"query": "salary"}))["output"]["memories"] != []
        await join_by_link(who, thread, member)
        assert (await tool(thread, "memory_search", {"query": "salary"}))["output"]["memories"] == []
        assert (await tool(thread, "memory_list", {}))["output"]["memories"] == []
        shared_memory = await tool(thread, "memory_store", {"text": "The salary round is in May"})
        (mine,) = (await who.http.get("/api/memories", params={"q": "secret"})).json()["items"]
        refused = await tool(thread, "memory_forget", {"id": mine["id"]})
        assert (refused["ok"], refused["output"]) == (False, "There is no such memory.")
        assert await texts(member.http, threadId=thread.id) == ["The salary round is in May"]
    assert shared_memory["ok"]
    assert await texts(who.http) == ["My salary is a secret"]


@pytest.mark.parametrize("change", [{"visibility": "public"}, {"visibility": "link"}])
async def test_a_visible_thread_uses_its_own_memories_only(who: Account, change: dict[str, str]) -> None:
    await store(who.http, "My salary is a secret")
    thread = await own_thread(who)
    answer = await who.http.patch(f"/api/threads/{thread.id}", json=change)
    if answer.status_code == 200:
        assert (await tool(thread, "memory_search", {"query": "salary"}))["output"]["memories"] == []
    else:
        assert change == {"visibility": "public"}, "public threads are off by default"


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("memory_store", {"text": "   "}, "A memory needs text"),
        ("memory_store", {"text": "a" * (MAX_TEXT_CHARACTERS + 1)}, "text: "),
        ("memory_store", {"text": "a", "supersedes": "nonsense"}, "not the id of a memory"),
        ("memory_forget", {"id": "00000000-0000-0000-0000-000000000000"}, "There is no such memory"),
        ("memory_forget", {"id": "1; DROP TABLE memories"}, "not the id of a memory"),
        ("memory_search", {}, "query"),
        ("memory_list", {"cursor": "nonsense"}, "cursor: This is not the id of a memory"),
        ("memory_list", {"limit": 51}, "limit"),
    ],
)
async def test_bad_calls_of_the_tools_say_what_is_wrong(
    who: Account, name: str, args: dict[str, Any], message: str
) -> None:
    outcome = await tool(await own_thread(who), name, args)
    assert not outcome["ok"]
    assert message in outcome["output"]
