"""Leases: the right to write to a run, and the fence by which every statement about one checks its epoch."""

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.store.postgres.database import Driver


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

Each statement finds its rows by their keys, one by one, and leaves the planner nothing to choose: plans outlive the
sizes that they were made for. A comparison by `IS NOT DISTINCT FROM` can't lead the planner to another index than that
of the key: to that of active runs, for example, or of all parts of a thread.
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
    # In the order in which heartbeats lock runs.
    return [ActiveRunRow(*row) for row in await driver.fetch(query, thread_ids)]
