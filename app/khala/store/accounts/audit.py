"""The audit trail: records changes of identities and access, with user, time and network, in their transactions."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.budgets import DAY_SECONDS
from khala.domain.chat import WireStruct
from khala.store.budgets import counters
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.schema.tables import audit


class AuditEntry(WireStruct, frozen=True, kw_only=True):
    """One change. `detail` never contains a secret."""

    id: UUID
    action: str
    thread_id: UUID | None = None
    network: str | None = None
    detail: dict[str, Any]
    created_at: datetime


class RecordedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The id and time of an entry that was added."""

    id: UUID
    created_at: datetime


async def record(
    connection: AsyncConnection,
    action: str,
    caller: Caller,
    *,
    thread_id: UUID | None = None,
    reason: str | None = None,
    **detail: object,
) -> RecordedEntry:
    """Add an entry to the trail, in the caller's transaction. `reason`: why, as an administrator says.

    If a service acts for the user, the entry names the service and its token, too.
    """
    if caller.service is not None:
        detail |= {"service": caller.service.name, "serviceToken": str(caller.service.token_id)}
    if reason is not None:
        detail["reason"] = reason
    entry_id = ids.new()
    added = await connection.execute(
        insert(audit)
        .values(
            id=entry_id,
            user_id=caller.user_id,
            action=action,
            thread_id=thread_id,
            network=caller.network,
            detail=detail,
        )
        .returning(audit.c.created_at)
    )
    return RecordedEntry(id=entry_id, created_at=added.scalar_one())


@retried
async def record_impersonation(db: Database, caller: Caller) -> None:
    """Record that a service acts for the caller's user, once a day (UTC) for each token of the service."""
    assert caller.service is not None
    assert caller.user_id is not None
    key = caller.service.token_id.bytes + caller.user_id.bytes
    if await counters.count(db, "impersonation", key, "days", 1, window_seconds=DAY_SECONDS) is None:
        async with db.transaction() as connection:
            await record(connection, "impersonated", caller)


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
