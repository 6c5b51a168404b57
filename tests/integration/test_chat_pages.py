"""What chat pages need beside the conversation: exports, feedback and preferences."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from khala.domain import ids
from khala.store.postgres.database import Database
from khala.store.threads import feedback
from khala.store.threads.feedback import FIRST
from tests.support.account_with_data import Account, account, join_by_link, own_thread
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(KHALA_PUBLIC_THREADS="1")


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def member(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server, "Fenix") as made:
        yield made


async def say(thread: Thread, text: str, **more: Any) -> dict[str, Any]:
    """Send a message, and return its ids once it is answered."""
    sent = await thread.send(text, **more)
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    return sent


async def rate(http: httpx.AsyncClient, sent: dict[str, Any], rating: str, **more: Any) -> httpx.Response:
    path = f"/api/messages/{sent['assistantMessageId']}/feedback"
    return await http.put(
        path, json={"rating": rating} | {k: v for k, v in more.items() if k != "headers"}, headers=more.get("headers")
    )


async def test_an_export_has_the_active_branch_as_markdown_and_all_branches_as_json(who: Account) -> None:
    thread = await own_thread(who, "Trip to\nAiur")
    first = await say(thread, "/echo Hello **there**")
    await say(thread, '/call todo_add {"text":"Pack"}')
    await say(thread, "/echo Another branch", parentId=first["assistantMessageId"])
    answer = await who.http.get(f"/api/threads/{thread.id}/export")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert "content-length" not in answer.headers
    assert f'filename="chat-{thread.id}.md"' in answer.headers["content-disposition"]
    assert answer.text.startswith("# Trip to Aiur\n")
    assert "## Tassadar · " in answer.text
    assert "Hello **there**" in answer.text
    assert "Another branch" in answer.text
    assert "todo_add" not in answer.text, "the other branch"
    whole = (await who.http.get(f"/api/threads/{thread.id}/export", params={"format": "json"})).json()
    assert (whole["format"], whole["version"], whole["thread"]["title"]) == ("khala-thread", 1, "Trip to\nAiur")
    snapshot = await thread.snapshot()
    assert whole["messages"] == snapshot["messages"]
    await who.http.patch(f"/api/threads/{thread.id}", json={"activeLeaf": snapshot["messages"][4]["id"]})
    text = (await who.http.get(f"/api/threads/{thread.id}/export")).text
    assert "> Tool `todo_add`: " in text
    assert "Another branch" not in text


async def test_an_export_of_many_messages_has_each_once(who: Account, server: InProcessServer) -> None:
    thread = await own_thread(who)
    for batch in range(3):
        messages = [
            {"role": "user", "parts": [{"type": "text", "text": f"number {batch * 50 + index}."}]}
            for index in range(50)
        ]
        (await thread.post("messages", {"messages": messages})).raise_for_status()
    text = (await who.http.get(f"/api/threads/{thread.id}/export")).text
    assert [text.count(f"number {number}.") for number in range(150)] == [1] * 150
    found = (await who.http.get(f"/api/threads/{thread.id}/export", params={"format": "json"})).json()["messages"]
    assert len(found) == 151
    assert (await server.http.get(f"/api/threads/{thread.id}/export")).status_code == 403


async def test_feedback_is_of_each_person_and_moves_with_a_claim(
    server: InProcessServer, store: Database, who: Account, member: Account
) -> None:
    thread = await own_thread(who)
    await join_by_link(who, thread, member)
    sent = await say(thread, "/echo Hello")
    given = (await rate(who.http, sent, "down", reason=" Too short. ")).raise_for_status().json()
    assert (given["rating"], given["reason"], given["threadId"]) == ("down", "Too short.", thread.id)
    (await rate(member.http, sent, "up")).raise_for_status()
    again = (await rate(who.http, sent, "up")).raise_for_status().json()
    assert (again["rating"], "reason" in again, again["createdAt"]) == ("up", False, given["createdAt"])
    path = f"/api/threads/{thread.id}/feedback"
    assert (await who.http.get(path)).json() == {"items": [again]}, "nobody sees that of others"
    question = await who.http.put(f"/api/messages/{sent['userMessageId']}/feedback", json={"rating": "up"})
    assert question.status_code == 400
    assert (await who.http.put(f"/api/messages/{ids.new()}/feedback", json={"rating": "up"})).status_code == 404
    assert (await rate(who.http, sent, "up", reason="x" * 2001)).status_code == 400
    for _ in range(2):
        assert (await who.http.delete(f"/api/messages/{sent['assistantMessageId']}/feedback")).status_code == 204
    assert (await who.http.get(path)).json() == {"items": []}
    guest = await server.thread()
    answered = await say(guest, "/echo Guest")
    (await rate(server.http, answered, "down", headers=guest.headers)).raise_for_status()
    (await who.http.post(f"/api/threads/{guest.id}/claim", json={"anonKey": guest.key})).raise_for_status()
    (moved,) = (await who.http.get(f"/api/threads/{guest.id}/feedback")).json()["items"]
    assert moved["messageId"] == answered["assistantMessageId"]
    listed = [given async for given in feedback.evaluated(store, since=FIRST[0], with_texts=True)]
    mine = next(given for given in listed if str(given.message_id) == answered["assistantMessageId"])
    assert (str(mine.person_id), mine.model, mine.question, mine.answer) == (who.id, "demo", "/echo Guest", "Guest")
    (await who.http.post(f"/api/threads/{guest.id}/reset")).raise_for_status()
    assert (await who.http.get(f"/api/threads/{guest.id}/feedback")).json() == {"items": []}


async def test_somebody_without_a_key_or_an_account_gives_no_feedback(server: InProcessServer, who: Account) -> None:
    thread = await own_thread(who)
    sent = await say(thread, "/echo Hello")
    (await who.http.patch(f"/api/threads/{thread.id}", json={"visibility": "public"})).raise_for_status()
    assert (await rate(server.http, sent, "up")).status_code == 401
    for header in ("X-Anon-Key", "X-Share-Key"):
        made_up = {header: ids.new_secret()}
        assert (await rate(server.http, sent, "up", headers=made_up)).status_code == 401
    guest = await server.thread()
    known = {"X-Anon-Key": guest.key}
    assert (await rate(server.http, sent, "up", headers=known)).status_code == 200
    assert (await server.http.get(f"/api/threads/{thread.id}/feedback")).json() == {"items": []}


async def test_feedback_and_preferences_go_with_the_account(store: Database, who: Account, member: Account) -> None:
    thread = await own_thread(who)
    await join_by_link(who, thread, member)
    sent = await say(thread, "/echo Hello")
    (await rate(member.http, sent, "up")).raise_for_status()
    (await member.http.patch("/api/me/preferences", json={"instructions": "Rhyme."})).raise_for_status()
    (await member.http.request("DELETE", "/api/me", json={"password": "en taro adun"})).raise_for_status()
    async with store.driver() as driver:
        person = UUID(member.id)
        assert await driver.fetchval("SELECT count(*) FROM message_feedback WHERE person_id = $1", person) == 0
        assert await driver.fetchval("SELECT count(*) FROM preferences WHERE subject_id = $1", person) == 0


async def test_preferences_are_of_an_account_or_a_key(server: InProcessServer, who: Account) -> None:
    path = "/api/me/preferences"
    assert (await who.http.get(path)).json() == {"titles": True}
    changed = await who.http.patch(path, json={"instructions": " Rhyme. ", "model": "demo"})
    assert changed.json() == {"instructions": "Rhyme.", "model": "demo", "titles": True}
    assert (await who.http.patch(path, json={"model": None})).json() == {"instructions": "Rhyme.", "titles": True}
    assert (await who.http.patch(path, json={"model": "openai:unknown"})).status_code == 400
    assert (await who.http.patch(path, json={"instructions": "x" * 4001})).status_code == 400
    guest = await server.thread()
    (await server.http.patch(path, json={"titles": False}, headers=guest.headers)).raise_for_status()
    assert (await server.http.get(path, headers=guest.headers)).json() == {"titles": False}
    assert (await server.http.get(path)).status_code == 401


async def test_guests_give_a_name_and_accounts_have_theirs(server: InProcessServer, who: Account) -> None:
    thread = await server.thread()
    sent = await say(thread, "/echo Hello", authorName="  Zeratul  of Aiur ")
    question = next(m for m in (await thread.snapshot())["messages"] if m["id"] == sent["userMessageId"])
    assert question["authorName"] == "Zeratul of Aiur"
    refused = await who.http.post(
        f"/api/threads/{(await own_thread(who)).id}/send", json={"text": "Hello", "authorName": "Aldaris"}
    )
    assert refused.status_code == 400
    assert UUID(question["authorId"]).version == 5 != UUID(who.id).version
    assert (await thread.post("send", {"text": "Hello", "authorName": "x" * 81})).status_code == 400
    author = {"role": "user", "parts": [{"type": "text", "text": "Hello"}]}
    for name in ("", "a\nb", "\u202eluteraZ", "\u2066x", "\x9bx", "Ad\u200bmin", "x\u200f", "\u3164"):
        registration = {"email": "adun@example.com", "password": "a" * 20, "name": name}
        for refusal in (
            await thread.post("send", {"text": "Hello", "authorName": name}),
            await thread.post("messages", {"messages": [author | {"author": name}]}),
            await who.http.patch("/api/me", json={"name": name}),
            await server.http.post("/api/auth/register", json=registration),
        ):
            assert (refusal.status_code, refusal.json()["code"]) == (400, "invalid_input"), name
    await say(thread, "/echo Hello", authorName="نیک\u200cنام 👩\u200d🚀")


async def test_an_account_is_invited_by_an_address_that_is_verified(
    server: InProcessServer, store: Database, who: Account, member: Account
) -> None:
    thread = await own_thread(who)
    path = f"/api/threads/{thread.id}/invitations"
    body = {"email": member.email.upper(), "role": "editor"}
    assert (await who.http.post(path, json=body)).status_code == 404, "anybody may register with any address"
    async with store.driver() as driver:
        query = "INSERT INTO identities (issuer, subject, user_id, email) VALUES ('test', $1, $2, $3)"
        await driver.execute(query, member.id, UUID(member.id), member.email)
    invited = (await who.http.post(path, json=body)).raise_for_status().json()
    assert (invited["userId"], invited["status"]) == (member.id, "invited")
    assert (await member.http.post(path, json=body)).status_code == 403
    async with store.driver() as driver:
        await driver.execute("UPDATE budgets SET settled = 100 WHERE scope = 'address_lookups'")
    limited = await who.http.post(path, json=body)
    assert (limited.status_code, limited.json()["limit"]) == (429, "invitations_per_day")


async def test_guests_try_no_more_addresses_by_more_keys(server: InProcessServer, store: Database) -> None:
    body = {"email": "nobody@example.org", "role": "viewer"}
    for _ in range(2):
        thread = await server.thread()
        path = f"/api/threads/{thread.id}/invitations"
        assert (await server.http.post(path, json=body, headers=thread.headers)).status_code == 404
    async with store.driver() as driver:
        tried = "SELECT settled FROM budgets WHERE scope = 'address_lookups' AND key = ''"
        assert [row["settled"] for row in await driver.fetch(tried)] == [2]
