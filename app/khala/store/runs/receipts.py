"""Receipts: what each call of a run cost."""

from uuid import UUID

from khala.domain.chat import Receipt
from khala.store.postgres import rows
from khala.store.postgres.database import Driver


async def of_run(driver: Driver, thread_id: UUID, run_id: UUID) -> list[Receipt]:
    """The receipts of a run of this thread, in order."""
    query = """
        SELECT * FROM receipts WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2
        ORDER BY run_id, seq LIMIT 1000
    """
    return [rows.receipt(row) for row in await driver.fetch(query, run_id, thread_id)]
