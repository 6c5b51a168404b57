"""Access is rechecked while it is used: no change that was committed after a revocation is sent."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import pytest

from khala.domain.access import Caller, key_hash
from khala.domain.errors import Unavailable
from khala.domain.flush_policy import FlushPolicy
from khala.live import fallback_poll
from khala.live.access_guard import AccessGuard
from khala.live.service import LiveService
from khala.store.accounts import claims
from khala.store.postgres.database import Database, Driver
from khala.store.runs.leases import Lease
from khala.store.sharing import sharing
from khala.store.threads import threads
from tests.support.live import FrameRecorder, follow, process, recording
from tests.support.people import (
    CHANGE_KEY,
    REMOVE_LINKS,
    add_link,
    add_member,
    change_access,
    new_user,
    sign_out,
    signed_in,
    soon,
)
from tests.support.store import CALLER, KEY, batch, lease_of, new_thread, revision_of, write, writing


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_poll, "POLL_INTERVAL_SECONDS", 0.2)


def newest_revision(recorder: FrameRecorder) -> int:
    """The newest revision that the recorder has received."""
    return max((frame["revision"] for frame in recorder.frames if "revision" in frame), default=-1)


def forbidden(thread_id: UUID) -> dict[str, Any]:
    return {"type": "gone", "threadId": str(thread_id), "code": "forbidden"}


def is_chained(recorder: FrameRecorder) -> bool:
    frames = [frame for frame in recorder.frames if "revision" in frame]
    return all(after["from"] == before["revision"] for before, after in pairwise(frames))


@contextlib.asynccontextmanager
async def streaming_run(db: Database, lease: Lease, live: LiveService | None = None) -> AsyncIterator[list[int]]:
    """Write to the run while the context is open; yields the sequence numbers that were written.

    With `live`, it is written by that process, which delivers its appends without reading them.
    """
    written: list[int] = []

    async def stream(write_text: Callable[[int], Awaitable[object]]) -> None:
        for seq in range(100_000):
            await write_text(seq)
            written.append(seq)

    async with contextlib.AsyncExitStack() as stack:
        if live is None:
            task = asyncio.create_task(stream(lambda seq: write(db, batch(lease, seq, f"{seq} "))))
        else:
            policy = FlushPolicy(milliseconds=1)
            writer = await stack.enter_async_context(writing(db, policy, local=live.own_appends))
            buffer = writer.open(lease)

            async def write_text(seq: int) -> None:
                buffer.append_text(f"{seq} ")
                await buffer.wait_written()

            task = asyncio.create_task(stream(write_text))
        try:
            yield written
        finally:
            task.cancel()
            await asyncio.wait({task})


async def wait_for_more(written: list[int], count: int) -> None:
    """Wait until so many more parts were written."""
    async with asyncio.timeout(10):
        goal = len(written) + count
        while len(written) < goal:
            await asyncio.sleep(0.005)


async def revision_of_revocation(db: Database, thread_id: UUID, after: int) -> int:
    """The one revision after `after` that changed access: every other revision has a part."""
    query = """
        SELECT revision FROM generate_series($2::bigint + 1, (SELECT revision FROM threads WHERE id = $1)) AS revision
        WHERE revision NOT IN (SELECT revision FROM message_parts WHERE thread_id = $1)
    """
    async with db.driver() as driver:
        (row,) = await driver.fetch(query, thread_id, after)
    return int(row["revision"])


Cut: TypeAlias = tuple[Caller, Callable[[], Awaitable[object]]]
"""Somebody who may follow a thread, and the command that ends it."""


async def removed_member(db: Database, thread_id: UUID) -> Cut:
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    return await signed_in(db, user_id), lambda: sharing.remove_member(db, thread_id, user_id, CALLER)


async def revoked_link(db: Database, thread_id: UUID) -> Cut:
    link, key = await sharing.create_link(db, thread_id, "viewer", None, CALLER)
    return Caller(share_key_hash=key_hash(key)), lambda: sharing.revoke_link(db, thread_id, link.id, CALLER)


async def private_again_by_link(db: Database, thread_id: UUID) -> Cut:
    _, key = await sharing.create_link(db, thread_id, "editor", None, CALLER)
    return Caller(share_key_hash=key_hash(key)), lambda: threads.update_thread(
        db, thread_id, CALLER, visibility="private"
    )


async def private_again_after_public(db: Database, thread_id: UUID) -> Cut:
    await threads.update_thread(db, thread_id, CALLER, visibility="public")
    return Caller(), lambda: threads.update_thread(db, thread_id, CALLER, visibility="private")


@pytest.mark.parametrize("way", [removed_member, revoked_link, private_again_by_link, private_again_after_public])
async def test_after_a_revocation_its_observers_get_nothing_in_any_process_and_others_miss_nothing(
    db: Database, way: Callable[[Database, UUID], Awaitable[Cut]]
) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    follower, command = await way(db, thread_id)
    before = await revision_of(db, thread_id)
    async with (
        process(db, 3) as (one, here),
        process(db, 3) as (other, there),
        streaming_run(db, lease, one) as written,
    ):
        for live, (owner, *followers) in ((one, here), (other, there)):
            await follow(live.threads, db, owner.client, thread_id)
            for recorder in followers:
                await follow(live.threads, db, recorder.client, thread_id, follower)
        await wait_for_more(written, 20)
        await command()
        async with asyncio.timeout(1.0):
            ends = [await recorder.wait_gone() for recorder in (*here[1:], *there[1:])]
        await wait_for_more(written, 20)
    cut = await revision_of_revocation(db, thread_id, before)
    assert ends == [forbidden(thread_id)] * 4
    for recorder in (*here[1:], *there[1:]):
        assert recorder.frames[-1]["type"] == "gone"
        assert newest_revision(recorder) < cut
        assert is_chained(recorder)
        assert not recorder.client.subscriptions
    for owner in (here[0], there[0]):
        assert newest_revision(owner) > cut
        assert is_chained(owner)


@pytest.mark.parametrize("round_", range(5))
async def test_a_change_of_access_between_authorization_and_first_read_is_noticed(db: Database, round_: int) -> None:
    thread_id = await new_thread(db)
    async with process(db, 1) as (live, (recorder,)):
        authorization = await live.threads.authorize(db, thread_id, CALLER)
        await change_access(db, thread_id, CHANGE_KEY, notified=bool(round_ % 2))
        live.threads.subscribe(recorder.client, thread_id, None, authorization)
        await recorder.wait_gone()
    assert recorder.frames == [forbidden(thread_id)]


async def test_observers_that_keep_access_after_a_claim_continue_without_a_gap(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    user_id = await new_user(db)
    user = await signed_in(db, user_id)
    await add_member(db, thread_id, user_id)
    before = await revision_of(db, thread_id)
    async with process(db, 2) as (live, (anonymous, claimer)), streaming_run(db, lease, live) as written:
        await follow(live.threads, db, anonymous.client, thread_id)
        await follow(live.threads, db, claimer.client, thread_id, user)
        await wait_for_more(written, 10)
        await claims.claim(db, thread_id, key_hash(KEY), user)
        assert await anonymous.wait_gone() == forbidden(thread_id)
        await wait_for_more(written, 10)
    cut = await revision_of_revocation(db, thread_id, before)
    assert newest_revision(anonymous) < cut < newest_revision(claimer)
    assert is_chained(claimer)
    assert [frame["type"] for frame in claimer.frames].count("snapshot") == 1


async def test_access_that_is_restored_at_once_ends_no_subscription(db: Database) -> None:
    thread_id = await new_thread(db)
    async with process(db, 20) as (live, recorders):
        for recorder in recorders:
            await follow(live.threads, db, recorder.client, thread_id)
        for _ in range(10):
            revision = await change_access(db, thread_id)
        await asyncio.gather(*(recorder.until(revision) for recorder in recorders))
    assert all(map(is_chained, recorders))


async def test_observers_by_an_expired_link_are_revoked_within_a_second(db: Database) -> None:
    thread_id = await new_thread(db)
    caller = await add_link(db, thread_id, lasts=0.6)
    began = time.monotonic()
    async with process(db, 2) as (live, (guest, owner)):
        await follow(live.threads, db, guest.client, thread_id, caller)
        await follow(live.threads, db, owner.client, thread_id)
        assert await guest.wait_gone() == forbidden(thread_id)
        assert 0.5 < time.monotonic() - began < 1.6
        assert len(owner.client.subscriptions) == 1


@pytest.mark.parametrize("stored", [True, False])
async def test_an_expired_credential_is_revoked_within_a_second_and_keys_continue(
    db: Database, *, stored: bool
) -> None:
    thread_id, other_id = await new_thread(db), await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    began = time.monotonic()
    user = await signed_in(db, user_id, lasts=0.6)
    if not stored:  # like a JWT, which expires by itself
        user = Caller(user_id=user_id, expires_at=soon(0.6))
    async with process(db, 1) as (live, (recorder,)):
        await follow(live.threads, db, recorder.client, thread_id, user)
        await follow(live.accounts, db, recorder.client, user_id, user)
        both = msgspec.structs.replace(user, anon_key_hash=CALLER.anon_key_hash)
        await follow(live.threads, db, recorder.client, other_id, both)
        async with asyncio.timeout(5):
            while len(recorder.client.subscriptions) > 1:
                await asyncio.sleep(0.01)
        assert 0.5 < time.monotonic() - began < 1.6
        assert live.threads.find_subscription(recorder.client, other_id) is not None
        await recorder.wait_for(lambda frame: frame["type"] in {"gone", "error"})
        await write(db, batch(await lease_of(db, other_id), 0, "still here"))
        await recorder.wait_for(lambda frame: frame["type"] == "delta" and frame["parts"] != [])
    assert forbidden(thread_id) in recorder.frames
    assert [frame["code"] for frame in recorder.frames if frame["type"] == "error"] == ["unauthorized"]


async def test_authenticating_again_extends_subscriptions(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    user = await signed_in(db, user_id, lasts=0.5)
    async with process(db, 2) as (live, (renewed, other)):
        subscription = await follow(live.threads, db, renewed.client, thread_id, user)
        await follow(live.threads, db, other.client, thread_id, user)
        live.guard.renew(subscription, await signed_in(db, user_id))
        assert await other.wait_gone() == forbidden(thread_id)
        revision = await change_access(db, thread_id)
        await renewed.until(revision)


async def test_signing_out_ends_the_subscriptions_of_the_account_and_no_others(db: Database) -> None:
    thread_id, other_id = await new_thread(db), await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    leaving, staying = await signed_in(db, user_id), await signed_in(db, user_id)
    async with process(db, 2) as (live, (recorder, witness)):
        await follow(live.threads, db, recorder.client, thread_id, leaving)
        await follow(live.accounts, db, recorder.client, user_id, leaving)
        await follow(live.threads, db, recorder.client, other_id)
        await follow(live.threads, db, witness.client, thread_id, staying)
        await follow(live.accounts, db, witness.client, user_id, staying)
        await recorder.wait_for(lambda _: len(recorder.frames) == 3)
        await sign_out(db, leaving)
        await recorder.wait_for(lambda _: len(recorder.frames) == 5)
        assert len(recorder.client.subscriptions) == 1
        await threads.remove(db, other_id, CALLER)
        await recorder.wait_for(lambda frame: frame.get("code") == "thread_not_found")
        revision = await change_access(db, thread_id)
        await witness.until(revision)
    assert forbidden(thread_id) in recorder.frames
    assert [frame["code"] for frame in recorder.frames if frame["type"] == "error"] == ["unauthorized"]
    assert not [frame for frame in witness.frames if frame["type"] in {"gone", "error"}]


@pytest.mark.usefixtures("quick_polls")
async def test_a_revocation_without_a_notification_is_found_by_the_poll(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    user = await signed_in(db, user_id)
    live = LiveService(db, db)
    async with recording(live, 2) as (guest, member):
        await follow(live.threads, db, guest.client, thread_id, await add_link(db, thread_id))
        await follow(live.threads, db, member.client, thread_id, user)
        await asyncio.gather(guest.until(1), member.until(1))
        cut = await change_access(db, thread_id, REMOVE_LINKS, notified=False)
        assert await guest.wait_gone() == forbidden(thread_id)
        await member.until(cut)
        await sign_out(db, user, notified=False)
        assert await member.wait_gone() == forbidden(thread_id)
    assert newest_revision(guest) < cut


async def test_revocations_during_an_outage_of_the_listener_are_noticed_after_it(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    user = await signed_in(db, user_id)
    async with process(db, 2) as (live, (guest, member)):
        await follow(live.threads, db, guest.client, thread_id, await add_link(db, thread_id))
        await follow(live.threads, db, member.client, thread_id, user)
        await asyncio.gather(guest.until(1), member.until(1))
        await change_access(db, thread_id, REMOVE_LINKS, notified=False)
        await sign_out(db, user, notified=False)
        async with db.driver() as driver:
            await driver.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'khala listener' AND datname = current_database()"
            )
        async with asyncio.timeout(3):
            await asyncio.gather(guest.wait_gone(), member.wait_gone())


async def test_the_queued_frames_of_a_slow_observer_are_dropped_at_a_revocation(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    guest, revoke = await revoked_link(db, thread_id)
    now = await revision_of(db, thread_id)
    async with process(db, 2) as (live, (quick, stuck)):
        await follow(live.threads, db, quick.client, thread_id)
        await follow(live.threads, db, stuck.client, thread_id, guest)
        await asyncio.gather(quick.until(now), stuck.until(now))
        stuck.open.clear()
        for seq in range(10):
            await write(db, batch(lease, seq, "x"))
            await quick.until(now + 1 + seq)
        await revoke()
        await quick.until(await revision_of(db, thread_id))
        async with asyncio.timeout(5):
            while stuck.client.subscriptions:
                await asyncio.sleep(0.01)
        stuck.open.set()
        await stuck.wait_gone()
    assert [frame.get("revision") for frame in stuck.frames] == [now, now + 1, None], (
        "one frame had been handed to the connection"
    )


class UnavailableDatabase(Database):
    """A database that is unavailable while `away` is set, and counts the attempts."""

    away = False
    tries = 0

    @contextlib.asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        if self.away:
            self.tries += 1
            raise Unavailable("Away.") from ConnectionError("away")
        async with super().driver() as driver:
            yield driver


async def test_while_access_cannot_be_rechecked_no_observer_is_revoked_and_nothing_leaks(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    guest = await add_link(db, thread_id)
    away = UnavailableDatabase(db.url)
    live = LiveService(db, db)
    live.guard._db = away
    live.threads.authorizations = _authorizations_by(away, live)  # type: ignore[method-assign]
    async with recording(live, 2) as (owner, stranger):
        await follow(live.threads, db, owner.client, thread_id)
        await follow(live.threads, db, stranger.client, thread_id, guest)
        await asyncio.gather(owner.until(2), stranger.until(2))
        away.away = True
        cut = await change_access(db, thread_id, REMOVE_LINKS)
        await write(db, batch(lease, 0, "secret"))
        live.threads.handle_notification(str(thread_id))
        async with asyncio.timeout(5):
            while len(live.guard._pending) < 2 or away.tries < 3:
                await asyncio.sleep(0.01)
        assert newest_revision(owner) < cut
        assert newest_revision(stranger) < cut
        assert owner.client.subscriptions
        assert stranger.client.subscriptions
        away.away = False
        assert await stranger.wait_gone() == forbidden(thread_id)
        await owner.until(cut + 1)
    assert newest_revision(stranger) < cut
    await away.close()


def _authorizations_by(away: UnavailableDatabase, live: LiveService) -> Any:
    async def authorizations(subscriptions: list[Any]) -> Any:
        async with away.driver() as driver:
            return await live.threads._feed.authorizations(
                driver, [(subscription.topic_id, subscription.caller) for subscription in subscriptions]
            )

    return authorizations


async def test_a_guard_releases_ended_subscriptions(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    user = await signed_in(db, user_id)
    async with process(db, 3) as (live, recorders):
        for recorder in recorders:
            await follow(live.threads, db, recorder.client, thread_id, user)
            await follow(live.accounts, db, recorder.client, user_id, user)
        live.guard.handle_notification(str(user_id))
        for recorder in recorders:
            live.close(recorder.client)
        guarded: AccessGuard = live.guard
        assert not guarded._users
        assert not guarded._expiring
        assert not guarded._pending
        assert not live.threads._topics
        assert not live.accounts._topics


async def test_many_changes_with_many_short_subscriptions_leak_nothing(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    guest, revoke = await revoked_link(db, thread_id)
    async with process(db, 12) as (live, recorders), streaming_run(db, lease) as written:
        for recorder in recorders[:6]:
            await follow(live.threads, db, recorder.client, thread_id, guest)
        for recorder in recorders[6:]:
            await follow(live.threads, db, recorder.client, thread_id)
        for _ in range(5):
            await change_access(db, thread_id)
            await wait_for_more(written, 3)
        before = await revision_of(db, thread_id)
        await revoke()
        await asyncio.gather(*(recorder.wait_gone() for recorder in recorders[:6]))
        await wait_for_more(written, 5)
    cut = await revision_of_revocation(db, thread_id, before)
    assert all(newest_revision(recorder) < cut for recorder in recorders[:6])
    assert all(newest_revision(recorder) > cut and is_chained(recorder) for recorder in recorders[6:])


async def test_a_sign_out_between_authorization_and_subscription_is_noticed(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    user = await signed_in(db, user_id)
    async with process(db, 1) as (live, (recorder,)):
        before = live.guard.credential_notices
        authorization = await live.threads.authorize(db, thread_id, user)
        # The authorization is complete; the session ends before the subscription.
        await sign_out(db, user)
        async with asyncio.timeout(2):
            while live.guard.credential_notices == before:
                await asyncio.sleep(0.01)
        live.threads.subscribe(recorder.client, thread_id, None, authorization)
        async with asyncio.timeout(2):
            assert await recorder.wait_gone() == forbidden(thread_id)


async def test_access_by_a_link_continues_when_the_account_beside_it_ends(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    user = await signed_in(db, user_id)
    link = await add_link(db, thread_id)
    both = msgspec.structs.replace(user, share_key_hash=link.share_key_hash)
    async with process(db, 1) as (live, (recorder,)):
        subscription = await follow(live.threads, db, recorder.client, thread_id, both)
        await recorder.until(1)
        await sign_out(db, user)
        async with asyncio.timeout(2):
            while subscription.caller.user_id is not None:
                await asyncio.sleep(0.01)
        await recorder.until(await change_access(db, thread_id))
    assert [frame["type"] for frame in recorder.frames if frame["type"] == "gone"] == []


async def test_an_expiry_that_a_later_check_finds_is_stored(db: Database) -> None:
    thread_id = await new_thread(db)
    guest = await add_link(db, thread_id)
    async with process(db, 1) as (live, (recorder,)):
        subscription = await follow(live.threads, db, recorder.client, thread_id, guest)
        assert subscription.expires_at is None
        await recorder.until(1)
        began = time.monotonic()
        await change_access(db, thread_id, "UPDATE share_links SET expires_at = now() + interval '0.6 s'")
        async with asyncio.timeout(3):
            assert await recorder.wait_gone() == forbidden(thread_id)
        assert time.monotonic() - began > 0.5
