"""Runs of remote agents: which wait for a worker, and what a worker holds.

A worker holds a run under the epoch of its claim (`remote_claim`). A server process that writes for the worker attaches
to the run first, with an epoch of its own, so that only one process has the run's next seq, however the worker's
requests are balanced.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from khala.domain.chat import RunStatus
from khala.domain.executor_protocol import DecidedApproval
from khala.store.memories.memory_settings import RunRequester
from khala.store.postgres.database import Driver
from khala.store.runs.leases import IS_HELD, Lease, lease_columns
from khala.store.runs.run_queue import NEXT_SEQS, TURN, ClaimedRun, claimed_run
from khala.store.threads.reset_marks import IS_RUN
from khala.store.tools import approvals

CANCEL_GRACE_SECONDS = 5.0
"""Time after the request of a cancellation from which a worker's lease is not renewed."""
MAX_OVERDUE = 20
"""Overdue runs that one transaction claims, to end them."""
MAX_MARKED = 500
"""Waiting runs that get a deadline in one transaction."""

IS_WAITING = """
    (runs.status = 'queued' OR (runs.status = 'running' AND coalesce(runs.lease_expires_at < clock_timestamp(), false)))
"""
IS_REMOTE = "(runs.remote_owner_id IS NOT NULL AND runs.status IN ('queued', 'running', 'blocked'))"

STATE = f"""
    SELECT status, thread_id, remote_owner_id, remote_claim, options ->> 'agent' AS agent
    FROM runs WHERE id = $1 AND {IS_RUN}
"""
ATTACH = """
    UPDATE runs AS run SET epoch = run.epoch + 1,
           lease_expires_at = greatest(run.lease_expires_at, clock_timestamp() + make_interval(secs => $4))
    WHERE run.id = $1 AND run.thread_id = $2 AND run.remote_claim = $3 AND run.status = 'running'
    RETURNING run.*, 'running' AS was, 0::float AS queued_seconds
"""
HEARTBEAT = f"""
    WITH held AS (
        SELECT run.id, run.thread_id FROM unnest($1::uuid[], $2::text[]) AS held (run_id, claim)
        JOIN runs AS run ON run.id = held.run_id
         AND (run.remote_claim, run.status) IS NOT DISTINCT FROM (held.claim, 'running')
        ORDER BY run.id FOR NO KEY UPDATE OF run
    )
    UPDATE runs SET lease_expires_at = CASE
        WHEN cancel_requested_at < clock_timestamp() - interval '{CANCEL_GRACE_SECONDS} s' THEN lease_expires_at
        ELSE greatest(lease_expires_at, clock_timestamp() + make_interval(secs => $3)) END
    FROM held WHERE runs.id = held.id AND runs.thread_id = held.thread_id
    RETURNING runs.id, runs.thread_id, cancel_requested_at IS NOT NULL AS cancelled
"""
HELD = f"""
    SELECT run.id, run.cancel_requested_at IS NOT NULL AS cancelled
    FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS lease (run_id, thread_id, epoch)
    JOIN runs AS run ON run.id = lease.run_id AND {IS_HELD.format("lease")}
"""
CLAIMED_BY_REQUEST = """
    SELECT id, thread_id, remote_claim, epoch FROM runs
    WHERE remote_owner_id = $1 AND remote_request = $2 AND status = 'running'
    ORDER BY id
"""
WAITING = f"SELECT DISTINCT remote_owner_id, options ->> 'agent' AS agent FROM runs WHERE {IS_REMOTE} AND {IS_WAITING}"
MARK = f"""
    WITH placed AS (
        SELECT id, remote_owner_id, remote_deadline, {IS_WAITING} AS waiting, {TURN} AS turn FROM runs
        WHERE status IN ('queued', 'running', 'blocked') AND thread_id IN (SELECT thread_id FROM runs WHERE {IS_REMOTE})
    ), due AS (
        SELECT runs.id FROM runs JOIN placed ON placed.id = runs.id
        WHERE placed.waiting AND placed.turn = 1 AND placed.remote_owner_id IS NOT NULL
          AND runs.remote_deadline IS NULL AND {IS_WAITING}
        ORDER BY runs.id LIMIT {MAX_MARKED} FOR NO KEY UPDATE OF runs SKIP LOCKED
    )
    UPDATE runs SET remote_deadline = clock_timestamp() + make_interval(secs => $1) FROM due WHERE runs.id = due.id
"""
OVERDUE = f"""
    WITH picked AS MATERIALIZED (
        SELECT runs.id, runs.status AS was FROM runs JOIN threads ON threads.id = runs.thread_id
        WHERE {IS_REMOTE} AND {IS_WAITING}
          AND (runs.remote_deadline < clock_timestamp() OR runs.cancel_requested_at IS NOT NULL)
        ORDER BY runs.id LIMIT {MAX_OVERDUE} FOR NO KEY UPDATE OF runs, threads SKIP LOCKED
    )
    UPDATE runs SET status = 'running', epoch = epoch + 1, lease_owner = $1, remote_claim = NULL,
           lease_expires_at = clock_timestamp() + make_interval(secs => $2)
    FROM picked WHERE runs.id = picked.id
    RETURNING runs.*, picked.was, 0::float AS queued_seconds
"""


class RemoteState(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a remote agent as it is now. `claim` is the last claim by a worker."""

    status: RunStatus
    thread_id: UUID
    owner_id: UUID
    agent: str
    claim: str | None


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a worker holds, after its heartbeat: whether it is being cancelled, and the decisions about calls."""

    run_id: UUID
    cancelled: bool
    decisions: Mapping[str, DecidedApproval]


def claim_key(token_id: UUID, epoch: int) -> str:
    """The claim of the worker with this token under this epoch, as `runs.remote_claim`."""
    return f"{token_id}:{epoch}"


async def read_state(driver: Driver, run_id: UUID) -> RemoteState | None:
    """The run, None if there is none or if the server's executors execute it."""
    row = await driver.fetchrow(STATE, run_id)
    if row is None or row["remote_owner_id"] is None:
        return None
    return RemoteState(
        status=row["status"],
        thread_id=row["thread_id"],
        owner_id=row["remote_owner_id"],
        agent=row["agent"],
        claim=row["remote_claim"],
    )


async def attach(
    driver: Driver, run_id: UUID, thread_id: UUID, claim: str, *, lease_seconds: float
) -> ClaimedRun | None:
    """Become the process that writes for this claim. None if it does not hold the run any more.

    Waits for a commit in progress of another process. Its later commits are refused by the epoch.
    """
    async with driver.transaction():
        # Appends hold the thread's row lock: see `khala.store.runs.parts`.
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR NO KEY UPDATE", thread_id)
        row = await driver.fetchrow(ATTACH, run_id, thread_id, claim, lease_seconds)
        if row is None:
            return None
        (next_seqs,) = await driver.fetch(NEXT_SEQS, [run_id], [thread_id])
    return claimed_run(row, next_seqs, RunRequester())


async def renew(driver: Driver, claims: Mapping[UUID, str], *, lease_seconds: float) -> dict[UUID, Renewal]:
    """Renew the leases of these claims, by run. Runs that are not held any more are missing."""
    rows = await driver.fetch(HEARTBEAT, list(claims), list(claims.values()), lease_seconds)
    decisions = await read_decisions(driver, {row["id"]: row["thread_id"] for row in rows})
    return {
        row["id"]: Renewal(run_id=row["id"], cancelled=row["cancelled"], decisions=decisions[row["id"]]) for row in rows
    }


async def read_decisions(driver: Driver, threads: Mapping[UUID, UUID]) -> dict[UUID, dict[str, DecidedApproval]]:
    """All decisions about calls of these runs, by run and call. `threads` maps each run to its thread."""
    if not threads:
        return {}
    found = await approvals.of_runs(driver, threads)
    return {
        run_id: {
            call_id: DecidedApproval(
                tool_call_id=call_id,
                state=approval.state,
                reason=approval.reason,
                edited_args=approval.edited_args,
                decided_name=approval.decided_name,
            )
            for call_id, approval in by_call.items()
            if approval.state != "pending"
        }
        for run_id, by_call in found.items()
    }


async def read_held(driver: Driver, leases: Sequence[Lease]) -> dict[UUID, bool]:
    """The runs that are still held, each with whether it is being cancelled."""
    return {row["id"]: row["cancelled"] for row in await driver.fetch(HELD, *lease_columns(leases))}


async def of_request(driver: Driver, owner_id: UUID, request_id: UUID) -> list[tuple[UUID, UUID, str]]:
    """The run, thread and claim of each run that this request of a worker has claimed, and that is not released."""
    found = await driver.fetch(CLAIMED_BY_REQUEST, owner_id, request_id)
    return [(row["id"], row["thread_id"], row["remote_claim"]) for row in found if row["remote_claim"] is not None]


async def waiting_agents(driver: Driver) -> set[tuple[UUID, str]]:
    """The owners and names of the agents whose runs may wait for a worker."""
    return {(row["remote_owner_id"], row["agent"]) for row in await driver.fetch(WAITING)}


async def mark_waiting(driver: Driver, *, wait_seconds: float) -> None:
    """Give runs that wait for a worker, and have no deadline, a deadline."""
    async with driver.transaction(isolation="read_committed"):
        await driver.execute(MARK, wait_seconds)


async def claim_overdue(driver: Driver, *, owner: str, lease_seconds: float) -> list[ClaimedRun]:
    """Claim runs for which no worker came in time, and those to be cancelled that no worker holds, to end them."""
    async with driver.transaction():
        picked = await driver.fetch(OVERDUE, owner, lease_seconds)
        if not picked:
            return []
        keys = [(row["id"], row["thread_id"]) for row in picked]
        found = await driver.fetch(NEXT_SEQS, *zip(*keys, strict=True))
        next_seqs = {row["id"]: row for row in found}
    return [claimed_run(row, next_seqs[row["id"]], RunRequester()) for row in picked]
