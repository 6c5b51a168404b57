"""Memories: stored once, superseded by newer ones, and forgotten. One transaction at a time changes an owner's."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from khala.domain import ids, search_terms
from khala.domain.errors import Conflict, NotFound, PayloadTooLarge
from khala.domain.memories import MAX_MEMORIES, Memory, MemoryScope, MemorySpace, NewMemory, fingerprint
from khala.store.memories import vectors
from khala.store.postgres.array_arguments import any_of
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.tools import workspace_owners

IN_USE = "superseded_by IS NULL AND coalesce(expires_at > now(), true)"
"""The memories that lists and searches return."""
IS_ERASED = "thread_id IN (SELECT id FROM threads WHERE id = memories.thread_id AND deleted_at IS NOT NULL)"
"""The memories of deleted threads, which a purge is about to delete."""
LAST_ID = UUID(int=2**128 - 1)
MAX_DELETED_ROWS = 1_000
"""Rows that one transaction forgets."""
MAX_AGENTS = 100
"""Agents of one owner whose memories are searched: the first ones by name."""

INSERT = """
    INSERT INTO memories (id, owner_id, space_id, scope, kind, agent, text, keywords, fingerprint, terms, thread_id,
                          message_id, run_id, key, expires_at, supersedes)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
    RETURNING *
"""
REPEAT = f"""
    UPDATE memories SET uses = uses + 1, expires_at = $3
    WHERE space_id = $1 AND fingerprint = $2 AND superseded_by IS NULL AND {IS_ERASED} IS NOT TRUE RETURNING *
"""
SUPERSEDE = """
    UPDATE memories SET superseded_by = $3 WHERE id = $1 AND space_id = $2 AND superseded_by IS NULL RETURNING id
"""
DELETE_UNUSED_TWIN = f"""
    DELETE FROM memories WHERE space_id = $1 AND fingerprint = $2 AND ({IS_ERASED} OR expires_at <= now())
      AND superseded_by IS NULL
"""
"""The purge deletes it later, but its text may be stored again before."""
DELETE_ALL = """
    DELETE FROM memories WHERE id = ANY (ARRAY(
        SELECT id FROM memories WHERE owner_id = $1 AND scope = ANY ($3::text[]) ORDER BY id LIMIT $2
    )) RETURNING id
"""
MOVE = "SELECT id, scope, agent, text, keywords FROM memories WHERE owner_id = $1 AND scope <> 'thread' ORDER BY id"
CURRENT = f"""
    WITH RECURSIVE chain AS (
        SELECT id AS first_id, id, superseded_by FROM memories WHERE id = {any_of(1, "uuid")}
        UNION SELECT first_id, newer.id, newer.superseded_by
        FROM chain JOIN memories AS newer ON newer.id = chain.superseded_by
    )
    SELECT first_id, memories.* FROM chain JOIN memories ON memories.id = chain.id
    WHERE chain.superseded_by IS NULL AND {IS_ERASED} IS NOT TRUE
"""
PAGE = f"""
    SELECT * FROM memories
    WHERE owner_id = $1 AND scope = ANY ($2::text[]) AND id < $3
      AND ($5 OR superseded_by IS NULL) AND coalesce(expires_at > now(), true)
      AND {IS_ERASED} IS NOT TRUE
    ORDER BY id DESC LIMIT $4
"""
PAGE_OF_SPACES = f"""
    SELECT newest.* FROM unnest($1::uuid[]) AS owner (id) CROSS JOIN LATERAL (
        SELECT * FROM memories
        WHERE owner_id = owner.id AND space_id = ANY ($2::uuid[]) AND {IN_USE} AND memories.id < $3
          AND {IS_ERASED} IS NOT TRUE
        ORDER BY id DESC LIMIT $4
    ) AS newest
    ORDER BY id DESC LIMIT $4
"""
AGENTS = f"""
    WITH RECURSIVE known AS (
        (SELECT agent, 1 AS number FROM memories WHERE owner_id = $1 AND agent IS NOT NULL ORDER BY agent LIMIT 1)
        UNION ALL
        SELECT (
            SELECT agent FROM memories WHERE owner_id = $1 AND agent > known.agent ORDER BY agent LIMIT 1
        ), number + 1 FROM known WHERE agent IS NOT NULL AND number < {MAX_AGENTS}
    )
    SELECT agent FROM known WHERE agent IS NOT NULL
"""
"""Reads one entry of the index for each agent. DISTINCT would read all memories of the owner."""
EXPORT = f"""
    WITH RECURSIVE mine AS (
        SELECT * FROM memories WHERE owner_id = $1 OR scope = 'thread'
            AND owner_id IN (SELECT id FROM threads WHERE owner_id = $1 AND deleted_at IS NULL)
    ), erased AS (
        SELECT id FROM mine AS memories WHERE {IS_ERASED}
        UNION SELECT mine.id FROM mine JOIN erased ON mine.superseded_by = erased.id
    )
    SELECT * FROM mine WHERE id NOT IN (SELECT id FROM erased) ORDER BY id
"""
"""All memories of a user and of their threads, without those that the purge is about to delete."""


@retried
async def add(db: Database, space: MemorySpace, new: NewMemory, *, key: str | None = None) -> tuple[Memory, bool]:
    """Store a memory, and return it and whether it is new. The same text again is counted as a use of the first.

    The same `key` adds nothing. Raises `PayloadTooLarge` at the limit, and `NotFound` if the owner was deleted.
    """
    async with workspace_owners.changing(db, space.owner_id) as driver:
        known = key and await driver.fetchrow(
            "SELECT * FROM memories WHERE owner_id = $1 AND key = $2", space.owner_id, key
        )
        if known:
            return memory(known), False
        repeated = await _repeat(driver, space, new)
        if repeated is not None:
            return memory(repeated), False
        await _check_room(driver, space.owner_id)
        return await _insert(driver, space, new, key=key), True


async def store(driver: Driver, space: MemorySpace, new: NewMemory, *, supersedes: UUID | None) -> Memory:
    """Store a memory, and return it. The caller changes the owner's workspace (`workspace_owners.changing`).

    The same text again is counted as a use of the first. `supersedes` is left out if it is not a current memory of
    this space. Raises `PayloadTooLarge` at the limit.
    """
    repeated = await _repeat(driver, space, new)
    if repeated is not None:
        return memory(repeated)
    await _check_room(driver, space.owner_id)
    new_id = ids.new()
    older = supersedes and await driver.fetchval(SUPERSEDE, supersedes, space.id, new_id)
    return await _insert(driver, space, new, memory_id=new_id, supersedes=older)


@retried
async def supersede(db: Database, space: MemorySpace, memory_id: UUID, new: NewMemory) -> Memory:
    """Replace a memory by a newer one, and return that. The old one stays, and is no longer used.

    Raises `NotFound`, and `Conflict` if it was superseded already or another memory has the new text.
    """
    async with workspace_owners.changing(db, space.owner_id) as driver:
        old = await _locked(driver, space.owner_id, memory_id)
        if old["superseded_by"] is not None:
            raise Conflict("This memory was corrected meanwhile.")
        same = fingerprint(new.text)
        if old["fingerprint"] != same:
            await driver.execute(DELETE_UNUSED_TWIN, old["space_id"], same)
        twin = "SELECT id FROM memories WHERE space_id = $1 AND fingerprint = $2 AND superseded_by IS NULL AND id <> $3"
        if await driver.fetchval(twin, old["space_id"], same, memory_id) is not None:
            raise Conflict("There is a memory with this text already.")
        await _check_room(driver, space.owner_id)
        new_id = ids.new()
        await driver.execute("UPDATE memories SET superseded_by = $2 WHERE id = $1", memory_id, new_id)
        return await _insert(driver, space, new, memory_id=new_id, supersedes=memory_id)


@retried
async def forget(db: Database, owner_id: UUID, memory_id: UUID) -> None:
    """Delete a memory and those that it has superseded. Raises `NotFound`."""
    async with workspace_owners.changing(db, owner_id) as driver:
        await _locked(driver, owner_id, memory_id)
        await driver.execute("DELETE FROM memories WHERE id = $1 AND owner_id = $2", memory_id, owner_id)


async def forget_all(db: Database, owner_id: UUID, scopes: Sequence[MemoryScope]) -> None:
    """Delete all memories of an owner that have these scopes, in bounded transactions."""
    while await _forget_some(db, owner_id, scopes) == MAX_DELETED_ROWS:
        continue


@retried
async def _forget_some(db: Database, owner_id: UUID, scopes: Sequence[MemoryScope]) -> int:
    async with workspace_owners.changing(db, owner_id) as driver:
        return len(await driver.fetch(DELETE_ALL, owner_id, MAX_DELETED_ROWS, list(scopes)))


async def find(driver: Driver, memory_id: UUID) -> tuple[Memory, MemorySpace]:
    """A memory and its space. Raises `NotFound`."""
    row = await driver.fetchrow(f"SELECT * FROM memories WHERE id = $1 AND {IS_ERASED} IS NOT TRUE", memory_id)
    if row is None:
        raise NotFound("There is no such memory.")
    return memory(row), MemorySpace(scope=row["scope"], owner_id=row["owner_id"], agent=row["agent"])


async def current_versions(driver: Driver, memory_ids: Sequence[UUID]) -> dict[UUID, tuple[Memory, UUID]]:
    """The memories in use that these became by corrections, and their owners. Forgotten ones are absent."""
    rows = await driver.fetch(CURRENT, list(memory_ids))
    return {row["first_id"]: (memory(row), row["owner_id"]) for row in rows}


async def page(
    driver: Driver, owner_id: UUID, scopes: Sequence[str], *, before: UUID | None, limit: int, history: bool = False
) -> list[Memory]:
    """The memories of an owner that are in use, newest first; with `history`, also those that were superseded."""
    rows = await driver.fetch(PAGE, owner_id, list(scopes), before or LAST_ID, limit, history)
    return [memory(row) for row in rows]


async def page_of_spaces(
    driver: Driver, spaces: Sequence[MemorySpace], *, before: UUID | None, limit: int
) -> list[Memory]:
    """The memories of these spaces that are in use, newest first. The spaces have at most two owners."""
    owners, space_ids = sorted({space.owner_id for space in spaces}), [space.id for space in spaces]
    rows = await driver.fetch(PAGE_OF_SPACES, owners, space_ids, before or LAST_ID, limit)
    return [memory(row) for row in rows]


async def agents_of(driver: Driver, owner_id: UUID) -> list[str]:
    """The agents that have memories of this owner, at most `MAX_AGENTS`."""
    return [row["agent"] for row in await driver.fetch(AGENTS, owner_id)]


async def move_all(driver: Driver, before: UUID, after: UUID) -> None:
    """Move a guest's own memories to the user who claims their thread. The caller holds both owners' locks.

    One that the user has already is deleted. Those of the thread stay with it.
    """
    rows = await driver.fetch(MOVE, before)
    await vectors.delete(driver, [row["id"] for row in rows])
    for row in rows:
        space = MemorySpace(scope=row["scope"], owner_id=after, agent=row["agent"])
        same = fingerprint(row["text"])
        await driver.execute(DELETE_UNUSED_TWIN, space.id, same)
        taken = "SELECT true FROM memories WHERE space_id = $1 AND fingerprint = $2 AND superseded_by IS NULL"
        if await driver.fetchval(taken, space.id, same):
            await driver.execute("DELETE FROM memories WHERE id = $1", row["id"])
            continue
        keys = _term_keys(space, row["text"], row["keywords"])
        query = "UPDATE memories SET owner_id = $2, space_id = $3, terms = $4, generation = 0 WHERE id = $1"
        await driver.execute(query, row["id"], after, space.id, keys)


def memory(row: Record, score: float | None = None) -> Memory:
    """The memory of a row, with its score in a search."""
    fields = {name: row[name] for name in Memory.__struct_fields__ if name != "score"}
    return Memory(**fields, score=score)


def implied_columns(line: Any, user_id: UUID) -> dict[str, Any]:
    """The columns that follow from an archived memory of this user."""
    owner_id = line.thread_id if line.scope == "thread" else user_id
    space = MemorySpace(scope=line.scope, owner_id=owner_id, agent=line.agent)
    return {
        "owner_id": owner_id,
        "space_id": space.id,
        "fingerprint": fingerprint(line.text),
        "terms": _term_keys(space, line.text, line.keywords),
    }


async def _repeat(driver: Driver, space: MemorySpace, new: NewMemory) -> Record | None:
    """Count a use of the memory with the same text, and return it. If there is none, the text can be inserted."""
    same = fingerprint(new.text)
    repeated: Record | None = await driver.fetchrow(REPEAT, space.id, same, new.expires_at)
    if repeated is None:
        await driver.execute(DELETE_UNUSED_TWIN, space.id, same)
    return repeated


async def _insert(
    driver: Driver,
    space: MemorySpace,
    new: NewMemory,
    *,
    memory_id: UUID | None = None,
    key: str | None = None,
    supersedes: UUID | None = None,
) -> Memory:
    row = await driver.fetchrow(
        INSERT,
        memory_id or ids.new(),
        space.owner_id,
        space.id,
        space.scope,
        new.kind,
        space.agent,
        new.text,
        new.keywords,
        fingerprint(new.text),
        _term_keys(space, new.text, new.keywords),
        new.thread_id,
        new.message_id,
        new.run_id,
        key,
        new.expires_at,
        supersedes,
    )
    return memory(row)


def _term_keys(space: MemorySpace, text: str, keywords: str | None) -> list[int]:
    return search_terms.term_keys(space.id, search_terms.terms(f"{text} {keywords or ''}"))


async def _check_room(driver: Driver, owner_id: UUID) -> None:
    if await driver.fetchval("SELECT count(*) FROM memories WHERE owner_id = $1", owner_id) >= MAX_MEMORIES:
        raise PayloadTooLarge(f"There are at most {MAX_MEMORIES:,} memories. Forget some first.")


async def _locked(driver: Driver, owner_id: UUID, memory_id: UUID) -> Record:
    query = "SELECT * FROM memories WHERE id = $1 AND owner_id = $2 FOR UPDATE"
    row: Record | None = await driver.fetchrow(query, memory_id, owner_id)
    if row is None:
        raise NotFound("There is no such memory.")
    return row
