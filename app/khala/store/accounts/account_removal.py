"""The deletion of an account: one short transaction ends all its rights, and the purge deletes the rest in batches.

From the mark on (`deleted_accounts`), the account's credentials are gone and nobody may read its threads. Each batch is
one transaction, and locks at most `MAX_BATCH_THREADS` threads or changes at most `MAX_BATCH_MESSAGES` messages, so no
send waits for long, however much the account has. A batch that is interrupted leaves what the next one finds. The last
one deletes the user's row and the mark, once nothing else refers to the user.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Caller
from khala.store.accounts import audit
from khala.store.postgres.database import Database, Driver, affected, driver_of
from khala.store.postgres.notifications import CREDENTIALS_CHANNEL, notify, notify_threads
from khala.store.postgres.retries import retried
from khala.store.push import push_subscriptions
from khala.store.runs import requesters
from khala.store.streams import removal
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_MESSAGE
from khala.store.tools import mcp_accounts, workspace_owners
from khala.store.webhooks import endpoints

MAX_BATCH_THREADS = 100
"""Threads that one transaction locks."""
MAX_BATCH_MESSAGES = 500
"""Messages from which one transaction removes the author's name."""
MAX_BATCH_ROWS = 2000
"""Rows of other tables that one transaction deletes."""
MAX_FIRST_BATCHES = 10
"""Batches that the request itself executes: enough for an account of usual size."""

MARK = "INSERT INTO deleted_accounts (user_id, deleted_at) VALUES ($1, clock_timestamp())"
CREDENTIALS = (
    *("sessions", "api_tokens", "oauth_grants", "oidc_logins", "mcp_authorizations"),
    *("passwords", "identities", "agent_links"),
)
"""Tables with the credentials of users, and with links to their agents: few rows for each."""
FORGET_USER = "UPDATE users SET name = NULL, email = NULL, tool_rules = NULL WHERE id = $1"

NEXT = "SELECT user_id FROM deleted_accounts ORDER BY deleted_at, user_id LIMIT 1 FOR UPDATE SKIP LOCKED"
THIS = "SELECT user_id FROM deleted_accounts WHERE user_id = $1 FOR UPDATE SKIP LOCKED"

DELETE_REQUESTS = """
    DELETE FROM completion_requests WHERE run_id IN (
        SELECT run_id FROM completion_requests WHERE user_id = $1 ORDER BY run_id LIMIT $2 FOR UPDATE)
"""
ACTIVE_THREADS = """
    SELECT id FROM threads WHERE owner_id = $1 AND deleted_at IS NULL AND EXISTS (
        SELECT FROM runs WHERE runs.thread_id = threads.id AND status IN ('queued', 'running', 'blocked'))
      AND id IN (SELECT thread_id FROM runs WHERE fairness_key = $1 AND status IN ('queued', 'running', 'blocked'))
    ORDER BY id LIMIT $2
"""
"""The account's threads with active runs: they are closed first, because their settlement locks shared budgets."""
OWN_THREADS = "SELECT id FROM threads WHERE owner_id = $1 AND deleted_at IS NULL LIMIT $2"
REQUESTED = """
    SELECT DISTINCT thread_id AS id FROM runs
    WHERE status IN ('queued', 'running', 'blocked') AND user_id = $1 AND cancel_requested_at IS NULL LIMIT $2
"""
JOINED = "SELECT thread_id AS id FROM memberships WHERE user_id = $1 LIMIT $2"
LEAVE = "DELETE FROM memberships WHERE user_id = $1 AND thread_id = ANY ($2::uuid[])"
WRITTEN = f"""
    SELECT messages.id, messages.thread_id FROM messages JOIN threads ON threads.id = messages.thread_id
    WHERE author_id = $1 AND author_name IS NOT NULL AND threads.deleted_at IS NULL AND {IS_MESSAGE} LIMIT $2
"""
REMOVE_NAME = """
    UPDATE messages SET author_name = NULL, revision = threads.revision, updated_at = now() FROM threads
    WHERE messages.id = ANY ($1::uuid[]) AND threads.id = messages.thread_id
"""
LOCK_THREADS = "SELECT id FROM threads WHERE id = ANY ($1::uuid[]) AND deleted_at IS NULL ORDER BY id FOR UPDATE"
BUMP_THREADS = """
    UPDATE threads SET revision = revision + 1, access_id = gen_random_uuid(), updated_at = clock_timestamp()
    WHERE id = ANY ($1::uuid[])
"""
OWNED = {
    "listings": "user_id",
    "invitations": "user_id",
    "user_tools": "user_id",
    "memories": "owner_id",
    "memory_proposals": "subject_id",
    "memory_settings": "subject_id",
    "memory_extractions": "subject_id",
    "usage_receipts": "user_id",
    "preferences": "subject_id",
    "folder_files": "user_id",
    "thread_folders": "subject_id",
    "message_feedback": "person_id",
    "title_jobs": "user_id",
    "thread_deletions": "owner_id",
    "schedules": "user_id",
}
"""Tables whose rows belong to one user, and their column with the user's id."""
DELETE_OWNED = [
    f"DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE {column} = $1 LIMIT $2))"
    for table, column in OWNED.items()
]
ANY_OWNED = [f"SELECT EXISTS (SELECT FROM {table} WHERE {column} = $1)" for table, column in OWNED.items()]
HAS_STREAMS = """
    SELECT EXISTS (SELECT FROM streams WHERE user_id = $1)
        OR EXISTS (SELECT FROM stream_subscriptions WHERE user_id = $1)
"""
LOCK_USER = "SELECT id FROM users WHERE id = $1 FOR UPDATE"
WORKSPACE = ("files", "todos", "memories")

Batch = Callable[[AsyncConnection, UUID], Awaitable[int]]
"""Does one batch of one kind. Returns the number of threads or rows; 0 when nothing is left."""


async def remove(db: Database, caller: Caller, user_id: UUID) -> None:
    """Delete the account. Its rights end at once; what is left after the first batches is purged in the background."""
    await _mark(db, caller, user_id)
    for _ in range(MAX_FIRST_BATCHES):
        if not await _purge(db, user_id):
            return


@retried
async def _mark(db: Database, caller: Caller, user_id: UUID) -> None:
    async with db.transaction() as connection:
        await workspace_owners.close_gate(connection, user_id)
        driver = await driver_of(connection)
        await driver.fetchval(LOCK_USER, user_id)
        await thread_lists.lock_user(driver, user_id)
        await driver.execute(MARK, user_id)
        for table in CREDENTIALS:
            await driver.execute(f"DELETE FROM {table} WHERE user_id = $1", user_id)
        await driver.execute(FORGET_USER, user_id)
        await endpoints.remove_all(driver, user_id)
        await push_subscriptions.remove_all(driver, user_id)
        await mcp_accounts.disconnect_all(driver, user_id)
        await audit.record(connection, "account_deleted", caller)
        await notify(connection, CREDENTIALS_CHANNEL, str(user_id))


@retried
async def _purge(db: Database, user_id: UUID) -> bool:
    """Do one batch of this account. Returns whether there may be more, unless another process does them."""
    async with db.transaction() as connection:
        await connection.execute(select(func.now()))
        driver = await driver_of(connection)
        if await driver.fetchval(THIS, user_id) is None:
            return False
        return "accounts" not in await _purge_batch(connection, user_id)


async def purge_next(connection: AsyncConnection) -> Mapping[str, int]:
    """Do one batch of the account that was deleted first. Returns what was done; nothing when no account is left."""
    user_id = await (await driver_of(connection)).fetchval(NEXT)
    return {} if user_id is None else await _purge_batch(connection, user_id)


async def _purge_batch(connection: AsyncConnection, user_id: UUID) -> Mapping[str, int]:
    for kind, batch in BATCHES:
        if count := await batch(connection, user_id):
            return {kind: count}
    await _finish(connection, user_id)
    return {"accounts": 1}


async def _delete_requests(connection: AsyncConnection, user_id: UUID) -> int:
    driver = await driver_of(connection)
    return affected(await driver.execute(DELETE_REQUESTS, user_id, MAX_BATCH_ROWS))


async def _close_active(connection: AsyncConnection, user_id: UUID) -> int:
    return await _close(connection, await _ids(connection, ACTIVE_THREADS, user_id))


async def _close_own(connection: AsyncConnection, user_id: UUID) -> int:
    return await _close(connection, await _ids(connection, OWN_THREADS, user_id))


async def _close(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> int:
    if thread_ids:
        await threads.close(connection, await _lock_threads(connection, thread_ids))
    return len(thread_ids)


async def _cancel_runs(connection: AsyncConnection, user_id: UUID) -> int:
    """Cancel the runs that the user has requested in threads of others."""
    thread_ids = await _ids(connection, REQUESTED, user_id)
    if thread_ids:
        await _lock_threads(connection, thread_ids)
        await requesters.cancel_runs_of_user(await driver_of(connection), thread_ids, user_id)
    return len(thread_ids)


async def _leave(connection: AsyncConnection, user_id: UUID) -> int:
    """End memberships. The threads get a new `access_id`, so that observers are rechecked."""
    thread_ids = await _ids(connection, JOINED, user_id)
    if thread_ids:
        driver = await driver_of(connection)
        await _lock_threads(connection, thread_ids)
        await requesters.cancel_runs_of_user(driver, thread_ids, user_id)
        await _bump(driver, thread_ids)
        await driver.fetchval(LOCK_USER, user_id)
        await driver.execute(LEAVE, user_id, thread_ids)
    return len(thread_ids)


async def _remove_name(connection: AsyncConnection, user_id: UUID) -> int:
    """Remove the user's name from messages in threads of others, in a new revision of each thread."""
    driver = await driver_of(connection)
    written = await driver.fetch(WRITTEN, user_id, MAX_BATCH_MESSAGES)
    if written:
        thread_ids = list({row["thread_id"] for row in written})
        await _lock_threads(connection, thread_ids)
        await _bump(driver, thread_ids)
        await driver.execute(REMOVE_NAME, [row["id"] for row in written])
    return len(written)


async def _delete_streams(connection: AsyncConnection, user_id: UUID) -> int:
    driver = await driver_of(connection)
    if not await driver.fetchval(HAS_STREAMS, user_id):
        return 0
    await driver.fetchval(LOCK_USER, user_id)
    return await removal.delete_some(driver, user_id, MAX_BATCH_ROWS)


async def _delete_owned(connection: AsyncConnection, user_id: UUID) -> int:
    """Delete the entries of the user's thread list, their invitations, tools and memories."""
    driver = await driver_of(connection)
    if not any([await driver.fetchval(query, user_id) for query in ANY_OWNED]):
        return 0
    await driver.fetchval(LOCK_USER, user_id)
    return sum([affected(await driver.execute(query, user_id, MAX_BATCH_ROWS)) for query in DELETE_OWNED])


async def _finish(connection: AsyncConnection, user_id: UUID) -> None:
    """Delete the user's row and workspace, which has a maximum size, and the mark."""
    driver = await driver_of(connection)
    await driver.fetchval(LOCK_USER, user_id)
    for table in WORKSPACE:
        await driver.execute(f"DELETE FROM {table} WHERE owner_id = $1", user_id)
    await driver.execute("DELETE FROM users WHERE id = $1", user_id)
    await driver.execute("DELETE FROM deleted_accounts WHERE user_id = $1", user_id)


BATCHES: tuple[tuple[str, Batch], ...] = (
    ("completion_requests", _delete_requests),
    ("account threads", _close_active),
    ("account runs", _cancel_runs),
    ("account threads", _close_own),
    ("memberships", _leave),
    ("author names", _remove_name),
    ("streams", _delete_streams),
    ("listings", _delete_owned),
)
"""The batches, in the order in which they are done."""
KINDS = (
    "accounts",
    *dict.fromkeys(kind for kind, _ in BATCHES if kind not in ("listings", "completion_requests", "streams")),
)
"""What a batch counts, beside rows of tables that other purges count, too."""


async def _ids(connection: AsyncConnection, query: str, user_id: UUID) -> list[UUID]:
    return [row["id"] for row in await (await driver_of(connection)).fetch(query, user_id, MAX_BATCH_THREADS)]


async def _lock_threads(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> list[UUID]:
    """Lock those of these threads that are not deleted, in the order of their ids, and return them."""
    return [row["id"] for row in await (await driver_of(connection)).fetch(LOCK_THREADS, thread_ids)]


async def _bump(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    await driver.execute(BUMP_THREADS, thread_ids)
    await notify_threads(driver, thread_ids)
