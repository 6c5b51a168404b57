"""Runs: who may work on them, for how long, and how they are called off.

Executors claim under a lease with an epoch. Whoever changes a run's status or epoch holds its thread's row lock, so an
append under way and a take-over can't cross; heartbeats only prolong a lease and need no such lock.
"""

from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, case, func, insert, literal, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Caller
from khala.domain.chat import ACTIVE, Run, RunOptions
from khala.domain.decimals import format_optional
from khala.domain.errors import RunNotFound, ThreadNotFound
from khala.domain.fold import cancelled_statuses, fold
from khala.domain.isolation_policy import MAX_SHARED_LOSSES
from khala.domain.parts import Finish, PartData, encode, read
from khala.domain.receipts import FIRST_HASH
from khala.store.budgets import ledger
from khala.store.postgres import rows
from khala.store.postgres.database import RUNS_CHANNEL, Database, Driver, driver_of, notify
from khala.store.postgres.retries import retried
from khala.store.runs.parts import MINE, Entry, Lease
from khala.store.schema.tables import messages, receipts, runs
from khala.store.sharing import access
from khala.store.threads import thread_lists, threads
from khala.store.tools import approvals


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that this executor may work on now; `next_seq` is the first seq that is free."""

    lease: Lease
    user_message_id: UUID
    options: RunOptions
    next_seq: int
    next_receipt: int
    witness: bytes
    """The hash of the last receipt."""
    queued_seconds: float
    canceled: bool
    guest: bool
    """Whether who asked has no account."""
    lost: int
    """Executors that were lost over it."""
    taken_over: bool
    """Whether the last one was."""
    traceparent: str | None = None
    """The trace of the request that asked for it."""


CLAIM = """
    WITH active AS (
        SELECT fairness_key, count(*) AS n FROM runs
        WHERE status = 'running' AND lease_expires_at > now() GROUP BY fairness_key
    ), ranked AS (
        SELECT id, user_id IS NULL AS guest, lost + (status = 'running')::int >= $6 AS isolated,
               row_number() OVER (PARTITION BY fairness_key ORDER BY id) + coalesce(active.n, 0) AS place
        FROM runs AS waiting LEFT JOIN active USING (fairness_key)
        WHERE (status = 'queued' OR (status = 'running' AND lease_expires_at < now()))
          AND id <> ALL($4::uuid[])
          AND NOT EXISTS (
              SELECT FROM runs AS earlier
              WHERE earlier.thread_id = waiting.thread_id AND earlier.position < waiting.position
                AND earlier.status IN ('queued', 'running', 'blocked'))
    ), admitted AS (
        SELECT id, place FROM (
            SELECT *, row_number() OVER (PARTITION BY isolated, guest ORDER BY place, id) AS number,
                   row_number() OVER (PARTITION BY isolated ORDER BY place, id) AS of_isolated
            FROM ranked
        ) AS numbered WHERE CASE WHEN isolated THEN of_isolated <= $7 ELSE NOT guest OR number <= $5 END
    ), picked AS (
        SELECT runs.id, runs.status AS was
        FROM admitted JOIN runs USING (id) JOIN threads ON threads.id = runs.thread_id
        WHERE runs.status = 'queued' OR (runs.status = 'running' AND runs.lease_expires_at < now())
        ORDER BY place, runs.id LIMIT $1
        FOR NO KEY UPDATE OF runs, threads SKIP LOCKED
    )
    UPDATE runs SET status = 'running', epoch = epoch + 1, lease_owner = $2,
           lost = lost + (picked.was = 'running')::int, lease_expires_at = clock_timestamp() + make_interval(secs => $3)
    FROM picked WHERE runs.id = picked.id
    RETURNING runs.*, picked.was, extract(epoch FROM clock_timestamp() - created_at)::float AS queued_seconds
"""

PLACES = """
    SELECT run.id, coalesce(part.seq + 1, 0) AS next_seq,
           coalesce(receipt.seq + 1, 0) AS next_receipt, receipt.hash AS witness
    FROM unnest($1::uuid[], $2::uuid[]) AS run (id, thread_id)
    LEFT JOIN LATERAL (
        SELECT seq FROM message_parts WHERE run_id = run.id AND thread_id IS NOT DISTINCT FROM run.thread_id
        ORDER BY run_id DESC, seq DESC LIMIT 1
    ) AS part ON true
    LEFT JOIN LATERAL (
        SELECT seq, hash FROM receipts WHERE run_id = run.id AND thread_id IS NOT DISTINCT FROM run.thread_id
        ORDER BY run_id DESC, seq DESC LIMIT 1
    ) AS receipt ON true
"""
"""`IS NOT DISTINCT FROM` keeps the planner from the indexes by thread, as in `khala.store.runs.parts`."""


async def claim(
    driver: Driver,
    *,
    most: int,
    owner: str,
    lease_seconds: float,
    held: Sequence[UUID] = (),
    most_guests: int | None = None,
    most_isolated: int | None = None,
) -> list[Claimed]:
    """Up to `most` runs that wait or whose executor is gone, fairly between owners and in order within a thread.

    At most `most_guests` of them are of people without an account. At most `most_isolated` are to be executed in
    processes of their own; these don't count as guests', so that they keep nobody else waiting.

    `held` are runs that the caller works on still: where their lease lapsed its next beat renews it, and where it is
    lost the caller has to notice first.
    """
    async with driver.transaction():
        guests = most if most_guests is None else most_guests
        isolated = most if most_isolated is None else most_isolated
        claimed = await driver.fetch(CLAIM, most, owner, lease_seconds, held, guests, MAX_SHARED_LOSSES, isolated)
        found = await driver.fetch(PLACES, [row["id"] for row in claimed], [row["thread_id"] for row in claimed])
        places = {row["id"]: row for row in found}
    return [_claimed(row, places[row["id"]]) for row in claimed]


RECLAIM = """
    UPDATE runs AS run SET epoch = run.epoch + 1, lease_expires_at = clock_timestamp() + make_interval(secs => $4)
    WHERE run.id = $1 AND run.thread_id = $2 AND run.epoch = $3 AND run.status = 'running'
    RETURNING run.*, 'running' AS was, 0::float AS queued_seconds
"""


async def reclaim(driver: Driver, claimed: Claimed, *, lease_seconds: float) -> Claimed | None:
    """The same claim with the next epoch, after another process wrote under it; None if it no longer holds.

    Whatever that process was committing is waited for, and nothing of it comes later.
    """
    lease = claimed.lease
    async with driver.transaction():
        # Appends hold the thread's row lock: see `khala.store.runs.parts`.
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR NO KEY UPDATE", lease.thread_id)
        row = await driver.fetchrow(RECLAIM, lease.run_id, lease.thread_id, lease.epoch, lease_seconds)
        if row is None:
            return None
        (place,) = await driver.fetch(PLACES, [lease.run_id], [lease.thread_id])
    return _claimed(row, place)


async def status(driver: Driver, lease: Lease) -> str | None:
    """The run's state, whoever holds it; None if it is gone."""
    query = "SELECT status FROM runs WHERE id = $1 AND thread_id = $2"
    found: str | None = await driver.fetchval(query, lease.run_id, lease.thread_id)
    return found


def _claimed(row: rows.Record, place: rows.Record) -> Claimed:
    lease = Lease(run_id=row["id"], thread_id=row["thread_id"], message_id=row["message_id"], epoch=row["epoch"])
    return Claimed(
        lease=lease,
        user_message_id=row["user_message_id"],
        options=msgspec.json.decode(row["options"], type=RunOptions),
        next_seq=place["next_seq"],
        next_receipt=place["next_receipt"],
        witness=place["witness"] or FIRST_HASH,
        queued_seconds=row["queued_seconds"],
        canceled=row["cancel_requested_at"] is not None,
        guest=row["user_id"] is None,
        lost=row["lost"],
        taken_over=row["was"] == "running",
        traceparent=row["traceparent"],
    )


async def beat(driver: Driver, leases: list[Lease], *, lease_seconds: float) -> set[UUID]:
    """Prolong these leases. Returns the runs that are still held."""
    query = f"""
        WITH held AS (
            SELECT run.id, run.thread_id
            FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS lease (run_id, thread_id, epoch)
            JOIN runs AS run ON run.id = lease.run_id AND {MINE.format("lease")}
            ORDER BY run.id FOR NO KEY UPDATE OF run
        )
        UPDATE runs SET lease_expires_at = clock_timestamp() + make_interval(secs => $4)
        FROM held WHERE runs.id = held.id AND runs.thread_id = held.thread_id RETURNING runs.id
    """
    found = await driver.fetch(query, *_columns(leases), lease_seconds)
    return {row["id"] for row in found}


async def asker(driver: Driver, lease: Lease) -> UUID | None:
    """Who asked for the run, if they have an account: by now, since a guest may have claimed the thread."""
    query = "SELECT user_id FROM runs WHERE id = $1 AND thread_id = $2"
    user_id: UUID | None = await driver.fetchval(query, lease.run_id, lease.thread_id)
    return user_id


async def called_off(driver: Driver, leases: list[Lease]) -> set[UUID]:
    """Those of the runs whose lease is to be given up: cancel requested, taken over, or deleted."""
    query = f"""
        SELECT lease.run_id FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS lease (run_id, thread_id, epoch)
        LEFT JOIN runs AS run ON run.id = lease.run_id AND {MINE.format("lease")}
        WHERE run.id IS NULL OR run.cancel_requested_at IS NOT NULL
    """
    return {row["run_id"] for row in await driver.fetch(query, *_columns(leases))}


def _columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID], list[int]]:
    return [one.run_id for one in leases], [one.thread_id for one in leases], [one.epoch for one in leases]


@retried
async def hand_over(db: Database, lease: Lease, entries: Sequence[Entry], *, awaits: Sequence[str] = ()) -> None:
    """Let go of the run, if it is still held, with the receipts of its calls.

    Another executor may take it at once; or, where it awaits approval of these tool calls, as soon as there is an
    answer to one of them.
    """
    async with db.transaction() as connection:
        try:
            await threads.lock(connection, lease.thread_id)
        except ThreadNotFound:
            return
        this = _this(lease.thread_id, lease.run_id)
        held = this & (runs.c.epoch == lease.epoch) & (runs.c.status == "running")
        waits = awaits and not await approvals.any_decided(connection, lease, awaits)
        # One that was called off meanwhile waits for nobody: whoever claims it ends it.
        status = case((runs.c.cancel_requested_at.is_(None) & literal(bool(waits)), "blocked"), else_="queued")
        freed = {"status": status, "lease_owner": None, "lease_expires_at": None}
        found = (await connection.execute(update(runs).where(held).values(**freed).returning(runs.c.status))).first()
        if found is not None and entries:
            await connection.execute(insert(receipts), [_receipt(lease, entry) for entry in entries])
        if found is not None and found.status == "blocked":
            await thread_lists.stamp(await driver_of(connection), [lease.thread_id])
        else:
            await notify(connection, RUNS_CHANNEL, "")


def _receipt(lease: Lease, entry: Entry) -> dict[str, object]:
    return {
        "run_id": lease.run_id,
        "seq": entry.seq,
        "thread_id": lease.thread_id,
        "type": entry.type,
        "tool_call_id": entry.tool_call_id,
        "data": msgspec.Raw(entry.data.encode()),
        "cost_usd": entry.cost_usd,
        "hash": entry.hash,
    }


async def get(db: Database, run_id: UUID, caller: Caller) -> Run:
    """The run, if the caller may read its thread."""
    async with db.driver() as driver:
        return await admit(driver, run_id, caller)


async def admit(driver: Driver, run_id: UUID, caller: Caller) -> Run:
    """The run, if the caller may read its thread; for reading more of it on the same connection."""
    row = await driver.fetchrow("SELECT * FROM runs WHERE id = $1", run_id)
    if row is None:
        raise RunNotFound("There is no such run.")
    await access.admit(driver, row["thread_id"], caller)
    return rows.run(row)


@retried
async def cancel(db: Database, run_id: UUID, caller: Caller) -> tuple[Run, bool]:
    """Call the run off, and whether that changed anything: at once if nobody works on it, else its executor is told."""
    async with db.driver() as driver:
        thread_id = (await admit(driver, run_id, caller)).thread_id
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id, caller, "editor")
        row = await _current(connection, thread_id, run_id)
        active = row.status in ACTIVE
        if active and await call_off(connection, row):
            await thread_lists.stamp(await driver_of(connection), [thread_id], said=True)
        return rows.run((await _current(connection, thread_id, run_id))._mapping), active


async def _current(connection: AsyncConnection, thread_id: UUID, run_id: UUID) -> Row[tuple[object, ...]]:
    held = runs.c.lease_expires_at > func.clock_timestamp()
    query = select(runs, held.label("held")).where(_this(thread_id, run_id)).with_for_update()
    row = (await connection.execute(query)).first()
    if row is None:
        raise RunNotFound("There is no such run.")
    return row


def _this(thread_id: UUID, run_id: UUID) -> ColumnElement[bool]:
    return (runs.c.id == run_id) & (runs.c.thread_id == thread_id)


async def active(connection: AsyncConnection, thread_id: UUID) -> list[Row[tuple[object, ...]]]:
    """The thread's runs that have not ended, oldest first, locked; the caller holds the thread's lock."""
    held = runs.c.lease_expires_at > func.clock_timestamp()
    query = select(runs, held.label("held")).where(runs.c.thread_id == thread_id, runs.c.status.in_(ACTIVE))
    # In the order in which heartbeats lock them.
    found = await connection.execute(query.order_by(runs.c.id).with_for_update(key_share=True))
    return sorted(found, key=attrgetter("position"))


def held(row: Row[tuple[object, ...]]) -> bool:
    """Whether an executor works on the run, which has to end it."""
    return bool(row.status == "running" and row.held)


async def call_off(connection: AsyncConnection, row: Row[tuple[object, ...]], *, revision: int | None = None) -> bool:
    """Cancel an active run, whose and whose thread's locks the caller holds. Returns whether it has ended here.

    Where an executor holds it, the executor is asked to end it. Where it has ended, its windows are settled, so the
    caller holds those too if it calls off more than one; and the caller stamps the lists, when it locks nothing more.
    `revision`: the one that this transaction has given the thread; else the thread gets a new one.
    """
    ends = not held(row)
    if not ends:
        at = func.coalesce(runs.c.cancel_requested_at, func.clock_timestamp())
        await connection.execute(update(runs).where(_this(row.thread_id, row.id)).values(cancel_requested_at=at))
    else:
        await _end_unheld(connection, row, revision)
    await notify(connection, RUNS_CHANNEL, "")
    return ends


async def _end_unheld(connection: AsyncConnection, row: Row[tuple[object, ...]], revision: int | None) -> None:
    await ledger.settle(await driver_of(connection), {row.id: row.thread_id}, cut_off=True)
    stored = await connection.execute(
        text("""SELECT kind, data FROM message_parts
                WHERE run_id = :run AND thread_id IS NOT DISTINCT FROM :thread ORDER BY run_id, seq"""),
        {"run": row.id, "thread": row.thread_id},
    )  # fmt: skip
    content = fold((), before := [read(part.kind, part.data.encode()) for part in stored])
    finish = await _canceled(await driver_of(connection), row.thread_id, row.id)
    parts: list[PartData] = [*cancelled_statuses(content), finish]
    revision = revision or await threads.bump(connection, row.thread_id)
    common = {"run": row.id, "message": row.message_id, "thread": row.thread_id, "revision": revision}
    await connection.execute(
        text("""INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
                VALUES (:run, :seq, :message, :thread, :kind, CAST(:data AS jsonb), :revision)"""),
        [common | {"seq": seq, "kind": kind, "data": data}
         for seq, (kind, data) in enumerate(map(encode, parts), start=len(before))],
    )  # fmt: skip
    ended = {"status": "canceled", "finish": finish}
    await connection.execute(
        update(runs).where(_this(row.thread_id, row.id)).values(
            **ended, epoch=runs.c.epoch + 1, finished_at=func.now(), lease_owner=None, lease_expires_at=None)
    )  # fmt: skip
    await connection.execute(
        update(messages).where(messages.c.id == row.message_id, messages.c.thread_id == row.thread_id).values(
            **ended, content=fold(content, parts), seq=len(before) + len(parts), revision=revision,
            updated_at=func.now())
    )  # fmt: skip


async def _canceled(driver: Driver, thread_id: UUID, run_id: UUID) -> Finish:
    """The finish of a run that nobody works on, with what it had used until then."""
    spent = await ledger.account(driver, thread_id, run_id)
    return Finish(
        reason="canceled",
        usage=spent.usage,
        cost_usd=format_optional(spent.usd),
        witness=spent.witness.hex() if spent.witness else None,
    )


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How the queue stands, for those who watch. Times are seconds.

    `oldest`: how long the first of those who could begin has waited. `lease_age`: since the oldest last heartbeat.
    """

    queued: int
    running: int
    blocked: int
    oldest: float
    lease_age: float


STANDING = """
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued,
           count(*) FILTER (WHERE status = 'running') AS running,
           count(*) FILTER (WHERE status = 'blocked') AS blocked,
           coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (
               WHERE status = 'queued' AND epoch = 0 AND NOT EXISTS (
                   SELECT FROM runs AS earlier
                   WHERE earlier.thread_id = waiting.thread_id AND earlier.position < waiting.position
                     AND earlier.status IN ('queued', 'running', 'blocked'))
           )), 0)::float AS oldest,
           coalesce(extract(epoch FROM clock_timestamp() - min(lease_expires_at) FILTER (WHERE status = 'running'))
                    + $1, 0)::float AS lease_age
    FROM runs AS waiting WHERE status IN ('queued', 'running', 'blocked')
"""


async def standing(driver: Driver, *, lease_seconds: float) -> Standing:
    """How the queue of all executors stands; a lease lasts so long."""
    row = await driver.fetchrow(STANDING, lease_seconds)
    assert row is not None
    return Standing(**row)


async def traceparents(driver: Driver, run_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The traces that these runs belong to, of those that belong to one."""
    query = "SELECT id, traceparent FROM runs WHERE id = ANY($1::uuid[]) AND traceparent IS NOT NULL"
    return {row["id"]: row["traceparent"] for row in await driver.fetch(query, run_ids)}
