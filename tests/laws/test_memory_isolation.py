"""Laws of memories over random histories, with the real API on a real Postgres.

Nobody's personal memory enters a thread that others read. A claim moves memories. Deletions erase rows and vectors.
Whoever cannot read a thread finds nothing of it. `KHALA_LAW_EXAMPLES` sets the number of histories (15); with more,
Hypothesis also shrinks a failure.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from khala.domain.errors import Conflict
from khala.domain.memories import MemorySpace, NewMemory
from khala.domain.vectors import unit_vector
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.port import EmbeddingResult, Purpose
from khala.runs.recall import recall
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared

DEFAULT_EXAMPLES = 15
EXAMPLES = int(os.environ.get("KHALA_LAW_EXAMPLES", DEFAULT_EXAMPLES))
PHASES = tuple(Phase) if EXAMPLES > DEFAULT_EXAMPLES else (Phase.generate,)
"""A failure is printed as it was found: to shrink it takes minutes."""
STEPS = 40
PEOPLE = 2
WORDS = ("aiur", "shakuras", "char")
"""Few, so that histories repeat and correct the same texts."""
AGENT = "poet"
POLICY = RetentionPolicy(idle=timedelta(days=30))
UNREACHABLE = """
    SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL
      AND NOT EXISTS (SELECT FROM memories AS newer WHERE newer.id = memories.superseded_by)
"""
MISPLACED = """
    SELECT count(*) FROM memory_vectors LEFT JOIN memories ON memories.id = memory_vectors.memory_id
    WHERE memories.space_id IS DISTINCT FROM memory_vectors.space_id
"""

T = TypeVar("T")
pick = st.integers(0, 11)
word = st.sampled_from(WORDS)


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

    @property
    def id(self) -> str:
        return self.thread.id

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the owner."""
        return self.thread.headers if self.owner is None else self.owner.headers


class Isolation(RuleBasedStateMachine):
    """One history. Each rule does a step by the API and in the model, and looks from somebody's side."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    server: ClassVar[InProcessServer]
    db: ClassVar[Database]
    service: ClassVar[MemoryService]

    def __init__(self) -> None:
        super().__init__()
        self.people = [self.wait(person(self.db)) for _ in range(PEOPLE)]
        self.threads: list[ThreadModel] = []
        self.memories: list[Remembered] = []
        self.erased: set[str] = set()
        self.lost: list[Remembered] = []
        """Memories of accounts that were erased with the thread that they came from."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, verb: str, path: str, headers: dict[str, str], body: Any = None, **params: str | None) -> Any:
        """The status and the body of an answer."""
        given = {name: value for name, value in params.items() if value is not None}
        answer = self.wait(self.server.http.request(verb, f"/api{path}", headers=headers, json=body, params=given))
        assert answer.status_code < 500, answer.text
        return answer.status_code, answer.json() if answer.content else None

    def reads(self, thread: ThreadModel, headers: dict[str, str]) -> bool:
        return bool(self.call("GET", f"/threads/{thread.id}/access", headers)[0] == 200)

    def others(self, thread: ThreadModel) -> bool:
        """Whether anybody but the owner reads the thread: asked of everybody, and not of the code under test."""
        keys = [{}, *thread.links.values(), *(one.headers for one in self.people if one != thread.owner)]
        return any(self.reads(thread, headers) for headers in keys)

    def personal(self, owner: Person | ThreadModel, agent: str | None = None) -> MemorySpace:
        owner_id = owner.id if isinstance(owner, Person) else UUID(owner.id)
        return MemorySpace(scope="user" if agent is None else "agent", owner_id=owner_id, agent=agent)

    def of_thread(self, thread: ThreadModel) -> MemorySpace:
        return MemorySpace(scope="thread", owner_id=UUID(thread.id))

    @property
    def guests(self) -> list[ThreadModel]:
        """The threads without an owner."""
        return [thread for thread in self.threads if thread.owner is None]

    def in_space(self, *spaces: MemorySpace) -> list[Remembered]:
        return [memory for memory in self.memories if memory.space in spaces]

    def forget_some(self, gone: list[Remembered]) -> None:
        """These memories are erased, and with them those that they have superseded."""
        for memory in gone:
            self.memories.remove(memory)
            self.erased |= {memory.id, *memory.past}

    def end_thread(self, thread_id: str) -> None:
        """All that came from a thread is erased."""
        gone = [memory for memory in self.memories if memory.origin == thread_id]
        self.lost += [memory for memory in gone if memory.space.scope != "thread"]
        self.forget_some(gone)
        for memory in self.memories:
            self.erased |= {old for old, origin in memory.past.items() if origin == thread_id}

    def stored(self, space: MemorySpace, origin: str | None, text: str, status: int, answer: Any) -> None:
        known = [memory for memory in self.in_space(space) if memory.text == text]
        assert status == (200 if known else 201), answer
        if known:
            assert answer["id"] == known[0].id
        else:
            assert answer["id"] not in self.erased
            self.memories.append(Remembered(id=answer["id"], text=text, space=space, origin=origin, past={}))

    @initialize()
    def begin(self) -> None:
        """Everybody has a thread and a memory, so that every step may go wrong."""
        for who in range(PEOPLE):
            self.open_thread(who, guest=False)
            self.remember(who, 0, WORDS[who], None)
        self.open_thread(0, guest=True)
        self.remember_as_a_guest(0, WORDS[0], embedded=True)

    # Accounts and threads

    @rule(who=pick, guest=st.booleans())
    def open_thread(self, who: int, guest: bool) -> None:
        owner = None if guest or not self.people else self.people[who % len(self.people)]
        made = self.call("POST", "/threads", {} if owner is None else owner.headers, {})[1]
        thread = Thread(self.server.http, made["thread"]["id"], made.get("anonKey", ""))
        self.threads.append(ThreadModel(thread=thread, owner=owner, links={}))

    @precondition(lambda self: self.threads)
    @rule(which=pick, role=st.sampled_from(["viewer", "editor"]))
    def share_by_link(self, which: int, role: str) -> None:
        thread = self.threads[which % len(self.threads)]
        link = self.call("POST", f"/threads/{thread.id}/links", thread.headers, {"role": role})[1]
        thread.links[link["id"]] = {"X-Share-Key": link["shareKey"]}
        self.check_owner(thread)

    @precondition(lambda self: self.threads)
    @rule(which=pick, visibility=st.sampled_from(["private", "link", "public"]))
    def show_or_hide(self, which: int, visibility: str) -> None:
        thread = self.threads[which % len(self.threads)]
        assert self.call("PATCH", f"/threads/{thread.id}", thread.headers, {"visibility": visibility})[0] == 200
        self.check_owner(thread)

    @precondition(lambda self: self.threads and self.people)
    @rule(which=pick, who=pick, role=st.sampled_from(["viewer", "editor"]))
    def invite_and_perhaps_join(self, which: int, who: int, role: str) -> None:
        thread, guest = self.threads[which % len(self.threads)], self.people[who % len(self.people)]
        if guest != thread.owner:
            self.call("PUT", f"/threads/{thread.id}/members/{guest.id}", thread.headers, {"role": role})
            assert self.reads(thread, guest.headers)
            if which % 2:
                self.call("POST", f"/threads/{thread.id}/join", guest.headers)
            self.check_owner(thread)

    @precondition(lambda self: self.threads and self.people)
    @rule(which=pick, who=pick)
    def remove_or_leave(self, which: int, who: int) -> None:
        thread, member = self.threads[which % len(self.threads)], self.people[who % len(self.people)]
        if member != thread.owner:
            by = thread.headers if which % 2 else member.headers
            self.call("DELETE", f"/threads/{thread.id}/members/{member.id}", by)
            self.check_owner(thread)

    @precondition(lambda self: self.guests and self.people)
    @rule(which=pick, who=pick)
    def claim(self, which: int, who: int) -> None:
        thread, owner = self.guests[which % len(self.guests)], self.people[who % len(self.people)]
        body = {"anonKey": thread.thread.key}
        assert self.call("POST", f"/threads/{thread.id}/claim", owner.headers, body)[0] == 200
        for memory in self.in_space(self.personal(thread)):
            if any(mine.text == memory.text for mine in self.in_space(self.personal(owner))):
                self.forget_some([memory])
            memory.space = self.personal(owner)
        thread.owner = owner
        self.check_owner(thread)
        self.wait(self.check_rows())

    @precondition(lambda self: self.guests)
    @rule(which=pick, text=word, embedded=st.booleans())
    def remember_as_a_guest(self, which: int, text: str, embedded: bool) -> None:
        thread = self.guests[which % len(self.guests)]
        body = {"text": text, "scope": "user", "threadId": thread.id}
        self.stored(self.personal(thread), thread.id, text, *self.call("POST", "/memories", thread.headers, body))
        if embedded:
            self.wait(self.service.embed_some())

    @precondition(lambda self: self.threads)
    @rule(which=pick, purged=st.booleans())
    def delete_thread(self, which: int, purged: bool) -> None:
        thread = self.threads.pop(which % len(self.threads))
        assert self.call("DELETE", f"/threads/{thread.id}", thread.headers)[0] == 204
        self.end_thread(thread.id)
        self.forget_some(self.in_space(self.of_thread(thread), self.personal(thread), self.personal(thread, AGENT)))
        if purged:
            self.wait(purge(self.db, POLICY))

    @precondition(lambda self: self.threads)
    @rule(which=pick)
    def reset(self, which: int) -> None:
        thread = self.threads[which % len(self.threads)]
        assert self.call("POST", f"/threads/{thread.id}/reset", thread.headers)[0] == 200
        self.end_thread(thread.id)

    @precondition(lambda self: len(self.people) > 1)
    @rule(who=pick)
    def delete_account(self, who: int) -> None:
        gone = self.people.pop(who % len(self.people))
        assert self.call("DELETE", "/me", gone.headers, {})[0] == 204
        self.wait(purge(self.db, POLICY))
        self.forget_some(self.in_space(self.personal(gone), self.personal(gone, AGENT)))
        for thread in [thread for thread in self.threads if thread.owner == gone]:
            self.threads.remove(thread)
            self.end_thread(thread.id)

    # Memories

    @precondition(lambda self: self.people)
    @rule(who=pick, origin=pick, text=word, agent=st.sampled_from([None, AGENT]))
    def remember(self, who: int, origin: int, text: str, agent: str | None) -> None:
        owner = self.people[who % len(self.people)]
        near = [thread.id for thread in self.threads if self.reads(thread, owner.headers)]
        thread_id = near[origin % len(near)] if near and origin % 3 else None
        scope = "user" if agent is None else "agent"
        body = {"text": text, "scope": scope, "agent": agent, "threadId": thread_id}
        self.stored(self.personal(owner, agent), thread_id, text, *self.call("POST", "/memories", owner.headers, body))

    @precondition(lambda self: self.lost)
    @rule(which=pick)
    def remember_again(self, which: int) -> None:
        """What was erased may be remembered again, before the purge and after it."""
        memory = self.lost.pop(which % len(self.lost))
        for owner in [one for one in self.people if one.id == memory.space.owner_id]:
            body = {"text": memory.text, "scope": memory.space.scope, "agent": memory.space.agent}
            answer = self.call("POST", "/memories", owner.headers, body)
            self.stored(memory.space, None, memory.text, *answer)
            assert answer[1]["id"] in self.found(owner.headers)

    @precondition(lambda self: self.threads)
    @rule(which=pick, who=pick, text=word)
    def remember_in_thread(self, which: int, who: int, text: str) -> None:
        thread = self.threads[which % len(self.threads)]
        writers = [thread.headers, *thread.links.values(), *(one.headers for one in self.people)]
        status, answer = self.call(
            "POST", "/memories", writers[who % len(writers)], {"text": text, "threadId": thread.id}
        )
        if status < 300:
            self.stored(self.of_thread(thread), thread.id, text, status, answer)

    @precondition(lambda self: self.memories)
    @rule(which=pick, origin=pick, text=word)
    def correct(self, which: int, origin: int, text: str) -> None:
        """As the tool does it, which corrects a memory in any thread."""
        old = self.memories[which % len(self.memories)]
        own = old.space.scope != "thread" and self.threads
        origin_id = self.threads[origin % len(self.threads)].id if own else old.origin
        new = NewMemory(text=text, thread_id=None if origin_id is None else UUID(origin_id))
        twins = [memory for memory in self.in_space(old.space) if memory.text == text and memory is not old]
        try:
            newer = self.wait(self.service.supersede(old.space, UUID(old.id), new))
        except Conflict:
            assert twins
            return
        assert not twins
        old.past[old.id], old.id, old.text, old.origin = old.origin, str(newer.id), text, origin_id

    @precondition(lambda self: self.memories)
    @rule(which=pick, who=pick)
    def forget(self, which: int, who: int) -> None:
        memory, somebody = self.memories[which % len(self.memories)], self.people[who % len(self.people)]
        status, _ = self.call("DELETE", f"/memories/{memory.id}", somebody.headers)
        if memory.space.scope != "thread":
            assert status == (204 if memory.space.owner_id == somebody.id else 404)
        if status == 204:
            self.forget_some([memory])

    @precondition(lambda self: any(thread.links for thread in self.threads))
    @rule(which=pick, who=pick)
    def forget_all_of_a_thread(self, which: int, who: int) -> None:
        shared = [thread for thread in self.threads if thread.links]
        thread = shared[which % len(shared)]
        callers = [*thread.links.values(), thread.headers]
        headers = callers[who % len(callers)]
        for guest in [headers] * (thread.owner is None and headers != thread.headers):
            assert self.call("GET", "/memories", guest, threadId=thread.id, scope="user")[0] in (403, 404)
        if self.call("DELETE", "/memories", headers, threadId=thread.id)[0] == 204:
            self.forget_some(self.in_space(self.of_thread(thread)))
            if headers == thread.headers:
                self.forget_some(self.in_space(self.personal(thread)))

    @rule()
    def embed(self) -> None:
        self.wait(self.service.embed_some())

    # Looks

    @rule(who=pick, asked=word)
    def look_at_own(self, who: int, asked: str) -> None:
        owner = self.people[who % len(self.people)]
        mine = {memory.id for memory in self.in_space(self.personal(owner), self.personal(owner, AGENT))}
        assert self.found(owner.headers) == mine
        named = {memory.id for memory in self.memories if memory.id in mine and memory.text == asked}
        assert named <= self.found(owner.headers, q=asked) <= mine

    @precondition(lambda self: self.threads)
    @rule(which=pick, who=pick, asked=word)
    def look_at_a_thread(self, which: int, who: int, asked: str) -> None:
        thread, reader = self.threads[which % len(self.threads)], self.people[who % len(self.people)]
        inside = {memory.id for memory in self.in_space(self.of_thread(thread))}
        if self.reads(thread, reader.headers):
            assert self.found(reader.headers, threadId=thread.id) == inside
            assert self.found(reader.headers, threadId=thread.id, q=asked) <= inside
        else:
            assert self.call("GET", "/memories", reader.headers, threadId=thread.id, q=asked)[0] in (403, 404)

    @precondition(lambda self: self.threads)
    @rule(which=pick, who=pick, asked=word)
    def ask(self, which: int, who: int, asked: str) -> None:
        """Recall for a run that a guest or somebody else than the owner requests."""
        thread = self.threads[which % len(self.threads)]
        requester = [None, *self.people][who % (1 + len(self.people))]
        self.check_recall(thread, requester, asked)

    def check_recall(self, thread: ThreadModel, requester: Person | None, asked: str) -> None:
        """A run is told what all readers may read, and what its requester has stored if nobody else reads it."""
        owner = thread if thread.owner is None else thread.owner
        allowed = self.in_space(self.of_thread(thread))
        alone = requester == thread.owner and not self.others(thread)
        if alone:
            allowed += self.in_space(self.personal(owner), self.personal(owner, AGENT))
        told = self.wait(self.recalled(thread, requester, asked))
        assert told <= {memory.id for memory in allowed}
        visibility = self.call("GET", f"/threads/{thread.id}", thread.headers)[1]["thread"]["visibility"]
        if visibility == "private" and alone:
            assert {memory.id for memory in allowed if memory.text == asked} <= told

    async def recalled(self, thread: ThreadModel, requester: Person | None, asked: str) -> set[str]:
        user_id = None if requester is None else requester.id
        told = await recall(
            self.db, self.service, user_id=user_id, thread_id=UUID(thread.id), question=asked, agent=AGENT
        )
        return set() if told is None else {str(memory.id) for memory in told.memories}

    def check_owner(self, thread: ThreadModel) -> None:
        """Whatever has changed who reads the thread: ask the owner's question for each of their memories."""
        owner = thread if thread.owner is None else thread.owner
        own = self.in_space(self.personal(owner), self.personal(owner, AGENT), self.of_thread(thread))
        for asked in sorted({memory.text for memory in own}):
            self.check_recall(thread, thread.owner, asked)

    def found(self, headers: dict[str, str], **params: str) -> set[str]:
        status, answer = self.call("GET", "/memories", headers, **params)
        assert status == 200, answer
        return {memory["id"] for memory in answer["items"]}

    def teardown(self) -> None:
        self.wait(self.check_rows())

    async def check_rows(self) -> None:
        """What was erased has no row and no vector, and all vectors are where their memories are."""
        async with self.db.driver() as driver:
            assert not await driver.fetchval(MISPLACED)
        await purge(self.db, POLICY)
        async with self.db.driver() as driver:
            erased = [UUID(memory_id) for memory_id in self.erased]
            assert not await driver.fetchval("SELECT count(*) FROM memories WHERE id = ANY ($1)", erased)
            assert not await driver.fetchval("SELECT count(*) FROM memory_vectors WHERE memory_id = ANY ($1)", erased)
            assert not await driver.fetchval(UNREACHABLE)
            kept = [UUID(memory.id) for memory in self.memories]
            assert await driver.fetchval("SELECT count(*) FROM memories WHERE id = ANY ($1)", kept) == len(kept)


@pytest.fixture
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template, with_executor=False, KHALA_PUBLIC_THREADS="1") as inside:
        yield inside


async def test_memories_are_isolated_moved_and_erased_in_every_history(server: InProcessServer) -> None:
    db = Database(server.database_url)
    try:
        Isolation.loop, Isolation.server, Isolation.db = asyncio.get_running_loop(), server, db
        Isolation.service = MemoryService(db, Embedder(WordModel()))
        await Isolation.service.prepare()
        profile = settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        )
        await asyncio.to_thread(run_state_machine_as_test, Isolation, settings=profile)
    finally:
        await db.close()
