"""Memories in the store: stored once, superseded, found by words and by meaning, and erased."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from khala.doctor import workload_checks
from khala.domain import ids, search_terms
from khala.domain.backoff import Backoff
from khala.domain.errors import Conflict, NotFound, PayloadTooLarge
from khala.domain.memories import Memory, MemorySpace, NewMemory, fingerprint
from khala.memory import memory_service
from khala.memory.memory_service import MemoryService
from khala.models.embeddings import embedding_names
from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.factory import open_embedder
from khala.models.port import ModelFailed
from khala.models.provider_registry import ProviderAccess
from khala.store.accounts import accounts, claims
from khala.store.memories import memories, search, vectors
from khala.store.operations import archive_rows, retention
from khala.store.postgres.database import Database
from khala.store.threads import threads
from tests.support.callers import owned_thread, person
from tests.support.embeddings_server import EmbeddingReply, EmbeddingServer, serving_embeddings
from tests.support.store import CALLER, new_thread

CONCEPTS = [("dog", "puppy", "hund"), ("lives", "home", "address"), ("tea", "drink"), ("car", "drives")]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings(CONCEPTS) as server:
        yield server


def opened(server: EmbeddingServer, name: str = "openai:near") -> Embedder:
    ref = embedding_names.parse(name)
    assert ref is not None
    return open_embedder(ref, ProviderAccess(url=server.url))


@pytest.fixture
async def service(db: Database, server: EmbeddingServer) -> AsyncIterator[MemoryService]:
    embedder = opened(server)
    service = MemoryService(db, embedder)
    await service.prepare()
    yield service
    await embedder.aclose()


async def user_space(db: Database) -> MemorySpace:
    return MemorySpace(scope="user", owner_id=(await person(db)).id)


async def add(service: MemoryService, space: MemorySpace, *texts: str) -> list[Memory]:
    return [(await service.add(space, NewMemory(text=text)))[0] for text in texts]


async def embed_all(service: MemoryService) -> None:
    while await service.embed_some():
        continue


def texts_of(found: Sequence[Memory]) -> list[str]:
    return [memory.text for memory in found]


async def rows(db: Database, query: str = "SELECT count(*) FROM memories") -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval(query))


async def test_a_repeated_text_is_counted_and_not_stored(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    first, is_new = await service.add(space, NewMemory(text="I live in Aiur."))
    again, is_new_again = await service.add(space, NewMemory(text="  i live   in AIUR"))
    assert (is_new, is_new_again) == (True, False)
    assert (again.id, first.uses, again.uses) == (first.id, 0, 1)
    assert await rows(db) == 1


async def test_the_same_call_again_stores_nothing(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    first, _ = await service.add(space, NewMemory(text="I live in Aiur."), key="call 1")
    again, is_new = await service.add(space, NewMemory(text="I live in Aiur."), key="call 1")
    assert (again, is_new) == (first, False)


async def test_sixteen_writers_of_one_text_store_it_once(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    added = await asyncio.gather(*(service.add(space, NewMemory(text="Same")) for _ in range(16)))
    assert sum(is_new for _, is_new in added) == 1
    assert await rows(db) == 1


async def test_a_correction_supersedes_and_both_are_kept(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    (old,) = await add(service, space, "I live in Aiur")
    newer = await service.supersede(space, old.id, NewMemory(text="I live in Shakuras"))
    assert newer.supersedes == old.id
    async with db.driver() as driver:
        assert (await memories.find(driver, old.id))[0].superseded_by == newer.id
        listed = await memories.page(driver, space.owner_id, ["user"], before=None, limit=10)
    assert listed == [newer]
    assert texts_of(await service.search([space], "live", limit=5)) == ["I live in Shakuras"]
    with pytest.raises(Conflict, match="corrected meanwhile"):
        await service.supersede(space, old.id, NewMemory(text="I live in Char"))


async def test_a_correction_to_the_text_of_another_memory_is_refused(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    one, _ = await add(service, space, "One", "Two")
    with pytest.raises(Conflict, match="this text already"):
        await service.supersede(space, one.id, NewMemory(text="two."))


async def test_forgetting_deletes_what_was_superseded_too(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    (first,) = await add(service, space, "First")
    second = await service.supersede(space, first.id, NewMemory(text="Second"))
    third = await service.supersede(space, second.id, NewMemory(text="Third"))
    (kept,) = await add(service, space, "Kept")
    await memories.forget(db, space.owner_id, third.id)
    async with db.driver() as driver:
        assert await memories.page(driver, space.owner_id, ["user"], before=None, limit=10) == [kept]
    assert await rows(db) == 1
    with pytest.raises(NotFound):
        await memories.forget(db, space.owner_id, third.id)
    with pytest.raises(NotFound):
        await memories.forget(db, (await user_space(db)).owner_id, kept.id)


async def test_an_expired_memory_is_not_found_and_later_deleted(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    past = datetime.now(UTC) - timedelta(days=31)
    await service.add(space, NewMemory(text="Short-lived", expires_at=past))
    assert await service.search([space], "short-lived", limit=5) == []
    async with db.driver() as driver:
        assert await memories.page(driver, space.owner_id, ["user"], before=None, limit=10) == []
    await retention.purge(db, retention.RetentionPolicy(idle=timedelta(days=30)))
    assert await rows(db) == 0


async def test_the_number_of_memories_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    monkeypatch.setattr(memories, "MAX_MEMORIES", 2)
    await add(service, space, "One", "Two")
    with pytest.raises(PayloadTooLarge, match="at most 2 memories"):
        await add(service, space, "Three")
    await add(service, space, "Two")


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("My dog is called Rex", "what is the dog called?"),
        ("Ich wohne in München", "wohne munchen"),
        ("私の犬の名前はポチです", "犬の名前"),
        ("我住在北京", "北京"),
        ("나는 서울에 살아요", "서울"),
        ("ฉันชอบดื่มชา", "ดื่มชา"),
        ("मेरा कुत्ता काला है", "कुत्ता"),
        ("أسكن في القاهرة", "القاهرة"),
        ("Я живу в Москве", "Москва живу"),
        ("Τρώω στην Αθήνα", "Αθηνα"),
        ("Tôi sống ở Hà Nội", "ha noi"),
        ("אני גר בחיפה", "בחיפה"),
    ],
)
async def test_words_find_memories_in_twelve_languages(db: Database, stored: str, asked: str) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    others = [f"Something else, number {number}" for number in range(5)]
    await add(service, space, stored, *others)
    assert texts_of(await service.search([space], asked, limit=1)) == [stored]


async def test_a_rare_word_counts_more_than_a_common_one(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    await add(service, space, *(f"I like number {number}" for number in range(40)), "Rex is a poodle I like")
    assert texts_of(await service.search([space], "do I like a poodle", limit=1)) == ["Rex is a poodle I like"]
    assert await service.search([space], "what colour has my bicycle", limit=5) == []


async def test_meaning_finds_what_was_said_in_other_words(db: Database, service: MemoryService) -> None:
    space = await user_space(db)
    await add(service, space, "Rex is a dog", "She drives to work", "He likes tea")
    assert texts_of(await service.search([space], "my puppy", limit=1)) == [], "before it has vectors"
    await embed_all(service)
    assert texts_of(await service.search([space], "my puppy", limit=1)) == ["Rex is a dog"]
    assert texts_of(await service.search([space], "what should I drink", limit=1)) == ["He likes tea"]
    assert await service.search([space], "quantum chromodynamics", limit=5) == [], "nothing is similar"


async def test_words_and_meaning_are_fused(db: Database, service: MemoryService) -> None:
    space = await user_space(db)
    await add(service, space, "The puppy of Tassadar", "A dog", "Tassadar")
    await embed_all(service)
    found = await service.search([space], "the dog of Tassadar", limit=3)
    assert texts_of(found)[0] == "The puppy of Tassadar" or texts_of(found)[0] == "A dog"
    assert set(texts_of(found)) == {"The puppy of Tassadar", "A dog", "Tassadar"}
    scores = [memory.score or 0 for memory in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)


async def test_nobody_finds_memories_of_another_space(db: Database, service: MemoryService) -> None:
    one, other = await user_space(db), await user_space(db)
    agent = MemorySpace(scope="agent", owner_id=one.owner_id, agent="researcher")
    await add(service, one, "A dog of one")
    await add(service, other, "A dog of another")
    await add(service, agent, "A dog of the agent")
    await embed_all(service)
    assert texts_of(await service.search([one], "dog", limit=9)) == ["A dog of one"]
    assert texts_of(await service.search([agent], "puppy", limit=9)) == ["A dog of the agent"]
    assert sorted(texts_of(await service.search([one, agent], "dog", limit=9))) == [
        "A dog of one",
        "A dog of the agent",
    ]


async def test_another_model_is_used_once_all_vectors_of_a_space_are_computed(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await user_space(db)
    await add(service, space, *(f"Dog number {number}" for number in range(5)))
    await embed_all(service)
    monkeypatch.setattr(memory_service, "BATCH", 2)
    newer = MemoryService(db, opened(server, "openai:newer@7"))
    await newer.prepare()
    assert await newer.embed_some()
    assert texts_of(await newer.search([space], "puppy", limit=9)) == [], "the space is not complete"
    assert len(await service.search([space], "puppy", limit=9)) == 5, "processes with the old model go on"
    await embed_all(newer)
    assert len(await newer.search([space], "puppy", limit=9)) == 5
    assert await rows(db, "SELECT count(DISTINCT generation) FROM memory_vectors") == 1
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 5


async def generations(db: Database) -> list[str]:
    async with db.driver() as driver:
        return [row["model"] for row in await driver.fetch("SELECT model FROM vector_generations ORDER BY id")]


async def test_a_model_that_changes_under_the_same_name_begins_a_new_generation(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await user_space(db)
    await add(service, space, "Rex is a dog", "He likes tea")
    await embed_all(service)
    assert texts_of(await service.search([space], "my puppy", limit=1)) == ["Rex is a dog"]
    # Rounding is no change.
    server.default = EmbeddingReply(change=lambda found: [[value + 0.01 for value in one] for one in found])
    same = MemoryService(db, opened(server))
    await same.prepare()
    assert not await same.embed_some()
    assert await generations(db) == ["openai:near"]
    server.default = EmbeddingReply(change=lambda found: [one[::-1] for one in found])
    restarted = MemoryService(db, opened(server))
    await restarted.prepare()
    await embed_all(restarted)
    assert await generations(db) == ["openai:near", "openai:near@@2"]
    assert texts_of(await restarted.search([space], "my puppy", limit=1)) == ["Rex is a dog"]
    assert await rows(db, "SELECT count(*) FROM memory_vectors WHERE generation = 2") == 2
    again = MemoryService(db, opened(server))
    await again.prepare()
    assert not await again.embed_some(), "the newer generation is the model's"
    monkeypatch.setattr(memory_service, "GENERATION_SECONDS", 0.0)
    assert texts_of(await service.search([space], "my puppy", limit=1)) == ["Rex is a dog"]
    found = await workload_checks.embedding_changes(db, "openai:near")
    assert "pin the version" in found.says
    assert "none" in (await workload_checks.embedding_changes(db, "openai:other")).says


async def test_tables_of_an_earlier_version_get_the_canary(db: Database, service: MemoryService) -> None:
    async with db.driver() as driver:
        await driver.execute("ALTER TABLE vector_generations DROP COLUMN canary")
    await service.prepare()
    space = await user_space(db)
    await add(service, space, "Rex is a dog")
    await embed_all(service)
    assert await rows(db, "SELECT count(*) FROM vector_generations WHERE canary IS NOT NULL") == 1


async def test_one_process_at_a_time_embeds(db: Database, service: MemoryService, server: EmbeddingServer) -> None:
    space = await user_space(db)
    await add(service, space, "A dog")
    other = MemoryService(db, opened(server))
    await other.prepare()
    assert await service.embed_some()
    await add(service, space, "A car")
    assert not await other.embed_some()
    async with db.driver() as driver:
        await driver.execute("UPDATE vector_generations SET leased_until = now() - interval '1 second'")
    assert await other.embed_some()


@pytest.mark.parametrize(
    "bad", [EmbeddingReply(status=400), EmbeddingReply(change=lambda vectors: [[math.nan] * 5 for _ in vectors])]
)
async def test_a_text_that_the_model_cannot_embed_does_not_hold_up_the_others(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, bad: EmbeddingReply
) -> None:
    monkeypatch.setattr("khala.models.retry_policy.BACKOFF", Backoff(first_seconds=0.01))
    space = await user_space(db)
    await add(service, space, "A dog", "poison", "A car")
    server.poison, server.poisoned = "poison", bad
    await embed_all(service)
    assert texts_of(await service.search([space], "puppy", limit=1)) == ["A dog"]
    assert texts_of(await service.search([space], "poison", limit=1)) == ["poison"]


async def test_refused_texts_are_found_by_bisection(
    db: Database, service: MemoryService, server: EmbeddingServer
) -> None:
    space = await user_space(db)
    await add(service, space, *(f"A dog number {number}" for number in range(63)), "poison")
    server.poison = "poison"
    await service.embed_some()
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 63
    refused = [request for request in server.requests if any("poison" in text for text in request["input"])]
    assert [len(request["input"]) for request in refused] == [64, 32, 16, 8, 4, 2, 1]
    assert not await service.embed_some(), "it is not tried again"


async def test_without_the_model_words_find_memories_and_vectors_follow_later(
    db: Database, service: MemoryService, server: EmbeddingServer
) -> None:
    space = await user_space(db)
    server.default = EmbeddingReply(status=401)
    await add(service, space, "A dog")
    with pytest.raises(Exception, match="rejected the API key"):
        await service.embed_some()
    assert texts_of(await service.search([space], "dog", limit=1)) == ["A dog"]
    server.default = EmbeddingReply()
    await embed_all(service)
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 1


async def test_the_loop_goes_on_after_a_day_without_the_server(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khala.models.retry_policy.BACKOFF", Backoff(first_seconds=0.001))
    monkeypatch.setattr(memory_service, "FAILURE_SECONDS", 0.001)
    space = await user_space(db)
    await add(service, space, "A dog")
    server.default = EmbeddingReply(status=503)
    loop = asyncio.create_task(service.run())
    async with asyncio.timeout(20):
        while len(server.requests) < 30:
            await asyncio.sleep(0.01)
        assert texts_of(await service.search([space], "dog", limit=1)) == ["A dog"]
        server.default = EmbeddingReply()
        while not await rows(db, "SELECT count(*) FROM memory_vectors"):
            await asyncio.sleep(0.01)
    loop.cancel()
    await asyncio.wait({loop})
    assert loop.cancelled()


@pytest.mark.parametrize(
    "vectors",
    [
        lambda vectors: [[math.nan] * 5 for _ in vectors],
        lambda vectors: [vector[1:] for vector in vectors],
        lambda vectors: vectors[1:],
    ],
)
async def test_a_server_that_lies_stores_no_vector_and_marks_no_memory(
    db: Database,
    service: MemoryService,
    server: EmbeddingServer,
    monkeypatch: pytest.MonkeyPatch,
    vectors: Callable[[list[list[float]]], list[list[float]]],
) -> None:
    monkeypatch.setattr("khala.models.retry_policy.BACKOFF", Backoff(first_seconds=0.001))
    space = await user_space(db)
    await add(service, space, "A dog")
    await embed_all(service)
    server.default = EmbeddingReply(change=vectors)
    await add(service, space, "A car")
    with pytest.raises(ModelFailed, match="invalid response"):
        await service.embed_some()
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 1
    server.default = EmbeddingReply()
    await embed_all(service)
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 2


@pytest.mark.parametrize("first_lies", [True, False])
async def test_after_a_change_of_the_dimensions_all_vectors_are_computed_again(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, *, first_lies: bool
) -> None:
    monkeypatch.setattr("khala.models.retry_policy.BACKOFF", Backoff(first_seconds=0.001))
    space = await user_space(db)
    short = EmbeddingReply(change=lambda vectors: [[1.0, 0.5] for _ in vectors])
    server.default = short if first_lies else EmbeddingReply()
    await add(service, space, "A dog")
    await embed_all(service)
    server.default = EmbeddingReply() if first_lies else short
    await add(service, space, "A car")
    with pytest.raises(ModelFailed):
        await service.embed_some()
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 1
    await embed_all(service)
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 2
    assert await rows(db, "SELECT count(DISTINCT vector_dims(vector)) FROM memory_vectors") == 1
    asked = await service.search([space], "puppy", limit=1)
    assert asked[0].text == "A dog" or not first_lies


SHORT = EmbeddingReply(change=lambda vectors: [[1.0, 0.5] for _ in vectors])
"""Vectors of another model: with two dimensions, and all near each other."""
MIN_USE_IS_OVER = f"""
    UPDATE vector_generations SET created_at = created_at - {vectors.MIN_USE_SECONDS} * interval '1 second' RETURNING 1
"""


async def test_a_search_whose_vector_has_other_dimensions_has_the_canary_compared_at_once(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khala.models.embeddings.embedder.PAUSE", Backoff(first_seconds=0.0))
    space = await user_space(db)
    await add(service, space, "Rex is a dog", "He likes tea")
    await embed_all(service)
    server.default = SHORT
    assert texts_of(await service.search([space], "the dog", limit=1)) == ["Rex is a dog"], "by its words"
    await embed_all(service)
    assert await rows(db, "SELECT count(*) FROM memory_vectors WHERE vector_dims(vector) = 2") == 2
    assert len(await service.search([space], "a puppy", limit=9)) == 2, "by the other model, to which all is near"


async def test_a_model_that_is_used_again_after_another_one_embeds_all_memories_again(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khala.models.embeddings.embedder.PAUSE", Backoff(first_seconds=0.0))
    monkeypatch.setattr(memory_service, "OUTDATED_SECONDS", 0.0)
    space = await user_space(db)
    await add(service, space, "Rex is a dog", "He likes tea")
    await embed_all(service)
    server.default = SHORT
    await service.search([space], "the dog", limit=1)
    await embed_all(service)
    server.default = EmbeddingReply()
    await service.search([space], "my dog", limit=1)
    await add(service, space, "She drives to work")
    await embed_all(service)
    assert texts_of(await service.search([space], "puppy", limit=9)) == [], "not by one of three memories only"
    assert not await service.embed_some(), "two models in turn do not embed everything again and again"
    await rows(db, MIN_USE_IS_OVER)
    await embed_all(service)
    assert texts_of(await service.search([space], "which puppy", limit=9)) == ["Rex is a dog"]
    assert texts_of(await service.search([space], "which car", limit=9)) == ["She drives to work"]
    assert await rows(db, "SELECT count(*) FROM memory_vectors WHERE vector_dims(vector) = 5") == 3
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 3
    assert await generations(db) == ["openai:near", "openai:near"], "it is the model of before, and no changed one"


async def test_an_earlier_model_is_not_used_again_while_another_process_uses_a_newer_one(
    db: Database, service: MemoryService, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_service, "OUTDATED_SECONDS", 0.0)
    space = await user_space(db)
    await add(service, space, "Rex is a dog")
    await embed_all(service)
    newer = MemoryService(db, opened(server, "openai:newer@7"))
    await newer.prepare()
    await embed_all(newer)
    await rows(db, MIN_USE_IS_OVER)
    restarted = MemoryService(db, opened(server))
    await restarted.prepare()
    await embed_all(restarted)
    assert texts_of(await newer.search([space], "puppy", limit=9)) == ["Rex is a dog"]
    assert texts_of(await restarted.search([space], "puppy", limit=9)) == []
    await rows(db, "UPDATE vector_generations SET leased_until = now() - interval '1 second' RETURNING 1")
    await embed_all(restarted)
    assert texts_of(await restarted.search([space], "my puppy", limit=9)) == ["Rex is a dog"]


async def test_a_score_by_words_is_the_share_of_the_words_that_match(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    await add(service, space, "Tassadar drinks green tea", "The printer is broken")
    scores = [
        found[0].score or 0
        for asked in ("Tassadar drinks green tea", "Tassadar drinks tea", "Tassadar eats chocolate pancakes")
        if (found := await service.search([space], asked, limit=1))
    ]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(1)
    assert 0 < scores[-1] < 0.6


async def test_a_search_is_planned_a_few_times_for_a_connection(db: Database) -> None:
    one_connection = Database(db.url, pool_size=2)
    service, space = MemoryService(one_connection, None), await user_space(db)
    await add(service, space, "A dog")
    for asked in ("a dog", "a car", "tea", "dogs and cars", "a dog that drinks tea", "nothing", "dog", "x", "y"):
        await service.search([space], asked, limit=1)
    query = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1"
    async with one_connection.driver() as driver:
        assert tuple(await driver.fetchrow(query, search.LEXICAL)) == (4, 5), "Postgres tries five plans first"
    await one_connection.close()


async def test_a_search_is_the_same_with_and_without_the_index_of_words(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    await add(service, space, *(f"I like number {number % 7} and {number % 31}" for number in range(110)))
    await add(service, space, *(f"Common {number}" for number in range(105)), "A rare poodle that I like")
    questions = ("do I like a poodle", "number 3", "common 7", "nothing of this")

    async def ranked() -> list[list[tuple[UUID, float]]]:
        found = [await service.search([space], asked, limit=50) for asked in questions]
        return [[(memory.id, round(memory.score or 0, 9)) for memory in memories] for memories in found]

    sampled = await ranked()
    assert [len(found) > 0 for found in sampled] == [True, True, True, False]
    monkeypatch.setattr(search, "LEXICAL", search.LEXICAL.replace(f" {search.MAX_SAMPLE}", " 250"))
    assert await ranked() == sampled


async def test_among_many_memories_the_rarest_words_find(db: Database) -> None:
    service, space = MemoryService(db, None), await user_space(db)
    texts = [f"Common {'green' if number % 3 else 'blue'} {number}" for number in range(900)] + ["Common poodle"]
    columns = ["id", "owner_id", "space_id", "scope", "kind", "text", "fingerprint", "terms"]
    copied = [
        (
            ids.new(),
            space.owner_id,
            space.id,
            "user",
            "fact",
            text,
            fingerprint(text),
            search_terms.term_keys(space.id, search_terms.terms(text)),
        )
        for text in texts
    ]
    async with db.driver() as driver:
        await driver.copy_records_to_table("memories", records=copied, columns=columns)
    assert texts_of(await service.search([space], "the common poodle", limit=5)) == ["Common poodle"]
    found = texts_of(await service.search([space], "common blue", limit=50))
    assert len(found) == 50
    assert all("blue" in text for text in found), "all its words are frequent, and this one is the rarest"


async def test_a_search_in_a_small_space_reads_no_other_space(db: Database) -> None:
    space = await user_space(db)
    async with db.driver() as driver:
        await driver.execute("SET plan_cache_mode = force_generic_plan")
        plan = await driver.fetch(f"EXPLAIN {search.LEXICAL}", [space.id], [1], [1.0], 0.1, 0.3, 8)
    sample = "\n".join(row[0] for row in plan).partition("CTE sizes")[0]
    assert "Index Scan using memories_space_id_fingerprint_key" in sample
    assert "Seq Scan" not in sample


async def test_a_claim_moves_the_guests_memories_and_merges_equal_ones(db: Database, service: MemoryService) -> None:
    who = await person(db)
    thread_id = await new_thread(db)
    guest = MemorySpace(scope="user", owner_id=thread_id)
    mine, of_thread = MemorySpace(scope="user", owner_id=who.id), MemorySpace(scope="thread", owner_id=thread_id)
    await add(service, guest, "A dog", "Same")
    await add(service, mine, "same")
    await service.add(of_thread, NewMemory(text="Of the thread", thread_id=thread_id))
    await embed_all(service)
    assert CALLER.anon_key_hash
    await claims.claim(db, thread_id, CALLER.anon_key_hash, who.caller)
    await embed_all(service)
    assert sorted(texts_of(await service.search([mine], "dog same", limit=9))) == ["A dog", "same"]
    assert texts_of(await service.search([mine], "puppy", limit=1)) == ["A dog"]
    assert await service.search([guest], "dog", limit=9) == []
    assert texts_of(await service.search([of_thread], "thread", limit=9)) == ["Of the thread"]


async def test_deleting_a_thread_takes_the_memories_that_came_from_it(db: Database, service: MemoryService) -> None:
    who = await person(db)
    thread_id = await owned_thread(db, who)
    mine = MemorySpace(scope="user", owner_id=who.id)
    await service.add(mine, NewMemory(text="From the thread", thread_id=thread_id))
    await service.add(MemorySpace(scope="thread", owner_id=thread_id), NewMemory(text="Of it", thread_id=thread_id))
    await add(service, mine, "From elsewhere")
    await embed_all(service)
    await threads.remove(db, thread_id, who.caller)
    assert sorted(texts_of(await service.search([mine], "from", limit=9))) == ["From elsewhere"]
    await retention.purge(db, retention.RetentionPolicy(idle=timedelta(days=30)))
    assert await rows(db) == 1
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 1


async def test_a_text_of_a_deleted_thread_is_stored_anew_and_outlives_the_purge(db: Database) -> None:
    who, service = await person(db), MemoryService(db, None)
    mine = MemorySpace(scope="user", owner_id=who.id)
    deleted = await owned_thread(db, who)
    gone, _ = await service.add(mine, NewMemory(text="I live in Aiur", thread_id=deleted))
    await service.add(mine, NewMemory(text="I drink tea", thread_id=deleted))
    (other,) = await add(service, mine, "I drink coffee")
    await threads.remove(db, deleted, who.caller)
    again, is_new = await service.add(mine, NewMemory(text="I live in Aiur"))
    assert is_new
    assert again.id != gone.id
    await service.supersede(mine, other.id, NewMemory(text="I drink tea"))
    await retention.purge(db, retention.RetentionPolicy(idle=timedelta(days=30)))
    async with db.driver() as driver:
        listed = await memories.page(driver, mine.owner_id, ["user"], before=None, limit=10)
    assert sorted(texts_of(listed)) == ["I drink tea", "I live in Aiur"]


async def test_a_correction_is_erased_with_what_it_has_corrected(db: Database) -> None:
    who, service = await person(db), MemoryService(db, None)
    mine = MemorySpace(scope="user", owner_id=who.id)
    first, second = await owned_thread(db, who), await owned_thread(db, who)
    old, _ = await service.add(mine, NewMemory(text="I live in Aiur", thread_id=first))
    await service.supersede(mine, old.id, NewMemory(text="I live in Shakuras", thread_id=second))
    await threads.remove(db, second, who.caller)
    exported = next(kind.query for kind in archive_rows.KINDS if kind.name == "memory")
    async with db.driver() as driver:
        assert await driver.fetch(exported, who.id) == [], "an export has nothing that waits for the purge"
    await retention.purge(db, retention.RetentionPolicy(idle=timedelta(days=30)))
    assert await rows(db) == 0, "nobody would see the old one, or could forget it"


async def test_deleting_the_account_deletes_its_memories_and_vectors(db: Database, service: MemoryService) -> None:
    who, other = await person(db), await user_space(db)
    await add(service, MemorySpace(scope="user", owner_id=who.id), "A dog", "A car")
    await add(service, other, "Another dog")
    await embed_all(service)
    await accounts.remove(db, who.caller)
    assert await rows(db) == 1
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == 1
    with pytest.raises(NotFound):
        await add(service, MemorySpace(scope="user", owner_id=who.id), "Too late")


async def test_forgetting_all_is_done_in_bounded_transactions(
    db: Database, service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories, "MAX_DELETED_ROWS", 3)
    space, other = await user_space(db), await user_space(db)
    await add(service, space, *(f"Number {number}" for number in range(7)))
    await add(service, other, "Kept")
    await memories.forget_all(db, space.owner_id, ("user",))
    assert await rows(db) == 1


async def test_vectors_are_stored_in_16_bits_and_searched_by_a_typed_vector(
    db: Database, service: MemoryService
) -> None:
    space = await user_space(db)
    await add(service, space, "A dog")
    await embed_all(service)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT pg_typeof(vector)::text FROM memory_vectors") == "halfvec"
        explain = f"EXPLAIN (VERBOSE) {search.HYBRID}"
        rows_of_plan = await driver.fetch(explain, [space.id], [1], [1.0], 0.1, 0.3, 8, [1, 0, 0, 0, 0], 1)
    assert "InitPlan" in "\n".join(row[0] for row in rows_of_plan if "inner_product(" in row[0])


def test_equal_texts_have_equal_fingerprints() -> None:
    assert fingerprint("I live in Aiur.") == fingerprint("i live  in AIUR")
    assert fingerprint("I live in Aiur.") != fingerprint("I live in Aiur?")
    assert len(fingerprint("x")) == 16


async def test_an_unknown_memory_is_not_found(db: Database) -> None:
    async with db.driver() as driver:
        with pytest.raises(NotFound):
            await memories.find(driver, ids.new())
