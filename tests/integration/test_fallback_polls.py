"""The fallback poll finds a change without a notification within seconds, also under load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from khala.live import fallback_poll
from khala.live.fallback_poll import SNAPSHOT
from khala.live.service import LiveService
from khala.store.postgres.database import Database
from tests.support.live import FrameRecorder, follow, recording
from tests.support.store import batch, lease_of, new_thread, write


@contextlib.asynccontextmanager
async def busy_thread(db: Database, live: LiveService, recorder: FrameRecorder) -> AsyncIterator[None]:
    """Another thread, which changes and notifies more often than the poll runs."""
    lease = await lease_of(db, await new_thread(db))
    await follow(live.threads, db, recorder.client, lease.thread_id)
    await recorder.until(2)

    async def talk() -> None:
        seq = 0
        while True:
            await write(db, batch(lease, seq, "x"))
            live.threads.handle_notification(str(lease.thread_id))
            await recorder.until(3 + seq)
            seq += 1

    task = asyncio.create_task(talk())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_a_change_without_a_notification_is_found_while_other_threads_keep_the_hub_busy(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback_poll, "POLL_INTERVAL_SECONDS", 0.1)
    lease = await lease_of(db, await new_thread(db))
    live = LiveService(db, db)
    async with recording(live, 2) as (recorder, other):
        await follow(live.threads, db, recorder.client, lease.thread_id)
        await recorder.until(2)
        async with busy_thread(db, live, other):
            await write(db, batch(lease, 0, "hello"))
            frame = await recorder.until(3)
    assert [part["data"]["text"] for part in frame["parts"]] == ["hello"]


async def test_every_commit_changes_the_snapshot(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with db.driver() as driver, db.driver() as other:
        for seq in range(5):
            before = await driver.fetchval(SNAPSHOT)
            async with other.transaction():
                await other.execute("SELECT pg_current_xact_id()")
                await write(db, batch(lease, seq, "x"))
                after = await driver.fetchval(SNAPSHOT)
                assert after != before
            assert await driver.fetchval(SNAPSHOT) != after
