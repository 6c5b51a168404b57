"""Receipts of the model calls that no run has made: extractions of memories, and embeddings. `charges` writes them."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct
from khala.domain.decimals import format_optional
from khala.store.budgets.charges import ChargePurpose
from khala.store.postgres.database import Driver

OF_USER = """
    SELECT id, purpose, thread_id, run_id, data, cost_usd, created_at FROM usage_receipts
    WHERE user_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3
"""


class UsageReceipt(WireStruct, frozen=True, kw_only=True):
    """The record of one call, or of several embeddings within seconds. `cost_usd` as in `Receipt`.

    `thread_id` and `run_id` say what the call was made for.
    """

    id: UUID
    purpose: ChargePurpose
    thread_id: UUID | None = None
    run_id: UUID | None = None
    data: dict[str, Any]
    cost_usd: str | None = None
    created_at: datetime


async def of_user(driver: Driver, user_id: UUID, *, before: UUID | None, limit: int) -> list[UsageReceipt]:
    """A user's receipts, newest first. `before` is the last one of the previous page."""
    return [
        UsageReceipt(
            id=row["id"],
            purpose=row["purpose"],
            thread_id=row["thread_id"],
            run_id=row["run_id"],
            data=msgspec.json.decode(row["data"], type=dict[str, Any]),
            cost_usd=format_optional(row["cost_usd"]),
            created_at=row["created_at"],
        )
        for row in await driver.fetch(OF_USER, user_id, before, limit)
    ]
