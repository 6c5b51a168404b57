"""The queue of runs: executors claim runs under a lease, renew it, and give it up.

Every transaction that changes a run's status or epoch holds its thread's row lock, so a take-over waits for an append
in progress, and the other way round. Heartbeats only renew a lease and need no such lock.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import case, literal, update

from khala.domain.chat import StoredRunOptions
from khala.domain.errors import ThreadNotFound
from khala.domain.isolation_policy import MAX_SHARED_LOSSES
from khala.domain.program_level import PROGRAM_LEVEL
from khala.domain.receipts import FIRST_HASH
from khala.domain.webhooks import WebhookEvent
from khala.store.budgets import ledger
from khala.store.budgets.ledger import RunAccount
from khala.store.memories import memory_settings
from khala.store.memories.memory_settings import RunRequester
from khala.store.postgres import rows
from khala.store.postgres.array_arguments import unnested
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    notify,
)
from khala.store.postgres.retries import retried
from khala.store.runs import receipts
from khala.store.runs.leases import IS_HELD, Lease, lease_columns
from khala.store.runs.receipts import ReceiptEntry
from khala.store.schema.tables import runs
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_RUN
from khala.store.tools import approvals
from khala.store.webhooks import outbox


class ClaimedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that this executor has claimed. `next_seq` and `next_receipt` are the first seqs that are free."""

    lease: Lease
    user_message_id: UUID
    options: StoredRunOptions
    next_seq: int
    next_receipt: int
    last_receipt_hash: bytes
    queued_seconds: float
    canceled: bool
    guest: bool
    """Whether the requester has no account."""
    lost: int
    """Executors that were lost while they executed the run."""
    taken_over: bool
    """Whether the last executor was lost."""
    requester: RunRequester = RunRequester()
    """As of the claim. A guest becomes a user by claiming the thread."""
    first_account: RunAccount | None = None
    """The run's reservations, if no executor has claimed it before."""
    traceparent: str | None = None
    """The trace of the request that queued the run."""

    @property
    def is_first(self) -> bool:
        """Whether no executor has claimed the run before. Then it has no parts, receipts or requests for approval."""
        return self.lease.epoch == 1


class RemoteClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim by a remote worker: of runs of these agents of the owner of its token, under the id of its request."""

    owner_id: UUID
    agents: Sequence[str]
    token_id: UUID
    request_id: UUID

    def columns(self) -> tuple[UUID, list[str], str, UUID]:
        """The last arguments of `CLAIM`."""
        return self.owner_id, list(self.agents), str(self.token_id), self.request_id


TURN = "rank() OVER (PARTITION BY thread_id, CASE WHEN plan_id IS NOT NULL THEN id END ORDER BY position)"
"""SQL: the place of an active run in the queue of its thread. The run of a plan's step waits for no other run."""

ARE_WAITING = """
    SELECT EXISTS (SELECT FROM runs WHERE status IN ('queued', 'running', 'blocked')
                   AND (status = 'queued' OR (status = 'running' AND lease_expires_at < now())))
"""

CLAIM = f"""
    WITH active AS MATERIALIZED (
        SELECT id, thread_id, position, plan_id, fairness_key, user_id IS NULL AS guest, remote_owner_id,
               status = 'queued' OR coalesce(lease_expires_at < now(), false) AS waiting,
               status = 'running' AND lease_expires_at > now() AS leased,
               lost + (status = 'running')::int >= $6 AS isolated
        FROM runs WHERE status IN ('queued', 'running', 'blocked')
    ), placed AS (
        SELECT *, {TURN} AS turn,
               count(*) FILTER (WHERE leased) OVER (PARTITION BY fairness_key) AS leases
        FROM active
    ), ranked AS (
        SELECT id, guest, isolated, row_number() OVER (PARTITION BY fairness_key ORDER BY id) + leases AS place
        FROM placed WHERE waiting AND turn = 1 AND id <> ALL($4::uuid[])
          AND remote_owner_id IS NOT DISTINCT FROM $9::uuid
    ), admitted AS (
        SELECT id, place FROM (
            SELECT *, row_number() OVER (PARTITION BY isolated, guest ORDER BY place, id) AS number,
                   row_number() OVER (PARTITION BY isolated ORDER BY place, id) AS of_isolated
            FROM ranked
        ) AS numbered WHERE CASE WHEN isolated THEN of_isolated <= $7 ELSE NOT guest OR number <= $5 END
    ), picked AS MATERIALIZED (
        SELECT locked.* FROM (SELECT id FROM admitted ORDER BY place, id) AS next CROSS JOIN LATERAL (
            SELECT runs.id, runs.status AS was FROM runs JOIN threads ON threads.id = runs.thread_id
            WHERE runs.id = next.id AND CASE runs.status
                WHEN 'queued' THEN true WHEN 'running' THEN runs.lease_expires_at < now() ELSE false END
                AND coalesce((runs.options ->> 'needs')::int, 0) <= $8
                AND ($9::uuid IS NULL OR runs.options ->> 'agent' = ANY($10::text[]))
            FOR NO KEY UPDATE OF runs, threads SKIP LOCKED
        ) AS locked LIMIT $1
    )
    UPDATE runs SET status = 'running', epoch = epoch + 1, lease_owner = $2,
           lost = lost + (picked.was = 'running')::int, started_at = coalesce(started_at, clock_timestamp()),
           lease_expires_at = clock_timestamp() + make_interval(secs => $3),
           remote_claim = $11::text || ':' || (epoch + 1), remote_request = $12, remote_deadline = NULL
    FROM picked WHERE runs.id = picked.id
    RETURNING runs.*, picked.was, extract(epoch FROM clock_timestamp() - created_at)::float AS queued_seconds,
           EXISTS (SELECT FROM webhook_endpoints WHERE is_enabled) AS has_webhooks
"""
"""Reads the active runs once, so that the cost grows with their number and no faster. `picked` locks run after run in
order until it has enough: a query with its own row locks is executed for each row of `next`. Its condition on the
status is a CASE, with which the planner can't take the index of active runs and read all of them for each row.

Without a remote owner (`$9`), it claims only runs of this server's agents. With one, only runs of the owner's remote
agents of these names."""

NEXT_SEQS = f"""
    SELECT run.id, coalesce(part.seq + 1, 0) AS next_seq,
           coalesce(receipt.seq + 1, 0) AS next_receipt, receipt.hash AS last_receipt_hash
    FROM {unnested(1, "uuid", "uuid")} AS run (id, thread_id)
    LEFT JOIN LATERAL (
        SELECT seq FROM message_parts WHERE run_id = run.id AND thread_id IS NOT DISTINCT FROM run.thread_id
        ORDER BY run_id DESC, seq DESC LIMIT 1
    ) AS part ON true
    LEFT JOIN LATERAL (
        SELECT seq, hash FROM receipts WHERE run_id = run.id AND thread_id IS NOT DISTINCT FROM run.thread_id
        ORDER BY run_id DESC, seq DESC LIMIT 1
    ) AS receipt ON true
"""
"""`IS NOT DISTINCT FROM` keeps the planner from the indexes by thread, as in `khala.store.runs.leases.IS_HELD`."""


FIRST_SEQS = {"next_seq": 0, "next_receipt": 0, "last_receipt_hash": None}
"""The row of `NEXT_SEQS` for a run that was never claimed before."""


async def are_waiting(driver: Driver) -> bool:
    """Whether any run is queued, or has lost its executor. One round trip, for callers who expect none."""
    waiting: bool = await driver.fetchval(ARE_WAITING)
    return waiting


async def claim(
    driver: Driver,
    *,
    most: int,
    owner: str,
    lease_seconds: float,
    held: Sequence[UUID] = (),
    max_guests: int | None = None,
    max_isolated: int | None = None,
    level: int = PROGRAM_LEVEL,
    remote: RemoteClaim | None = None,
) -> list[ClaimedRun]:
    """Claim up to `most` runs that are queued or whose lease has lapsed: fairly between owners, in order in a thread.

    At most `max_guests` of them are of requesters without an account. At most `max_isolated` are to be executed in
    processes of their own. These don't count towards `max_guests`, so that they delay no other guest's run.

    Runs that need a higher `level` than that of the caller's program are left to others. A claim by a `remote` worker
    gets only the runs of its agents, and any other claim gets none of those.

    `held` are runs that the caller still executes, which are not claimed again. If the lease of one has lapsed, the
    caller's next heartbeat renews it or reports that it is lost.
    """
    guests = most if max_guests is None else max_guests
    isolated = most if max_isolated is None else max_isolated
    async with driver.transaction():
        of_worker = (None, None, None, None) if remote is None else remote.columns()
        claimed = await driver.fetch(
            CLAIM, most, owner, lease_seconds, held, guests, MAX_SHARED_LOSSES, isolated, level, *of_worker
        )
        again = [(row["id"], row["thread_id"]) for row in claimed if row["epoch"] > 1]
        positions = await driver.fetch(NEXT_SEQS, *zip(*again, strict=True)) if again else []
        next_seqs = {row["id"]: row for row in positions}
        accounts = await _first_accounts(driver, claimed)
        requesters = await memory_settings.read_requesters(driver, claimed)
        await outbox.record(driver, [_started(row) for row in claimed if row["epoch"] == 1 and row["has_webhooks"]])
    return [
        claimed_run(row, next_seqs.get(row["id"], FIRST_SEQS), requesters[row["id"]], accounts.get(row["id"]))
        for row in claimed
    ]


def _started(row: rows.Record) -> WebhookEvent:
    data = {"runId": row["id"], "messageId": row["message_id"], "userMessageId": row["user_message_id"]}
    return WebhookEvent(type="run.started", thread_id=row["thread_id"], data=data)


async def _first_accounts(driver: Driver, claimed: Sequence[rows.Record]) -> dict[UUID, RunAccount]:
    """The reservations of those of these runs that were never claimed before. One statement for all of them."""
    run_ids = [row["id"] for row in claimed if row["epoch"] == 1]
    return await ledger.read_first_accounts(driver, run_ids) if run_ids else {}


RECLAIM = """
    UPDATE runs AS run SET epoch = run.epoch + 1, lease_expires_at = clock_timestamp() + make_interval(secs => $4)
    WHERE run.id = $1 AND run.thread_id = $2 AND run.epoch = $3 AND run.status = 'running'
    RETURNING run.*, 'running' AS was, 0::float AS queued_seconds
"""


async def reclaim(driver: Driver, claimed: ClaimedRun, *, lease_seconds: float) -> ClaimedRun | None:
    """Renew the claim with the next epoch, after another process wrote under it. None if the run is no longer held.

    Waits for a commit in progress of that process. Its later commits are refused by the epoch.
    """
    lease = claimed.lease
    async with driver.transaction():
        # Appends hold the thread's row lock: see `khala.store.runs.parts`.
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR NO KEY UPDATE", lease.thread_id)
        row = await driver.fetchrow(RECLAIM, lease.run_id, lease.thread_id, lease.epoch, lease_seconds)
        if row is None:
            return None
        (next_seqs,) = await driver.fetch(NEXT_SEQS, [lease.run_id], [lease.thread_id])
    return claimed_run(row, next_seqs, claimed.requester)


def claimed_run(
    row: rows.Record, next_seqs: rows.Record, requester: RunRequester, first_account: RunAccount | None = None
) -> ClaimedRun:
    """A row that a claim has returned, with the row of `NEXT_SEQS`."""
    lease = Lease(run_id=row["id"], thread_id=row["thread_id"], message_id=row["message_id"], epoch=row["epoch"])
    return ClaimedRun(
        lease=lease,
        user_message_id=row["user_message_id"],
        options=msgspec.json.decode(row["options"], type=StoredRunOptions),
        next_seq=next_seqs["next_seq"],
        next_receipt=next_seqs["next_receipt"],
        last_receipt_hash=next_seqs["last_receipt_hash"] or FIRST_HASH,
        queued_seconds=row["queued_seconds"],
        canceled=row["cancel_requested_at"] is not None,
        guest=row["user_id"] is None,
        lost=row["lost"],
        taken_over=row["was"] == "running",
        requester=requester,
        first_account=first_account,
        traceparent=row["traceparent"],
    )


async def renew_leases(driver: Driver, leases: Sequence[Lease], *, lease_seconds: float) -> set[UUID]:
    """Renew these leases, as the executor's heartbeat. Returns the runs that are still held."""
    query = f"""
        WITH held AS (
            SELECT run.id, run.thread_id
            FROM {unnested(1, "uuid", "uuid", "int")} AS lease (run_id, thread_id, epoch)
            JOIN runs AS run ON run.id = lease.run_id AND {IS_HELD.format("lease")}
            ORDER BY run.id FOR NO KEY UPDATE OF run
        )
        UPDATE runs SET lease_expires_at = clock_timestamp() + make_interval(secs => $4)
        FROM held WHERE runs.id = held.id AND runs.thread_id = held.thread_id RETURNING runs.id
    """
    renewed = await driver.fetch(query, *lease_columns(leases), lease_seconds)
    return {row["id"] for row in renewed}


async def find_revoked(driver: Driver, leases: Sequence[Lease]) -> set[UUID]:
    """The runs that their executor has to stop, because they were canceled, taken over or deleted."""
    query = f"""
        SELECT lease.run_id FROM {unnested(1, "uuid", "uuid", "int")} AS lease (run_id, thread_id, epoch)
        LEFT JOIN runs AS run ON run.id = lease.run_id AND {IS_HELD.format("lease")}
        WHERE run.id IS NULL OR run.cancel_requested_at IS NOT NULL
    """
    return {row["run_id"] for row in await driver.fetch(query, *lease_columns(leases))}


async def read_status(driver: Driver, lease: Lease) -> str | None:
    """The run's status, whether or not the lease is still valid; None if the run was deleted."""
    query = f"SELECT status FROM runs WHERE id = $1 AND thread_id = $2 AND {IS_RUN}"
    status: str | None = await driver.fetchval(query, lease.run_id, lease.thread_id)
    return status


async def read_requester(driver: Driver, lease: Lease) -> UUID | None:
    """The user who requested the run; None for a guest. A guest becomes a user by claiming the thread."""
    query = "SELECT user_id FROM runs WHERE id = $1 AND thread_id = $2"
    user_id: UUID | None = await driver.fetchval(query, lease.run_id, lease.thread_id)
    return user_id


@retried
async def release(
    db: Database, lease: Lease, entries: Sequence[ReceiptEntry], *, awaited_approvals: Sequence[str] = ()
) -> None:
    """Give up the lease, if the run is still held, and store the receipts of its calls.

    Another executor may claim the run at once. A run that awaits the approval of tool calls (`awaited_approvals`) may
    be claimed as soon as one of them is decided.
    """
    async with db.transaction() as connection:
        try:
            await threads.lock(connection, lease.thread_id)
        except ThreadNotFound:
            return
        driver = await driver_of(connection)
        await receipts.insert(driver, [(lease, entry) for entry in entries])
        waits = awaited_approvals and not await approvals.any_decided(connection, lease, awaited_approvals)
        # A run whose cancellation was requested meanwhile waits for no approval: the next executor ends it.
        status = case((runs.c.cancel_requested_at.is_(None) & literal(bool(waits)), "blocked"), else_="queued")
        held = (
            (runs.c.id == lease.run_id)
            & (runs.c.thread_id == lease.thread_id)
            & (runs.c.epoch == lease.epoch)
            & (runs.c.status == "running")
        )
        freed = {"status": status, "lease_owner": None, "lease_expires_at": None}
        released = (await connection.execute(update(runs).where(held).values(**freed).returning(runs.c.status))).first()
        if released is not None and released.status == "blocked":
            await thread_lists.mark_changed(driver, [lease.thread_id])
        else:
            await notify(connection, RUNS_CHANNEL, "")


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the queue of all executors, for monitoring. Times are seconds.

    `oldest` is the waiting time of the oldest run that could begin. `lease_age` is the time since the last heartbeat of
    the executor that has been silent the longest.
    """

    queued: int
    running: int
    blocked: int
    oldest: float
    lease_age: float


QUEUE_STATUS = f"""
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued,
           count(*) FILTER (WHERE status = 'running') AS running,
           count(*) FILTER (WHERE status = 'blocked') AS blocked,
           coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (
               WHERE status = 'queued' AND epoch = 0 AND turn = 1
           )), 0)::float AS oldest,
           coalesce(extract(epoch FROM clock_timestamp() - min(lease_expires_at) FILTER (WHERE status = 'running'))
                    + $1, 0)::float AS lease_age
    FROM (
        SELECT status, epoch, created_at, lease_expires_at,
               {TURN} AS turn
        FROM runs WHERE status IN ('queued', 'running', 'blocked')
    ) AS active
"""


async def read_queue_status(driver: Driver, *, lease_seconds: float) -> QueueStatus:
    """The state of the queue of all executors. `lease_seconds` is the duration of a lease."""
    row = await driver.fetchrow(QUEUE_STATUS, lease_seconds)
    assert row is not None
    return QueueStatus(**row)


async def read_traceparents(driver: Driver, run_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The `traceparent` of each of these runs that has one."""
    query = "SELECT id, traceparent FROM runs WHERE id = ANY($1::uuid[]) AND traceparent IS NOT NULL"
    return {row["id"]: row["traceparent"] for row in await driver.fetch(query, run_ids)}
