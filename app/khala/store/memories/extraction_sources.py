"""The thread of an extraction, and whether its worker may still extract: the person may write there, and wants it."""

from uuid import UUID

import msgspec

from khala.domain.access import Action, author_id_of_key, roles_allowing
from khala.domain.memories import Extraction
from khala.store.memories.extraction_jobs import ExtractionJob
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

READ = """
    SELECT threads.owner_id, threads.anon_key_hash, settings.extraction, runs.options->>'model' AS model,
           runs.asker_key_id,
           EXISTS (SELECT FROM ephemeral_threads WHERE thread_id = threads.id) AS ephemeral,
           threads.owner_id = job.user_id OR EXISTS (
               SELECT FROM memberships WHERE memberships.thread_id = threads.id
                   AND memberships.user_id = job.user_id AND role = ANY ($5::text[])) AS has_role,
           ARRAY(SELECT key_hash FROM share_links WHERE share_links.thread_id = threads.id
                     AND role = ANY ($5::text[]) AND coalesce(expires_at > clock_timestamp(), true)) AS link_hashes
    FROM memory_extractions AS job JOIN threads ON threads.id = job.thread_id AND deleted_at IS NULL
         LEFT JOIN memory_settings AS settings ON settings.subject_id = job.subject_id
         LEFT JOIN runs ON runs.id = $4
    WHERE job.thread_id = $1 AND job.subject_id = $2 AND worker_id = $3
"""
LOCK = f"{READ} FOR KEY SHARE OF job"
"""The job cannot be deleted until the transaction ends, so nothing is stored after the person has ended extraction."""


class ExtractionSource(msgspec.Struct, frozen=True, kw_only=True):
    """The thread of an extraction, and what its person has chosen.

    `mode` is `off` where nothing may be extracted. `model` is the one that the newest message asked for.
    """

    owner_id: UUID | None = None
    anon_key_hash: bytes | None = None
    mode: Extraction = "off"
    model: str | None = None


async def read(driver: Driver, job: ExtractionJob, *, default: Extraction, lock: bool = False) -> ExtractionSource:
    """The thread of the job, and whether to extract from it. `lock` keeps the job until the transaction ends.

    Nothing is extracted for a worker that has lost the job, and from people who may no longer write in the thread.
    Nor from the requests of programs, which are in ephemeral threads, or from what the holders of a share key say:
    nobody could decide for all of them.
    """
    query = LOCK if lock else READ
    writers = roles_allowing(Action.SEND_MESSAGE)
    row = await driver.fetchrow(query, job.thread_id, job.subject_id, job.worker_id, job.run_id, writers)
    if row is None:
        return ExtractionSource()
    is_allowed = _may_write(row, job) and not row["ephemeral"]
    return ExtractionSource(
        owner_id=row["owner_id"],
        anon_key_hash=row["anon_key_hash"],
        mode=(row["extraction"] or default) if is_allowed else "off",
        model=row["model"],
    )


def _may_write(row: Record, job: ExtractionJob) -> bool:
    """Whether a user has a role in the thread or came by a key that is still valid; a guest, whether the key is."""
    keys = [] if row["anon_key_hash"] is None else [row["anon_key_hash"]]
    if job.user_id is None:
        return job.subject_id in map(author_id_of_key, keys)
    return row["has_role"] or row["asker_key_id"] in map(author_id_of_key, [*keys, *row["link_hashes"]])
