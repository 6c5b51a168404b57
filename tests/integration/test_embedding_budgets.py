"""Embeddings count against budgets and have receipts: of requests, searches, routing, and in the background."""

import asyncio
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio

from khala.domain.agents import AgentDefinition
from khala.domain.budgets import BudgetLimit, BudgetPolicy, BudgetScope
from khala.domain.memories import MemorySpace, NewMemory
from khala.domain.routing import RouteDecision
from khala.memory import embedding_meter
from khala.memory.agent_router import BUILT_IN, AgentRouter
from khala.memory.memory_service import MemoryService
from khala.models.embeddings import embedding_names
from khala.models.embeddings.embedding_names import EmbeddingRef
from khala.models.embeddings.factory import open_embedder
from khala.models.provider_registry import ProviderAccess
from khala.store.agents import agents
from khala.store.budgets import charges, payers
from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.embeddings_server import EmbeddingReply, EmbeddingServer, serving_embeddings
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared
from tests.support.store import new_thread

MODEL = "openai:text-embedding-3-small"
TOKEN_USD = Decimal("0.00000002")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embeddings() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings([("dog", "puppy")]) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str, embeddings: EmbeddingServer) -> AsyncIterator[InProcessServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_meter, "RECORD_SECONDS", 0.02)
        async with shared(
            postgres_url,
            template,
            with_executor=False,
            KHALA_EMBEDDINGS=MODEL,
            KHALA_EMBEDDINGS_URL=embeddings.url,
            KHALA_USER_TOKENS_PER_DAY="100",
            KHALA_USER_TOTAL_USD_PER_DAY="1",
        ) as inside:
            yield inside


def limited(scope: BudgetScope, tokens: int) -> BudgetPolicy:
    return BudgetPolicy(limits=(BudgetLimit(scope=scope, measure="tokens", most=Decimal(tokens)),))


@pytest.fixture
async def near() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings([("dog", "puppy")]) as server:
        yield server


@pytest.fixture
async def service(db: Database, near: EmbeddingServer) -> AsyncIterator[MemoryService]:
    """A service with 20 tokens for each user."""
    ref = embedding_names.parse(MODEL)
    assert ref is not None
    embedder = open_embedder(ref, ProviderAccess(url=near.url))
    service = MemoryService(db, embedder, limited("user", 20))
    await service.prepare()
    yield service
    await embedder.aclose()


async def rows(db: Database, query: str, *values: Any) -> list[Any]:
    async with db.driver() as driver:
        return list(await driver.fetch(query, *values))


async def receipts(db: Database, user_id: UUID) -> list[Any]:
    return await rows(db, "SELECT * FROM usage_receipts WHERE user_id = $1 ORDER BY id", user_id)


async def settled(db: Database, user_id: UUID) -> int:
    """The tokens that count against the user's budget; nothing stays reserved."""
    query = "SELECT reserved, settled FROM budgets WHERE scope = 'user' AND key = $1 AND measure = 'tokens'"
    found = await rows(db, query, user_id.bytes)
    assert all(row["reserved"] == 0 for row in found)
    return int(sum(row["settled"] for row in found))


async def spend(db: Database, user_id: UUID, tokens: int) -> None:
    payer, amounts = payers.of_user(user_id), {"tokens": Decimal(tokens)}
    await charges.add(db, limited("user", 20), payer, "embedding", amounts, {}, None)  # type: ignore[arg-type]


async def space_of_user(db: Database) -> MemorySpace:
    return MemorySpace(scope="user", owner_id=(await person(db)).id)


async def embed_all(service: MemoryService) -> None:
    while await service.embed_some():
        continue


async def found(service: MemoryService, space: MemorySpace, text: str) -> list[str]:
    return [memory.text for memory in await service.search([space], text, limit=9)]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_for_other_dimensions_is_refused_before_it_costs_anything(
    server: InProcessServer, store: Database, embeddings: EmbeddingServer
) -> None:
    who = await person(store)
    body = {"model": "khala", "input": "a dog that nobody embeds", "dimensions": 7}
    for _ in range(2):
        refused = await server.http.post("/v1/embeddings", json=body, headers=who.headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")
    assert "a dog that nobody embeds" not in embeddings.texts
    assert (await settled(store, who.id), await receipts(store, who.id)) == (0, [])
    fitting = await server.http.post("/v1/embeddings", json=body | {"dimensions": 2}, headers=who.headers)
    assert fitting.status_code == 200
    assert len(await receipts(store, who.id)) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_counts_by_its_usage_and_is_refused_over_the_limit(
    server: InProcessServer, store: Database, embeddings: EmbeddingServer
) -> None:
    who = await person(store)

    async def embed(text: str) -> Any:
        return await server.http.post("/v1/embeddings", json={"model": "khala", "input": text}, headers=who.headers)

    async def used() -> Decimal:
        usage = (await server.http.get("/api/me/usage", headers=who.headers)).raise_for_status().json()["items"]
        return next(Decimal(entry["used"]) for entry in usage if entry["measure"] == "tokens")

    assert (await embed("a dog " * 30)).status_code == 200
    assert await used() == 60, "what the server reported, and not the estimate"
    (receipt,) = await receipts(store, who.id)
    assert (receipt["purpose"], receipt["cost_usd"]) == ("embedding", 60 * TOKEN_USD)
    called = len(embeddings.requests)
    refused = await embed("a dog " * 30)
    assert (refused.status_code, len(embeddings.requests)) == (429, called)
    error = refused.json()["error"]
    assert (error.pop("limit"), error.pop("scope"), error.pop("most")) == ("tokens_per_day", "account", "100")
    assert error.pop("retryAfter") > 0
    assert error == {
        "message": "The budget of this account is used up for now.",
        "type": "rate_limit_error",
        "code": "budget_exhausted",
        "param": None,
    }
    assert int(refused.headers["retry-after"]) > 0
    embeddings.default = EmbeddingReply(status=400)
    assert (await embed("a dog")).status_code == 502
    embeddings.default = EmbeddingReply()
    assert await used() == 60, "a failed call costs nothing"
    assert [row["cost_usd"] for row in await receipts(store, who.id)] == [60 * TOKEN_USD, 0]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_choice_of_an_agent_counts_for_the_person_or_the_guests_thread(
    server: InProcessServer, store: Database
) -> None:
    who, thread = await person(store), await server.thread()

    async def preview(headers: dict[str, str], text: str, **more: str) -> str:
        answer = await server.http.post("/api/route", json={"text": text, **more}, headers=headers)
        return str(answer.raise_for_status().json()["by"])

    async def counted(query: str, of: UUID) -> int:
        while not (found := await rows(store, query, of)):
            await asyncio.sleep(0.02)
        return sum(msgspec.json.decode(row["data"])["usage"]["inputTokens"] for row in found)

    async with asyncio.timeout(20):
        while await preview(who.headers, "a dog to route") != "meaning":
            await asyncio.sleep(0.02)
        assert await counted("SELECT data FROM usage_receipts WHERE user_id = $1", who.id) == 4
        sent = await thread.send("a small dog to route", options={"agent": "auto"})
        assert await counted("SELECT data FROM usage_receipts WHERE thread_id = $1", UUID(thread.id)) == 5
    assert await preview(thread.headers, "a small dog to route", threadId=thread.id) == "meaning"
    options = await rows(store, "SELECT options FROM runs WHERE id = $1", UUID(sent["runId"]))
    assert msgspec.json.decode(options[0]["options"])["route"]["by"] == "meaning"
    rest = {"model": "khala", "input": "a dog " * 48}
    (await server.http.post("/v1/embeddings", json=rest, headers=who.headers)).raise_for_status()
    assert await preview(who.headers, "another dog to route") == "words"
    assert await preview(who.headers, "a dog to route") == "meaning", "a known vector costs nothing"


async def test_an_agent_counts_once_for_its_owner_and_without_budget_words_route(
    db: Database, service: MemoryService, near: EmbeddingServer
) -> None:
    owner = (await person(db)).id

    async def own(name: str, example: str) -> None:
        definition = AgentDefinition(title=name, description="", instructions="", tools=["*"], examples=[example])
        await agents.create(db, owner, name, definition)

    async def route(router: AgentRouter, task: str) -> RouteDecision:
        async with db.driver() as driver:
            return await router.route(owner, task, [*BUILT_IN, *await agents.routable(driver, owner)])

    router, of_other_process = (AgentRouter(db, service.embedder, service) for _ in range(2))
    await router.prepare()
    await own("kennel", "Walk the dog")
    assert (await route(router, "a puppy")).by == "words", "the vectors are missing"
    assert near.texts == [], "and a vector of the task would be of no use"
    await router.embed_missing()
    await service.meter.record()
    assert await settled(db, owner) == 4, "the agent, and not those of the server"
    for _ in range(2):
        assert (await route(router, "a puppy")).by == "meaning"
    await route(of_other_process, "a puppy")
    await of_other_process.embed_missing()
    assert (await route(of_other_process, "a puppy")).by == "meaning"
    await service.meter.record()
    assert await settled(db, owner) == 4 + 2, "the task once, and the agent not again"
    await own("stable", "Feed the pony, and give it enough of its water on each day of the summer")
    await route(router, "a puppy")
    await router.embed_missing()
    assert "stable\n" not in near.texts, "the rest of the budget does not allow it"
    await spend(db, owner, 20)
    called = len(near.requests)
    without = await route(router, "walk another dog")
    assert (without.agent, without.by, len(near.requests)) == ("kennel", "words", called)


async def test_searches_and_memories_count_for_their_owner(db: Database, service: MemoryService) -> None:
    mine = await space_of_user(db)
    thread_id = await new_thread(db)
    guests = MemorySpace(scope="user", owner_id=thread_id)
    await service.add(mine, NewMemory(text="Rex is a dog"))
    await service.add(guests, NewMemory(text="Ace is a dog"))
    await embed_all(service)
    for _ in range(2):
        assert await found(service, mine, "my old puppy") == ["Rex is a dog"]
    await service.aclose()
    assert await settled(db, mine.owner_id) == 4 + 3, "the memory, and the search that called the model"
    (receipt,) = await receipts(db, mine.owner_id)
    assert receipt["cost_usd"] == 7 * TOKEN_USD
    assert len(await rows(db, "SELECT FROM usage_receipts WHERE thread_id = $1", thread_id)) == 1
    await service.aclose()
    assert len(await receipts(db, mine.owner_id)) == 1, "counted once"


async def test_a_search_without_budget_uses_words_and_calls_no_model(
    db: Database, service: MemoryService, near: EmbeddingServer
) -> None:
    mine, other = await space_of_user(db), await space_of_user(db)
    for space in (mine, other):
        await service.add(space, NewMemory(text="Rex is a dog"))
    await embed_all(service)
    await service.meter.record()
    await spend(db, mine.owner_id, 20)
    called = len(near.requests)
    assert await found(service, mine, "small puppy") == []
    assert await found(service, mine, "small dog") == ["Rex is a dog"]
    assert len(near.requests) == called
    assert await found(service, other, "small puppy") == ["Rex is a dog"]
    both = await service.search([other], "tiny puppy", limit=9, payer_id=mine.owner_id)
    assert both == [], "the payer decides, and not whose memories they are"


async def test_memories_of_an_owner_without_budget_wait_and_no_others(
    db: Database, service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = await space_of_user(db), await space_of_user(db)
    await spend(db, mine.owner_id, 15)
    await service.add(mine, NewMemory(text="Rex is a dog, and an old one"))
    await service.add(other, NewMemory(text="Ace is a dog"))
    await embed_all(service)
    assert await found(service, other, "my puppy") == ["Ace is a dog"]
    waiting = "SELECT owner_id FROM memories WHERE generation = 0"
    assert [row["owner_id"] for row in await rows(db, waiting)] == [mine.owner_id]
    await service.meter.record()
    assert await settled(db, mine.owner_id) == 15
    async with db.driver() as driver:
        await driver.execute("UPDATE budgets SET settled = 0")
    await embed_all(service)
    clock = time.monotonic
    assert len(await rows(db, waiting)) == 1, "until the pause is over"
    monkeypatch.setattr("time.monotonic", lambda: clock() + 400)
    await embed_all(service)
    assert await rows(db, waiting) == []


async def test_the_memories_that_fit_into_the_rest_of_a_budget_are_embedded(
    db: Database, service: MemoryService
) -> None:
    mine = await space_of_user(db)
    for number in range(4):
        await service.add(mine, NewMemory(text=f"Dog {number} is a small one of ours"))  # 7 tokens by the estimate
    await embed_all(service)
    assert len(await rows(db, "SELECT FROM memories WHERE generation > 0")) == 2


async def test_a_failed_call_in_the_background_costs_nothing(
    db: Database, service: MemoryService, near: EmbeddingServer
) -> None:
    mine = await space_of_user(db)
    await service.add(mine, NewMemory(text="Rex is a dog"))
    near.default = EmbeddingReply(status=401)
    with pytest.raises(Exception, match="rejected the API key"):
        await service.embed_some()
    assert await found(service, mine, "puppy") == []
    near.default = EmbeddingReply()
    await service.meter.record()
    assert (await settled(db, mine.owner_id), await receipts(db, mine.owner_id)) == (0, [])


@pytest.mark.parametrize("own", [True, False], ids=["of one account", "of a plan"])
async def test_limits_hold_where_none_are_for_all_accounts(db: Database, near: EmbeddingServer, *, own: bool) -> None:
    few = BudgetLimit(scope="user", measure="tokens", most=Decimal(5))
    policy = BudgetPolicy() if own else BudgetPolicy(plans={"small": (few,)}, default_plan="small")
    mine = await space_of_user(db)
    if own:
        await rows(db, """UPDATE users SET budget_limits = '{"tokensPerDay": "5"}' WHERE id = $1""", mine.owner_id)
    embedder = open_embedder(EmbeddingRef(provider="openai", name="near"), ProviderAccess(url=near.url))
    service = MemoryService(db, embedder, policy)
    await service.prepare()
    assert await service.meter.allows(mine.owner_id, "a dog")
    assert not await service.meter.allows(mine.owner_id, "a dog that is too long for it")
    await embedder.aclose()


async def test_a_search_waits_for_no_lock_of_a_budget(db: Database, service: MemoryService) -> None:
    mine = await space_of_user(db)
    await service.add(mine, NewMemory(text="Rex is a dog"))
    await embed_all(service)
    await service.meter.record()
    async with db.driver() as driver, driver.transaction():
        assert await driver.fetch("SELECT FROM budgets FOR UPDATE")
        assert await found(service, mine, "a quick puppy") == ["Rex is a dog"]


async def test_a_shared_limit_counts_what_costs_nothing_and_what_ended(db: Database) -> None:
    who: Person = await person(db)
    payer, usd = payers.of_user(who.id), BudgetLimit(scope="accounts", measure="usd", most=Decimal(1))
    policy = BudgetPolicy(limits=(usd,))
    charge = await charges.begin(db, policy, payer, "embedding", {"usd": Decimal(0)})
    await charges.end(db, charge, {"usd": Decimal(0)}, {}, None)
    for _ in range(2):
        await charges.add(db, policy, payer, "embedding", {"usd": Decimal("0.4")}, {}, Decimal("0.4"))
    async with db.driver() as driver:
        left = await charges.remainder(driver, policy, payer, ["usd", "tokens"])
    assert left == {"usd": Decimal("0.2")}
