"""Benchmark of routing: `python -m tests.bench.routing`. Prints a table; `--json` also writes it as JSON.

One account has 200 agents with five texts each. Measured are the preview of a task over HTTP, the router without HTTP
by words and by meaning, and the bare scan of the agents' vectors, one after the other for each task. Times are the
medians in milliseconds. The embedding model answers at once, so the figures are without its time.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.routing import RoutableAgent
from khala.memory.agent_router import BUILT_IN, AgentRouter
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.store.agents import agent_vectors, agents
from khala.store.postgres.database import Database
from tests.bench import machine
from tests.bench.memory import DIMENSIONS, FixedModel, random_text
from tests.support import postgres
from tests.support.account_with_data import account, user_id
from tests.support.in_process import khala

AGENTS = 200
"""More than an account may have, so the rows are inserted directly."""
EXAMPLES = 4
TASKS = 50
TARGET_MS = 20.0
INSERT = """
    INSERT INTO agents (id, user_id, name, version, title, description, instructions, tools, fallbacks, examples)
    VALUES ($1, $2, $3, 1, $4, $5, '', '{*}', '{}', $6)
"""

Work = Callable[[str], Awaitable[object]]


class RoutingCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in milliseconds, for so many agents."""

    machine: dict[str, str]
    agents: int
    preview_ms: float
    words_ms: float
    meaning_ms: float
    scan_ms: float


async def fill(db: Database, owner: UUID) -> None:
    """Store the agents."""
    source = random.Random(0)
    async with db.driver() as driver:
        for number in range(AGENTS):
            examples = [random_text(source) for _ in range(EXAMPLES)]
            await driver.execute(
                INSERT, ids.new(), owner, f"agent-{number}", f"Agent {number}", random_text(source), examples
            )


async def candidates(db: Database, owner: UUID) -> list[RoutableAgent]:
    """The agents that a task may be routed to, read as the server reads them."""
    async with db.driver() as driver:
        return [*BUILT_IN, *await agents.routable(driver, owner)]


async def medians_ms(works: list[Work], tasks: list[str]) -> list[float]:
    """The median time of each work over the tasks, measured in turns."""
    times: list[list[float]] = [[] for _ in works]
    for task in tasks:
        for work, taken in zip(works, times, strict=True):
            began = time.perf_counter()
            await work(task)
            taken.append((time.perf_counter() - began) * 1000)
    return [statistics.median(taken) for taken in times]


async def measure(url: str) -> RoutingCosts:
    """Measure everything in this database."""
    async with khala(url, with_executor=False) as server, account(server) as who:
        db = Database(url)
        owner = user_id(who)
        await fill(db, owner)
        embedder = Embedder(FixedModel())
        memories = MemoryService(db, embedder)
        await memories.prepare()
        by_words, by_meaning = AgentRouter(db, None, MemoryService(db, None)), AgentRouter(db, embedder, memories)
        await by_meaning.prepare()
        found = await candidates(db, owner)
        await by_meaning.route(owner, "warm", found)
        await by_meaning.embed_missing()
        generation = await memories.generation(DIMENSIONS)
        own = [agent.id for agent in found if agent.id is not None]

        async def preview(task: str) -> None:
            (await who.http.post("/api/route", json={"text": task})).raise_for_status()

        async def words(task: str) -> None:
            await by_words.route(owner, task, await candidates(db, owner))

        async def meaning(task: str) -> None:
            await by_meaning.route(owner, task, await candidates(db, owner))

        async def scan(task: str) -> None:
            query = await memories.query(task)
            assert query.vector is not None
            async with db.driver() as driver:
                await agent_vectors.similarities(driver, own, query.vector, generation)

        source = random.Random(1)
        tasks = [random_text(source) for _ in range(TASKS)]
        for task in tasks:  # The vectors of the tasks are cached from here on.
            await memories.query(task)
        taken = await medians_ms([preview, words, meaning, scan], tasks)
        await db.close()
    preview_ms, words_ms, meaning_ms, scan_ms = taken
    return RoutingCosts(
        machine=machine.host_facts(),
        agents=len(found),
        preview_ms=preview_ms,
        words_ms=words_ms,
        meaning_ms=meaning_ms,
        scan_ms=scan_ms,
    )


async def run(server_url: str) -> RoutingCosts:
    """Measure on a new database of this server."""
    name = await postgres.make_template(server_url)
    try:
        return await measure(postgres.named(server_url, name))
    finally:
        await postgres.execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')


def report(costs: RoutingCosts) -> str:
    """The table."""
    return (
        "agents  preview ms (≤ 20)  by words ms  by meaning ms  bare scan ms\n"
        f"{costs.agents:6}  {costs.preview_ms:17.2f}  {costs.words_ms:11.2f}  {costs.meaning_ms:13.2f}"
        f"  {costs.scan_ms:12.2f}"
    )


def main() -> None:
    """Measure and print. With `--targets`, exit with 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.routing", description=__doc__)
    parser.add_argument("--targets", action="store_true", help="exit with 1 if the target is missed")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to this file")
    arguments = parser.parse_args()
    with postgres.server() as url:
        costs = asyncio.run(run(url))
    print(report(costs))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(costs)))
    slowest = max(costs.preview_ms, costs.words_ms, costs.meaning_ms)
    sys.exit(1 if arguments.targets and slowest > TARGET_MS else 0)


if __name__ == "__main__":
    main()
