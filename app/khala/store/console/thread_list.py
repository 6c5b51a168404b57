"""The console's threads: a list without titles, and grants by which an administrator opens one of them."""

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from khala.domain.access import Caller
from khala.domain.errors import Forbidden, ThreadNotFound
from khala.store.accounts import audit
from khala.store.console.pages import (
    AccountRef,
    ConsoleStruct,
    Statement,
    account_columns,
    account_ref,
    as_uuid,
    joined,
)
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.threads import threads
from khala.store.threads.thread_pages import LAST_POSITION

OPENED = "console_thread_opened"
GRANT_LIFETIME = timedelta(hours=1)

COLUMNS = f"""
    page.*, {account_columns("page.owner_id", "owner")},
    (SELECT count(*) FROM runs WHERE runs.thread_id = page.id
       AND runs.status IN ('queued', 'running', 'blocked')) AS active_runs
"""
THREAD_COLUMNS = "id, owner_id, visibility, revision, reset_revision, created_at, updated_at"
GRANTED = """
    SELECT true FROM audit WHERE id = $1 AND user_id = $2 AND thread_id = $3 AND action = $4
      AND created_at > clock_timestamp() - $5::interval
"""


class ConsoleThread(ConsoleStruct, frozen=True, kw_only=True):
    """A thread of anybody, without its title. Its states from `oldestRevision` on can be shown."""

    id: UUID
    owner: AccountRef | None
    visibility: Literal["private", "link", "public"]
    revision: int
    oldest_revision: int
    active_runs: int
    created_at: datetime
    updated_at: datetime


class ThreadGrant(ConsoleStruct, frozen=True, kw_only=True):
    """The right of an administrator to read one thread. It is the entry of the audit trail that says so."""

    grant: UUID
    expires_at: datetime


async def read_page(
    driver: Driver, account: UUID | None, q: str | None, before: tuple[datetime, UUID] | None, limit: int
) -> list[ConsoleThread]:
    """Return threads before this position, the newest first."""
    statement = Statement()
    moment, thread_id = before or LAST_POSITION
    position = f"({statement.add(moment, 'timestamptz')}, {statement.add(thread_id, 'uuid')})"
    conditions = ["deleted_at IS NULL", f"(created_at, id) < {position}"]
    if account is not None:
        conditions.append(f"owner_id = {statement.add(account, 'uuid')}")
    # Found by their ids before they are sorted: the planner must not look for them in the order of all threads.
    source = f"(SELECT * FROM threads WHERE {_named(statement, q)} OFFSET 0) AS threads" if q else "threads"
    query = f"""
        SELECT {COLUMNS} FROM (
            SELECT {THREAD_COLUMNS} FROM {source} WHERE {joined(conditions)} ORDER BY created_at DESC, id DESC
            LIMIT {statement.add(limit, "int")}
        ) AS page ORDER BY page.created_at DESC, page.id DESC
    """
    return [_thread(row) for row in await driver.fetch(query, *statement.arguments)]


def _named(statement: Statement, q: str) -> str:
    """SQL: whether the text is the id of the thread, or of one of its messages or runs."""
    named = as_uuid(q)
    if named is None:
        return "false"
    placeholder = statement.add(named, "uuid")
    of_message = f"SELECT thread_id FROM messages WHERE id = {placeholder}"
    of_run = f"SELECT thread_id FROM runs WHERE id = {placeholder}"
    return f"id = ANY(ARRAY(SELECT {placeholder} UNION {of_message} UNION {of_run}))"


async def read(driver: Driver, thread_id: UUID) -> ConsoleThread:
    """Return the thread. Raises `ThreadNotFound`."""
    query = f"""
        SELECT {COLUMNS} FROM (
            SELECT {THREAD_COLUMNS} FROM threads WHERE id = $1 AND deleted_at IS NULL
        ) AS page
    """
    row = await driver.fetchrow(query, thread_id)
    if row is None:
        raise ThreadNotFound("There is no such thread.")
    return _thread(row)


def _thread(row: Record) -> ConsoleThread:
    same = ("id", "visibility", "revision", "active_runs", "created_at", "updated_at")
    return ConsoleThread(
        owner=account_ref(row, "owner"), oldest_revision=row["reset_revision"], **{name: row[name] for name in same}
    )


@retried
async def open_thread(db: Database, thread_id: UUID, admin: Caller, reason: str | None) -> ThreadGrant:
    """Let the administrator read the thread for a while. The audit trail says so. Raises `ThreadNotFound`."""
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id)
        entry = await audit.record(connection, OPENED, admin, thread_id=thread_id, reason=reason)
        return ThreadGrant(grant=entry.id, expires_at=entry.created_at + GRANT_LIFETIME)


async def require_grant(driver: Driver, thread_id: UUID, grant: UUID, admin: Caller) -> None:
    """Raise `Forbidden` unless the administrator has opened the thread by this grant, which has not expired."""
    if not await driver.fetchval(GRANTED, grant, admin.user_id, thread_id, OPENED, GRANT_LIFETIME):
        raise Forbidden("Open the thread first. A grant is for one thread and administrator, and lasts an hour.")
