"""Retention: deletes expired and unneeded rows, in small batches, by one process at a time."""

import asyncio
import random
from datetime import timedelta
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import text

from khala.domain.errors import Unavailable
from khala.domain.invitations import DECLINE_DURATION
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.threads import threads

log = structlog.get_logger()

PURGE_INTERVAL_SECONDS = 60.0
"""Seconds between two purges, on average."""
MAX_BATCH_ROWS = 1000
"""Rows that one transaction deletes. A transaction closes a tenth as many threads."""
MAX_BATCHES = 1000
"""Batches of one kind in one purge. Further rows wait for the next purge."""
PURGE_LOCK_KEY = 0x6B68616C62
"""The key of the advisory lock that the purging process holds."""

IDLE = """
    SELECT id FROM threads
    WHERE owner_id IS NULL AND deleted_at IS NULL
      AND created_at < now() - $1::interval AND updated_at < now() - $1::interval
"""
EXPIRED = """
    SELECT threads.id FROM ephemeral_threads JOIN threads ON threads.id = ephemeral_threads.thread_id
    WHERE ephemeral_threads.expires_at < now() AND threads.deleted_at IS NULL
      AND NOT EXISTS (SELECT FROM runs WHERE runs.thread_id = threads.id AND runs.status IN ('queued', 'running'))
"""
"""Expired threads, except those whose answer is being written."""
DELETED = "(SELECT id FROM threads WHERE deleted_at IS NOT NULL)"
SWEEPS = {
    "message_parts": f"thread_id IN {DELETED}",
    "messages": f"thread_id IN {DELETED}",
    "receipts": f"thread_id IN {DELETED}",
    "blobs": (
        f"id IN (SELECT id FROM blobs WHERE thread_id IN {DELETED}"
        " UNION ALL SELECT id FROM blobs WHERE expires_at < now())"
    ),
    # The workspaces of guests, which belong to a thread.
    "files": f"owner_id IN {DELETED}",
    "todos": f"owner_id IN {DELETED}",
    # Kept for a day, so that the id is not created anew while a client still shows the old thread.
    "threads": (
        "deleted_at < now() - interval '1 day'"
        " AND NOT EXISTS (SELECT FROM message_parts WHERE message_parts.thread_id = threads.id)"
        " AND NOT EXISTS (SELECT FROM messages WHERE messages.thread_id = threads.id)"
        " AND NOT EXISTS (SELECT FROM receipts WHERE receipts.thread_id = threads.id)"
        " AND NOT EXISTS (SELECT FROM blobs WHERE blobs.thread_id = threads.id)"
        " AND NOT EXISTS (SELECT FROM files WHERE files.owner_id = threads.id)"
        " AND NOT EXISTS (SELECT FROM todos WHERE todos.owner_id = threads.id)"
    ),
    "listings": "gone AND changed_at < now() - interval '7 days'",
    "invitations": f"declined_at < now() - interval '{DECLINE_DURATION.days} days'",
    "sessions": "expires_at < now()",
    "oidc_logins": "expires_at < now()",
    "share_links": "expires_at < now()",
    "detail_tokens": "expires_at < now()",
    "completion_requests": "expires_at < now()",
    "api_tokens": "expires_at < now() - interval '30 days'",
    # A reservation is given back by the run that made it.
    "budgets": "ends_at < now() - interval '1 day' AND reserved = 0",
    "usage_ledger": "settled IS NOT NULL AND created_at < now() - interval '7 days'",
    "audit": "created_at < now() - interval '365 days'",
}
"""The rows to delete of each table, in an order that leaves no reference to a deleted row."""

DELETE_GONE_ENTRIES = f"""
    WITH chosen AS MATERIALIZED (
        SELECT ctid AS place, user_id FROM listings WHERE {SWEEPS["listings"]} LIMIT $1
    ), held AS MATERIALIZED (
        SELECT id FROM users WHERE id IN (SELECT user_id FROM chosen) ORDER BY id FOR NO KEY UPDATE
    ), forgotten AS (
        DELETE FROM listings WHERE ctid IN (SELECT place FROM chosen) AND user_id IN (SELECT id FROM held)
        RETURNING user_id, revision
    ), floors AS (
        SELECT user_id, max(revision) AS floor FROM forgotten GROUP BY user_id
    ), raised AS (
        UPDATE users SET floor_revision = greatest(floor_revision, floor) FROM floors WHERE users.id = floors.user_id
    )
    SELECT count(*) FROM forgotten
"""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Retention periods. `idle` is that of an unclaimed anonymous thread after its last change; zero for no limit."""

    idle: timedelta


async def count_due(db: Database, policy: RetentionPolicy) -> dict[str, int]:
    """The number of rows to delete, by kind. `idle threads` and `expired threads` are still to be closed."""
    async with db.driver() as driver:
        due = {"idle threads": 0, "expired threads": 0}
        due["expired threads"] = await driver.fetchval(f"SELECT count(*) FROM ({EXPIRED}) AS expired")
        if policy.idle:
            due["idle threads"] = await driver.fetchval(f"SELECT count(*) FROM ({IDLE}) AS idle", policy.idle)
        for table, condition in SWEEPS.items():
            due[table] = await driver.fetchval(f"SELECT count(*) FROM {table} WHERE {condition}")
    return due


async def purge(db: Database, policy: RetentionPolicy) -> dict[str, int]:
    """Delete all rows that are due. Returns their number by kind, which is zero while another process is purging."""
    deleted: dict[str, int] = {"idle threads": 0, "expired threads": 0} | dict.fromkeys(SWEEPS, 0)
    for kind in deleted:
        for _ in range(MAX_BATCHES):
            count = await _batch(db, kind, policy)
            deleted[kind] += count
            if not count:
                break
            await asyncio.sleep(0)
    return deleted


@retried
async def _batch(db: Database, kind: str, policy: RetentionPolicy) -> int:
    async with db.transaction() as connection:
        got = await connection.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": PURGE_LOCK_KEY})
        if not got.scalar_one():
            return 0
        driver = await driver_of(connection)
        if kind in ("idle threads", "expired threads"):
            ended = await (_idle(driver, policy) if kind == "idle threads" else _expired(driver))
            if ended:
                await threads.close(connection, ended)
            return len(ended)
        if kind == "listings":
            return int(await driver.fetchval(DELETE_GONE_ENTRIES, MAX_BATCH_ROWS))
        # Locked rows are left for the next purge, which never waits.
        chosen = f"SELECT ctid FROM {kind} WHERE {SWEEPS[kind]} LIMIT $1 FOR UPDATE SKIP LOCKED"
        status = await driver.execute(f"DELETE FROM {kind} WHERE ctid = ANY (ARRAY({chosen}))", MAX_BATCH_ROWS)
        return int(status.rpartition(" ")[2])


async def _idle(driver: Driver, policy: RetentionPolicy) -> list[UUID]:
    if not policy.idle:
        return []
    query = f"{IDLE} ORDER BY created_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"
    return [row["id"] for row in await driver.fetch(query, policy.idle, MAX_BATCH_ROWS // 10)]


async def _expired(driver: Driver) -> list[UUID]:
    query = f"{EXPIRED} ORDER BY threads.id LIMIT $1 FOR UPDATE OF threads SKIP LOCKED"
    return [row["id"] for row in await driver.fetch(query, MAX_BATCH_ROWS // 10)]


class RetentionLoop:
    """The loop that purges. Any number of processes may run it, but only one of them purges at a time."""

    def __init__(self, db: Database, policy: RetentionPolicy) -> None:
        self._db = db
        self._policy = policy

    async def run(self) -> None:
        """Purge regularly, for ever."""
        while True:
            await asyncio.sleep(PURGE_INTERVAL_SECONDS * random.uniform(0.5, 1.5))
            try:
                deleted = {kind: count for kind, count in (await purge(self._db, self._policy)).items() if count}
            except Unavailable as error:
                log.warning("expired_data_not_deleted", error=str(error.__cause__))
                continue
            if deleted:
                log.info("expired_data_deleted", **{kind.replace(" ", "_"): count for kind, count in deleted.items()})
