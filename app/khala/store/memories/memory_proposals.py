"""Proposed memories: extracted from what a person said, until that person accepts or rejects them."""

from datetime import timedelta
from uuid import UUID

from khala.domain import ids
from khala.domain.errors import NotFound
from khala.domain.memories import Memory, MemoryProposal, MemorySpace, NewMemory, fingerprint
from khala.store.memories import memories
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.tools import workspace_owners

MAX_PROPOSALS = 100
"""Open proposals of one person. A further one replaces the oldest."""
LIFETIME = timedelta(days=30)
"""Time until a proposal expires, and in which a rejected text is not proposed again."""

IS_OPEN = "NOT rejected AND expires_at > now()"
OF_SUBJECT = (
    f"SELECT * FROM memory_proposals WHERE subject_id = $1 AND {IS_OPEN} ORDER BY id DESC LIMIT {MAX_PROPOSALS}"
)
FIND = f"SELECT * FROM memory_proposals WHERE id = $1 AND subject_id = $2 AND {IS_OPEN}"
INSERT = """
    INSERT INTO memory_proposals (id, subject_id, owner_id, scope, kind, text, keywords, fingerprint, supersedes,
                                  thread_id, message_id, run_id, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, now() + $13::interval)
    ON CONFLICT (subject_id, fingerprint) DO NOTHING RETURNING id
"""
REMOVE_OLDEST = f"""
    DELETE FROM memory_proposals WHERE id IN (
        SELECT id FROM memory_proposals WHERE subject_id = $1 AND NOT rejected
        ORDER BY id DESC OFFSET {MAX_PROPOSALS} FOR UPDATE)
"""
ACCEPT = f"DELETE FROM memory_proposals WHERE id = $1 AND subject_id = $2 AND {IS_OPEN} RETURNING id"
REJECT = f"""
    UPDATE memory_proposals SET rejected = true, text = '', keywords = NULL
    WHERE id = $1 AND subject_id = $2 AND {IS_OPEN} RETURNING id
"""
MOVE = """
    UPDATE memory_proposals SET subject_id = $3, owner_id = CASE WHEN scope = 'thread' THEN owner_id ELSE $3 END
    WHERE thread_id = $1 AND subject_id = $2 AND NOT EXISTS (
        SELECT FROM memory_proposals AS other
        WHERE other.subject_id = $3 AND other.fingerprint = memory_proposals.fingerprint)
"""


async def of_subject(driver: Driver, subject_id: UUID) -> list[MemoryProposal]:
    """The open proposals for this person, the newest first."""
    return [_proposal(row) for row in await driver.fetch(OF_SUBJECT, subject_id)]


async def add(
    driver: Driver, subject_id: UUID, space: MemorySpace, new: NewMemory, *, supersedes: UUID | None = None
) -> bool:
    """Propose a memory. Returns False if it is proposed already, or was rejected.

    The caller changes the workspace of the space's owner (`workspace_owners.changing`).
    """
    added = await driver.fetchval(
        INSERT,
        ids.new(),
        subject_id,
        space.owner_id,
        space.scope,
        new.kind,
        new.text,
        new.keywords,
        fingerprint(new.text),
        supersedes,
        new.thread_id,
        new.message_id,
        new.run_id,
        LIFETIME,
    )
    await driver.execute(REMOVE_OLDEST, subject_id)
    return added is not None


async def space_of(driver: Driver, subject_id: UUID, proposal_id: UUID) -> MemorySpace:
    """The memories to which the proposed one would belong. Raises `NotFound`."""
    return _space(await _find(driver, subject_id, proposal_id))


@retried
async def accept(db: Database, subject_id: UUID, proposal_id: UUID) -> Memory:
    """Store the proposed memory, and return it. Raises `NotFound`, also if it was decided before."""
    async with db.driver() as driver:
        found = await _find(driver, subject_id, proposal_id)
    space = _space(found)
    new = NewMemory(
        text=found["text"],
        kind=found["kind"],
        keywords=found["keywords"],
        thread_id=found["thread_id"],
        message_id=found["message_id"],
        run_id=found["run_id"],
    )
    async with workspace_owners.changing(db, space.owner_id) as driver:
        if await driver.fetchval(ACCEPT, proposal_id, subject_id) is None:
            raise NotFound("There is no such proposal.")
        return await memories.store(driver, space, new, supersedes=found["supersedes"])


@retried
async def reject(db: Database, subject_id: UUID, proposal_id: UUID) -> None:
    """Reject a proposal: its text is deleted, and not proposed again for some time. Raises `NotFound`."""
    async with db.driver() as driver, driver.transaction():
        if await driver.fetchval(REJECT, proposal_id, subject_id) is None:
            raise NotFound("There is no such proposal.")


async def move_all(driver: Driver, thread_id: UUID, before: UUID, after: UUID) -> None:
    """Move a guest's proposals to the user who claims their thread. The caller holds the locks of both."""
    await driver.execute(MOVE, thread_id, before, after)


async def _find(driver: Driver, subject_id: UUID, proposal_id: UUID) -> Record:
    row: Record | None = await driver.fetchrow(FIND, proposal_id, subject_id)
    if row is None:
        raise NotFound("There is no such proposal.")
    return row


def _space(row: Record) -> MemorySpace:
    return MemorySpace(scope=row["scope"], owner_id=row["owner_id"])


def _proposal(row: Record) -> MemoryProposal:
    return MemoryProposal(**{name: row[name] for name in MemoryProposal.__struct_fields__})
