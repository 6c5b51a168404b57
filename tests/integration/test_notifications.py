"""Every command notifies in its own transaction: no sweep or poll hides a missing notification."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias
from uuid import UUID

import pytest

from khala.domain.access import SCOPES, Caller
from khala.domain.errors import NotFound
from khala.store.accounts import api_tokens, sessions
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    CREDENTIALS_CHANNEL,
    MAX_IDS_PER_PAYLOAD,
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.runs import run_queue, runs
from khala.store.runs.leases import Lease
from khala.store.runs.parts import append
from khala.store.sharing import sharing
from khala.store.threads import threads
from tests.integration.test_leases import CALL, decide, request_approval
from tests.support.people import new_user, signed_in
from tests.support.store import CALLER, ask, batch, claim, ending, lease_of, new_thread, write

Told: TypeAlias = set[tuple[str, str]]
"""Channels, and what they were told."""
Command: TypeAlias = Callable[[], Awaitable[object]]
WITHIN = 3.0
"""Seconds, less than any poll takes."""


@contextlib.asynccontextmanager
async def collecting_notifications(db: Database) -> AsyncIterator[tuple[Told, asyncio.Event]]:
    """The notifications on all channels while the context is open, and an event that is set by each."""
    notifications: Told = set()
    news = asyncio.Event()

    def hear(connection: object, pid: int, channel: str, payload: object) -> None:
        notifications.add((channel, str(payload)))
        news.set()

    channels = (THREADS_CHANNEL, RUNS_CHANNEL, CREDENTIALS_CHANNEL)
    async with db.driver() as driver:
        for channel in channels:
            await driver.add_listener(channel, hear)
        try:
            yield notifications, news
        finally:
            for channel in channels:
                await driver.remove_listener(channel, hear)


async def assert_notifies(db: Database, command: Command, *expected: tuple[str, str]) -> None:
    """Assert that the command sends all these notifications."""
    async with collecting_notifications(db) as (notifications, news):
        await command()
        async with asyncio.timeout(WITHIN):
            while not notifications >= set(expected):
                await news.wait()
                news.clear()


Way: TypeAlias = Callable[[Database, UUID], Awaitable[Command]]
"""Prepares a command in a thread."""


async def sending(db: Database, thread_id: UUID) -> Command:
    return lambda: ask(db, thread_id)


async def ending_a_run(db: Database, thread_id: UUID) -> Command:
    lease = await lease_of(db, thread_id)
    return lambda: write(db, ending(lease, 0, ()))


async def canceling(db: Database, thread_id: UUID) -> Command:
    run_id = (await ask(db, thread_id)).run_id
    return lambda: runs.cancel(db, run_id, CALLER)


async def resetting(db: Database, thread_id: UUID) -> Command:
    await lease_of(db, thread_id)
    return lambda: threads.reset(db, thread_id, CALLER, welcome="Hello.")


async def deleting(db: Database, thread_id: UUID) -> Command:
    await lease_of(db, thread_id)
    return lambda: threads.remove(db, thread_id, CALLER)


@pytest.mark.parametrize("way", [sending, ending_a_run, canceling, resetting, deleting])
async def test_observers_and_executors_are_notified(db: Database, way: Way) -> None:
    thread_id = await new_thread(db)
    command = await way(db, thread_id)
    await assert_notifies(db, command, (THREADS_CHANNEL, str(thread_id)), (RUNS_CHANNEL, ""))


async def writing_text(db: Database, thread_id: UUID) -> Command:
    lease = await lease_of(db, thread_id)
    return lambda: write(db, batch(lease, 0, "said"))


async def renaming(db: Database, thread_id: UUID) -> Command:
    return lambda: threads.update_thread(db, thread_id, CALLER, title="Aiur")


async def revoking_a_link(db: Database, thread_id: UUID) -> Command:
    link, _ = await sharing.create_link(db, thread_id, "viewer", None, CALLER)
    return lambda: sharing.revoke_link(db, thread_id, link.id, CALLER)


@pytest.mark.parametrize("way", [writing_text, renaming, revoking_a_link])
async def test_observers_are_notified(db: Database, way: Way) -> None:
    thread_id = await new_thread(db)
    command = await way(db, thread_id)
    await assert_notifies(db, command, (THREADS_CHANNEL, str(thread_id)))


async def answering(db: Database, thread_id: UUID) -> Command:
    lease = await lease_of(db, thread_id)
    await request_approval(db, lease)
    return lambda: decide(db, lease, approved=True)


async def answering_a_blocked_run(db: Database, thread_id: UUID) -> Command:
    lease = await lease_of(db, thread_id)
    await request_approval(db, lease)
    await run_queue.release(db, lease, [], awaited_approvals=[CALL])
    return lambda: decide(db, lease, approved=False)


async def canceling_a_run_that_is_held(db: Database, thread_id: UUID) -> Command:
    run_id = (await lease_of(db, thread_id)).run_id
    return lambda: runs.cancel(db, run_id, CALLER)


async def handing_over(db: Database, thread_id: UUID) -> Command:
    lease = await lease_of(db, thread_id)
    return lambda: run_queue.release(db, lease, [])


@pytest.mark.parametrize("way", [answering, answering_a_blocked_run, canceling_a_run_that_is_held, handing_over])
async def test_executors_are_notified(db: Database, way: Way) -> None:
    command = await way(db, await new_thread(db))
    await assert_notifies(db, command, (RUNS_CHANNEL, ""))


async def test_processes_are_notified_of_credentials_that_end(db: Database) -> None:
    user_id = await new_user(db)
    caller = await signed_in(db, user_id)
    token, _ = await api_tokens.create(db, caller, "test", SCOPES, None)
    await assert_notifies(db, lambda: api_tokens.revoke(db, token.id, caller), (CREDENTIALS_CHANNEL, str(user_id)))
    session_id = caller.credential
    assert session_id is not None
    await assert_notifies(db, lambda: sessions.end(db, session_id, caller), (CREDENTIALS_CHANNEL, str(user_id)))
    with pytest.raises(NotFound):
        await sessions.end(db, session_id, caller)


async def test_a_commit_of_more_runs_than_fit_into_a_notification_notifies_all(db: Database) -> None:
    count = MAX_IDS_PER_PAYLOAD + 20
    gate = asyncio.Semaphore(8)

    async def asked() -> UUID:
        async with gate:
            return (await ask(db, await new_thread(db))).run_id

    wanted = set(await asyncio.gather(*(asked() for _ in range(count))))
    leases: list[Lease] = [claimed.lease for claimed in await claim(db, most=count)]
    assert {lease.run_id for lease in leases} == wanted

    async def write_all() -> None:
        async with db.driver() as driver:
            written = (await append(driver, [batch(lease, 0, "x") for lease in leases])).stored
        assert set(written.values()) == {1}

    await assert_notifies(db, write_all, (THREADS_CHANNEL, "*"))


async def test_a_caller_without_an_account_has_no_credentials_to_end(db: Database) -> None:
    user_id = await new_user(db)
    caller = await signed_in(db, user_id)
    token, _ = await api_tokens.create(db, caller, "test", SCOPES, None)
    for stranger in (Caller(), await signed_in(db, await new_user(db))):
        with pytest.raises(NotFound):
            await api_tokens.revoke(db, token.id, stranger)
