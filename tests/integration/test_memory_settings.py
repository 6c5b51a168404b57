"""Memory settings: recall off and on, personal memories in shared threads, and proposals that are decided once."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from khala.domain.access import author_id_of_key, key_hash
from khala.domain.memories import MemorySpace, NewMemory
from khala.store.memories import memory_proposals
from khala.store.postgres.database import Database
from khala.store.tools import workspace_owners
from tests.support.account_with_data import Account, account, join_by_link, own_thread
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.providers import serving
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    # The demo model answers at the pace of a reader, so that a run would take eight seconds.
    async with (
        serving() as provider,
        shared(
            postgres_url,
            template,
            KHALA_MODEL="openai:gpt-test",
            OPENAI_API_KEY="key",
            OPENAI_BASE_URL=f"{provider.url}/v1",
        ) as inside,
    ):
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


async def recalled(thread: Thread) -> list[str]:
    sent = await thread.send("Which tea does Tassadar like?")
    await thread.ended(sent["runId"])
    parts = await thread.parts(sent["runId"])
    return [memory["text"] for part in parts if part["kind"] == "memory" for memory in part["data"]["memories"]]


async def set_settings(who: Account, **changes: Any) -> Any:
    return (await who.http.patch("/api/me/memory", json=changes)).raise_for_status().json()


async def test_recall_can_be_switched_off_and_on(who: Account) -> None:
    await who.http.post("/api/memories", json={"text": "Tassadar likes green tea"})
    assert (await who.http.get("/api/me/memory")).json() == {"recall": True, "extraction": "off"}
    assert await set_settings(who, recall=False) == {"recall": False, "extraction": "off"}
    assert await recalled(await own_thread(who)) == []
    assert await set_settings(who, extraction="ask") == {"recall": False, "extraction": "ask"}
    assert await set_settings(who, recall=True) == {"recall": True, "extraction": "ask"}
    assert await recalled(await own_thread(who)) == ["Tassadar likes green tea"]
    assert (await who.http.patch("/api/me/memory", json={"extraction": "always"})).status_code == 400


async def test_a_guest_switches_recall_off_for_all_threads_of_the_key(server: InProcessServer) -> None:
    thread = await server.thread()
    body = {"text": "Tassadar likes green tea", "threadId": thread.id, "scope": "user"}
    (await server.http.post("/api/memories", json=body, headers=thread.headers)).raise_for_status()
    assert await recalled(thread) == ["Tassadar likes green tea"]
    changed = await server.http.patch("/api/me/memory", json={"recall": False}, headers=thread.headers)
    assert changed.json()["recall"] is False
    assert await recalled(thread) == []


async def test_only_the_owner_lets_their_memories_into_a_shared_thread_and_only_into_their_own_runs(
    server: InProcessServer, who: Account
) -> None:
    await who.http.post("/api/memories", json={"text": "Tassadar likes green tea"})
    thread = await own_thread(who)
    path = f"/api/threads/{thread.id}/memory"
    async with account(server, "Zeratul") as member:
        await join_by_link(who, thread, member)
        assert await recalled(thread) == []
        assert (await member.http.patch(path, json={"personal": True})).status_code == 403
        assert (await who.http.patch(path, json={"personal": True})).json() == {"personal": True}
        assert (await member.http.get(path)).json() == {"personal": True}
        assert await recalled(thread) == ["Tassadar likes green tea"]
        assert await recalled(Thread(member.http, thread.id, "")) == []
        (await who.http.patch(path, json={"personal": False})).raise_for_status()
        assert await recalled(thread) == []


async def test_a_temporary_thread_knows_nothing_of_the_person_until_they_decide_so(who: Account) -> None:
    await who.http.post("/api/memories", json={"text": "Tassadar likes green tea"})
    created = (await who.http.post("/api/threads", json={"temporary": True})).raise_for_status()
    thread = Thread(who.http, created.json()["thread"]["id"], "")
    assert await recalled(thread) == []
    (await who.http.patch(f"/api/threads/{thread.id}/memory", json={"personal": True})).raise_for_status()
    assert await recalled(thread) == ["Tassadar likes green tea"]


async def propose(
    store: Database, who: Account, thread: Thread, text: str, supersedes: uuid.UUID | None = None
) -> bool:
    space = MemorySpace(scope="user", owner_id=uuid.UUID(str(who.id)))
    new = NewMemory(text=text, thread_id=uuid.UUID(thread.id))
    async with workspace_owners.changing(store, space.owner_id) as driver:
        return await memory_proposals.add(driver, uuid.UUID(str(who.id)), space, new, supersedes=supersedes)


async def proposals(who: Account) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await who.http.get("/api/memories/proposals")).raise_for_status().json()["items"]
    return found


async def test_a_proposal_is_accepted_or_rejected_once_and_by_its_person_only(
    server: InProcessServer, store: Database, who: Account
) -> None:
    thread = await own_thread(who)
    old = (await who.http.post("/api/memories", json={"text": "I live in Aiur"})).json()
    await propose(store, who, thread, "I live in Shakuras", uuid.UUID(old["id"]))
    await propose(store, who, thread, "I like rain")
    assert not await propose(store, who, thread, "I like rain.")
    rain, home = await proposals(who)
    assert (home["text"], home["supersedes"], home["threadId"]) == ("I live in Shakuras", old["id"], thread.id)
    async with account(server, "Zeratul") as other:
        assert await proposals(other) == []
        assert (await other.http.post(f"/api/memories/proposals/{home['id']}/accept")).status_code == 404
        assert (await other.http.delete(f"/api/memories/proposals/{home['id']}")).status_code == 404
    accepted = await who.http.post(f"/api/memories/proposals/{home['id']}/accept")
    assert (accepted.status_code, accepted.json()["supersedes"]) == (201, old["id"])
    assert (await who.http.post(f"/api/memories/proposals/{home['id']}/accept")).status_code == 404
    assert (await who.http.delete(f"/api/memories/proposals/{rain['id']}")).status_code == 204
    assert await proposals(who) == []
    assert not await propose(store, who, thread, "I like rain"), "it was rejected"
    listed = (await who.http.get("/api/memories")).json()["items"]
    assert [memory["text"] for memory in listed] == ["I live in Shakuras"]


async def test_the_newest_hundred_proposals_stay(store: Database, who: Account) -> None:
    thread = await own_thread(who)
    for number in range(memory_proposals.MAX_PROPOSALS + 2):
        await propose(store, who, thread, f"Fact {number}")
    found = [proposal["text"] for proposal in await proposals(who)]
    assert (len(found), found[0], found[-1]) == (100, "Fact 101", "Fact 2")


async def test_a_claim_moves_the_proposals_of_the_guest(server: InProcessServer, store: Database, who: Account) -> None:
    thread = await server.thread()
    thread_id = uuid.UUID(thread.id)
    new = NewMemory(text="I live in Aiur", thread_id=thread_id)
    subject_id = author_id_of_key(key_hash(thread.key))
    async with workspace_owners.changing(store, thread_id) as driver:
        await memory_proposals.add(driver, subject_id, MemorySpace(scope="user", owner_id=thread_id), new)
    listed = await server.http.get("/api/memories/proposals", headers=thread.headers)
    assert [proposal["text"] for proposal in listed.json()["items"]] == ["I live in Aiur"]
    (await who.http.post(f"/api/threads/{thread.id}/claim", json={"anonKey": thread.key})).raise_for_status()
    (moved,) = await proposals(who)
    (await who.http.post(f"/api/memories/proposals/{moved['id']}/accept")).raise_for_status()
    assert [memory["text"] for memory in (await who.http.get("/api/memories")).json()["items"]] == ["I live in Aiur"]
