"""Claims: an anonymous thread becomes an account's thread in place, as a whole and once, also concurrently."""

import asyncio
from typing import Any

import httpx
import pytest

from khala.store.postgres.database import Database
from tests.support.agents import act, call, rules
from tests.support.callers import Person, person
from tests.support.client import Thread, text_of
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 50
STORY = "/words=60 /pace=60"

server = server_fixture()


async def claim(thread: Thread, who: Person, *, key: str | None = None) -> httpx.Response:
    body = {"anonKey": thread.key if key is None else key}
    return await thread.http.post(f"/api/threads/{thread.id}/claim", json=body, headers=who.headers)


def thread_as(thread: Thread, who: Person) -> Thread:
    """The thread, requested by this user."""
    owned = Thread(thread.http, thread.id, "")
    owned.headers = who.headers
    return owned


async def test_a_claim_keeps_the_id_and_the_transcript_sets_the_owner_and_clears_the_key(
    server: InProcessServer, store: Database
) -> None:
    thread, owner = await server.thread(), await person(store, "Tassadar")
    sent = await thread.send("/words=5")
    await thread.ended(sent["runId"])
    before = await thread.snapshot()
    claimed = await claim(thread, owner)
    assert claimed.status_code == 200
    assert (claimed.json()["id"], claimed.json()["ownerId"]) == (thread.id, str(owner.id))
    after = await thread_as(thread, owner).snapshot()
    assert [text_of(message) for message in after["messages"]] == [text_of(message) for message in before["messages"]]
    assert after["revision"] == before["revision"] + 1
    assert [message.get("authorName") for message in after["messages"]] == [None, "Tassadar", None]
    assert (await thread_as(thread, owner).run(sent["runId"]))["status"] == "final"


async def test_after_a_claim_the_key_and_other_users_are_forbidden_and_a_second_claim_changes_nothing(
    server: InProcessServer, store: Database
) -> None:
    thread, owner, other = await server.thread(), await person(store), await person(store)
    first = (await claim(thread, owner)).json()
    assert (await claim(thread, owner)).json() == first
    assert (await claim(thread, owner, key="x" * 40)).json() == first
    assert (await claim(thread, other)).json()["code"] == "forbidden"
    for headers in (thread.headers, other.headers, {}):
        for answer in (
            await server.http.get(f"/api/threads/{thread.id}", headers=headers),
            await server.http.post(f"/api/threads/{thread.id}/send", json={"text": "?"}, headers=headers),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_a_claim_with_a_wrong_key_without_an_account_or_of_an_unknown_thread_is_refused(
    server: InProcessServer, store: Database
) -> None:
    thread, who = await server.thread(), await person(store)
    assert (await claim(thread, who, key="x" * 40)).status_code == 403
    assert (await thread.post("claim", {"anonKey": thread.key})).json()["code"] == "unauthorized"
    missing = Thread(server.http, str(who.id), thread.key)
    assert (await claim(missing, who)).json()["code"] == "thread_not_found"
    assert "ownerId" not in (await thread.snapshot())["thread"]


async def test_several_threads_are_claimed_in_one_request_and_all_stay_reachable(
    server: InProcessServer, store: Database
) -> None:
    owner, other = await person(store), await person(store)
    before = (await server.http.post("/api/threads", json={}, headers=owner.headers)).json()["thread"]["id"]
    threads = [await server.thread() for _ in range(3)]
    changed = [(await thread.snapshot())["thread"]["updatedAt"] for thread in threads]
    await claim(threads[1], other)
    items = [{"threadId": thread.id, "anonKey": thread.key} for thread in threads]
    outcomes = (await server.http.post("/api/claims", json={"items": items}, headers=owner.headers)).json()["items"]
    assert outcomes == [
        {"threadId": thread.id} | ({"code": "forbidden"} if thread is threads[1] else {}) for thread in threads
    ]
    listed = (await server.http.get("/api/threads", headers=owner.headers)).json()["items"]
    assert [entry["id"] for entry in listed] == [threads[2].id, threads[0].id, before]
    assert [entry["updatedAt"] for entry in listed[:2]] == [changed[2], changed[0]], "a claim is no activity"


async def test_one_of_fifty_claims_at_once_succeeds_and_the_thread_has_one_owner(
    server: InProcessServer, store: Database
) -> None:
    thread = await server.thread()
    people = [await person(store) for _ in range(MANY)]
    answers = await asyncio.gather(*(claim(thread, claimer) for claimer in people))
    winners = [candidate for candidate, answer in zip(people, answers, strict=True) if answer.status_code == 200]
    assert len(winners) == 1
    assert {answer.status_code for answer in answers} == {200, 403}
    owner = (await thread_as(thread, winners[0]).snapshot())["thread"]
    assert (owner["ownerId"], owner["revision"]) == (str(winners[0].id), 2)


async def test_fifty_claims_of_one_user_at_once_all_succeed_and_change_the_thread_once(
    server: InProcessServer, store: Database
) -> None:
    thread, owner = await server.thread(), await person(store)
    answers = await asyncio.gather(*(claim(thread, owner) for _ in range(MANY)))
    assert {answer.json()["revision"] for answer in answers} == {2}


async def test_claims_and_sends_at_once_leave_a_whole_thread(server: InProcessServer, store: Database) -> None:
    thread, owner = await server.thread(), await person(store)
    sends = [
        thread.post("send", {"text": f"{number} /words=1", "options": {"ifBusy": "queue"}}) for number in range(15)
    ]
    answers: list[Any] = await asyncio.gather(*sends[:8], claim(thread, owner), *sends[8:])
    claimed = answers.pop(8)
    assert claimed.status_code == 200
    sent = [answer.json() for answer in answers if answer.status_code == 202]
    assert {answer.status_code for answer in answers} <= {202, 403}
    owned = thread_as(thread, owner)
    for each_sent in sent:
        assert (await owned.ended(each_sent["runId"]))["status"] == "final"
    messages = (await owned.snapshot())["messages"]
    assert [message["id"] for message in messages if message["role"] == "user"] == [
        response["userMessageId"] for response in sorted(sent, key=lambda candidate: candidate["revision"])
    ]
    assert {message["authorId"] for message in messages if message["role"] == "user"} <= {str(owner.id)}


async def test_a_claim_during_an_answer_revokes_the_key_and_the_owner_keeps_streaming(
    server: InProcessServer, store: Database
) -> None:
    thread, owner = await server.thread(), await person(store)
    sent = await thread.send(STORY)
    async with socket(server) as stranger, socket(server, additional_headers=owner.headers) as own:
        await stranger.subscribe(thread)
        await own.subscribe(thread)  # signed in, but with access only by the key
        await stranger.until("delta")
        claimed_at = (await claim(thread, owner)).json()["revision"]
        gone = await stranger.until("gone")
        assert gone == {"type": "gone", "threadId": thread.id, "code": "forbidden"}
        await stranger.expect_nothing()
        text, revision = "", 0
        while not text.endswith("word60"):
            frame = await own.next()
            assert frame["type"] == "delta"
            revision = frame["revision"]
            text += "".join(part["data"].get("text", "") for part in frame["parts"])
        assert revision > claimed_at
    run = await thread_as(thread, owner).ended(sent["runId"])
    assert run["status"] == "final"
    answer = (await thread_as(thread, owner).snapshot())["messages"][-1]
    assert text_of(answer) == " ".join(f"word{number}" for number in range(1, 61))


async def test_claims_while_runs_end_leave_every_answer_whole(server: InProcessServer, store: Database) -> None:
    for words in range(1, 11):
        thread, owner = await server.thread(), await person(store)
        sent = await thread.send(f"/words={words} /pace=200")
        owned = thread_as(thread, owner)
        assert (await claim(thread, owner)).status_code == 200
        await owned.ended(sent["runId"])
        answer = (await owned.snapshot())["messages"][-1]
        assert text_of(answer) == " ".join(f"word{number}" for number in range(1, words + 1))


async def test_a_link_created_before_the_claim_grants_access_after_it(server: InProcessServer, store: Database) -> None:
    thread, owner = await server.thread(), await person(store)
    link = (await thread.post("links", {"role": "viewer"})).json()
    async with socket(server) as feed:
        await feed.send({"type": "subscribe", "threadId": thread.id, "shareKey": link["shareKey"]})
        assert (await feed.next())["type"] == "snapshot"
        await claim(thread, owner)
        delta = await feed.next()
        assert (delta["type"], delta["thread"]["ownerId"]) == ("delta", str(owner.id))


async def test_after_a_claim_between_two_steps_later_calls_act_for_the_user(
    server: InProcessServer, store: Database
) -> None:
    thread, owner = await server.thread(), await person(store)
    ours = await other_thread(server, owner)
    written = call("write_file", path="before.txt", content="guest")
    later = f"{call('write_file', path='after.txt', content='user')} {call('glob', pattern='*')}"
    agent = await act(thread, f"/wait=1 {written} /then {later} /say Written.")
    await agent.until("completed")
    assert (await claim(thread, owner)).status_code == 200
    agent.thread = thread_as(thread, owner)
    assert (await agent.ended())["status"] == "final"
    cards = await agent.cards()
    assert [card["state"] for card in cards] == ["completed"] * 3
    found = await act(ours, call("glob", pattern="**/*") + " /say Found.")
    await found.ended()
    (card,) = await found.cards()
    assert "after.txt" in card["output"]
    assert "before.txt" in card["output"]
    async with store.driver() as driver:
        owners = await driver.fetch("SELECT DISTINCT owner_id FROM files WHERE path LIKE '%after.txt'")
        requester = await driver.fetchval("SELECT user_id FROM runs WHERE id = $1", agent.run_id)
    assert [row["owner_id"] for row in owners] == [owner.id]
    assert requester == owner.id


async def test_what_a_guest_approved_for_the_run_does_not_reach_to_calls_of_the_new_owner(
    server: InProcessServer, store: Database
) -> None:
    thread, owner = await server.thread(), await person(store)
    await rules(thread, write_file="ask")
    first, later = (call("write_file", path=f"{name}.txt", content=name) for name in ("guest", "owner"))
    agent = await act(thread, f"/wait=1 {first} /then {later} /say Written.")
    (card,) = await agent.until("blocked")
    (await agent.decide(card["toolCallId"], approved=True, allow="run")).raise_for_status()
    await agent.until("completed")
    assert (await claim(thread, owner)).status_code == 200
    agent.thread = thread_as(thread, owner)
    await agent.status("blocked")
    (asked,) = (one for one in await agent.cards() if one["state"] == "blocked")
    (await agent.decide(asked["toolCallId"], approved=True, allow="run")).raise_for_status()
    assert (await agent.ended())["status"] == "final"


async def other_thread(server: InProcessServer, owner: Person) -> Thread:
    """Another thread of the user, whose tools use the same files."""
    made = (await server.http.post("/api/threads", json={}, headers=owner.headers)).json()
    return thread_as(Thread(server.http, made["thread"]["id"], ""), owner)
