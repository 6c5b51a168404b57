"""Appends: the transaction that stores parts of many runs at once, idempotent by (run id, seq) and fenced by epoch.

The fence is safe because every transaction that changes a run's epoch or status holds its thread's row lock. The first
statement here locks the threads that are written to. The later statements begin after that, so the epochs that they
check are current and can't change before the commit; a run that was taken over matches none of them.

An append of few parts, and of nothing else, calls the function `store_parts` of the database, which does the same in
one round trip. With many parts, COPY costs less.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.parts import Part
from khala.domain.webhooks import WebhookEvent
from khala.store.postgres import rows
from khala.store.postgres.array_arguments import unnested
from khala.store.postgres.database import (
    Driver,
)
from khala.store.postgres.notifications import THREADS_CHANNEL, notify_threads
from khala.store.postgres.session_settings import is_pooled
from khala.store.push import push_outbox
from khala.store.runs import endings, packed_parts, receipts
from khala.store.runs.endings import RunEnding
from khala.store.runs.leases import IS_HELD, Lease, lease_columns
from khala.store.runs.receipts import ReceiptEntry
from khala.store.webhooks import outbox


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that waits for approval; `args` and `parameters` (their JSON Schema) are JSON text."""

    tool_call_id: str
    tool: str
    args: str
    parameters: str
    digest: str
    expires_at: datetime


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The next output of one run: consecutive parts as (seq, kind, JSON text), and what is committed with them.

    `steps` is the number of steps that the run has begun, if one of these parts begins a step. `ending` is set in the
    batch with the run's last parts.
    """

    lease: Lease
    parts: Sequence[tuple[int, str, str]]
    receipts: Sequence[ReceiptEntry] = ()
    approvals: Sequence[ApprovalRequest] = ()
    steps: int | None = None
    ending: RunEnding | None = None


HELD_RUNS = f"""
    {unnested(1, "uuid", "uuid", "int", "int")} AS lease (run_id, thread_id, epoch, seq)
    JOIN runs AS run ON run.id = lease.run_id AND {IS_HELD.format("lease")}
"""
"""The runs that are still held, joined to the lease of each batch and one seq of it."""

BUMP_REVISIONS = f"""
    UPDATE threads SET revision = revision + 1,
           updated_at = CASE WHEN id = ANY($5::uuid[]) THEN clock_timestamp() ELSE updated_at END
    FROM (
        SELECT id AS thread_id FROM threads WHERE id IN (
            SELECT lease.thread_id FROM {HELD_RUNS}
            WHERE (
                SELECT true FROM message_parts
                WHERE run_id = lease.run_id AND seq = lease.seq AND thread_id IS NOT DISTINCT FROM lease.thread_id
            ) IS NULL)
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ) AS due WHERE threads.id = due.thread_id
    RETURNING id, revision, now() AS stored_at
"""
"""The argument is the last seq of each batch: a batch whose last part is already stored does not bump its thread. A
thread that another transaction has locked is left out, so that it delays no other thread's text.
"""

STORED_SEQS = f"""
    SELECT lease.run_id, ARRAY(
        SELECT seq FROM message_parts
        WHERE run_id = lease.run_id AND seq >= lease.seq AND thread_id IS NOT DISTINCT FROM lease.thread_id
    ) AS seqs
    FROM {HELD_RUNS}
"""
"""The stored seqs from the first seq of each batch on, for batches whose run is still held. The threads are locked, so
no other transaction adds a part.
"""

COLUMNS = ("run_id", "seq", "message_id", "thread_id", "kind", "data", "revision")

MAX_CALLED_PARTS = 16
"""Parts that one call of `store_parts` stores. COPY costs less from about 50 parts on, and writes less WAL."""
STORE_PARTS = """
    SELECT run_id, stored, revision, stored_at
    FROM store_parts($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::uuid[],
                      $6::int[], $7::int[], $8::text[], $9::text[], $10)
"""
"""Increments revisions as `BUMP_REVISIONS`, and adds the parts that are not stored yet of runs that are still held. The
sixth argument is the number of each part's batch, counted from 1.
"""

INSERT_APPROVALS = f"""
    INSERT INTO approvals (run_id, tool_call_id, thread_id, tool, args, parameters, digest, expires_at)
    SELECT run.id, request.tool_call_id, run.thread_id, request.tool, request.args::jsonb, request.parameters::jsonb,
           request.digest, request.expires_at
    FROM {unnested(1, "uuid", "uuid", "int", "text", "text", "text", "text", "text", "timestamptz")}
      AS request (run_id, thread_id, epoch, tool_call_id, tool, args, parameters, digest, expires_at)
    JOIN runs AS run ON run.id = request.run_id AND {IS_HELD.format("request")}
    ON CONFLICT DO NOTHING
"""

SET_STEPS = f"""
    UPDATE runs SET steps = begun.steps FROM (
        SELECT run.id, run.thread_id, begun.steps
        FROM {unnested(1, "uuid", "uuid", "int", "int")} AS begun (run_id, thread_id, epoch, steps)
        JOIN runs AS run ON run.id = begun.run_id AND {IS_HELD.format("begun")}
        ORDER BY run.id FOR NO KEY UPDATE OF run
    ) AS begun WHERE runs.id = begun.id AND runs.thread_id = begun.thread_id
"""

LEFT_OUT = f"""
    SELECT lease.run_id, stored.seq IS NOT NULL AS stored
    FROM {unnested(1, "uuid", "uuid", "int", "int")} AS lease (run_id, thread_id, epoch, seq)
    JOIN runs AS run ON run.id = lease.run_id AND run.thread_id = lease.thread_id AND run.epoch = lease.epoch
    LEFT JOIN message_parts AS stored
      ON stored.run_id = lease.run_id AND stored.seq = lease.seq
     AND stored.thread_id IS NOT DISTINCT FROM lease.thread_id
    WHERE stored.seq IS NOT NULL OR ({IS_HELD.format("lease")})
"""
"""The runs whose batch, by its last seq, an earlier transaction has stored under the same lease, and the runs that are
still held.
"""


class RevisionParts(msgspec.Struct, frozen=True):
    """A revision of a thread in which nothing changed but that these batches were added, each whole."""

    revision: int
    stored_at: datetime
    batches: Sequence[Batch]

    def read(self) -> tuple[Part, ...]:
        """The parts, as the feed reads them."""
        return tuple(
            Part(
                run_id=batch.lease.run_id,
                message_id=batch.lease.message_id,
                seq=seq,
                kind=kind,
                data=msgspec.Raw(data.encode()),
                created_at=self.stored_at,
            )
            for batch in sorted(self.batches, key=lambda batch: batch.lease.run_id)
            for seq, kind, data in batch.parts
        )


class AppendResult(msgspec.Struct, frozen=True):
    """The result of one append.

    `stored`: by run, the number of parts that were new; zero where an earlier transaction had stored them. `busy`: the
    runs of which another transaction has locked the thread, or a row that changes with the end of the run; nothing of
    their batches was stored, and the caller tries again. A run in neither is no longer held by the caller, and nothing
    of its batch was stored. `revisions`: by thread, its new revision, where the append has changed nothing else.
    """

    stored: Mapping[UUID, int]
    busy: AbstractSet[UUID] = frozenset()
    revisions: Mapping[UUID, RevisionParts] = {}


class _StoredBatch(msgspec.Struct, frozen=True):
    """How many of a batch's parts were new, in which revision of the thread, and when."""

    count: int
    revision: int
    stored_at: datetime


async def append(driver: Driver, batches: Sequence[Batch], *, notify: bool = True) -> AppendResult:
    """Store these batches, each wholly or not at all, in one transaction.

    It waits for no thread's lock, and for no lock of a budget or user that changes when a run ends.

    Repeating a batch is harmless where the first commit succeeded and its answer was lost: its parts are stored, so
    none is new.

    With `notify`, listeners are notified at the commit. Without it, the caller publishes `wake_ups` after the commit.

    Raises `ValueError` for two batches of one run: rows are joined to leases by the run.
    """
    leases = lease_columns([batch.lease for batch in batches])
    if len(set(leases[0])) < len(batches):
        raise ValueError("two batches of one run")
    if _is_small(batches) and not is_pooled(driver):
        return await _with_left_out(driver, batches, await _call(driver, batches, notify=notify))
    async with driver.transaction(isolation="read_committed"):
        ready = await _without_locked(driver, batches)
        new = await _store(driver, ready, notify=notify) if ready else {}
        return await _with_left_out(driver, batches, new)


def _is_small(batches: Sequence[Batch]) -> bool:
    """Whether they add few parts and change nothing else, so that `store_parts` can store them."""
    return sum(len(batch.parts) for batch in batches) <= MAX_CALLED_PARTS and not any(
        batch.receipts or batch.approvals or batch.steps is not None or batch.ending for batch in batches
    )


async def _call(driver: Driver, batches: Sequence[Batch], *, notify: bool) -> dict[UUID, _StoredBatch]:
    """Store the batches whose threads are not locked, in one round trip. Returns the stored batches by run.

    A pooler's connection has no isolation level of its own outside of transactions, so it cannot take this path.
    """
    message_ids = [batch.lease.message_id for batch in batches]
    parts = [(number, *part) for number, batch in enumerate(batches, 1) for part in batch.parts]
    channel = THREADS_CHANNEL if notify else None
    columns = zip(*parts, strict=True)
    rows_of_runs = await driver.fetch(STORE_PARTS, *_columns(batches), message_ids, *columns, channel)
    return {run_id: _StoredBatch(*stored) for run_id, *stored in rows_of_runs}


async def _with_left_out(driver: Driver, batches: Sequence[Batch], new: Mapping[UUID, _StoredBatch]) -> AppendResult:
    left_out = await driver.fetch(LEFT_OUT, *_columns(batches)) if len(new) < len(batches) else []
    repeated = {row["run_id"]: 0 for row in left_out if row["stored"]}
    busy = {row["run_id"] for row in left_out if not row["stored"]} - new.keys()
    counts = {run_id: batch.count for run_id, batch in new.items()}
    return AppendResult(repeated | counts, busy, _revisions(batches, new))


def _revisions(batches: Sequence[Batch], new: Mapping[UUID, _StoredBatch]) -> dict[UUID, RevisionParts]:
    """The revisions in which batches were added whole, and nothing else changed."""
    by_thread: dict[UUID, list[Batch]] = defaultdict(list)
    for batch in batches:
        if batch.lease.run_id in new:
            by_thread[batch.lease.thread_id].append(batch)
    revisions = {}
    for thread_id, added in by_thread.items():
        if all(new[batch.lease.run_id].count == len(batch.parts) and batch.ending is None for batch in added):
            first = new[added[0].lease.run_id]
            revisions[thread_id] = RevisionParts(first.revision, first.stored_at, added)
    return revisions


async def _without_locked(driver: Driver, batches: Sequence[Batch]) -> Sequence[Batch]:
    """If runs end with these batches: those for whose changes no other transaction has locked a row."""
    if not any(batch.ending for batch in batches):
        return batches
    changed = [batch for batch in batches if batch.ending or batch.steps is not None]
    locked = await endings.try_lock(driver, [(batch.lease, batch.ending is not None) for batch in changed])
    busy = {batch.lease.run_id for batch in changed} - locked
    return [batch for batch in batches if batch.lease.run_id not in busy]


async def _store(driver: Driver, batches: Sequence[Batch], *, notify: bool) -> dict[UUID, _StoredBatch]:
    """Store the batches whose threads are not locked. Returns the stored batches by run."""
    ended = [batch.lease.thread_id for batch in batches if batch.ending]
    bumped = await driver.fetch(BUMP_REVISIONS, *_columns(batches), ended)
    if not bumped:
        return {}
    revisions = {row["id"]: row["revision"] for row in bumped}
    new = await _insert_parts(driver, batches, revisions)
    if new:
        written = [batch for batch in batches if batch.lease.run_id in new]
        await _store_other_rows(driver, written)
        if notify:
            await notify_threads(driver, revisions, executors=any(batch.ending for batch in written))
    stored_at = bumped[0]["stored_at"]
    return {
        batch.lease.run_id: _StoredBatch(new[batch.lease.run_id], revisions[batch.lease.thread_id], stored_at)
        for batch in batches
        if batch.lease.run_id in new
    }


def _columns(batches: Sequence[Batch]) -> tuple[list[UUID], list[UUID], list[int], list[int]]:
    """The leases of the batches and their last seqs, as arguments of a statement."""
    return *lease_columns([batch.lease for batch in batches]), [batch.parts[-1][0] for batch in batches]


async def insert(driver: Driver, lease: Lease, parts: Sequence[tuple[int, str, str]], revision: int) -> None:
    """Add parts to a run, in this new revision of its thread. The caller holds the thread's lock."""
    await driver.copy_records_to_table("message_parts", records=_records(lease, parts, revision), columns=COLUMNS)


async def of_run(
    driver: Driver, thread_id: UUID, run_id: UUID, *, after: int = -1, limit: int | None = None
) -> list[Part]:
    """The parts of a run of this thread whose seq is greater than `after`, in order.

    Parts that were packed are read second: a run that is packed between the two statements is found by one of them.
    """
    found = await of_active_run(driver, thread_id, run_id, after=after, limit=limit)
    if found:
        return found
    packed = await packed_parts.of_run(driver, thread_id, run_id)
    return packed[after + 1 :][:limit]


async def of_active_run(
    driver: Driver, thread_id: UUID, run_id: UUID, *, after: int = -1, limit: int | None = None
) -> list[Part]:
    """As `of_run`, for a run that has not ended, whose parts cannot be packed."""
    query = """
        SELECT * FROM message_parts WHERE run_id = $1 AND seq > $2 AND thread_id IS NOT DISTINCT FROM $3
        ORDER BY run_id, seq LIMIT $4
    """
    return [rows.part(row) for row in await driver.fetch(query, run_id, after, thread_id, limit)]


async def _insert_parts(driver: Driver, batches: Sequence[Batch], revisions: Mapping[UUID, int]) -> dict[UUID, int]:
    """Add the parts that are not stored yet, by COPY, which costs the least time and WAL."""
    leases = lease_columns([batch.lease for batch in batches])
    first_seqs = [batch.parts[0][0] for batch in batches]
    stored = {row["run_id"]: row["seqs"] for row in await driver.fetch(STORED_SEQS, *leases, first_seqs)}
    held = [batch for batch in batches if batch.lease.run_id in stored and batch.lease.thread_id in revisions]
    new = {
        batch.lease.run_id: [part for part in batch.parts if part[0] not in stored[batch.lease.run_id]]
        for batch in held
    }
    records = [
        record
        for lease in (batch.lease for batch in held)
        for record in _records(lease, new[lease.run_id], revisions[lease.thread_id])
    ]
    await driver.copy_records_to_table("message_parts", records=records, columns=COLUMNS)
    return {run_id: len(parts) for run_id, parts in new.items()}


def _records(lease: Lease, parts: Sequence[tuple[int, str, str]], revision: int) -> list[tuple[object, ...]]:
    """Parts as rows of `COLUMNS`."""
    return [(lease.run_id, seq, lease.message_id, lease.thread_id, kind, data, revision) for seq, kind, data in parts]


async def _store_other_rows(driver: Driver, batches: Sequence[Batch]) -> None:
    """Store receipts, requests for approval and steps, and end the runs that end."""
    await receipts.insert(driver, [(batch.lease, entry) for batch in batches for entry in batch.receipts])
    approvals = [(*_key(batch), *msgspec.structs.astuple(request)) for batch in batches for request in batch.approvals]
    if approvals:
        await driver.execute(INSERT_APPROVALS, *zip(*approvals, strict=True))
        await outbox.record(driver, [_requested(batch, each) for batch in batches for each in batch.approvals])
        waiting = {(batch.lease.run_id, batch.lease.thread_id) for batch in batches if batch.approvals}
        await push_outbox.record_waiting(driver, sorted(waiting))
    begun = [(*_key(batch), batch.steps) for batch in batches if batch.steps is not None]
    ending = [(batch.lease, batch.ending) for batch in batches if batch.ending]
    if begun:
        await driver.execute(SET_STEPS, *zip(*begun, strict=True))
    if ending:
        await endings.end_runs(driver, ending, notify=False)


def _requested(batch: Batch, request: ApprovalRequest) -> WebhookEvent:
    data = {
        "runId": batch.lease.run_id,
        "toolCallId": request.tool_call_id,
        "tool": request.tool,
        "digest": request.digest,
        "expiresAt": request.expires_at,
    }
    return WebhookEvent(type="approval.requested", thread_id=batch.lease.thread_id, data=data)


def _key(batch: Batch) -> tuple[UUID, UUID, int]:
    return batch.lease.run_id, batch.lease.thread_id, batch.lease.epoch
