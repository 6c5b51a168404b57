"""Laws of memories over random histories, with the real API on a real Postgres.

Nobody's personal memory enters a thread that others read. A claim moves memories. Deletions erase rows and vectors.
Whoever cannot read a thread finds nothing of it. After each change of access, all people and holders of links look at
the thread, and recall is asked for the runs of each of them. `KHALA_LAW_EXAMPLES` sets the number of histories (10);
with more, Hypothesis also shrinks a failure.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from khala.domain.errors import Conflict
from khala.domain.memories import NewMemory
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.runs.recall import recall
from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.memory_world import AGENT, WORDS, MemoryWorld, Remembered, ThreadModel, WordModel
from tests.support.shared_server import shared

DEFAULT_EXAMPLES = 10
EXAMPLES = int(os.environ.get("KHALA_LAW_EXAMPLES", DEFAULT_EXAMPLES))
PHASES = tuple(Phase) if EXAMPLES > DEFAULT_EXAMPLES else (Phase.generate,)
"""A failure is printed as it was found: to shrink it takes minutes."""
STEPS = 20
PEOPLE = 2
UNREACHABLE = """
    SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL
      AND NOT EXISTS (SELECT FROM memories AS newer WHERE newer.id = memories.superseded_by)
"""
MISPLACED = """
    SELECT count(*) FROM memory_vectors LEFT JOIN memories ON memories.id = memory_vectors.memory_id
    WHERE memories.space_id IS DISTINCT FROM memory_vectors.space_id
"""
DENIED = (401, 403, 404)

Step = TypeVar("Step", bound=Callable[..., None])
pick = st.integers(0, 11)
word = st.sampled_from(WORDS)
role = st.sampled_from(["viewer", "editor"])

ARGUMENTS: dict[str, st.SearchStrategy[tuple[str, Mapping[str, Any]]]] = {}
"""The steps of a history by name, with their arguments."""


def step(**arguments: st.SearchStrategy[Any]) -> Callable[[Step], Step]:
    """Add a step to the histories.

    Hypothesis leaves out about half of the rules of each history, so that few histories would miss many pairs of steps.
    Therefore the machine has one rule, which chooses among all steps.
    """

    def register(function: Step) -> Step:
        ARGUMENTS[function.__name__] = st.tuples(st.just(function.__name__), st.fixed_dictionaries(arguments))
        return function

    return register


class Isolation(MemoryWorld, RuleBasedStateMachine):
    """One history. Each step is done by the API and in the model, and looks at what it may have broken."""

    @initialize()
    def begin(self) -> None:
        """Everybody has a thread and a memory from it. One guest shares a thread, and another one does not."""
        for _ in range(PEOPLE):
            self.add_person()
        self.add_guest()
        self.share_by_link(len(self.threads) - 1, "editor")
        self.add_guest()

    def add_person(self) -> None:
        self.people.append(self.wait(person(self.db)))
        self.add_thread(self.people[-1])

    def add_thread(self, owner: Person) -> None:
        thread = self.open_thread(owner)
        self.store(thread.headers, self.personal(owner), thread.id, WORDS[self.people.index(owner)])

    def add_guest(self) -> None:
        thread = self.open_thread(None)
        self.store(thread.headers, self.personal(thread), thread.id, WORDS[0])
        self.wait(self.service.embed_some())

    # Access to threads

    @step(which=pick, role=role)
    def share_by_link(self, which: int, role: str) -> None:
        thread = self.thread(which)
        link = self.call("POST", f"/threads/{thread.id}/links", thread.headers, {"role": role})[1]
        thread.links[link["id"]] = {"X-Share-Key": link["shareKey"]}
        self.check_thread(thread)

    @step(who=pick, how=st.sampled_from(["link", "public", "invite", "join"]))
    def share_a_new_thread(self, who: int, how: str) -> None:
        """With one change only, so that nothing else keeps the owner's memories out."""
        self.add_thread(self.person(who))
        newest = len(self.threads) - 1
        match how:
            case "link":
                self.share_by_link(newest, "viewer")
            case "public":
                self.show_or_hide(newest, how)
            case _:
                self.invite(newest, who, "viewer", how == "join")

    @step(which=pick)
    def revoke_a_link(self, which: int) -> None:
        thread = self.thread(which)
        for link_id in list(thread.links)[:1]:
            self.call("DELETE", f"/threads/{thread.id}/links/{link_id}", thread.headers)
            self.check_thread(thread)

    @step(which=pick, visibility=st.sampled_from(["private", "link", "public"]))
    def show_or_hide(self, which: int, visibility: str) -> None:
        thread = self.thread(which)
        assert self.call("PATCH", f"/threads/{thread.id}", thread.headers, {"visibility": visibility})[0] == 200
        self.check_thread(thread)

    @step(which=pick, who=pick, role=role, joins=st.booleans())
    def invite(self, which: int, who: int, role: str, joins: bool) -> None:
        thread = self.thread(which)
        invited = self.person(who, besides=thread)
        path = f"/threads/{thread.id}/members/{invited.id}"
        status, _ = self.call("PUT", path, thread.headers, {"role": role})
        assert status in (200, 409, 429), "too many, or declined before"
        assert status != 200 or self.reads(thread, invited.headers)
        if joins:
            self.call("POST", f"/threads/{thread.id}/join", invited.headers)
        self.check_thread(thread)

    @step(which=pick, who=pick, leaves=st.booleans())
    def remove_or_leave(self, which: int, who: int, leaves: bool) -> None:
        thread = self.thread(which)
        member = self.person(who, besides=thread)
        by = member.headers if leaves else thread.headers
        self.call("DELETE", f"/threads/{thread.id}/members/{member.id}", by)
        self.check_thread(thread)

    @step(which=pick, personal=st.booleans())
    def use_personal_memories(self, which: int, personal: bool) -> None:
        """Only an account decides that its memories may enter its thread."""
        thread = self.thread(which)
        for headers in [thread.headers, *self.others(thread)]:
            status, _ = self.call("PATCH", f"/threads/{thread.id}/memory", headers, {"personal": personal})
            decides = thread.owner is not None and headers == thread.headers
            assert status == 200 if decides else status in DENIED
        thread.personal = personal and thread.owner is not None
        self.check_thread(thread)

    @step(which=pick, who=pick)
    def claim(self, which: int, who: int) -> None:
        thread, owner = self.guest(which), self.person(who)
        body = {"anonKey": thread.thread.key}
        assert self.call("POST", f"/threads/{thread.id}/claim", owner.headers, body)[0] == 200
        for memory in self.in_space(self.personal(thread)):
            if any(mine.text == memory.text for mine in self.in_space(self.personal(owner))):
                self.forget_some([memory])
            memory.space = self.personal(owner)
        thread.owner = owner
        self.wait(self.check_vectors())
        self.look(who)
        self.check_thread(thread)
        self.add_guest()

    # Deletions

    @step(which=pick, purged=st.booleans())
    def delete_thread(self, which: int, purged: bool) -> None:
        """Of a thread from which an account has a memory, if there is one: it may be remembered again."""
        own = [memory.origin for one in self.people for memory in self.in_space(self.personal(one))]
        sources = [thread for thread in self.threads if thread.id in own] or self.threads
        thread = sources[which % len(sources)]
        self.threads.remove(thread)
        assert self.call("DELETE", f"/threads/{thread.id}", thread.headers)[0] == 204
        lost = self.end_thread(thread.id)
        self.forget_some(self.in_space(self.of_thread(thread), *self.own_spaces(thread)))
        if purged:
            self.wait(self.purge())
        self.remember_again(lost)
        self.add_guest() if thread.owner is None else self.add_thread(thread.owner)

    @step(which=pick)
    def reset(self, which: int) -> None:
        thread = self.thread(which)
        assert self.call("POST", f"/threads/{thread.id}/reset", thread.headers)[0] == 200
        self.remember_again(self.end_thread(thread.id))

    def remember_again(self, lost: Sequence[Remembered]) -> None:
        """What was erased is not found, and may be remembered again, before the purge and after it."""
        for owner in self.people:
            again = [memory for memory in lost if memory.space.owner_id == owner.id]
            if again:
                self.look(self.people.index(owner))
            for memory in again:
                self.store(owner.headers, memory.space, None, memory.text)

    @step(who=pick)
    def delete_account(self, who: int) -> None:
        gone = self.people.pop(who % len(self.people))
        assert self.call("DELETE", "/me", gone.headers, {})[0] == 204
        self.wait(self.purge())
        self.forget_some(self.in_space(*self.own_spaces(gone)))
        for thread in [thread for thread in self.threads if thread.owner == gone]:
            self.threads.remove(thread)
            self.end_thread(thread.id)
        self.add_person()

    # Memories

    @step(who=pick, origin=st.none() | pick, text=word, agent=st.sampled_from([None, AGENT]))
    def remember(self, who: int, origin: int | None, text: str, agent: str | None) -> None:
        owner = self.person(who)
        near = [thread.id for thread in self.threads if self.reads(thread, owner.headers)]
        thread_id = None if origin is None else near[origin % len(near)]
        self.store(owner.headers, self.personal(owner, agent), thread_id, text)
        self.look(who)

    @step(which=pick, text=word, embedded=st.booleans())
    def remember_as_a_guest(self, which: int, text: str, embedded: bool) -> None:
        thread = self.guest(which)
        self.store(thread.headers, self.personal(thread), thread.id, text)
        if embedded:
            self.wait(self.service.embed_some())
        self.check_thread(thread)

    @step(which=pick, who=pick, text=word)
    def remember_in_thread(self, which: int, who: int, text: str) -> None:
        thread = self.thread(which)
        writers = [thread.headers, *self.others(thread)]
        headers = writers[who % len(writers)]
        if self.call("GET", f"/threads/{thread.id}/access", headers)[1].get("role") in ("owner", "editor"):
            self.store(headers, self.of_thread(thread), thread.id, text)
        else:
            body = {"text": text, "threadId": thread.id}
            assert self.call("POST", "/memories", headers, body)[0] in DENIED

    @step(which=pick, origin=pick, text=word)
    def correct(self, which: int, origin: int, text: str) -> None:
        """As the tool does it, which corrects an account's memory in any thread, and all others in their own only."""
        old = self.memories[which % len(self.memories)]
        is_of_account = old.space.owner_id in {one.id for one in self.people}
        origin_id = self.thread(origin).id if is_of_account else old.origin
        new = NewMemory(text=text, thread_id=None if origin_id is None else UUID(origin_id))
        twins = [memory for memory in self.in_space(old.space) if memory.text == text and memory is not old]
        try:
            newer = self.wait(self.service.supersede(old.space, UUID(old.id), new))
        except Conflict:
            assert twins
            return
        assert not twins
        old.past[old.id], old.id, old.text, old.origin = old.origin, str(newer.id), text, origin_id

    @step(which=pick, who=pick)
    def forget(self, which: int, who: int) -> None:
        memory, somebody = self.memories[which % len(self.memories)], self.person(who)
        status, _ = self.call("DELETE", f"/memories/{memory.id}", somebody.headers)
        if memory.space.scope != "thread":
            assert status == (204 if memory.space.owner_id == somebody.id else 404)
        if status == 204:
            self.forget_some([memory])

    @step(which=pick, who=pick)
    def forget_all_of_a_thread(self, which: int, who: int) -> None:
        """Those of a guest are neither read nor forgotten by a link."""
        thread = self.guest(which)
        callers = [*thread.links.values(), thread.headers]
        headers = callers[who % len(callers)]
        of_guest = self.call("GET", "/memories", headers, threadId=thread.id, scope="user")[0]
        assert (of_guest == 200) == (headers == thread.headers)
        if self.call("DELETE", "/memories", headers, threadId=thread.id)[0] == 204:
            self.forget_some(self.in_space(self.of_thread(thread)))
            if headers == thread.headers:
                self.forget_some(self.in_space(self.personal(thread)))
        left = {memory.id for memory in self.in_space(self.personal(thread))}
        assert self.found(thread.headers, threadId=thread.id, scope="user") == left

    @step()
    def embed(self) -> None:
        self.wait(self.service.embed_some())

    # Looks

    @step(who=pick)
    def look(self, who: int) -> None:
        """A person finds all their memories, and nobody else's."""
        owner = self.person(who)
        mine = {memory.id: memory.text for memory in self.in_space(*self.own_spaces(owner))}
        assert self.found(owner.headers) == set(mine)
        for asked in WORDS:
            named = {memory_id for memory_id, text in mine.items() if text == asked}
            assert named <= self.found(owner.headers, q=asked) <= set(mine)

    @step(which=pick)
    def look_at_a_thread(self, which: int) -> None:
        self.check_thread(self.thread(which))

    def check_thread(self, thread: ThreadModel) -> None:
        """Everybody finds the memories of the thread exactly if they read it, and is told no others in their runs.

        The owner is told their own memories only while nobody else reads the thread, or by their own choice.
        """
        inside = {memory.id for memory in self.in_space(self.of_thread(thread))}
        readers = [headers for headers in self.others(thread) if self.reads(thread, headers)]
        for headers in [thread.headers, *self.others(thread)]:
            if headers in readers or headers == thread.headers:
                assert self.found(headers, threadId=thread.id) == inside
            else:
                assert self.call("GET", "/memories", headers, threadId=thread.id, q=WORDS[0])[0] in DENIED
        of_thread = self.in_space(self.of_thread(thread))
        for requester in [None, *self.people]:
            if requester != thread.owner:
                own = [memory.text for memory in self.in_space(*self.own_spaces(requester or thread))]
                assert self.told(thread, requester, (own or WORDS)[0]) <= inside
        own_memories = self.in_space(*self.own_spaces(thread.owner or thread))
        allowed = of_thread + own_memories if thread.personal or not readers else of_thread
        is_private = self.call("GET", f"/threads/{thread.id}", thread.headers)[1]["thread"]["visibility"] == "private"
        for asked in sorted({memory.text for memory in of_thread + own_memories}):
            told = self.told(thread, thread.owner, asked)
            assert told <= {memory.id for memory in allowed}
            assert not is_private or {memory.id for memory in allowed if memory.text == asked} <= told

    def told(self, thread: ThreadModel, requester: Person | None, asked: str) -> set[str]:
        """The memories that a run with this question is told."""
        user_id = None if requester is None else requester.id
        found = self.wait(
            recall(self.db, self.service, user_id=user_id, thread_id=UUID(thread.id), question=asked, agent=AGENT)
        )
        return set() if found is None else {str(memory.id) for memory in found.memories}

    def teardown(self) -> None:
        self.wait(self.check_rows())

    async def check_vectors(self) -> None:
        """All vectors are where their memories are."""
        async with self.db.driver() as driver:
            assert not await driver.fetchval(MISPLACED)

    async def check_rows(self) -> None:
        """What was erased has no row and no vector."""
        await self.check_vectors()
        await self.purge()
        async with self.db.driver() as driver:
            erased = [UUID(memory_id) for memory_id in self.erased]
            assert not await driver.fetchval("SELECT count(*) FROM memories WHERE id = ANY ($1)", erased)
            assert not await driver.fetchval("SELECT count(*) FROM memory_vectors WHERE memory_id = ANY ($1)", erased)
            assert not await driver.fetchval(UNREACHABLE)
            kept = [UUID(memory.id) for memory in self.memories]
            assert await driver.fetchval("SELECT count(*) FROM memories WHERE id = ANY ($1)", kept) == len(kept)

    @rule(step=st.sampled_from(sorted(ARGUMENTS)).flatmap(ARGUMENTS.__getitem__))
    def do(self, step: tuple[str, Mapping[str, Any]]) -> None:
        """One step of the history."""
        name, arguments = step
        getattr(self, name)(**arguments)


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
