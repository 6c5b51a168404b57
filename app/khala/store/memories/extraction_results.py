"""Stores what an extraction finds, as a memory or as a proposal, while its worker may still extract."""

from typing import Literal, TypeAlias

from khala.domain.errors import NotFound
from khala.domain.extraction import ExtractedMemory
from khala.domain.memories import Extraction, MemorySpace
from khala.store.memories import extraction_sources, memories, memory_proposals
from khala.store.memories.extraction_jobs import ExtractionJob
from khala.store.postgres.database import Database
from khala.store.postgres.retries import retried
from khala.store.tools import workspace_owners

StoredAs: TypeAlias = Literal["stored", "proposed", "known"]


@retried
async def store(
    db: Database, job: ExtractionJob, space: MemorySpace, extracted: ExtractedMemory, *, default: Extraction
) -> StoredAs:
    """Store or propose a memory, as the person has chosen. `known`: it was proposed already, or rejected.

    Raises `NotFound` if the job may no longer store, and `PayloadTooLarge` if the owner has too many memories.
    """
    async with workspace_owners.changing(db, space.owner_id, thread_id=job.thread_id) as driver:
        source = await extraction_sources.read(driver, job, default=default, lock=True)
        if source.mode == "off":
            raise NotFound("The extraction has ended: its person may no longer write in the thread, or has ended it.")
        if source.mode == "on":
            await memories.store(driver, space, extracted.new, supersedes=extracted.supersedes)
            return "stored"
        is_new = await memory_proposals.add(
            driver, job.subject_id, space, extracted.new, supersedes=extracted.supersedes
        )
        return "proposed" if is_new else "known"
