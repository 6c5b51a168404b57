"""Receipts: what each call of a run cost."""

from uuid import UUID

from app.domain.chat import Receipt
from app.store import rows
from app.store.db import Driver


async def of_run(driver: Driver, run_id: UUID) -> list[Receipt]:
    """The run's receipts, in order."""
    query = "SELECT * FROM receipts WHERE run_id = $1 ORDER BY seq LIMIT 1000"
    return [rows.receipt(row) for row in await driver.fetch(query, run_id)]
