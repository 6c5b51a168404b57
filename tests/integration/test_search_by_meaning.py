"""Past messages are found by their meaning: which, for whom, and how their vectors are computed and erased."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from khala.domain.access import Caller
from khala.domain.budgets import BudgetLimit, BudgetPolicy
from khala.domain.search_results import Cursor, SearchHit, search_digest
from khala.memory import document_vectors
from khala.memory.memory_service import MemoryService
from khala.models.embeddings import embedding_names
from khala.models.embeddings.factory import open_embedder
from khala.models.port import ModelFailed
from khala.models.provider_registry import ProviderAccess
from khala.search.passage_embedder import PassageEmbedder
from khala.search.search_service import SearchService
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database
from khala.store.search import indexing, passage_queue, passage_vectors, search_queue
from khala.store.threads import threads
from tests.support.account_with_data import Account, account, own_thread
from tests.support.blobs import new_blob_service
from tests.support.callers import owned_thread, person
from tests.support.embeddings_server import EmbeddingReply, EmbeddingServer, serving_embeddings
from tests.support.in_process import khala
from tests.support.store import CALLER, new_thread

CONCEPTS = [("dog", "puppy"), ("invoice", "bill"), ("car", "drives"), ("tea", "drink")]
KEEP = RetentionPolicy(idle=timedelta(0))
ADD = """
    INSERT INTO messages (id, thread_id, position, role, status, content, revision, created_at)
    SELECT gen_random_uuid(), $1, $2::int + n, 'user', 'final',
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', text)), 1, now() - $4 * interval '1 day'
    FROM unnest($3::text[]) WITH ORDINALITY AS said (text, n)
"""


class World:
    """A database, and a process that embeds and searches."""

    def __init__(self, db: Database, server: EmbeddingServer, *, days: int = 30, model: str = "openai:near") -> None:
        self.db = db
        self.days = days
        ref = embedding_names.parse(model)
        assert ref is not None
        self.embedder = open_embedder(ref, ProviderAccess(url=server.url))
        self.use(BudgetPolicy())

    def use(self, budgets: BudgetPolicy) -> None:
        self.memories = MemoryService(self.db, self.embedder, budgets)
        self.passages = PassageEmbedder(self.db, self.memories, days=self.days)
        blob_service = new_blob_service(self.db)
        self.service = SearchService(self.db, self.memories, blob_service, enabled=True, by_meaning=True)

    async def prepare(self) -> None:
        await self.memories.prepare()
        await self.passages.prepare()

    async def say(self, thread_id: UUID, *texts: str, after: int = 0, days: int = 0, queued: bool = True) -> None:
        """Add messages from `days` ago after the position `after`."""
        async with self.db.driver() as driver:
            await driver.execute(ADD, thread_id, after, texts, days)
            if queued:
                await search_queue.add(driver, thread_id, after + 1, after + len(texts))
        while queued and (await indexing.index_next(self.db, with_passages=True)).more:
            continue

    async def embed(self) -> int:
        """Embed until nothing is due. Returns the number of batches."""
        batches = 0
        while await self.passages.embed_some():
            batches += 1
        return batches

    async def find(self, text: str, caller: Caller = CALLER, thread_id: UUID | None = None) -> list[SearchHit]:
        items, _ = await self.service.search(caller, text, thread_id=thread_id, kind="message", cursor=None, limit=100)
        return items

    async def count(self, query: str = "SELECT count(*) FROM passage_vectors WHERE vector IS NOT NULL") -> int:
        async with self.db.driver() as driver:
            return int(await driver.fetchval(query))


@pytest.fixture
async def embeddings() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings(CONCEPTS) as server:
        yield server


@pytest.fixture
async def world(db: Database, embeddings: EmbeddingServer) -> AsyncIterator[World]:
    made = World(db, embeddings)
    await made.prepare()
    yield made
    await made.embedder.aclose()


def labels(found: Sequence[SearchHit]) -> list[tuple[str, str, str]]:
    return [(hit.text, hit.match, hit.by) for hit in found]


async def test_what_was_said_in_other_words_is_found_after_exact_matches_and_labelled(world: World) -> None:
    thread_id = await new_thread(world.db)
    await world.say(thread_id, "Rex is a dog", "the puppy sleeps", "he drinks tea", "?!")
    async with world.db.driver() as driver:
        await passage_queue.add(driver, thread_id, 2, 4)  # entries may overlap
    await world.embed()
    asked = await world.find("the puppy", thread_id=thread_id)
    assert labels(asked) == [("the puppy sleeps", "exact", "words"), ("Rex is a dog", "similar", "meaning")]
    assert [bool(hit.highlights) for hit in asked] == [True, False]
    assert labels(await world.find("where is my bill", thread_id=thread_id)) == [], "near to nothing"


async def test_the_passage_that_is_near_is_shown(world: World) -> None:
    thread_id = await new_thread(world.db)
    filler = "nothing of note happened. " * 100
    await world.say(thread_id, f"{filler}Then the dog came. {filler}")
    await world.embed()
    (found,) = await world.find("a puppy", thread_id=thread_id)
    assert ("dog" in found.text, found.by, len(found.text) <= 1_600) == (True, "meaning", True)


async def test_a_search_whose_vector_nobody_pays_for_uses_words(world: World, embeddings: EmbeddingServer) -> None:
    await world.say(await new_thread(world.db), "Rex is a dog")
    await world.embed()
    called = len(embeddings.requests)
    assert await world.find("puppy") == [], "the owner of this guest's list is unknown"
    assert len(embeddings.requests) == called


async def test_messages_from_before_are_embedded_within_the_days_that_the_operator_chose(
    world: World, embeddings: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_queue, "WALKED_THREADS", 2)
    monkeypatch.setattr("khala.search.passage_embedder.MAX_PASSAGES", 2)
    thread_ids = [await new_thread(world.db) for _ in range(5)]
    for number, thread_id in enumerate(thread_ids):
        await world.say(thread_id, *(f"dog {number} {n}" for n in range(3)), days=1, queued=False)
        await world.say(thread_id, f"old dog {number}", after=3, days=31, queued=False)
    assert await world.passages.embed_some(), "the walk"
    assert await world.passages.embed_some(), "a batch"
    assert await world.count() == 2, "a batch is bounded"
    # Another process continues.
    again = World(world.db, embeddings)
    again.memories._worker_id = world.memories._worker_id
    await again.prepare()
    await again.embed()
    assert await world.count() == 15
    embedded = [text for text in embeddings.texts if "dog" in text]
    assert len(embedded) == len(set(embedded)) == 15, "no message twice, and none from before"
    assert await world.embed() == 0
    await again.embedder.aclose()


async def test_one_process_at_a_time_embeds(world: World, embeddings: EmbeddingServer) -> None:
    await world.say(await new_thread(world.db), "a dog")
    assert await world.passages.embed_some()
    other = World(world.db, embeddings)
    await other.prepare()
    assert not await other.passages.embed_some()
    await other.embedder.aclose()


async def test_a_changed_model_begins_a_new_generation(world: World, embeddings: EmbeddingServer) -> None:
    thread_id = await new_thread(world.db)
    await world.say(thread_id, "Rex is a dog", "?!", "he drives")
    await world.embed()
    newer = World(world.db, embeddings, model="openai:newer@7")
    await newer.prepare()
    assert await newer.find("puppy", thread_id=thread_id) == [], "vectors of two models are not compared"
    await newer.embed()
    assert len(await newer.find("puppy", thread_id=thread_id)) == 1
    assert await world.count("SELECT count(DISTINCT generation) FROM passage_vectors") == 1
    assert await world.count("SELECT max(generation) FROM passage_vectors") == 2
    await newer.embedder.aclose()


async def test_messages_of_an_owner_without_budget_wait_and_no_others(
    world: World, embeddings: EmbeddingServer
) -> None:
    poor, rich = await person(world.db), await person(world.db)
    texts = [f"a dog {number} {'and so on ' * 40}" for number in range(4)]
    threads_of = [await owned_thread(world.db, owner) for owner in (poor, rich)]
    await world.say(threads_of[0], *texts)
    await world.say(threads_of[1], texts[0])
    world.use(BudgetPolicy(limits=(BudgetLimit(scope="user", measure="tokens", most=Decimal(250), window=3600),)))
    await world.prepare()
    await world.embed()
    by_thread = "SELECT count(*) FROM passage_vectors WHERE thread_id = '{}'"
    assert 0 < await world.count(by_thread.format(threads_of[0])) < 4
    assert await world.count(by_thread.format(threads_of[1])) == 1
    await world.memories.aclose()
    receipts = "SELECT count(*) FROM usage_receipts WHERE purpose = 'embedding' AND user_id = '{}'"
    assert [await world.count(receipts.format(owner.id)) for owner in (poor, rich)] == [1, 1]
    world.use(BudgetPolicy())
    await world.prepare()
    await world.count("WITH due AS (UPDATE passage_queue SET due_at = now() RETURNING 1) SELECT count(*) FROM due")
    async with world.db.driver() as driver:
        await driver.execute("UPDATE vector_generations SET leased_until = now()")
    await world.embed()
    assert await world.count(by_thread.format(threads_of[0])) == 4


async def test_a_refused_text_holds_up_no_other_and_is_not_tried_again(
    world: World, embeddings: EmbeddingServer
) -> None:
    thread_id = await new_thread(world.db)
    embeddings.poison = "poison"
    await world.say(thread_id, "a dog", "poison", "a car")
    await world.embed()
    assert await world.count() == 2
    called = len(embeddings.requests)
    await world.count("WITH due AS (UPDATE passage_walks SET ended_at = '2000-01-01' RETURNING 1) SELECT 1 FROM due")
    await world.embed()
    assert len(embeddings.requests) == called


async def test_without_the_model_words_are_found_and_vectors_follow_later(
    world: World, embeddings: EmbeddingServer
) -> None:
    thread_id = await new_thread(world.db)
    await world.embed()
    await world.say(thread_id, "a dog")
    embeddings.default = EmbeddingReply(status=401)
    with pytest.raises(ModelFailed):
        await world.passages.embed_some()
    assert labels(await world.find("dog", thread_id=thread_id)) == [("a dog", "exact", "words")]
    embeddings.default = EmbeddingReply()
    await world.embed()
    assert await world.count() == 1


async def test_resets_and_deletions_take_the_vectors_also_during_a_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, reset, other = [await new_thread(world.db) for _ in range(3)]
    for thread_id in (deleted, reset, other):
        await world.say(thread_id, "a dog", "a car")
    embed: Any = document_vectors.embed

    async def embed_late(*arguments: Any) -> Any:
        vectors = await embed(*arguments)
        await threads.remove(world.db, deleted, CALLER)
        await threads.reset(world.db, reset, CALLER, welcome="")
        await purge(world.db, KEEP)
        monkeypatch.setattr(document_vectors, "embed", embed)
        return vectors

    monkeypatch.setattr(document_vectors, "embed", embed_late)
    await world.embed()
    assert await world.count() == 2, "those of the other thread"
    await threads.reset(world.db, other, CALLER, welcome="")
    assert await world.find("puppy", thread_id=other) == []
    assert (await purge(world.db, KEEP))["passage_vectors"] == 2
    assert await world.count("SELECT count(*) FROM passage_vectors") == 0


async def test_an_operator_who_wants_none_gets_them_deleted(
    world: World, embeddings: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_vectors, "MAX_DELETED_ROWS", 2)
    thread_id = await new_thread(world.db)
    await world.say(thread_id, *("a dog",) * 5)
    await world.embed()
    off = World(world.db, embeddings, days=0)
    assert not off.passages.enabled
    async with asyncio.timeout(20):
        await off.passages.run()
    assert await world.count("SELECT count(*) FROM passage_vectors") == 0
    assert await world.embed() > 0, "the walk begins anew"
    assert await world.count() == 5


async def test_a_search_that_takes_too_long_finds_words(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    thread_id = await new_thread(world.db)
    await world.say(thread_id, "a dog", "a puppy")
    await world.embed()
    monkeypatch.setattr(passage_vectors, "LIMIT_TIME", "SET LOCAL statement_timeout = 10")
    slow = (
        f"WITH slept AS MATERIALIZED (SELECT pg_sleep(5)) {passage_vectors.NEAREST_IN_THREAD.replace('WITH', ',', 1)}"
    )
    slow = slow.replace("scanned WHERE", "scanned, slept WHERE")
    monkeypatch.setattr(passage_vectors, "NEAREST_IN_THREAD", slow)
    assert labels(await world.find("puppy", thread_id=thread_id)) == [("a puppy", "exact", "words")]


async def test_a_search_compares_a_bounded_number_of_passages_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = await person(world.db)
    old, new = [await owned_thread(world.db, caller) for _ in range(2)]
    await world.say(old, "a dog")
    await world.say(new, *(f"a dog {number}" for number in range(5)))
    await world.embed()
    assert len(await world.find("puppy", caller.caller)) == 6
    for name in ("NEAREST_IN_LIST", "NEAREST_IN_THREAD"):
        bounded = getattr(passage_vectors, name).replace(f"LIMIT {passage_vectors.MAX_PASSAGES}", "LIMIT 2")
        monkeypatch.setattr(passage_vectors, name, bounded)
    assert {hit.text for hit in await world.find("puppy", caller.caller)} == {"a dog 3", "a dog 4"}
    assert {hit.text for hit in await world.find("puppy", caller.caller, new)} == {"a dog 3", "a dog 4"}


async def test_an_answer_is_found_by_its_meaning_until_its_reader_is_removed(
    database_url: str, embeddings: EmbeddingServer
) -> None:
    async with (
        khala(database_url, KHALA_EMBEDDINGS="openai:near", KHALA_EMBEDDINGS_URL=embeddings.url) as server,
        account(server) as owner,
        account(server, "Zeratul") as member,
    ):
        thread = await own_thread(owner)
        sent = await thread.send("My invoice is late. /words=1")
        link = await owner.http.post(f"/api/threads/{thread.id}/links", json={"role": "viewer"})
        key = {"X-Share-Key": link.raise_for_status().json()["shareKey"]}
        (await member.http.post(f"/api/threads/{thread.id}/join", headers=key)).raise_for_status()
        async with asyncio.timeout(30):
            while not (found := await search(member)):
                await asyncio.sleep(0.1)
        assert [(hit["messageId"], hit["match"], hit["by"], hit["highlights"]) for hit in found] == [
            (sent["userMessageId"], "similar", "meaning", [])
        ]
        called = len(embeddings.requests)
        assert await search(member, q="a late bill", meaning="0") == [], "by words only"
        assert len(embeddings.requests) == called, "and without the model"
        digest = search_digest("the bill", thread_id=None, kind="message", meaning=True)
        earlier = Cursor(until=datetime(2026, 1, 1, tzinfo=UTC), rank=1, key="a", search=digest)
        assert await search(member, cursor=str(earlier)) == [], "nothing newer"
        (await owner.http.delete(f"/api/threads/{thread.id}/members/{member.id}")).raise_for_status()
        assert await search(member) == []
        assert len(await search(owner)) == 1


async def search(who: Account, **params: str) -> list[dict[str, Any]]:
    found = await who.http.get("/api/search", params={"q": "the bill", "kind": "message"} | params)
    items: list[dict[str, Any]] = found.raise_for_status().json()["items"]
    return items
