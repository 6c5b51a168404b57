"""Khala's own search among memories, on a new database."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from khala.domain import ids
from khala.domain.memories import MAX_KEYWORDS_CHARACTERS, MAX_TEXT_CHARACTERS, MemorySpace, NewMemory
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.store.postgres import migrations
from khala.store.postgres.database import Database, driver_url
from tests.bench import counters, machine
from tests.eval.eval_sets import MemoryItem
from tests.eval.retrievers import MemoryRetriever, Ranking
from tests.support import postgres
from tests.support.callers import person


class KhalaMemories:
    """Stores each collection as the memories of a new user, in the order of their dates, and searches among them.

    An item that supersedes another one corrects it, as a person's correction does. Texts are cut to Khala's limits.
    """

    floor: float | None = 0.0
    """Khala abstains by itself, with an empty answer. With a model, its scores are ranks."""

    def __init__(
        self,
        name: str,
        db: Database,
        service: MemoryService,
        *,
        keywords: bool = False,
        history: bool = False,
        postmaster: int | None = None,
    ) -> None:
        self.name = name
        self._db = db
        self._service = service
        self._keywords = keywords
        self._history = history
        self._postmaster = postmaster
        self._space: MemorySpace | None = None
        self._names: dict[UUID, list[str]] = {}

    async def index(self, memories: Sequence[MemoryItem]) -> None:
        """Store the memories of a new user, and embed them if there is a model."""
        self._space = space = MemorySpace(scope="user", owner_id=(await person(self._db)).id)
        names: defaultdict[UUID, list[str]] = defaultdict(list)
        stored: dict[str, UUID] = {}
        for one in sorted(memories, key=lambda item: item.at):
            new = self._new_memory(one)
            if one.supersedes is None:
                memory, _ = await self._service.add(space, new)
            else:
                memory = await self._service.supersede(space, stored[one.supersedes], new)
            stored[one.id] = memory.id
            names[memory.id].append(one.id)
        while self._service.by_meaning and await self._service.embed_some():
            continue
        self._names = names

    async def search(self, question: str, limit: int) -> Ranking:
        """The memories that Khala finds. Items with the same text are one memory; all their ids are returned."""
        assert self._space is not None
        found = await self._service.search([self._space], question, limit=limit, history=self._history)
        return [(name, memory.score or 0.0) for memory in found for name in self._names[memory.id]][:limit]

    def cpu_seconds(self) -> float:
        """CPU time of this process and of Postgres, if that runs on this machine."""
        of_postgres = 0.0 if self._postmaster is None else counters.cluster_seconds(self._postmaster)
        return of_postgres + time.process_time()

    def _new_memory(self, item: MemoryItem) -> NewMemory:
        keywords = item.keywords[:MAX_KEYWORDS_CHARACTERS] if self._keywords and item.keywords else None
        return NewMemory(text=item.text[:MAX_TEXT_CHARACTERS], kind=item.kind, keywords=keywords)


@asynccontextmanager
async def khala_memories(
    server_url: str, embedder: Embedder | None, *, keywords: bool = True
) -> AsyncIterator[tuple[list[MemoryRetriever], dict[str, str]]]:
    """Khala's search by words, and by words and meaning if there is a model; and facts about the machine.

    The database is new, and is dropped at the end.
    """
    name = f"khala_eval_{ids.new().hex}"
    await postgres.execute(server_url, f'CREATE DATABASE "{name}"')
    url = postgres.named(server_url, name)
    try:
        await migrations.upgrade(url)
        connection = await asyncpg.connect(driver_url(url))
        try:
            facts, postmaster = await machine.facts(connection), await counters.postmaster(connection)
        finally:
            await connection.close()
        db = Database(url)
        try:
            yield await _retrievers(db, embedder, postmaster, keywords=keywords), facts
        finally:
            await db.close()
    finally:
        await postgres.execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def _retrievers(
    db: Database, embedder: Embedder | None, postmaster: int | None, *, keywords: bool
) -> list[MemoryRetriever]:
    services = {"khala-lexical": MemoryService(db, None)}
    if embedder is not None:
        hybrid = MemoryService(db, embedder)
        await hybrid.prepare()
        if hybrid.by_meaning:
            services["khala-hybrid"] = hybrid
    found: list[MemoryRetriever] = []
    for name, service in services.items():
        found.append(KhalaMemories(name, db, service, postmaster=postmaster))
        if keywords:
            found += [
                KhalaMemories(f"{name}+keywords", db, service, keywords=True, postmaster=postmaster),
                KhalaMemories(
                    f"{name}+keywords+history", db, service, keywords=True, history=True, postmaster=postmaster
                ),
            ]
    return found
