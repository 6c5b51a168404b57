"""Search over REST: what is found, in which order and on which pages, and that nobody finds what they may not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.blobs.blob_service import BlobService
from khala.blobs.filesystem import FilesystemBlobStore
from khala.domain import blob_signatures, ids
from khala.search.blob_indexer import BlobIndexer
from khala.store.postgres.database import Database
from khala.store.search import blob_index, indexing
from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import Account, account, own_thread, upload
from tests.support.agents import act, call
from tests.support.blobs import new_blob_service, store_blob
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.server import command
from tests.support.shared_server import server_fixture
from tests.support.store import new_thread

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(KHALA_PUBLIC_THREADS="1")


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


async def say(thread: Thread, *texts: str) -> list[str]:
    """Send messages, each after the answer to the one before. Returns their ids."""
    sent = [await thread.send(text, options={"ifBusy": "queue"}) for text in texts]
    await thread.ended(sent[-1]["runId"])
    return [str(one["userMessageId"]) for one in sent]


async def index(store: Database) -> None:
    """Wait until all messages are prepared."""
    async with asyncio.timeout(30), store.driver() as driver:
        while await driver.fetchval("SELECT EXISTS (SELECT FROM search_queue)"):
            await indexing.index_next(store)


async def search(
    http: httpx.AsyncClient, q: str, headers: dict[str, str] | None = None, **params: Any
) -> list[dict[str, Any]]:
    answer = await http.get("/api/search", params={"q": q} | params, headers=headers or {})
    items: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
    return items


def marked(item: dict[str, Any]) -> list[str]:
    """The highlighted parts of the text."""
    units = item["text"].encode("utf-16-le")
    return [units[2 * part["start"] : 2 * part["end"]].decode("utf-16-le") for part in item["highlights"]]


async def test_exact_matches_come_first_and_are_highlighted(who: Account, store: Database) -> None:
    thread = await own_thread(who)
    sent = await say(thread, "Answer 117 /words=1", "The answer is 42. /words=1", "Answer 42 /words=1")
    await index(store)
    found = await search(who.http, "Answer 42")
    exact = [item for item in found if item["match"] == "exact"]
    assert [item["messageId"] for item in exact] == [sent[2], sent[1]], "the text as it was typed is first"
    assert [item["messageId"] for item in found if item["match"] == "similar"] in ([], [sent[0]])
    assert (marked(exact[0]), marked(exact[1])) == (["Answer", "42"], ["answer", "42"])
    assert {item["threadId"] for item in found} == {thread.id}
    assert all(0 < item["score"] <= 1 for item in found)


@pytest.mark.parametrize(
    ("text", "query", "highlight"),
    [
        ("明日は東京都で会議があります /words=1", "東京都", "東京都"),
        ("การประชุมที่กรุงเทพ /words=1", "กรุงเทพ", "กรุงเทพ"),
        ("내일 서울에서 만나요 /words=1", "서울", "서울"),
        ("Ein Café in Zürich 😀 gefunden /words=1", "ZURICH", "Zürich"),
        ("Encore une ﬁche technique /words=1", "fiche", "ﬁche"),
    ],
)
async def test_words_are_found_in_any_script(
    who: Account, store: Database, text: str, query: str, highlight: str
) -> None:
    (sent,) = await say(await own_thread(who), text)
    await index(store)
    found = await search(who.http, query)
    assert [(item["messageId"], item["match"], marked(item)) for item in found] == [(sent, "exact", [highlight])]


async def test_another_form_of_a_word_is_similar(who: Account, store: Database) -> None:
    (sent,) = await say(await own_thread(who), "We negotiated the contracts. /words=1")
    await index(store)
    (found,) = await search(who.http, "negotiating contract")
    assert (found["messageId"], found["match"], marked(found)) == (sent, "similar", ["negotiated", "contracts"])


async def test_pages_neither_repeat_nor_miss_results_while_messages_arrive(who: Account, store: Database) -> None:
    thread = await own_thread(who)
    sent = await say(thread, *(f"probe {number} /words=1" for number in range(7)))
    await index(store)
    seen: list[str] = []
    params: dict[str, Any] = {"q": "probe", "limit": 3, "kind": "message"}
    while True:
        page = (await who.http.get("/api/search", params=params)).raise_for_status().json()
        seen += [item["messageId"] for item in page["items"]]
        await say(thread, "probe again /words=1")
        await index(store)
        if "nextCursor" not in page:
            break
        params["cursor"] = page["nextCursor"]
    assert seen == sent[::-1]


async def test_a_cursor_continues_only_the_search_that_it_is_from(who: Account, store: Database) -> None:
    thread = await own_thread(who)
    await say(thread, *(f"quasar pulsar {number} /words=1" for number in range(3)))
    await index(store)
    params: dict[str, Any] = {"q": "quasar", "kind": "message", "threadId": thread.id, "limit": 1, "meaning": "0"}
    first = (await who.http.get("/api/search", params=params)).raise_for_status().json()
    params["cursor"] = first["nextCursor"]
    assert (await who.http.get("/api/search", params=params | {"limit": 2})).status_code == 200
    for other in ({"q": "pulsar"}, {"q": "Quasar"}, {"kind": "file"}, {"threadId": ""}, {"meaning": "1"}):
        changed = {name: value for name, value in (params | other).items() if value}
        refused = assert_problem(await who.http.get("/api/search", params=changed), 400, "invalid_input")
        assert "another search" in refused["detail"], other


async def test_files_and_memories_are_found_by_their_owner_alone(
    who: Account, server: InProcessServer, store: Database
) -> None:
    thread = await own_thread(who)
    arguments = json.dumps({"path": "notes/shield.md", "content": "The shield battery is in Aiur."})
    sent = await thread.send(f"/call write_file {arguments}", options={"autopilot": True})
    await thread.ended(sent["runId"])
    made = (await who.http.post("/api/memories", json={"text": "My shield is blue"})).raise_for_status().json()
    by_kind = {kind: await search(who.http, "shield", kind=kind) for kind in ("file", "memory")}
    assert [(item["path"], item["match"]) for item in by_kind["file"]] == [("notes/shield.md", "exact")]
    assert [(item["memoryId"], item["match"]) for item in by_kind["memory"]] == [(made["id"], "exact")]
    await index(store)
    kinds = {("path" in item, "memoryId" in item) for item in await search(who.http, "shield")}
    assert kinds == {(True, False), (False, True), (False, False)}
    async with account(server) as other:
        assert await search(other.http, "shield") == []


async def test_a_removed_member_finds_nothing_any_more(who: Account, server: InProcessServer, store: Database) -> None:
    thread = await own_thread(who)
    (sent,) = await say(thread, "The password is swordfish. /words=1")
    await index(store)
    async with account(server) as member:
        assert await search(member.http, "swordfish") == []
        link = await who.http.post(f"/api/threads/{thread.id}/links", json={"role": "viewer"})
        key = {"X-Share-Key": link.raise_for_status().json()["shareKey"]}
        assert [item["messageId"] for item in await search(member.http, "swordfish", key)] == [sent], "by the link"
        (await member.http.post(f"/api/threads/{thread.id}/join", headers=key)).raise_for_status()
        assert [item["messageId"] for item in await search(member.http, "swordfish")] == [sent], "as a member"
        (await who.http.delete(f"/api/threads/{thread.id}/members/{member.id}")).raise_for_status()
        assert await search(member.http, "swordfish") == []
        refused = await member.http.get("/api/search", params={"q": "swordfish", "threadId": thread.id})
        assert refused.status_code == 403
        (await who.http.patch(f"/api/threads/{thread.id}", json={"visibility": "public"})).raise_for_status()
        assert await search(member.http, "swordfish") == [], "a public thread is on nobody's list"
        named = await search(member.http, "swordfish", threadId=thread.id)
        assert [item["messageId"] for item in named] == [sent]


async def test_a_claim_moves_what_is_found(who: Account, server: InProcessServer, store: Database) -> None:
    guest = await server.thread()
    (sent,) = await say(guest, "I keep a zerglings diary. /words=1")
    await index(store)
    assert [item["messageId"] for item in await search(guest.http, "zerglings", guest.headers)] == [sent]
    other = {"X-Anon-Key": ids.new_secret()}
    assert await search(guest.http, "zerglings", other) == []
    assert await search(who.http, "zerglings") == []
    body = {"anonKey": guest.headers["X-Anon-Key"]}
    (await who.http.post(f"/api/threads/{guest.id}/claim", json=body)).raise_for_status()
    assert [item["messageId"] for item in await search(who.http, "zerglings")] == [sent]
    assert await search(guest.http, "zerglings", guest.headers) == []


async def test_a_reset_or_deleted_thread_is_not_found(who: Account, store: Database) -> None:
    reset, deleted = await own_thread(who), await own_thread(who)
    await say(reset, "a pylon here /words=1")
    await say(deleted, "a pylon there /words=1")
    await index(store)
    assert len(await search(who.http, "pylon")) == 2
    (await who.http.post(f"/api/threads/{reset.id}/reset")).raise_for_status()
    assert [item["threadId"] for item in await search(who.http, "pylon")] == [deleted.id]
    (await who.http.delete(f"/api/threads/{deleted.id}")).raise_for_status()
    assert await search(who.http, "pylon") == []


async def index_blobs(store: Database) -> None:
    """Wait until all blobs are prepared."""
    indexer = BlobIndexer(store, new_blob_service(store), enabled=True)
    async with asyncio.timeout(30), store.driver() as driver:
        while await driver.fetchval(blob_index.HAS_UNSIGNED):
            await indexer.work_some()


async def test_files_and_large_outputs_are_found_in_their_message_by_its_readers(
    who: Account, server: InProcessServer, store: Database
) -> None:
    thread = await own_thread(who)
    log = "".join(f"line {number}\n" for number in range(6_000)) + "the khaydarin crystal hums — für immer\n"
    blob_id = await upload(
        thread, log.encode() + b"\n" * blob_signatures.MAX_TEXT_BYTES + b"afterwards", "text/plain", "a.log"
    )
    await index_blobs(store)
    assert await search(who.http, "khaydarin crystal") == [], "no message has the file yet"
    sent = await thread.send("The khaydarin crystal /words=1", attachments=[blob_id])
    await thread.ended(sent["runId"])
    other = await own_thread(who)
    written = await act(other, call("write_file", path="big.txt", content="0123456789 " * 2000 + " argus talisman"))
    await written.ended()
    await index(store)
    await index_blobs(store)

    (found,) = await search(who.http, "khaydarin hums", kind="message")
    assert (found["messageId"], found["threadId"]) == (sent["userMessageId"], thread.id)
    assert (found["blobId"], found["name"], found["match"]) == (blob_id, "a.log", "exact")
    assert marked(found) == ["khaydarin", "hums"]
    assert len(await search(who.http, "khaydarin crystal")) == 1, "a message and its file are one result"
    (in_thread,) = await search(who.http, "fur immer line 5999", threadId=thread.id)
    assert in_thread["blobId"] == blob_id
    assert await search(who.http, "afterwards") == [], "only the beginning is searched"
    assert await search(who.http, "khaydarin", kind="file") == []
    output = next(hit for hit in await search(who.http, "argus talisman") if "messageId" in hit)
    assert (output["messageId"], "name" in output) == (written.answer, False)
    args = (await written.cards())[0]["argsBlob"]
    assert output["blobId"] == args["blobId"]

    async with account(server) as reader:
        link = (await who.http.post(f"/api/threads/{thread.id}/links", json={"role": "viewer"})).raise_for_status()
        key = {"X-Share-Key": link.json()["shareKey"]}
        assert await search(reader.http, "khaydarin hums") == []
        assert len(await search(reader.http, "khaydarin hums", key)) == 1
        (await who.http.delete(f"/api/threads/{thread.id}/links/{link.json()['id']}")).raise_for_status()
        assert await search(reader.http, "khaydarin hums", key) == [], "the link is revoked"

    while await blob_index.clear_next(store):
        continue
    await index_blobs(store)
    assert len(await search(who.http, "khaydarin hums")) == 1, "prepared again"
    (await who.http.post(f"/api/threads/{thread.id}/reset")).raise_for_status()
    assert await search(who.http, "khaydarin hums") == []


async def test_old_blobs_are_prepared_in_batches_and_what_is_no_text_is_looked_at_once(
    database_url: str, tmp_path: Path
) -> None:
    db = Database(database_url)
    store = FilesystemBlobStore(tmp_path)
    blob_service, thread_id = BlobService(db, store, folder=tmp_path), await new_thread(db)
    binary = await store_blob(blob_service, thread_id, b"\0\1\2", media_type="application/octet-stream")
    lost = await store_blob(blob_service, thread_id, b"lost bytes")
    await store.delete(lost.sha256)
    for number in range(blob_index.MAX_BLOBS):
        await store_blob(blob_service, thread_id, b"text %d" % number)
    indexer = BlobIndexer(db, blob_service, enabled=True)
    assert (await indexer.work_some(), await count_unsigned(db)) == (True, 2), "a batch is bounded"
    assert (await indexer.work_some(), await count_unsigned(db)) == (False, 0)
    async with db.driver() as driver:
        query = "SELECT count(*) FROM blobs WHERE signature = '' AND message_id IS NULL"
        assert await driver.fetchval(query) == 2 + blob_index.MAX_BLOBS, f"without a message nobody finds {binary}"
    await db.close()


async def count_unsigned(db: Database) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT count(*) FROM blobs WHERE signature IS NULL"))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"q": ""},
        {"q": " \n"},
        {"q": "a\0b"},
        {"q": "a" * 1_001},
        {"q": "a", "kind": "thread"},
        {"q": "a", "limit": 0},
        {"q": "a", "limit": 101},
        {"q": "a", "threadId": "1"},
        {"q": "a", "meaning": "perhaps"},
        {"q": "a", "cursor": "nonsense"},
        {"q": "a", "cursor": b'["2026-01-01T00:00:00",1,"a",""]'.hex()},
        {"q": "a", "cursor": b'["2026-01-01T00:00:00Z",-1,"a",""]'.hex()},
    ],
)
async def test_bad_searches_are_refused(who: Account, params: dict[str, Any]) -> None:
    assert (await who.http.get("/api/search", params=params)).status_code == 400


async def test_a_search_without_words_finds_nothing(who: Account) -> None:
    await say(await own_thread(who), "?! /words=1")
    assert await search(who.http, "?!") == []


async def test_a_server_without_search_says_so_and_deletes_what_was_prepared(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url) as server:
        thread = await server.thread()
        await say(thread, "a nexus /words=1")
        await index(db)
        assert len(await search(thread.http, "nexus", thread.headers)) == 1
    async with khala(database_url, KHALA_SEARCH="0") as server, db.driver() as driver, asyncio.timeout(20):
        answer = await server.http.get("/api/search", params={"q": "nexus"}, headers=thread.headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        while await driver.fetchval("SELECT EXISTS (SELECT FROM search_segments)"):
            await asyncio.sleep(0.05)
        assert await driver.fetchval("SELECT ended_at FROM search_walk") is None, "a later walk begins anew"
    await db.close()


async def test_the_command_prints_what_it_finds(
    who: Account, server: InProcessServer, store: Database, tmp_path: Path
) -> None:
    thread = await own_thread(who)
    await say(thread, "The 😀 khaydarin crystal is in Aiur. /words=1")
    await index(store)
    token = (await who.http.post("/api/tokens", json={"name": "cli", "scopes": ["read"]})).raise_for_status().json()
    env = {"KHALA_URL": server.url, "KHALA_TOKEN": token["token"], "KHALA_HOME": str(tmp_path)}
    done = await asyncio.to_thread(command, env, "search", "crystal", "khaydarin")
    assert done.returncode == 0, done.stderr
    assert f"/t/{thread.id}" in done.stdout
    assert "The 😀 khaydarin crystal is in Aiur." in done.stdout
    as_json = await asyncio.to_thread(command, env, "search", "--json", "--kind", "message", "crystal")
    assert len(json.loads(as_json.stdout)["items"]) == 1
    assert (await asyncio.to_thread(command, env, "search", "nonesuch")).returncode == 1
    refused = await asyncio.to_thread(command, env | {"KHALA_TOKEN": "wrong"}, "search", "crystal")
    assert (refused.returncode, "401" in refused.stderr) == (1, True)
