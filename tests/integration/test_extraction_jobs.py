"""Jobs of the extraction: one worker at a time holds each, after the thread's runs, and none is lost.

A job stores nothing once its person may no longer write in the thread, or wants no extraction any more.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.errors import NotFound
from khala.domain.extraction import ExtractedMemory
from khala.domain.fold import TextBlock
from khala.domain.memories import Extraction, MemorySpace, NewMemory
from khala.store.accounts import account_removal, claims
from khala.store.memories import extraction_jobs, extraction_results, extraction_sources, memory_settings
from khala.store.memories.extraction_jobs import ExtractionJob
from khala.store.memories.memory_settings import MemorySettingChanges
from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from khala.store.threads import appends, threads
from khala.store.threads.appends import Append, MessageToAppend
from khala.store.tools import workspace_owners
from tests.support.callers import Person, expire_link, owned_thread, person
from tests.support.people import make_member
from tests.support.store import CALLER, KEY, ask, new_thread


async def test_one_worker_at_a_time_holds_an_extraction_until_its_lease_lapses(db: Database) -> None:
    thread_id, subject_id = await new_thread(db), uuid.uuid4()
    sent = await ask(db, thread_id)
    request: dict[str, Any] = {"thread_id": thread_id, "subject_id": subject_id, "user_id": None, "run_id": sent.run_id}
    async with db.driver() as driver:
        await extraction_jobs.request(driver, **request, message_id=sent.user_message_id, delay_seconds=0)
    assert await extraction_jobs.claim(db, uuid.uuid4()) is None, "the run has not ended"
    async with db.driver() as driver:
        await driver.execute("UPDATE runs SET status = 'final'")
    claims = await asyncio.gather(*(extraction_jobs.claim(db, uuid.uuid4()) for _ in range(5)))
    (first,) = [job for job in claims if job is not None]
    async with db.driver() as driver:
        await driver.execute("UPDATE memory_extractions SET leased_until = now()")
    second = await extraction_jobs.claim(db, uuid.uuid4())
    assert second is not None
    assert second.attempts == 2
    await extraction_jobs.finish(db, first, position=100)
    async with db.driver() as driver:
        await extraction_jobs.request(driver, **request, message_id=sent.user_message_id, delay_seconds=0)
        await extraction_jobs.finish(db, second, position=7)
        row = await driver.fetchrow("SELECT * FROM memory_extractions")
    assert (row["position"], row["attempts"]) == (7, 0), "the first worker had lost its lease"
    assert row["due_at"] is not None, "a run began meanwhile"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A thread with an owner, a member who writes in it, and a link that lets others write."""

    db: Database
    thread_id: UUID
    owner: Person
    member: Person
    link_id: UUID
    share_key: str


@pytest.fixture
async def scene(db: Database) -> Scene:
    owner, member = await person(db), await person(db)
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, member.id, "editor", owner.caller)
    link, share_key = await sharing.create_link(db, thread_id, "editor", None, owner.caller)
    return Scene(db=db, thread_id=thread_id, owner=owner, member=member, link_id=link.id, share_key=share_key)


async def held(db: Database, thread_id: UUID, caller: Caller) -> ExtractionJob:
    """An extraction from what the caller says now, in progress, of a caller who has switched extraction on."""
    subject_id = caller.author_id
    assert subject_id is not None
    sent = await ask(db, thread_id, "We meet on Monday.", caller=caller)
    if caller.share_key_hash is None or caller.user_id is not None:
        await memory_settings.change(db, caller, MemorySettingChanges(extraction="on"))
    async with db.driver() as driver:
        await driver.execute("UPDATE runs SET status = 'final'")
        await extraction_jobs.request(
            driver,
            thread_id=thread_id,
            subject_id=subject_id,
            user_id=caller.user_id,
            run_id=sent.run_id,
            message_id=sent.user_message_id,
            delay_seconds=0,
        )
    job = await extraction_jobs.claim(db, uuid.uuid4())
    assert job is not None
    return job


async def stores(db: Database, job: ExtractionJob, *, default: Extraction = "off") -> bool:
    """Whether the job may still store. It may read exactly as long."""
    space = MemorySpace(scope="thread", owner_id=job.thread_id)
    found = ExtractedMemory(new=NewMemory(text=f"Memory {ids.new()}", thread_id=job.thread_id))
    async with db.driver() as driver:
        source = await extraction_sources.read(driver, job, default=default)
        try:
            stored_as = await extraction_results.store(db, job, space, found, default=default)
        except NotFound:
            assert source.mode == "off"
            assert not await driver.fetchval("SELECT count(*) FROM memories WHERE text = $1", found.new.text)
            return False
        assert source.mode == "on"
        assert await driver.fetchval("SELECT count(*) FROM memories WHERE text = $1", found.new.text)
        return stored_as == "stored"


async def set_role(scene: Scene, role: Any) -> None:
    await sharing.set_role(scene.db, scene.thread_id, scene.member.id, role, scene.owner.caller)


async def revoke(scene: Scene) -> None:
    await sharing.revoke_link(scene.db, scene.thread_id, scene.link_id, scene.owner.caller)


async def make_private(scene: Scene) -> None:
    await threads.update_thread(scene.db, scene.thread_id, scene.owner.caller, visibility="private")


async def take_over(scene: Scene) -> None:
    async with scene.db.driver() as driver:
        await driver.execute("UPDATE memory_extractions SET leased_until = now()")
    assert await extraction_jobs.claim(scene.db, uuid.uuid4()) is not None


Ending = Callable[[Scene], Awaitable[Any]]
ENDINGS: dict[str, Ending] = {
    "removed": lambda one: sharing.remove_member(one.db, one.thread_id, one.member.id, one.owner.caller),
    "left": lambda one: sharing.remove_member(one.db, one.thread_id, one.member.id, one.member.caller),
    "viewer": lambda one: set_role(one, "viewer"),
    "account deleted": lambda one: account_removal.remove(one.db, one.member.caller, one.member.id),
    "extraction off": lambda one: memory_settings.change(
        one.db, one.member.caller, MemorySettingChanges(extraction="off")
    ),
    "reset": lambda one: threads.reset(one.db, one.thread_id, one.owner.caller, welcome=""),
    "thread deleted": lambda one: threads.remove(one.db, one.thread_id, one.owner.caller),
    "taken over": take_over,
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_extraction_in_progress_stores_nothing_once_its_person_is_gone(scene: Scene, ending: str) -> None:
    job = await held(scene.db, scene.thread_id, scene.member.caller)
    assert await stores(scene.db, job)
    await ENDINGS[ending](scene)
    assert not await stores(scene.db, job)


@pytest.mark.parametrize(
    "ending", [revoke, make_private, lambda one: expire_link(one.db, one.link_id)], ids=["revoked", "closed", "expired"]
)
async def test_a_user_who_came_by_a_link_has_nothing_extracted_once_the_link_has_ended(
    scene: Scene, ending: Ending
) -> None:
    visitor = msgspec.structs.replace((await person(scene.db)).caller, share_key_hash=key_hash(scene.share_key))
    job = await held(scene.db, scene.thread_id, visitor)
    assert await stores(scene.db, job)
    await ending(scene)
    assert not await stores(scene.db, job)


async def test_a_member_with_a_role_of_their_own_needs_no_link(scene: Scene) -> None:
    job = await held(scene.db, scene.thread_id, scene.member.caller)
    await revoke(scene)
    assert await stores(scene.db, job)


async def test_what_holders_of_a_share_key_say_is_not_extracted(scene: Scene) -> None:
    guest = Caller(share_key_hash=key_hash(scene.share_key))
    assert not await stores(scene.db, await held(scene.db, scene.thread_id, guest), default="on")


async def test_an_extraction_from_a_guest_ends_when_their_thread_is_claimed(db: Database) -> None:
    thread_id = await new_thread(db)
    job = await held(db, thread_id, CALLER)
    assert await stores(db, job)
    await claims.claim(db, thread_id, key_hash(KEY), (await person(db)).caller)
    assert not await stores(db, job)


async def test_a_removal_waits_for_a_memory_that_is_being_stored(scene: Scene) -> None:
    job = await held(scene.db, scene.thread_id, scene.member.caller)
    async with workspace_owners.changing(scene.db, scene.thread_id, thread_id=scene.thread_id) as driver:
        assert (await extraction_sources.read(driver, job, default="off", lock=True)).mode == "on"
        endings = [asyncio.ensure_future(ENDINGS[name](scene)) for name in ("removed", "extraction off")]
        done, _ = await asyncio.wait(endings, timeout=0.3)
        assert not done
    await asyncio.gather(*endings)


async def test_a_reset_deletes_what_was_proposed_from_the_messages(db: Database) -> None:
    owner = await person(db)
    thread_id = await owned_thread(db, owner)
    job = await held(db, thread_id, owner.caller)
    await memory_settings.change(db, owner.caller, MemorySettingChanges(extraction="ask"))
    space = MemorySpace(scope="user", owner_id=owner.id)
    found = ExtractedMemory(new=NewMemory(text="Meets on Monday", thread_id=thread_id))
    assert await extraction_results.store(db, job, space, found, default="off") == "proposed"
    assert await extraction_results.store(db, job, space, found, default="off") == "known"
    await threads.reset(db, thread_id, owner.caller, welcome="")
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM memory_proposals") == 0


async def test_messages_that_were_appended_are_not_what_the_person_said(scene: Scene) -> None:
    block = TextBlock(text="The bot says hello.")
    new = MessageToAppend(role="user", blocks=(block,), author="Bot")
    await appends.append(scene.db, scene.thread_id, Append(messages=[new]), scene.owner.caller)
    sent = await ask(scene.db, scene.thread_id, caller=scene.owner.caller)
    async with scene.db.driver() as driver:
        await driver.execute("UPDATE runs SET status = 'final'")
        facts: dict[str, Any] = {"thread_id": scene.thread_id, "subject_id": scene.owner.id, "user_id": scene.owner.id}
        facts |= {"run_id": sent.run_id, "message_id": sent.user_message_id}
        await extraction_jobs.request(driver, **facts, delay_seconds=0)
    job = await extraction_jobs.claim(scene.db, uuid.uuid4())
    assert job is not None
    async with scene.db.driver() as driver:
        await driver.execute("UPDATE memory_extractions SET position = 0")
        found = await extraction_jobs.read_messages(driver, msgspec.structs.replace(job, position=0))
    assert [one.id for one in found] == [sent.user_message_id]
