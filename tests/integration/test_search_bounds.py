"""The work of a search among memories is bounded, for any question, any number of memories and any number of agents.

Work is counted in buffers (pages that Postgres reads), and in plans: never in time.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from khala.domain import ids, search_terms
from khala.domain.memories import MemorySpace, fingerprint
from khala.domain.vectors import unit_vector
from khala.store.memories import memories, search, vectors
from khala.store.memories.search import MemoryQuery
from khala.store.postgres.database import Database, Driver
from tests.support import postgres
from tests.support.callers import person

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL, LARGE = 100, 20_000
WORDS = 2_000
DIMENSIONS = 5
LONG = " ".join(f"word{number}" for number in range(20_000))[:100_000]
UNKNOWN = " ".join(f"zealot{number}x" for number in range(5_000))
FREQUENT = "common common2 common3"


class Owner(msgspec.Struct, frozen=True):
    """A space with memories, and the spaces of a hundred agents without any."""

    space: MemorySpace

    @property
    def spaces(self) -> list[MemorySpace]:
        of_agents = [
            MemorySpace(scope="agent", owner_id=self.space.owner_id, agent=f"a{number}")
            for number in range(memories.MAX_AGENTS)
        ]
        return [self.space, *of_agents]


class Explainer:
    """A driver that executes generic plans, and records the arguments and the buffers of the last statement."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.arguments: tuple[Any, ...] = ()
        self.buffers = 0

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        await self._driver.execute("SET plan_cache_mode = force_generic_plan")
        found = await self._driver.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *arguments)
        await self._driver.execute("RESET plan_cache_mode")
        top = json.loads(found)[0]["Plan"]
        self.arguments, self.buffers = arguments, top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        return []


async def fill(driver: Driver, owner: Owner, count: int) -> None:
    """Store memories with vectors. Each has words of most memories, and two that few others have."""
    space, columns = owner.space, ["id", "owner_id", "space_id", "scope", "kind", "text", "fingerprint", "terms"]
    texts = [f"{FREQUENT} word{number % WORDS} word{number * 7 % WORDS} {number}" for number in range(count)]
    rows = [
        (
            ids.new(), space.owner_id, space.id, "user", "fact", text, fingerprint(text),
            search_terms.term_keys(space.id, search_terms.terms(text)),
        )
        for text in texts
    ]  # fmt: skip
    await driver.copy_records_to_table("memories", records=rows, columns=columns)
    await driver.execute(
        "INSERT INTO memory_vectors SELECT space_id, 1, id, '[1,0,0,0,0]' FROM memories WHERE space_id = $1", space.id
    )
    await driver.execute("INSERT INTO vector_spaces VALUES ($1, 1)", space.id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(postgres_url: str, template: str) -> AsyncIterator[tuple[Database, Owner, Owner]]:
    """A database with an owner of few memories and one of many."""
    async with postgres.database(postgres_url, template) as url:
        db = Database(url, pool_size=2)
        await vectors.create_tables(db)
        await vectors.generation_of(db, "near", DIMENSIONS)
        small, large = [Owner(MemorySpace(scope="user", owner_id=(await person(db)).id)) for _ in range(2)]
        async with db.driver() as driver:
            await fill(driver, small, SMALL)
            await fill(driver, large, LARGE)
            await driver.execute("VACUUM ANALYZE memories, memory_vectors")
        yield db, small, large
        await db.close()


def asked(text: str, *, by_meaning: bool = False) -> MemoryQuery:
    vector = unit_vector([1.0, *[0.0] * (DIMENSIONS - 1)])
    return MemoryQuery(text=text, vector=vector, generation=1) if by_meaning else MemoryQuery(text=text)


async def buffers(driver: Driver, spaces: list[MemorySpace], query: MemoryQuery) -> int:
    explainer: Any = Explainer(driver)
    await search.search(explainer, spaces, query, limit=8)
    return int(explainer.buffers)


async def test_few_terms_of_a_question_count_however_long_it_is_and_however_many_agents_there_are(
    filled: tuple[Database, Owner, Owner],
) -> None:
    db, _, large = filled
    async with db.driver() as driver:
        explainer: Any = Explainer(driver)
        for spaces, most in (([large.space], search_terms.MAX_TERMS), (large.spaces, search.MAX_KEYS)):
            for text in (LONG, UNKNOWN):
                await search.search(explainer, spaces, asked(text), limit=8)
                assert most * 0.9 < len(explainer.arguments[1]) <= most
        at_the_end = " " * search.MAX_TEXT_CHARACTERS + "nexus"
        await search.search(explainer, [large.space], asked(at_the_end), limit=8)
        assert explainer.arguments[1] == [], "it is behind what is looked at"


async def test_a_search_by_words_reads_a_bounded_number_of_pages_for_any_question(
    filled: tuple[Database, Owner, Owner],
) -> None:
    db, small, large = filled
    async with db.driver() as driver:
        for owner in (small, large):
            assert await buffers(driver, [owner.space], asked("the word7 that is common")) < 1_000
            assert await buffers(driver, [owner.space], asked(FREQUENT)) < 1_000
            # A look at the index takes some pages, and each memory that is counted may be on another one.
            most = search_terms.MAX_TERMS * (search.MAX_FREQUENCY + 8)
            for text in (LONG, UNKNOWN):
                assert await buffers(driver, [owner.space], asked(text)) < most
                assert await buffers(driver, owner.spaces, asked(text)) < most


async def test_a_search_by_meaning_reads_little_more_than_the_vectors_of_its_space(
    filled: tuple[Database, Owner, Owner],
) -> None:
    db, small, large = filled
    async with db.driver() as driver:
        pages = await driver.fetchval("SELECT pg_relation_size('memory_vectors') / 8192")
        found = [
            await buffers(driver, [owner.space], asked("word7", by_meaning=True))
            - await buffers(driver, [owner.space], asked("word7"))
            for owner in (small, large)
        ]
    assert found[0] < 400, "it does not read those of another owner"
    assert found[1] < 1.3 * pages + 400


async def test_the_agents_of_an_owner_are_found_without_reading_the_memories(
    filled: tuple[Database, Owner, Owner],
) -> None:
    db, _, large = filled
    async with db.driver() as driver:
        explainer: Any = Explainer(driver)
        await memories.agents_of(explainer, large.space.owner_id)
        assert explainer.buffers <= 5
        changes = driver.transaction()
        await changes.start()
        give = "UPDATE memories SET agent = {} WHERE owner_id = $1 AND text LIKE '%5_'"
        await driver.execute(give.format("'a' || right(text, 1)"), large.space.owner_id)
        assert await memories.agents_of(driver, large.space.owner_id) == [f"a{number}" for number in range(10)]
        await driver.execute(give.format("id::text"), large.space.owner_id)
        assert len(await memories.agents_of(driver, large.space.owner_id)) == memories.MAX_AGENTS
        await memories.agents_of(explainer, large.space.owner_id)
        assert explainer.buffers <= 10 * memories.MAX_AGENTS
        await changes.rollback()
        await driver.execute("VACUUM memories")


async def test_the_plans_of_a_recall_are_kept(filled: tuple[Database, Owner, Owner]) -> None:
    db, _, large = filled
    statements = (search.LEXICAL, search.HYBRID, search.EARLIER, search.USED, memories.CURRENT, memories.AGENTS)
    async with db.driver() as driver:
        for number in range(12):
            text = " ".join(f"word{number * 10 + place}" for place in range(1 + number % 7))
            await search.search(driver, [large.space], asked(text), limit=8)
            found = await search.search(driver, [large.space], asked(text, by_meaning=True), limit=1 + number % 7)
            await search.with_history(driver, [large.space], found, limit=8)
            await search.mark_used(driver, [memory.id for memory in found])
            await memories.current_versions(driver, [memory.id for memory in found])
            await memories.agents_of(driver, large.space.owner_id)
        query = "SELECT statement, generic_plans FROM pg_prepared_statements WHERE statement = ANY ($1::text[])"
        kept = {row["statement"]: row["generic_plans"] for row in await driver.fetch(query, list(statements))}
    assert {statement: kept[statement] >= 6 for statement in statements} == dict.fromkeys(statements, True)
