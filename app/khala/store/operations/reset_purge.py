"""Deletes the rows that resets have marked (`khala.store.threads.reset_marks`), in batches of a maximum size.

The order of the tables leaves no message without its parts and no part without its run, so `khala verify` may run
beside it.
"""

from collections import Counter
from collections.abc import Mapping

from khala.store.operations import run_purge
from khala.store.postgres.database import Driver, affected
from khala.store.postgres.rows import Record
from khala.store.search import index_lock, passage_vectors

NEXT = """
    SELECT thread_id, first_position, revision, reset_at FROM thread_resets
    ORDER BY reset_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
FINISH = "DELETE FROM thread_resets WHERE thread_id = $1"
BOUNDS = {
    "messages": ("position", "first_position"),
    "blobs": ("created_at", "reset_at"),
    "plan_events": ("revision", "revision"),
    "plan_steps": ("revision", "revision"),
    "search_segments": ("first_position", "first_position"),
    "passage_vectors": ("position", "first_position"),
}
"""By table, the column of its rows and that of the mark: rows below the mark are deleted. Runs are deleted before
blobs, because a transaction that adds a blob of a run holds the run's row until it commits; events and steps before
their plans, because the deletion of a plan would delete all of them at once."""
DELETE_ROWS = """
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {table} WHERE thread_id = $1 AND {column} < $2 LIMIT $3
    )) AND thread_id = $1 AND {column} < $2
"""
"""In a partitioned table, rows of other partitions have the same `ctid`: the last conditions spare those that are not
marked."""
DELETE_PLANS = """
    WITH due AS MATERIALIZED (
        SELECT id FROM plans WHERE thread_id = $1 AND revision < $2 ORDER BY id LIMIT $3 FOR UPDATE
    )
    DELETE FROM plans WHERE id IN (SELECT id FROM due)
"""
LOCK_RUNS = """
    SELECT id FROM runs WHERE id = ANY (ARRAY(
        SELECT id FROM runs WHERE thread_id = $1 AND position < $2 LIMIT $3
    )) ORDER BY id FOR UPDATE
"""

COUNT_ROWS = "SELECT count(*) FROM thread_resets AS mark JOIN {0} USING (thread_id) WHERE {0}.{1} < mark.{2}"
COUNTS = {
    **{table: COUNT_ROWS.format(table, *bound) for table, bound in BOUNDS.items()},
    "runs": COUNT_ROWS.format("runs", "position", "first_position"),
    "plans": COUNT_ROWS.format("plans", "revision", "revision"),
    **{
        table: "SELECT count(*) FROM thread_resets AS mark JOIN runs USING (thread_id)"
        f" JOIN {table} ON {table}.run_id = runs.id WHERE runs.position < mark.first_position"
        for table in ("message_parts", "receipts")
    },
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
    for table in ("plan_events", "plan_steps"):
        deleted[table] = await _delete_rows(driver, table, mark, max_rows - deleted.total())
    arguments = mark["thread_id"], mark["revision"], max_rows - deleted.total()
    deleted["plans"] = affected(await driver.execute(DELETE_PLANS, *arguments))
    more = await _delete_runs(driver, mark, deleted, max_rows) if deleted.total() < max_rows else True
    if not more:
        deleted["blobs"] = await _delete_rows(driver, "blobs", mark, max_rows - deleted.total())
        await index_lock.lock(driver)
        deleted["search_segments"] = await _delete_rows(driver, "search_segments", mark, max_rows - deleted.total())
        if await passage_vectors.exist(driver):
            deleted["passage_vectors"] = await _delete_rows(driver, "passage_vectors", mark, max_rows - deleted.total())
        if deleted.total() < max_rows:
            await driver.execute(FINISH, mark["thread_id"])
    return deleted


async def _delete_rows(driver: Driver, table: str, mark: Record, room: int) -> int:
    column, at = BOUNDS[table]
    query = DELETE_ROWS.format(table=table, column=column)
    return affected(await driver.execute(query, mark["thread_id"], mark[at], room))


async def _delete_runs(driver: Driver, mark: Record, deleted: Counter[str], max_rows: int) -> bool:
    """Delete some runs with what they have written. Returns whether there may be more."""
    locked = await driver.fetch(LOCK_RUNS, mark["thread_id"], mark["first_position"], run_purge.MAX_BATCH_RUNS)
    if not locked:
        return False
    deleted += await run_purge.delete_runs(driver, [row["id"] for row in locked], max_rows - deleted.total())
    return True
