"""Inserts the rows of an archive, in one transaction of the caller: all rows of an account, or none.

An archive is not trusted: every row must belong to the account, every reference must lead to another row of the same
thread, and runs that had not ended are canceled. References to other accounts of this deployment are removed, unless
the operator vouches for the archive.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ARRAY, LargeBinary
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Role
from khala.domain.archive_format import ArchiveRefusedError
from khala.store.operations.archive_kinds import RowKind
from khala.store.operations.archive_rows import BASE64
from khala.store.postgres.database import Driver, driver_of
from khala.store.runs import leases, runs
from khala.store.threads import thread_lists

OBJECTS_PER_QUERY = 1000

CHECKS: Mapping[str, str] = {
    "a run whose messages are not in its thread": """
        SELECT runs.id FROM runs
        LEFT JOIN messages AS answer ON answer.id = runs.message_id AND answer.thread_id = runs.thread_id
        LEFT JOIN messages AS question ON question.id = runs.user_message_id AND question.thread_id = runs.thread_id
        WHERE runs.thread_id = ANY($1::uuid[]) AND (answer.id IS NULL OR question.id IS NULL) LIMIT 1""",
    "a message whose run is not in its thread": """
        SELECT messages.id FROM messages
        LEFT JOIN runs ON runs.id = messages.run_id AND runs.thread_id = messages.thread_id
        WHERE messages.thread_id = ANY($1::uuid[]) AND messages.run_id IS NOT NULL AND runs.id IS NULL LIMIT 1""",
    "a message that follows one of another thread": """
        SELECT messages.id FROM messages
        LEFT JOIN messages AS parent ON parent.id = messages.parent_id AND parent.thread_id = messages.thread_id
        WHERE messages.thread_id = ANY($1::uuid[]) AND messages.parent_id IS NOT NULL AND parent.id IS NULL LIMIT 1""",
    "a thread whose active message is in another one": """
        SELECT threads.id FROM threads
        LEFT JOIN messages ON messages.id = threads.active_leaf AND messages.thread_id = threads.id
        WHERE threads.id = ANY($1::uuid[]) AND threads.active_leaf IS NOT NULL AND messages.id IS NULL LIMIT 1""",
    "a run of a plan of another thread": """
        SELECT runs.id FROM runs JOIN plans ON plans.id = runs.plan_id AND plans.thread_id <> runs.thread_id
        WHERE runs.thread_id = ANY($1::uuid[]) LIMIT 1""",
    **{
        f"a row of {table} whose plan is not in its thread": f"""
        SELECT {table}.plan_id FROM {table}
        LEFT JOIN plans ON plans.id = {table}.plan_id AND plans.thread_id = {table}.thread_id
        WHERE {table}.thread_id = ANY($1::uuid[]) AND plans.id IS NULL LIMIT 1"""
        for table in ("plan_steps", "plan_events")
    },
    "a run that has not ended, with packed parts": """
        SELECT id FROM runs WHERE thread_id = ANY($1::uuid[]) AND parts_layout IS NOT NULL
          AND status NOT IN ('final', 'error', 'canceled') LIMIT 1""",
    **{
        f"a row of {table} whose run is not in its thread": f"""
        SELECT {table}.run_id FROM {table}
        LEFT JOIN runs ON runs.id = {table}.run_id AND runs.thread_id = {table}.thread_id
        WHERE {table}.thread_id = ANY($1::uuid[]) AND {table}.run_id IS NOT NULL AND runs.id IS NULL LIMIT 1"""
        for table in ("receipts", "approvals", "blobs")
    },
}
"""Inconsistencies, and the queries that find them."""
COUNT_PARTS = """
    SELECT count(*) FROM runs
    JOIN message_parts AS part ON part.run_id = runs.id AND part.thread_id IS NOT DISTINCT FROM runs.thread_id
        AND part.message_id = runs.message_id
    WHERE runs.thread_id = ANY($1::uuid[])
"""
"""The parts whose run and message are in their thread."""

OTHERS = (
    "UPDATE messages SET author_id = NULL WHERE thread_id = ANY($1::uuid[]) AND author_id <> $2"
    " AND author_id IN (SELECT id FROM users)",
    "UPDATE runs SET user_id = NULL WHERE thread_id = ANY($1::uuid[]) AND user_id <> $2"
    " AND user_id IN (SELECT id FROM users)",
    "UPDATE plans SET user_id = NULL WHERE thread_id = ANY($1::uuid[]) AND user_id <> $2"
    " AND user_id IN (SELECT id FROM users)",
    "UPDATE approvals SET decided_by = NULL WHERE thread_id = ANY($1::uuid[]) AND decided_by <> $2"
    " AND decided_by IN (SELECT id FROM users)",
    "UPDATE blobs SET author_id = NULL WHERE thread_id = ANY($1::uuid[]) AND author_id <> $2"
    " AND author_id IN (SELECT id FROM users)",
)
"""Removes other accounts of this deployment from the threads `$1` of the user `$2`."""

LOCK_OBJECTS = """
    WITH due AS (
        SELECT sha256 FROM objects WHERE sha256 = ANY($1::bytea[]) AND stored ORDER BY sha256 FOR NO KEY UPDATE
    )
    UPDATE objects SET touched_at = clock_timestamp() FROM due WHERE objects.sha256 = due.sha256
    RETURNING objects.sha256
"""
ADD_LIST_ENTRIES = """
    INSERT INTO listings (user_id, thread_id, revision, changed_at)
    SELECT owner_id, id, 1, updated_at FROM threads WHERE id = ANY($1::uuid[])
    ON CONFLICT (user_id, thread_id) DO NOTHING
"""
IMPORTED = """
    SELECT EXISTS (SELECT FROM audit
                   WHERE user_id = $1 AND action = 'account_imported' AND detail->>'archive' = $2)
"""


async def account_exists(driver: Driver, user_id: UUID) -> bool:
    """Whether there is an account with this id."""
    return bool(await driver.fetchval("SELECT EXISTS (SELECT FROM users WHERE id = $1)", user_id))


async def was_imported(driver: Driver, user_id: UUID, digest: str) -> bool:
    """Whether the account was created by an import of the archive with this digest."""
    return bool(await driver.fetchval(IMPORTED, user_id, digest))


async def copy(
    driver: Driver,
    kind: RowKind,
    lines: Sequence[msgspec.Struct],
    implied: Callable[[msgspec.Struct], Mapping[str, Any]],
) -> None:
    """Insert these lines as rows. `implied` gives the columns of a line that the archive leaves out."""
    if not lines:
        return
    columns = kind.columns
    names = [column.name for column in columns] + list(implied(lines[0]))
    coded = {c.name for c in columns if isinstance(c.type, LargeBinary) and f"{kind.table.name}.{c.name}" not in BASE64}
    arrays = {column.name for column in columns if isinstance(column.type, ARRAY)}

    def value(name: str, given: Any) -> Any:
        if name in coded and given is not None:
            return bytes.fromhex(given)
        if isinstance(given, msgspec.Raw):
            return bytes(given).decode()
        return list(given) if name in arrays else given

    records = [
        (*(value(column.name, getattr(line, column.name)) for column in columns), *implied(line).values())
        for line in lines
    ]
    await driver.copy_records_to_table(kind.table.name, records=records, columns=names)


async def lock_threads(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Lock the threads, their plans and their active runs, which come first in the lock order."""
    await driver.execute("SELECT FROM threads WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE", thread_ids)
    await driver.execute("SELECT FROM plans WHERE thread_id = ANY($1::uuid[]) ORDER BY id FOR UPDATE", thread_ids)
    await leases.lock_active_runs(driver, thread_ids)


async def lock_users(driver: Driver, user_ids: Iterable[UUID]) -> None:
    """Lock those of the users who have an account here, in the order of their ids."""
    query = "SELECT FROM users WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE"
    await driver.execute(query, list(set(user_ids)))


async def lock_objects(driver: Driver, hashes: Sequence[bytes]) -> set[bytes]:
    """Lock these objects against garbage collection until the transaction ends. Returns those that are stored."""
    locked: set[bytes] = set()
    for start in range(0, len(hashes), OBJECTS_PER_QUERY):
        locked |= {row["sha256"] for row in await driver.fetch(LOCK_OBJECTS, hashes[start : start + OBJECTS_PER_QUERY])}
    return locked


async def mark_stored(driver: Driver, sha256: bytes) -> None:
    """Mark that the object's bytes are in the blob store."""
    query = "UPDATE objects SET stored = true, touched_at = clock_timestamp() WHERE sha256 = $1"
    await driver.execute(query, sha256)


async def check_references(driver: Driver, thread_ids: Sequence[UUID], part_count: int) -> None:
    """Raise `ArchiveRefusedError` if a row of these threads refers to anything outside of its thread.

    `part_count` is the number of parts that were imported. No index finds a part that no run of the threads leads to.
    """
    strays = part_count - await driver.fetchval(COUNT_PARTS, thread_ids)
    if strays:
        raise ArchiveRefusedError(f"There are parts whose run or message is not in their thread: {strays}.")
    for problem, query in CHECKS.items():
        row_id = await driver.fetchval(query, thread_ids)
        if row_id is not None:
            raise ArchiveRefusedError(f"There is {problem}: {row_id}.")


async def remove_other_accounts(driver: Driver, thread_ids: Sequence[UUID], user_id: UUID) -> None:
    """Remove references to other accounts of this deployment as authors, requesters or deciders."""
    for command in OTHERS:
        await driver.execute(command, thread_ids, user_id)


async def cancel_unended_runs(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> int:
    """Cancel the runs that had not ended: an import starts no run. Returns their number."""
    driver = await driver_of(connection)
    query = """
        SELECT DISTINCT thread_id FROM runs
        WHERE thread_id = ANY($1::uuid[]) AND status IN ('queued', 'running', 'blocked') ORDER BY thread_id
    """
    ended = 0
    for row in await driver.fetch(query, thread_ids):
        active = await runs.lock_active(driver, row["thread_id"])
        await runs.cancel_runs(driver, active)
        ended += len(active)
    return ended


async def add_list_entries(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Add the threads to their owner's list, unless they are on it."""
    await driver.execute(ADD_LIST_ENTRIES, thread_ids)


class ArchivedMembership(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A role that a user had in a thread. Sorted, memberships are in the order in which users are locked."""

    user_id: UUID
    thread_id: UUID
    role: Role
    created_at: datetime


async def add_members(driver: Driver, members: Iterable[ArchivedMembership]) -> int:
    """Restore these memberships for users who have an account here. Returns the number of those who have none."""
    dropped = 0
    for member in sorted(members):
        if not await account_exists(driver, member.user_id):
            dropped += 1
            continue
        query = "INSERT INTO memberships (thread_id, user_id, role, created_at) VALUES ($1, $2, $3, $4)"
        await driver.execute(query, member.thread_id, member.user_id, member.role, member.created_at)
        await thread_lists.add_entry(driver, member.thread_id, member.user_id)
    return dropped


async def set_login(driver: Driver, user_id: UUID, email: str, password_hash: str) -> bool:
    """Set the address and password of the user's sign-in. Returns False if they already have a password."""
    query = "INSERT INTO passwords (user_id, email, hash) VALUES ($1, $2, $3) ON CONFLICT (user_id) DO NOTHING"
    done: str = await driver.execute(query, user_id, email, password_hash)
    return done == "INSERT 0 1"
