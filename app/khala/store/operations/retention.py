"""Retention: deletes expired and unneeded rows and packs old parts, in small batches, by one process at a time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.invitations import DECLINE_DURATION
from khala.store.accounts import account_removal, oauth_clients
from khala.store.operations import reset_purge, run_purge
from khala.store.operations.part_packing import PACKED_RUNS, PartPacker
from khala.store.postgres import page_images
from khala.store.postgres.database import Database, Driver, affected, driver_of
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.runs import packed_parts
from khala.store.search import index_lock, passage_vectors
from khala.store.streams import removal
from khala.store.threads import thread_lists, threads
from khala.store.tools import mcp_authorizations

log = structlog.get_logger()

MAX_BATCH_ROWS = 2000
"""Rows that one transaction deletes."""
MAX_BATCH_THREADS = 100
"""Threads that one transaction closes, or whose contents it deletes."""
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
CONTENTS = {
    # Before the plans: the deletion of a plan would delete all of its events and steps at once.
    "plan_events": "thread_id",
    "plan_steps": "thread_id",
    "plans": "thread_id",
    # With their parts and receipts.
    "runs": "thread_id",
    "messages": "thread_id",
    "blobs": "thread_id",
    # The workspaces of guests, which belong to a thread.
    "files": "owner_id",
    "todos": "owner_id",
    "memories": "thread_id",
    "memory_proposals": "thread_id",
    "memory_settings": "subject_id",
    "usage_receipts": "thread_id",
    "search_segments": "thread_id",
    "passage_vectors": "thread_id",
}
"""The tables that hold a deleted thread's contents, and their column with the thread's id. That of vectors may not
exist: `khala.store.search.passage_vectors`."""
UNPURGED = """deleted_at IS NOT NULL AND purged_at IS NULL AND NOT EXISTS (
    SELECT FROM thread_deletions WHERE thread_deletions.thread_id = threads.id AND expires_at > now())"""
"""The deleted threads that may still have contents, and that nobody can restore."""
OUTDATED = "deleted_at < now() - interval '1 day'"
"""The deleted threads whose row is deleted, too. Before, no thread gets their id, because clients may still show the
old one."""
DELETE_CONTENTS = """
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT entry.ctid FROM unnest($1::uuid[]) AS deleted (thread_id) CROSS JOIN LATERAL (
            SELECT ctid FROM {table} WHERE {column} = deleted.thread_id LIMIT $2
        ) AS entry LIMIT $2
    )) AND {column} = ANY ($1::uuid[])
"""
"""Reads no more rows than it deletes. In a partitioned table, rows of other partitions have the same `ctid`: the last
condition spares those of other threads."""
LOCK_IN_ORDER = """
    SELECT id FROM {table} WHERE id = ANY (ARRAY(
        SELECT entry.id FROM unnest($1::uuid[]) AS deleted (thread_id) CROSS JOIN LATERAL (
            SELECT id FROM {table} WHERE {table}.thread_id = deleted.thread_id LIMIT $2
        ) AS entry LIMIT $2
    )) ORDER BY id FOR UPDATE
"""
"""Plans and runs are locked in the order of their ids."""
MESSAGES = """
    SELECT entry.id, entry.run_id FROM unnest($1::uuid[]) AS deleted (thread_id) CROSS JOIN LATERAL (
        SELECT id, run_id FROM messages WHERE messages.thread_id = deleted.thread_id LIMIT $2
    ) AS entry LIMIT $2
"""
DELETE_MESSAGES = "DELETE FROM messages WHERE id = ANY ($1::uuid[])"
DELETE_PLANS = "DELETE FROM plans WHERE id = ANY ($1::uuid[])"
COUNT_CONTENTS = """
    SELECT coalesce(sum(contents.entries), 0)::bigint FROM threads CROSS JOIN LATERAL (
        SELECT count(*) AS entries FROM {table} WHERE {column} = threads.id
    ) AS contents WHERE {unpurged}
"""
COUNT_WRITTEN = """
    SELECT count(*) FROM threads CROSS JOIN LATERAL (
        SELECT id FROM runs WHERE runs.thread_id = threads.id
        UNION SELECT run_id FROM messages WHERE messages.thread_id = threads.id
    ) AS run JOIN {table} ON {table}.run_id = run.id WHERE {unpurged}
"""
MARK_PURGED = "UPDATE threads SET purged_at = clock_timestamp() WHERE id = ANY ($1::uuid[])"
DELETE_THREADS = "DELETE FROM threads WHERE id = ANY ($1::uuid[])"
SWEEPS = {
    "blobs": "expires_at < now()",
    "listings": thread_lists.IS_FORGOTTEN,
    "invitations": f"declined_at < now() - interval '{DECLINE_DURATION.days} days'",
    "sessions": "expires_at < now()",
    "oidc_logins": "expires_at < now()",
    "mcp_authorizations": "expires_at < now()",
    "mcp_clients": mcp_authorizations.IS_UNUSED_CLIENT,
    # Of accounts that were disconnected, if nobody could revoke their tokens.
    "mcp_accounts": "user_id IS NULL AND revoke_at < now() - interval '7 days'",
    "oauth_grants": "expires_at < now()",
    "oauth_clients": oauth_clients.IS_UNUSED,
    "share_links": "expires_at < now()",
    "detail_tokens": "expires_at < now()",
    "completion_requests": "expires_at < now()",
    "api_tokens": "expires_at < now() - interval '30 days'",
    "memories": "expires_at < now() - interval '30 days'",
    "memory_proposals": "expires_at < now()",
    # Of guests whose key opens no thread any more, or none yet.
    "memory_settings": """anon_key_hash IS NOT NULL AND changed_at < now() - interval '1 day' AND NOT EXISTS (
        SELECT FROM threads WHERE threads.anon_key_hash = memory_settings.anon_key_hash)""",
    "preferences": """anon_key_hash IS NOT NULL AND changed_at < now() - interval '1 day' AND NOT EXISTS (
        SELECT FROM threads WHERE threads.anon_key_hash = preferences.anon_key_hash)""",
    "thread_folders": """anon_key_hash IS NOT NULL AND changed_at < now() - interval '1 day' AND NOT EXISTS (
        SELECT FROM threads WHERE threads.anon_key_hash = thread_folders.anon_key_hash)""",
    "thread_deletions": "expires_at < now()",
    # A reservation is given back by the run that made it.
    "budgets": """ends_at < now() - interval '1 day' AND reserved + coalesce((
        SELECT sum(stripes.reserved) FROM budget_stripes AS stripes
        WHERE (stripes.scope, stripes.key, stripes.measure, stripes.starts_at)
            = (budgets.scope, budgets.key, budgets.measure, budgets.starts_at)), 0) = 0""",
    "schedules": "status = 'ended' AND updated_at < now() - interval '7 days'",
    "usage_ledger": "settled IS NOT NULL AND created_at < now() - interval '7 days'",
    "usage_receipts": "created_at < now() - interval '90 days'",
    "webhook_deliveries": "created_at < now() - interval '7 days'",
    # After its deliveries, which no longer have an endpoint otherwise.
    "webhook_endpoints": "deleted_at < now() - interval '8 days'",
    # Of browsers that have not opened the page for long.
    "push_subscriptions": "confirmed_at < now() - interval '90 days'",
    "push_messages": "created_at < now() - interval '2 days'",
    "audit": "created_at < now() - interval '365 days'",
}
"""The expired rows of each table."""
SWEPT_BY = {
    "listings": "changed_at",
    "invitations": "declined_at",
    "mcp_accounts": "revoke_at",
    "mcp_clients": "created_at",
    "oauth_clients": "created_at",
    "memory_settings": "changed_at",
    "preferences": "changed_at",
    "thread_folders": "changed_at",
    "budgets": "ends_at",
    "schedules": "updated_at",
    "usage_ledger": "created_at",
    "usage_receipts": "created_at",
    "webhook_deliveries": "created_at",
    "webhook_endpoints": "deleted_at",
    "push_subscriptions": "confirmed_at",
    "push_messages": "created_at",
    "audit": "created_at",
}
"""The column with the time at which rows of these tables expire; of the others, `expires_at`. A search in the order of
this column uses its index, whatever the planner expects to find: statistics are older than the previous purge."""

WRITTEN = ("message_parts", "receipts")
"""The tables that hold what runs have written."""

KINDS = (
    *("idle threads", "expired threads", *account_removal.KINDS, *CONTENTS, *WRITTEN, "threads"),
    *(table for table in SWEEPS if table not in CONTENTS),
    *removal.KINDS,
    PACKED_RUNS,
)
"""What a purge counts: closed threads, deleted rows by table, and runs whose parts were packed."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Retention periods; zero for no limit.

    `idle` is that of an unclaimed anonymous thread after its last change. `parts` is the time after the end of a run in
    which its parts stay as they are; later they are packed.
    """

    idle: timedelta
    parts: timedelta = timedelta(0)


async def count_due(db: Database, policy: RetentionPolicy) -> dict[str, int]:
    """The number of rows to delete, by kind. `idle threads` and `expired threads` are still to be closed."""
    due = dict.fromkeys(KINDS, 0)
    async with db.driver() as driver:
        due["expired threads"] = await driver.fetchval(f"SELECT count(*) FROM ({EXPIRED}) AS expired")
        if policy.idle:
            due["idle threads"] = await driver.fetchval(f"SELECT count(*) FROM ({IDLE}) AS idle", policy.idle)
        for table in await passage_vectors.existing(driver, CONTENTS):
            query = COUNT_CONTENTS.format(table=table, column=CONTENTS[table], unpurged=UNPURGED)
            due[table] += await driver.fetchval(query)
        for table in WRITTEN:
            due[table] += await driver.fetchval(COUNT_WRITTEN.format(table=table, unpurged=UNPURGED))
        for table in await passage_vectors.existing(driver, reset_purge.COUNTS):
            due[table] += await driver.fetchval(reset_purge.COUNTS[table])
        due["accounts"] = await driver.fetchval("SELECT count(*) FROM deleted_accounts")
        due["threads"] = await driver.fetchval(f"SELECT count(*) FROM threads WHERE {OUTDATED}")
        for table, condition in SWEEPS.items():
            due[table] += await driver.fetchval(f"SELECT count(*) FROM {table} WHERE {condition}")
        due |= await removal.count_due(driver)
        if policy.parts:
            due[PACKED_RUNS] = await packed_parts.count_due(driver, policy.parts)
    return due


async def purge(db: Database, policy: RetentionPolicy) -> dict[str, int]:
    """Delete all rows that are due. Returns their number by kind, which is zero while another process is purging."""
    total: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    deletions = _deletions(policy) if await _is_anything_due(db, policy) else ()
    steps: list[Step] = [partial(_with_plain_page_images, deletion) for deletion in deletions]
    if policy.parts:
        steps.append(PartPacker(policy.parts).pack_next)
    for step in steps:
        for _ in range(MAX_BATCHES):
            deleted = await _batch(db, step)
            total.update(deleted)
            if not deleted:
                break
            await asyncio.sleep(0)
    return dict(total)


ANY_DUE = " OR ".join(
    f"({query} LIMIT 1) IS NOT NULL"
    for query in (
        f"{EXPIRED} ORDER BY ephemeral_threads.expires_at",
        "SELECT user_id FROM deleted_accounts",
        "SELECT thread_id FROM thread_resets",
        f"SELECT id FROM threads WHERE {UNPURGED} ORDER BY deleted_at",
        f"SELECT id FROM threads WHERE {OUTDATED} ORDER BY deleted_at",
        *(
            f"SELECT true FROM {table} WHERE {condition} ORDER BY {SWEPT_BY.get(table, 'expires_at')}"
            for table, condition in SWEEPS.items()
        ),
        *removal.ANY_DUE,
    )
)
"""No EXISTS, because it ignores an order."""


async def _is_anything_due(db: Database, policy: RetentionPolicy) -> bool:
    """Whether a purge has anything to delete: one statement, because most purges have nothing to do."""
    idle = (policy.idle,) if policy.idle else ()
    query = f"SELECT {ANY_DUE}" + (f" OR ({IDLE} ORDER BY created_at LIMIT 1) IS NOT NULL" if idle else "")
    async with db.driver() as driver:
        return bool(await driver.fetchval(query, *idle))


Step = Callable[[AsyncConnection], Awaitable[Mapping[str, int]]]
"""Does one batch of one kind within a transaction. Returns the number of rows by kind; nothing when nothing is due."""


def _deletions(policy: RetentionPolicy) -> Iterator[Step]:
    """All kinds of batches that delete, in an order that leaves no reference to a deleted row."""
    if policy.idle:
        yield partial(_close_idle, policy)
    yield _close_expired
    yield account_removal.purge_next
    yield _purge_reset
    yield partial(_purge_threads, UNPURGED)
    yield partial(_purge_threads, OUTDATED)
    for table in SWEEPS:
        yield partial(_sweep, table)
    yield removal.purge_next


@retried
async def _batch(db: Database, step: Step) -> Mapping[str, int]:
    async with db.transaction() as connection:
        got = await connection.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": PURGE_LOCK_KEY})
        return await step(connection) if got.scalar_one() else {}


async def _with_plain_page_images(step: Step, connection: AsyncConnection) -> Mapping[str, int]:
    await page_images.leave_uncompressed(await driver_of(connection))
    return await step(connection)


async def _close_idle(policy: RetentionPolicy, connection: AsyncConnection) -> Mapping[str, int]:
    query = f"{IDLE} ORDER BY created_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"
    found = await (await driver_of(connection)).fetch(query, policy.idle, MAX_BATCH_THREADS)
    return await _close(connection, "idle threads", found)


async def _close_expired(connection: AsyncConnection) -> Mapping[str, int]:
    query = f"{EXPIRED} ORDER BY threads.id LIMIT $1 FOR UPDATE OF threads SKIP LOCKED"
    found = await (await driver_of(connection)).fetch(query, MAX_BATCH_THREADS)
    return await _close(connection, "expired threads", found)


async def _close(connection: AsyncConnection, kind: str, found: Sequence[Record]) -> Mapping[str, int]:
    if not found:
        return {}
    await threads.close(connection, [row["id"] for row in found])
    return {kind: len(found)}


async def _purge_reset(connection: AsyncConnection) -> Mapping[str, int]:
    return await reset_purge.purge_next(await driver_of(connection), MAX_BATCH_ROWS)


async def _purge_threads(which: str, connection: AsyncConnection) -> Mapping[str, int]:
    """Delete contents of some deleted threads. Once they have none, mark them, or delete the rows of outdated ones.

    Contents are deleted again before the row: no foreign key would tell of rows that were added in between.
    """
    driver = await driver_of(connection)
    query = f"SELECT id FROM threads WHERE {which} ORDER BY deleted_at LIMIT $1 FOR UPDATE SKIP LOCKED"
    thread_ids = [row["id"] for row in await driver.fetch(query, MAX_BATCH_THREADS)]
    if not thread_ids:
        return {}
    deleted: Counter[str] = Counter()
    for table in await passage_vectors.existing(driver, CONTENTS):
        room = max(0, MAX_BATCH_ROWS - deleted.total())
        deleted += await _delete_contents(driver, table, thread_ids, room)
    if deleted.total() < MAX_BATCH_ROWS:
        status = await driver.execute(MARK_PURGED if which == UNPURGED else DELETE_THREADS, thread_ids)
        deleted["threads"] = affected(status) if which == OUTDATED else 0
    return deleted


async def _delete_contents(driver: Driver, table: str, thread_ids: Sequence[UUID], room: int) -> Mapping[str, int]:
    """Delete up to `room` rows of this table, and rows that only they lead to. Returns their number by table."""
    if table == "runs":
        return await _delete_runs(driver, thread_ids, room)
    if table == "messages":
        return await _delete_messages(driver, thread_ids, room)
    if table == "plans":
        plan_ids = await _lock_in_order(driver, table, thread_ids, room)
        return {table: affected(await driver.execute(DELETE_PLANS, plan_ids))}
    if table == "search_segments":
        await index_lock.lock(driver)
    query = DELETE_CONTENTS.format(table=table, column=CONTENTS[table])
    return {table: affected(await driver.execute(query, thread_ids, room))}


async def _delete_runs(driver: Driver, thread_ids: Sequence[UUID], room: int) -> Mapping[str, int]:
    deleted: Counter[str] = Counter()
    while deleted.total() < room:
        run_ids = await _lock_in_order(driver, "runs", thread_ids, run_purge.MAX_BATCH_RUNS)
        if not run_ids:
            break
        deleted += await run_purge.delete_runs(driver, run_ids, room - deleted.total())
    return deleted


async def _delete_messages(driver: Driver, thread_ids: Sequence[UUID], room: int) -> Mapping[str, int]:
    """Delete messages, and before them what their runs have written: version 0.1 deletes the runs with the thread."""
    found = await driver.fetch(MESSAGES, thread_ids, room)
    deleted = await run_purge.delete_written(driver, [row["run_id"] for row in found if row["run_id"]], room)
    rest = [row["id"] for row in found][: max(0, room - deleted.total())]
    deleted["messages"] = affected(await driver.execute(DELETE_MESSAGES, rest))
    return deleted


async def _lock_in_order(driver: Driver, table: str, thread_ids: Sequence[UUID], most: int) -> list[UUID]:
    return [row["id"] for row in await driver.fetch(LOCK_IN_ORDER.format(table=table), thread_ids, most)]


async def _sweep(table: str, connection: AsyncConnection) -> Mapping[str, int]:
    """Delete expired rows. Locked rows are left for the next purge, which never waits."""
    driver = await driver_of(connection)
    if table == "listings":
        count = int(await driver.fetchval(thread_lists.DELETE_GONE_ENTRIES, MAX_BATCH_ROWS))
    else:
        due = f"{SWEEPS[table]} ORDER BY {SWEPT_BY.get(table, 'expires_at')}"
        chosen = f"SELECT ctid FROM {table} WHERE {due} LIMIT $1 FOR UPDATE SKIP LOCKED"
        status = await driver.execute(f"DELETE FROM {table} WHERE ctid = ANY (ARRAY({chosen}))", MAX_BATCH_ROWS)
        count = affected(status)
    return {table: count} if count else {}
