"""Jobs of the extraction: one worker at a time holds each, after the thread's runs, and none is lost."""

import asyncio
import uuid
from typing import Any

from khala.store.memories import extraction_jobs
from khala.store.postgres.database import Database
from tests.support.store import ask, new_thread


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
