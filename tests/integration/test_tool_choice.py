"""The choice of tools by meaning: once all have vectors, without a wait for slow servers, and within budgets."""

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from khala.domain.budgets import BudgetLimit, BudgetPolicy
from khala.domain.errors import Unavailable
from khala.domain.tool_relevance import matching_tools, relevant_tools
from khala.domain.tools import ToolSpec
from khala.domain.vectors import Vector
from khala.memory import memory_service, tool_router
from khala.memory.agent_router import AgentRouter
from khala.memory.memory_service import MemoryService
from khala.memory.tool_router import ToolRouter
from khala.models.embeddings.embedder import Embedder
from khala.store.memories.search import MemoryQuery
from khala.store.postgres.database import Database
from tests.integration.test_memories import opened
from tests.integration.test_routing import CONCEPTS
from tests.support.callers import person
from tests.support.embeddings_server import EmbeddingReply, EmbeddingServer, serving_embeddings

TEXT = "The puppy is hungry"
TOKENS = 60


def tool(name: str, description: str, source: str = "zoo") -> ToolSpec:
    return ToolSpec(name=name, description=description, parameters={"type": "object"}, source=source)


CAR, DOG = tool("zoo__repair", "Repairs a car"), tool("zoo__feed", "Gives food to a dog")


@dataclass(frozen=True)
class Chooser:
    """A tool router with its services, and a user who has 60 tokens."""

    memories: MemoryService
    agents: AgentRouter
    tools: ToolRouter
    payer_id: UUID

    async def chosen(self, *specs: ToolSpec, text: str = TEXT) -> tuple[str, list[str]]:
        """Whether words or the meaning chose, and the tools, the best first."""
        meaning = await self.tools.of_run(self.payer_id)(text, specs)
        found = relevant_tools(text, specs, limit=1, meaning=meaning)
        return "words" if meaning is None else "meaning", [spec.name for spec in found]

    async def embed(self) -> None:
        await self.tools.embed_missing()
        await self.agents.embed_missing()


async def chooser(db: Database, embedder: Embedder) -> Chooser:
    policy = BudgetPolicy(limits=(BudgetLimit(scope="user", measure="tokens", most=Decimal(TOKENS)),))
    memories = MemoryService(db, embedder, policy)
    await memories.prepare()
    agents = AgentRouter(db, embedder, memories)
    await agents.prepare()
    return Chooser(memories, agents, ToolRouter(embedder, memories, agents), (await person(db)).id)


@pytest.fixture(autouse=True)
def long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests is no slow embedding server."""
    monkeypatch.setattr(tool_router, "WAIT_SECONDS", 30.0)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    async with serving_embeddings(CONCEPTS) as inside:
        yield inside


@pytest.fixture
async def embedder(server: EmbeddingServer) -> AsyncIterator[Embedder]:
    inside = opened(server)
    yield inside
    await inside.aclose()


async def receipts(db: Database, user_id: UUID) -> int:
    async with db.driver() as driver:
        found = await driver.fetchval("SELECT count(*) FROM usage_receipts WHERE user_id = $1", user_id)
        return int(found)


async def test_meaning_finds_a_tool_that_shares_no_words_and_each_text_is_embedded_once(
    db: Database, server: EmbeddingServer, embedder: Embedder
) -> None:
    who = await chooser(db, embedder)
    assert await who.chosen(CAR, DOG) == ("words", [CAR.name]), "the vectors are missing"
    assert server.texts == [], "nothing is embedded while a run waits"
    await who.embed()
    assert await who.chosen(CAR, DOG) == ("meaning", [DOG.name])
    meaning = await who.tools.of_run(who.payer_id)(TEXT, [CAR, DOG])
    assert matching_tools(TEXT, [CAR, DOG], 8, meaning) == [DOG], "a tool that is far and shares no word is not found"
    renamed = tool("zoo__feed", "Brings water to a dog")
    assert await who.chosen(CAR, renamed) == ("words", [CAR.name]), "a new description has no vector yet"
    await who.embed()
    assert await who.chosen(CAR, renamed) == ("meaning", [renamed.name])
    assert sorted(text for text in server.texts if text.startswith("zoo")) == [
        "zoo feed\nBrings water to a dog",
        "zoo feed\nGives food to a dog",
        "zoo repair\nRepairs a car",
    ]
    assert server.texts.count(TEXT) == 1


async def test_the_steps_of_a_run_compare_its_text_once_with_each_tool(
    db: Database, server: EmbeddingServer, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await chooser(db, embedder)
    await who.chosen(CAR, DOG)
    await who.embed()
    compared: list[bytes] = []
    compare = tool_router._closenesses

    def counted(vector: Vector, tools: Mapping[bytes, Vector]) -> dict[bytes, float]:
        compared.extend(tools)
        return compare(vector, tools)

    monkeypatch.setattr(tool_router, "_closenesses", counted)
    meanings, other = who.tools.of_run(who.payer_id), who.tools.of_run(who.payer_id)
    first = await meanings(TEXT, [DOG])
    embedder.forget_queries()
    server.default = EmbeddingReply(status=500)
    both = await meanings(TEXT, [CAR, DOG])
    assert first is not None
    assert both is not None
    assert both.closenesses.items() > first.closenesses.items()
    assert await meanings(TEXT, [CAR, DOG]) == both
    assert len(compared) == 2
    assert await other(TEXT, [CAR, DOG]) is None, "another run has its own text"


async def test_words_choose_without_a_wait_while_the_embedding_server_is_slow_or_away(
    db: Database, server: EmbeddingServer, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await chooser(db, embedder)
    await who.chosen(CAR, DOG)
    await who.embed()
    monkeypatch.setattr(tool_router, "WAIT_SECONDS", 1.0)
    server.default = EmbeddingReply(seconds=30)
    began, before = time.monotonic(), len(server.requests)
    assert (await who.chosen(CAR, DOG))[0] == "words"
    asked = len(server.requests)
    assert asked > before
    for number in range(20):
        assert (await who.chosen(CAR, DOG, text=f"Puppy {number}"))[0] == "words"
    assert len(server.requests) == asked, "after one wait, the others do not wait"
    assert time.monotonic() - began < 10
    monkeypatch.setattr(tool_router, "WAIT_SECONDS", 30.0)
    server.default = EmbeddingReply(status=500)
    who.tools._paused_until = 0
    assert (await who.chosen(CAR, DOG))[0] == "words"
    server.default = EmbeddingReply()
    embedder._paused_until = 0
    assert await who.chosen(CAR, DOG) == ("meaning", [DOG.name])
    server.default = EmbeddingReply(status=500)
    assert (await who.chosen(CAR, DOG))[0] == "meaning", "the vector of this text is known"


async def test_words_choose_while_the_database_is_out_of_reach(
    db: Database, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await chooser(db, embedder)
    await who.chosen(CAR, DOG)
    await who.embed()

    async def fail(*_: Any) -> MemoryQuery:
        raise Unavailable("The database is out of reach.")

    with monkeypatch.context() as patch:
        patch.setattr(who.memories, "query", fail)
        assert (await who.chosen(CAR, DOG))[0] == "words"
    assert (await who.chosen(CAR, DOG))[0] == "meaning"


async def test_tools_of_users_count_against_their_budgets_and_those_of_the_server_against_none(
    db: Database, server: EmbeddingServer, embedder: Embedder
) -> None:
    who = await chooser(db, embedder)
    await who.chosen(CAR, DOG)
    await who.embed()
    await who.memories.meter.record()
    assert await receipts(db, who.payer_id) == 0
    own = tool("feed", "Gives food to a dog", "user")
    await who.chosen(CAR, own)
    await who.embed()
    await who.memories.meter.record()
    assert await receipts(db, who.payer_id) == 1
    assert await who.chosen(CAR, own) == ("meaning", ["feed"])
    await who.memories.meter.record()
    assert await receipts(db, who.payer_id) == 2, "the vector of the run's text"
    long = tool("long", "A dog. " * 100, "user")
    await who.chosen(CAR, long)
    await who.embed()
    assert (await who.chosen(CAR, long))[0] == "words", "the budget does not allow its vector"
    assert not any(text.startswith("long") for text in server.texts)


async def test_vectors_of_two_models_are_not_compared(
    db: Database, server: EmbeddingServer, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await chooser(db, embedder)
    await who.memories.embed_some()
    await who.chosen(CAR, DOG)
    await who.embed()
    assert (await who.chosen(CAR, DOG))[0] == "meaning"
    server.default = EmbeddingReply(change=lambda found: [one[::-1] for one in found])
    monkeypatch.setattr(memory_service, "CANARY_SECONDS", 0.0)
    await who.memories.embed_some()
    assert (await who.chosen(CAR, DOG))[0] == "words"
    await who.embed()
    await who.chosen(CAR, DOG)
    await who.embed()
    assert await who.chosen(CAR, DOG) == ("meaning", [DOG.name])


async def test_more_tools_than_are_kept_are_chosen_by_words_and_old_vectors_make_room(
    db: Database, server: EmbeddingServer, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await chooser(db, embedder)
    monkeypatch.setattr(tool_router, "MAX_CACHED_TOOLS", 2)
    await who.chosen(CAR, DOG, tool("more", "More"))
    await who.embed()
    assert not any(text.startswith("zoo") for text in server.texts)
    for specs in ((CAR, DOG), (CAR, tool("more", "More")), (CAR, DOG)):
        assert (await who.chosen(*specs))[0] == "words"
        await who.embed()
        assert (await who.chosen(*specs))[0] == "meaning"
