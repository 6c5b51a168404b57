"""Leases of plans: one driver at a time holds a plan that goes on, and renews its lease.

A plan that is idle, paused or stopped needs no driver. Each claim has a new epoch, under which the driver appends.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain.program_level import PROGRAM_LEVEL
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import notify_drivers
from khala.store.postgres.retries import retried

CLAIM = """
    WITH picked AS MATERIALIZED (
        SELECT plans.id FROM plans JOIN threads ON threads.id = plans.thread_id AND threads.deleted_at IS NULL
        WHERE plans.status IN ('running', 'pausing', 'stopping')
          AND coalesce(plans.lease_expires_at < clock_timestamp(), true) AND plans.id <> ALL($4::uuid[])
          AND coalesce((plans.state ->> 'needs')::int, 0) <= $5
        ORDER BY plans.id LIMIT $1 FOR NO KEY UPDATE OF plans, threads SKIP LOCKED
    )
    UPDATE plans SET epoch = epoch + 1, lease_owner = $2,
           lease_expires_at = clock_timestamp() + make_interval(secs => $3)
    FROM picked WHERE plans.id = picked.id RETURNING plans.id, plans.thread_id, plans.epoch
"""
UNTIL_DUE = """
    SELECT extract(epoch FROM min(coalesce(lease_expires_at, clock_timestamp())) - clock_timestamp())::float
    FROM plans WHERE status IN ('running', 'pausing', 'stopping') AND id <> ALL($1::uuid[])
      AND coalesce((state ->> 'needs')::int, 0) <= $2
"""
RENEW = """
    WITH held AS (
        SELECT plans.id, plans.thread_id
        FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS lease (plan_id, thread_id, epoch)
        JOIN plans ON plans.id = lease.plan_id
            AND (plans.thread_id, plans.epoch) IS NOT DISTINCT FROM (lease.thread_id, lease.epoch)
        WHERE plans.status IN ('running', 'pausing', 'stopping')
        ORDER BY plans.id FOR NO KEY UPDATE OF plans
    )
    UPDATE plans SET lease_expires_at = clock_timestamp() + make_interval(secs => $4)
    FROM held WHERE plans.id = held.id AND plans.thread_id IS NOT DISTINCT FROM held.thread_id RETURNING plans.id
"""
REVOKE = """
    WITH held AS (
        SELECT id FROM plans WHERE thread_id = ANY($1::uuid[]) AND status IN ('running', 'pausing', 'stopping')
        ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE plans SET status = 'stopped', epoch = epoch + 1, network = NULL, lease_owner = NULL, lease_expires_at = NULL
    FROM held WHERE plans.id = held.id RETURNING plans.id
"""
TRANSFER = """
    WITH due AS (
        SELECT id, user_id IS NULL AND requester_key_id = $2 AS is_theirs FROM plans
        WHERE thread_id = $1 AND ((user_id IS NULL AND requester_key_id = $2) OR creator_id = $2)
        ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE plans SET user_id = CASE WHEN is_theirs THEN $3::uuid ELSE user_id END,
           network = CASE WHEN NOT is_theirs THEN network END,
           creator_id = CASE WHEN creator_id = $2 THEN $3::uuid ELSE creator_id END
    FROM due WHERE plans.id = due.id
"""
RELEASE = """
    UPDATE plans SET lease_owner = NULL, lease_expires_at = NULL
    WHERE id = $1 AND epoch = $2 AND thread_id IS NOT DISTINCT FROM $3
"""


class PlanLease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to append to a plan, valid for as long as the plan's epoch is this one."""

    plan_id: UUID
    thread_id: UUID
    epoch: int


@retried
async def claim(
    db: Database,
    *,
    most: int,
    owner: str,
    lease_seconds: float,
    held: Sequence[UUID] = (),
    level: int = PROGRAM_LEVEL,
) -> list[PlanLease]:
    """Claim up to `most` plans that need a driver and have none. `held` are plans that the caller drives already.

    Plans that need a higher `level` than that of the caller's program are left to others.
    """
    async with db.driver() as driver, driver.transaction():
        claimed = await driver.fetch(CLAIM, most, owner, lease_seconds, held, level)
    return [PlanLease(plan_id=row["id"], thread_id=row["thread_id"], epoch=row["epoch"]) for row in claimed]


async def seconds_until_due(driver: Driver, *, held: Sequence[UUID] = (), level: int = PROGRAM_LEVEL) -> float | None:
    """The seconds until the first lease lapses of a plan that is not `held`; 0 or less if one has. None without any.

    Plans that need a higher `level` do not count, because `claim` leaves them to others.
    """
    seconds: float | None = await driver.fetchval(UNTIL_DUE, held, level)
    return seconds


@retried
async def renew(db: Database, leases: Sequence[PlanLease], *, lease_seconds: float) -> set[UUID]:
    """Renew these leases. Returns the plans that are still held and go on."""
    rows = [(lease.plan_id, lease.thread_id, lease.epoch) for lease in leases]
    columns = map(list, zip(*rows, strict=True))
    async with db.driver() as driver, driver.transaction():
        return {row["id"] for row in await driver.fetch(RENEW, *columns, lease_seconds)}


async def revoke(driver: Driver, thread_ids: Sequence[UUID]) -> None:
    """Take the plans of these threads from their drivers for good, because the threads are deleted or reset.

    The caller holds the threads' locks. No event says so: nobody can read these plans any more.
    """
    revoked = [row["id"] for row in await driver.fetch(REVOKE, thread_ids)]
    if revoked:
        await notify_drivers(driver, revoked)


async def transfer(driver: Driver, thread_id: UUID, key_id: UUID, user_id: UUID) -> None:
    """Let the plans that the guest with this key started in the thread be executed for the user from now on.

    The caller holds the thread's lock. Drivers read the plan again before they store anything.
    """
    await driver.execute(TRANSFER, thread_id, key_id, user_id)


async def release(driver: Driver, lease: PlanLease) -> None:
    """Give the lease up, so that another driver may claim the plan at once."""
    await driver.execute(RELEASE, lease.plan_id, lease.epoch, lease.thread_id)
