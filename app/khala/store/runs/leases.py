"""Leases: the right to write to a run, and the condition (fence) by which each statement checks a lease's epoch."""

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.webhooks import WebhookEvent
from khala.store.postgres.database import Driver
from khala.store.webhooks import outbox


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write to a run, valid for as long as the run's epoch (the fencing token) is this one."""

    run_id: UUID
    thread_id: UUID
    message_id: UUID
    epoch: int


LeaseColumns: TypeAlias = tuple[list[UUID], list[UUID], list[int]]
"""The run, thread and epoch of each lease: the first three arguments of the statements about leases."""

IS_HELD = "(run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM ({0}.thread_id, {0}.epoch, 'running')"
"""The fence: whether the run is still held under the lease of this row.

Each statement must find its rows by their keys, whatever the planner assumes, because a cached plan outlives the table
sizes that it was made for. Postgres uses no index for `IS NOT DISTINCT FROM`, so the planner can't choose another index
than the key's, for example that of active runs or that of a thread's parts.
"""


def lease_columns(leases: Sequence[Lease]) -> LeaseColumns:
    """The leases as arguments of a statement."""
    return (
        [lease.run_id for lease in leases],
        [lease.thread_id for lease in leases],
        [lease.epoch for lease in leases],
    )


class ActiveRunRow(msgspec.Struct, frozen=True):
    """A run that has not ended."""

    id: UUID
    thread_id: UUID
    status: Literal["queued", "running", "blocked"]


async def lock_active_runs(driver: Driver, thread_ids: Sequence[UUID]) -> list[ActiveRunRow]:
    """Lock the runs of these threads that have not ended. The caller holds the threads' locks."""
    query = """
        SELECT id, thread_id, status FROM runs
        WHERE thread_id = ANY($1::uuid[]) AND status IN ('queued', 'running', 'blocked')
        ORDER BY id FOR UPDATE
    """
    # Locked in the order of ids, as heartbeats do.
    return [ActiveRunRow(*row) for row in await driver.fetch(query, thread_ids)]


async def revoke(driver: Driver, active: Sequence[ActiveRunRow]) -> None:
    """End runs that are deleted in this transaction: executors lose their leases, and none claims the runs again.

    The rows are purged later. The caller holds their locks.
    """
    query = """
        UPDATE runs SET status = 'canceled', epoch = epoch + 1, finished_at = clock_timestamp(),
               lease_owner = NULL, lease_expires_at = NULL
        WHERE id = ANY($1::uuid[])
    """
    await driver.execute(query, [run.id for run in active])
    data = {"status": "canceled", "reason": "deleted"}
    events = [
        WebhookEvent(type="run.cancelled", thread_id=run.thread_id, data={"runId": run.id, **data}) for run in active
    ]
    await outbox.record(driver, events)
