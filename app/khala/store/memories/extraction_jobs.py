"""Extractions of memories: requested when a run begins, and leased to one worker once the thread's runs have ended."""

from uuid import UUID

import msgspec

from khala.domain.extraction import MAX_MESSAGES, SpokenMessage, spoken
from khala.domain.fold import text_of
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.threads.reset_marks import IS_MESSAGE

LEASE_SECONDS = 300.0
"""Longer than an extraction takes with the retries of its calls."""
MAX_ATTEMPTS = 3
RETRY_SECONDS = 60.0
"""Time until the second attempt, which doubles with each further one."""

REQUEST = """
    INSERT INTO memory_extractions (thread_id, subject_id, user_id, run_id, position, due_at)
    SELECT $1, $2, $3, $4, position - 1, now() + $6 * interval '1 second' FROM messages
    WHERE id = $5 AND thread_id = $1
    ON CONFLICT (thread_id, subject_id) DO UPDATE SET
        user_id = excluded.user_id, run_id = excluded.run_id, due_at = excluded.due_at, attempts = 0,
        requests = memory_extractions.requests + 1
"""
"""The first request begins with the message that the run answers: earlier ones were said without extraction."""
CLAIM = """
    UPDATE memory_extractions AS job SET worker_id = $1, leased_until = now() + $2 * interval '1 second',
        attempts = job.attempts + 1
    FROM (
        SELECT thread_id, subject_id FROM memory_extractions AS due
        WHERE due_at <= now() AND coalesce(leased_until < now(), true) AND NOT EXISTS (
            SELECT FROM runs WHERE runs.thread_id = due.thread_id AND status IN ('queued', 'running', 'blocked'))
        ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS chosen
    WHERE (job.thread_id, job.subject_id) = (chosen.thread_id, chosen.subject_id)
    RETURNING job.*
"""
SAID = f"""
    SELECT id, position, content FROM messages
    WHERE thread_id = $1 AND author_id = $2 AND role = 'user' AND position > $3 AND {IS_MESSAGE}
      AND EXISTS (SELECT FROM runs WHERE runs.user_message_id = messages.id AND runs.thread_id = $1)
    ORDER BY position LIMIT {MAX_MESSAGES + 1}
"""
"""Only messages that were sent: those that were appended or imported may be the words of others, or old."""
IS_MINE = "thread_id = $1 AND subject_id = $2 AND worker_id = $3"
FINISH = f"""
    UPDATE memory_extractions SET
        position = greatest(position, $4), attempts = 0, worker_id = NULL, leased_until = NULL,
        due_at = CASE WHEN $5 THEN now() WHEN requests = $6 THEN NULL ELSE due_at END
    WHERE {IS_MINE}
"""
DROP = f"DELETE FROM memory_extractions WHERE {IS_MINE}"
POSTPONE = f"""
    UPDATE memory_extractions SET worker_id = NULL, leased_until = NULL,
        due_at = now() + $4 * interval '1 second' * 2 ^ (attempts - 1)
    WHERE {IS_MINE}
"""
FORGET = "DELETE FROM memory_extractions WHERE subject_id = $1"


class ExtractionJob(msgspec.Struct, frozen=True, kw_only=True):
    """An extraction that this worker holds."""

    thread_id: UUID
    subject_id: UUID
    user_id: UUID | None
    run_id: UUID
    position: int
    attempts: int
    requests: int
    worker_id: UUID

    @property
    def is_last_attempt(self) -> bool:
        """Whether the extraction is given up if it fails again."""
        return self.attempts >= MAX_ATTEMPTS


async def request(
    driver: Driver,
    *,
    thread_id: UUID,
    subject_id: UUID,
    user_id: UUID | None,
    run_id: UUID,
    message_id: UUID,
    delay_seconds: float,
) -> None:
    """Request an extraction for after the thread's runs, from the message on that this run answers. Idempotent."""
    await driver.execute(REQUEST, thread_id, subject_id, user_id, run_id, message_id, delay_seconds)


@retried
async def claim(db: Database, worker_id: UUID) -> ExtractionJob | None:
    """Lease the extraction that has been due for longest, if there is one."""
    async with db.driver() as driver:
        row = await driver.fetchrow(CLAIM, worker_id, LEASE_SECONDS)
        return None if row is None else ExtractionJob(**{name: row[name] for name in ExtractionJob.__struct_fields__})


async def read_messages(driver: Driver, job: ExtractionJob) -> list[SpokenMessage]:
    """The messages of the person since the last extraction, without quotations and files, in order.

    One message more than an extraction reads.
    """
    return [
        SpokenMessage(id=row["id"], position=row["position"], text=spoken(text_of(rows.content(row["content"]) or ())))
        for row in await driver.fetch(SAID, job.thread_id, job.subject_id, job.position)
    ]


@retried
async def finish(db: Database, job: ExtractionJob, *, position: int, more: bool = False) -> None:
    """End the job: messages up to `position` were read. It stays due if there are more, or a run began meanwhile."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(FINISH, job.thread_id, job.subject_id, job.worker_id, position, more, job.requests)


@retried
async def drop(db: Database, job: ExtractionJob) -> None:
    """Delete the job of a person who has switched extraction off: what they say meanwhile is never read."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(DROP, job.thread_id, job.subject_id, job.worker_id)


@retried
async def postpone(db: Database, job: ExtractionJob) -> None:
    """Give up the lease after a failure, and try again later."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(POSTPONE, job.thread_id, job.subject_id, job.worker_id, RETRY_SECONDS)


async def forget(driver: Driver, subject_id: UUID) -> None:
    """Forget the extractions of a person who has switched them off: what they say from now on is never read."""
    await driver.execute(FORGET, subject_id)
