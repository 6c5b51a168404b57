"""The audit trail: records changes of identities and access, with user, time and network, in their transactions."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import WireStruct
from khala.store.postgres.database import Driver
from khala.store.schema.tables import audit


class AuditEntry(WireStruct, frozen=True, kw_only=True):
    """One change. `detail` never contains a secret."""

    id: UUID
    action: str
    thread_id: UUID | None = None
    network: str | None = None
    detail: dict[str, Any]
    created_at: datetime


async def record(
    connection: AsyncConnection,
    action: str,
    caller: Caller,
    *,
    thread_id: UUID | None = None,
    **detail: object,
) -> None:
    """Add an entry to the trail, in the caller's transaction."""
    await connection.execute(
        insert(audit).values(
            id=ids.new(),
            user_id=caller.user_id,
            action=action,
            thread_id=thread_id,
            network=caller.network,
            detail=detail,
        )
    )


async def of_user(driver: Driver, user_id: UUID, *, before: UUID | None, limit: int) -> list[AuditEntry]:
    """A user's changes, newest first. `before` is the last entry of the previous page."""
    query = """
        SELECT * FROM audit WHERE user_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3
    """
    return [
        AuditEntry(
            id=row["id"],
            action=row["action"],
            thread_id=row["thread_id"],
            network=row["network"],
            detail=msgspec.json.decode(row["detail"], type=dict[str, Any]),
            created_at=row["created_at"],
        )
        for row in await driver.fetch(query, user_id, before, limit)
    ]
