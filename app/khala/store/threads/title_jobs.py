"""Titles to write: requested when a run begins, and leased to one worker once the thread's runs have ended."""

from uuid import UUID

import msgspec

from khala.domain.errors import ThreadNotFound
from khala.domain.fold import text_of
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.threads import threads
from khala.store.threads.reset_marks import IS_RUN

LEASE_SECONDS = 300.0
"""Longer than a call takes with its retries."""
MAX_ATTEMPTS = 3
RETRY_SECONDS = 60.0
"""Time until the second attempt, which doubles with each further one."""
MAX_POSITION = 12
"""The last position of a question after which a title is written. Later ones would try again after each failure."""

REQUEST = f"""
    INSERT INTO title_jobs (thread_id, user_id, run_id)
    SELECT threads.id, $2, $3 FROM threads JOIN messages ON messages.id = $4 AND messages.thread_id = threads.id
    WHERE threads.id = $1 AND threads.title IS NULL AND threads.deleted_at IS NULL
      AND messages.position <= {MAX_POSITION}
      AND NOT EXISTS (SELECT FROM ephemeral_threads WHERE ephemeral_threads.thread_id = threads.id)
      AND coalesce((SELECT titles FROM preferences WHERE subject_id = $5), true)
    ON CONFLICT (thread_id) DO UPDATE SET
        user_id = excluded.user_id, run_id = excluded.run_id, due_at = excluded.due_at, attempts = 0
"""
CLAIM = """
    UPDATE title_jobs AS job SET worker_id = $1, leased_until = now() + $2 * interval '1 second',
        attempts = job.attempts + 1
    FROM (
        SELECT thread_id FROM title_jobs AS due
        WHERE due_at <= now() AND coalesce(leased_until < now(), true) AND NOT EXISTS (
            SELECT FROM runs WHERE runs.thread_id = due.thread_id AND status IN ('queued', 'running', 'blocked'))
        ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS chosen
    WHERE job.thread_id = chosen.thread_id
    RETURNING job.thread_id, job.user_id, job.run_id, job.attempts, job.worker_id
"""
READ = f"""
    SELECT threads.owner_id, threads.anon_key_hash, runs.finish ->> 'provider' AS provider,
           runs.finish ->> 'model' AS model, asked.content AS asked, answered.content AS answered
    FROM title_jobs AS job JOIN threads ON threads.id = job.thread_id
    JOIN runs ON runs.id = job.run_id AND runs.thread_id = job.thread_id AND runs.status = 'final' AND {IS_RUN}
    JOIN messages AS asked ON asked.id = runs.user_message_id
    JOIN messages AS answered ON answered.id = runs.message_id
    WHERE job.thread_id = $1 AND job.worker_id = $2 AND threads.title IS NULL AND threads.deleted_at IS NULL
"""
MINE = "thread_id = $1 AND worker_id = $2"
LOCK = f"SELECT run_id FROM title_jobs WHERE {MINE} FOR UPDATE"
DROP = f"DELETE FROM title_jobs WHERE {MINE}"
POSTPONE = f"""
    UPDATE title_jobs SET worker_id = NULL, leased_until = NULL,
        due_at = now() + $3 * interval '1 second' * 2 ^ (attempts - 1)
    WHERE {MINE}
"""


class TitleJob(msgspec.Struct, frozen=True, kw_only=True):
    """A title that this worker is to write. `user_id` is None for a guest's run."""

    thread_id: UUID
    user_id: UUID | None
    run_id: UUID
    attempts: int
    worker_id: UUID

    @property
    def is_last_attempt(self) -> bool:
        """Whether the title is given up if this attempt fails."""
        return self.attempts >= MAX_ATTEMPTS


class TitleSource(msgspec.Struct, frozen=True, kw_only=True):
    """The material of a title, and the model that wrote the answer, if that is known."""

    owner_id: UUID | None
    anon_key_hash: bytes | None
    provider: str | None
    model: str | None
    asked: str
    answered: str


async def request(
    driver: Driver, *, thread_id: UUID, subject_id: UUID | None, user_id: UUID | None, run_id: UUID, message_id: UUID
) -> None:
    """Request a title for after the thread's runs, unless the thread has one or the person wants none. Idempotent."""
    await driver.execute(REQUEST, thread_id, user_id, run_id, message_id, subject_id)


@retried
async def claim(db: Database, worker_id: UUID) -> TitleJob | None:
    """Lease the title that has been due for longest, if there is one."""
    async with db.driver() as driver:
        row = await driver.fetchrow(CLAIM, worker_id, LEASE_SECONDS)
        return None if row is None else TitleJob(**row)


async def read(driver: Driver, job: TitleJob) -> TitleSource | None:
    """Read the material. None if there is no title to write: the thread has one or is gone, or its answer failed."""
    row = await driver.fetchrow(READ, job.thread_id, job.worker_id)
    if row is None:
        return None
    asked, answered = (text_of(rows.content(row[name]) or ()) for name in ("asked", "answered"))
    return TitleSource(
        owner_id=row["owner_id"],
        anon_key_hash=row["anon_key_hash"],
        provider=row["provider"],
        model=row["model"],
        asked=asked,
        answered=answered,
    )


@retried
async def finish(db: Database, job: TitleJob, title: str) -> bool:
    """Set the title, and end the job. Returns whether it was set: a title that exists by now stays."""
    async with db.transaction() as connection:
        try:
            row = await threads.lock(connection, job.thread_id)
        except ThreadNotFound:
            return False
        driver = await driver_of(connection)
        is_mine = await driver.fetchval(LOCK, job.thread_id, job.worker_id) is not None
        if is_mine and row.title is None:
            await threads.update_metadata(connection, job.thread_id, title=title)
        await driver.execute(DROP, job.thread_id, job.worker_id)
        return is_mine and row.title is None


@retried
async def drop(db: Database, job: TitleJob) -> None:
    """End the job without a title. The next of the thread's first runs requests one again."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(DROP, job.thread_id, job.worker_id)


@retried
async def postpone(db: Database, job: TitleJob) -> None:
    """Give up the lease after a failure, and try again later."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(POSTPONE, job.thread_id, job.worker_id, RETRY_SECONDS)
