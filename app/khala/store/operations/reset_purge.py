"""Deletes the rows that resets have marked (`khala.store.threads.reset_marks`), in batches of a maximum size.

The order of the tables leaves no message without its parts and no part without its run, so `khala verify` may run
beside it.
"""

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from khala.store.postgres.database import Driver, affected
from khala.store.postgres.rows import Record
from khala.store.search import indexing

MAX_BATCH_RUNS = 100
"""Runs that one transaction deletes, with their receipts and detail tokens."""

NEXT = """
    SELECT thread_id, first_position, revision, reset_at FROM thread_resets
    ORDER BY reset_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
FINISH = "DELETE FROM thread_resets WHERE thread_id = $1"
BOUNDS = {
    "messages": ("position", "first_position"),
    "message_parts": ("revision", "revision"),
    "blobs": ("created_at", "reset_at"),
    "search_segments": ("first_position", "first_position"),
}
"""By table, the column of its rows and that of the mark: rows below the mark are deleted. Runs are deleted before
blobs, because a transaction that adds a blob of a run holds the run's row until it commits."""
DELETE_ROWS = """
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {table} WHERE thread_id = $1 AND {column} < $2 LIMIT $3
    )) AND thread_id = $1 AND {column} < $2
"""
"""In a partitioned table, rows of other partitions have the same `ctid`: the last conditions spare those that are not
marked."""
LOCK_RUNS = """
    SELECT id FROM runs WHERE id = ANY (ARRAY(
        SELECT id FROM runs WHERE thread_id = $1 AND position < $2 LIMIT $3
    )) ORDER BY id FOR UPDATE
"""
DELETE_RECEIPTS = """
    DELETE FROM receipts WHERE ctid = ANY (ARRAY(SELECT ctid FROM receipts WHERE run_id = ANY ($1::uuid[]) LIMIT $2))
"""
DELETE_TOKENS = "DELETE FROM detail_tokens WHERE thread_id = $1 AND run_id = ANY ($2::uuid[])"
DELETE_RUNS = "DELETE FROM runs WHERE id = ANY ($1::uuid[])"

COUNT_ROWS = "SELECT count(*) FROM thread_resets AS mark JOIN {0} USING (thread_id) WHERE {0}.{1} < mark.{2}"
COUNTS = {
    **{table: COUNT_ROWS.format(table, *bound) for table, bound in BOUNDS.items()},
    "runs": COUNT_ROWS.format("runs", "position", "first_position"),
    "receipts": "SELECT count(*) FROM thread_resets AS mark JOIN runs USING (thread_id)"
    " JOIN receipts ON receipts.run_id = runs.id WHERE runs.position < mark.first_position",
}
"""By table, the number of rows that are marked."""


async def purge_next(driver: Driver, max_rows: int) -> Mapping[str, int]:
    """Delete up to `max_rows` rows of the thread that was reset first, and its mark once no marked row is left.

    Returns the number of rows by table; nothing when no reset is left. The thread is not locked: no other transaction
    changes marked rows.
    """
    mark = await driver.fetchrow(NEXT)
    if mark is None:
        return {}
    deleted = Counter({"messages": await _delete_rows(driver, "messages", mark, max_rows)})
    deleted["message_parts"] = await _delete_rows(driver, "message_parts", mark, max_rows - deleted.total())
    more = await _delete_runs(driver, mark, deleted, max_rows) if deleted.total() < max_rows else True
    if not more:
        deleted["blobs"] = await _delete_rows(driver, "blobs", mark, max_rows - deleted.total())
        await indexing.lock(driver)
        deleted["search_segments"] = await _delete_rows(driver, "search_segments", mark, max_rows - deleted.total())
        if deleted.total() < max_rows:
            await driver.execute(FINISH, mark["thread_id"])
    return deleted


async def _delete_rows(driver: Driver, table: str, mark: Record, room: int) -> int:
    column, at = BOUNDS[table]
    query = DELETE_ROWS.format(table=table, column=column)
    return affected(await driver.execute(query, mark["thread_id"], mark[at], room))


async def _delete_runs(driver: Driver, mark: Record, deleted: Counter[str], max_rows: int) -> bool:
    """Delete some runs with their receipts and tokens. Returns whether there may be more."""
    thread_id: UUID = mark["thread_id"]
    most = min(MAX_BATCH_RUNS, max_rows - deleted.total())
    run_ids = [row["id"] for row in await driver.fetch(LOCK_RUNS, thread_id, mark["first_position"], most)]
    if not run_ids:
        return False
    deleted["receipts"] = affected(await driver.execute(DELETE_RECEIPTS, run_ids, max_rows - deleted.total()))
    if deleted.total() + len(run_ids) <= max_rows:
        await driver.execute(DELETE_TOKENS, thread_id, run_ids)
        deleted["runs"] = affected(await driver.execute(DELETE_RUNS, run_ids))
    return True
