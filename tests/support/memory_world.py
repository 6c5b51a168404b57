"""A server with people, threads and memories, for laws over histories, and a model of what is stored in it."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec

from khala.domain.memories import MemorySpace
from khala.domain.vectors import unit_vector
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.port import EmbeddingResult, Purpose
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database
from tests.support.callers import Person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer

AGENT = "poet"
WORDS = ("aiur", "shakuras", "char")
"""Few, so that histories repeat and correct the same texts."""
POLICY = RetentionPolicy(idle=timedelta(days=30))
UNPURGED = f"""
    SELECT EXISTS (SELECT FROM threads WHERE {retention.UNPURGED}) OR EXISTS (SELECT FROM deleted_accounts)
"""

T = TypeVar("T")


class WordModel:
    """Embeds a text as the words that it has."""

    name = provider = model = "words"
    max_texts = 64

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        found = [unit_vector([0.1, *(float(one in text) for one in WORDS)]) for text in texts]
        return EmbeddingResult(vectors=tuple(found), tokens=len(texts))

    async def aclose(self) -> None:
        return None


class Remembered(msgspec.Struct, kw_only=True):
    """A memory that is in use. `space` is (scope, owner); `past` are the ids of those that it has superseded."""

    id: str
    text: str
    space: MemorySpace
    origin: str | None
    past: dict[str, str | None]
    """The origins of superseded memories, by id."""


class ThreadModel(msgspec.Struct, kw_only=True):
    """A thread. `owner` is None while it is a guest's."""

    thread: Thread
    owner: Person | None
    links: dict[str, dict[str, str]]
    """The headers of holders of a link, by link id."""
    personal: bool = False
    """Whether its owner has switched personal memories on."""

    @property
    def id(self) -> str:
        return self.thread.id

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the owner."""
        return self.thread.headers if self.owner is None else self.owner.headers


class MemoryWorld:
    """A server, and what is stored in it by one history."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    server: ClassVar[InProcessServer]
    db: ClassVar[Database]
    service: ClassVar[MemoryService]

    def __init__(self) -> None:
        super().__init__()
        self.people: list[Person] = []
        self.threads: list[ThreadModel] = []
        self.memories: list[Remembered] = []
        self.erased: set[str] = set()

    def open_thread(self, owner: Person | None) -> ThreadModel:
        made = self.call("POST", "/threads", {} if owner is None else owner.headers, {})[1]
        thread = Thread(self.server.http, made["thread"]["id"], made.get("anonKey", ""))
        self.threads.append(ThreadModel(thread=thread, owner=owner, links={}))
        return self.threads[-1]

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, verb: str, path: str, headers: dict[str, str], body: Any = None, **params: str | None) -> Any:
        """The status and the body of an answer."""
        given = {name: value for name, value in params.items() if value is not None}
        answer = self.wait(self.server.http.request(verb, f"/api{path}", headers=headers, json=body, params=given))
        assert answer.status_code < 500, answer.text
        return answer.status_code, answer.json() if answer.content else None

    def found(self, headers: dict[str, str], **params: str) -> set[str]:
        status, answer = self.call("GET", "/memories", headers, **params)
        assert status == 200, answer
        return {memory["id"] for memory in answer["items"]}

    def personal(self, owner: Person | ThreadModel, agent: str | None = None) -> MemorySpace:
        owner_id = owner.id if isinstance(owner, Person) else UUID(owner.id)
        return MemorySpace(scope="user" if agent is None else "agent", owner_id=owner_id, agent=agent)

    def own_spaces(self, owner: Person | ThreadModel) -> tuple[MemorySpace, MemorySpace]:
        return self.personal(owner), self.personal(owner, AGENT)

    def of_thread(self, thread: ThreadModel) -> MemorySpace:
        return MemorySpace(scope="thread", owner_id=UUID(thread.id))

    def in_space(self, *spaces: MemorySpace) -> list[Remembered]:
        return [memory for memory in self.memories if memory.space in spaces]

    def thread(self, which: int) -> ThreadModel:
        return self.threads[which % len(self.threads)]

    def guest(self, which: int) -> ThreadModel:
        """One of the threads without an owner."""
        guests = [thread for thread in self.threads if thread.owner is None]
        return guests[which % len(guests)]

    def person(self, who: int, *, besides: ThreadModel | None = None) -> Person:
        """One of the people, but not the owner of the thread `besides`."""
        others = [one for one in self.people if besides is None or one != besides.owner]
        return others[who % len(others)]

    def forget_some(self, gone: list[Remembered]) -> None:
        """These memories are erased, and with them those that they have superseded."""
        for memory in gone:
            self.memories.remove(memory)
            self.erased |= {memory.id, *memory.past}

    def end_thread(self, thread_id: str) -> list[Remembered]:
        """All that came from a thread is erased. Returns those of accounts."""
        gone = [memory for memory in self.memories if memory.origin == thread_id]
        self.forget_some(gone)
        for memory in self.memories:
            self.erased |= {old for old, origin in memory.past.items() if origin == thread_id}
        owners = [one.id for one in self.people]
        return [memory for memory in gone if memory.space.owner_id in owners]

    def store(self, headers: dict[str, str], space: MemorySpace, origin: str | None, text: str) -> None:
        """Store a memory by a caller who may."""
        body = {"text": text, "scope": space.scope, "agent": space.agent, "threadId": origin}
        status, answer = self.call("POST", "/memories", headers, body)
        known = [memory for memory in self.in_space(space) if memory.text == text]
        assert status == (200 if known else 201), answer
        if known:
            assert answer["id"] == known[0].id
        else:
            assert answer["id"] not in self.erased
            self.memories.append(Remembered(id=answer["id"], text=text, space=space, origin=origin, past={}))

    def reads(self, thread: ThreadModel, headers: dict[str, str]) -> bool:
        return bool(self.call("GET", f"/threads/{thread.id}/access", headers)[0] == 200)

    def others(self, thread: ThreadModel) -> list[dict[str, str]]:
        """The headers of everybody but the thread's owner: nobody in particular, holders of its links, and people."""
        return [{}, *thread.links.values(), *(one.headers for one in self.people if one != thread.owner)]

    async def purge(self) -> None:
        """Purge all deleted threads and accounts. While the server purges, a purge does nothing, and is repeated."""
        async with asyncio.timeout(30), self.db.driver() as driver:
            await purge(self.db, POLICY)
            while await driver.fetchval(UNPURGED):
                await asyncio.sleep(0.02)
                await purge(self.db, POLICY)
