"""Deletes runs with the rows that only they lead to: their parts, receipts and detail tokens."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from khala.store.postgres.database import Driver, affected

MAX_BATCH_RUNS = 100
"""Runs that one call deletes. Those that have lost their parts are read again by the next one until they are gone."""

DELETE_PARTS = """
    DELETE FROM message_parts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM message_parts WHERE run_id = ANY ($1::uuid[]) LIMIT $2
    )) AND run_id = ANY ($1::uuid[])
"""
"""In a partitioned table, rows of other partitions have the same `ctid`: the last condition spares those of other runs.
Those of these runs are deleted, too, so there may be more than `LIMIT` has."""
DELETE_RECEIPTS = """
    DELETE FROM receipts WHERE ctid = ANY (ARRAY(SELECT ctid FROM receipts WHERE run_id = ANY ($1::uuid[]) LIMIT $2))
"""
DELETE_TOKENS = """
    DELETE FROM detail_tokens WHERE (thread_id, run_id) IN (
        SELECT thread_id, id FROM runs WHERE id = ANY ($1::uuid[]))
"""
DELETE_RUNS = "DELETE FROM runs WHERE id = ANY ($1::uuid[])"


async def delete_written(driver: Driver, run_ids: Sequence[UUID], max_rows: int) -> Counter[str]:
    """Delete up to `max_rows` parts and receipts of these runs. Returns their number by table.

    It may be some more than `max_rows` if the parts are in partitions.
    """
    deleted = Counter({"message_parts": affected(await driver.execute(DELETE_PARTS, run_ids, max_rows))})
    room = max(0, max_rows - deleted.total())
    deleted["receipts"] = affected(await driver.execute(DELETE_RECEIPTS, run_ids, room))
    return deleted


async def delete_runs(driver: Driver, run_ids: Sequence[UUID], max_rows: int) -> Counter[str]:
    """Delete up to `max_rows` rows of these runs, or some more as `delete_written`. Returns their number by table.

    A run is deleted once it has no parts and no receipts. No index finds those of a run that is gone. The caller has
    locked the runs, in the order of their ids.
    """
    deleted = await delete_written(driver, run_ids, max_rows)
    empty = run_ids[: max(0, max_rows - deleted.total())]
    if empty:
        await driver.execute(DELETE_TOKENS, empty)
        deleted["runs"] = affected(await driver.execute(DELETE_RUNS, empty))
    return deleted
