"""The write path's one transaction: parts of many runs at once, idempotent by (run id, seq) and fenced by lease epoch.

Why it is safe: whoever changes a run's epoch or status holds its thread's row lock. The first statement here takes the
locks of all threads that are written to; the second one begins after that, so the epochs that it checks can't change
before the commit, and a run that was taken over is simply not joined.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import RunStatus
from khala.domain.fold import Content
from khala.domain.parts import Finish, Part, json_text
from khala.store.budgets import ledger
from khala.store.postgres import rows
from khala.store.postgres.database import EVERYTHING, MOST_NAMED, RUNS_CHANNEL, THREADS_CHANNEL, Driver
from khala.store.threads import thread_lists


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write to a run, good for as long as the run's epoch is this one."""

    run_id: UUID
    thread_id: UUID
    message_id: UUID
    epoch: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt to be; `data` is JSON text, `hash` is its link in the run's chain."""

    seq: int
    type: str
    data: str
    hash: bytes
    cost_usd: Decimal | None = None
    tool_call_id: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that is to be approved of; `args` and `parameters` (their JSON Schema) are JSON text."""

    tool_call_id: str
    tool: str
    args: str
    parameters: str
    digest: str
    expires_at: datetime


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ends: its state, and the whole message as folded from `seq` parts."""

    status: RunStatus
    finish: Finish
    content: Content
    seq: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one run has to write: consecutive parts as (seq, kind, JSON text), what goes with them, and its end if this
    is it. `steps` is how many rounds of tools it has begun, if one of these parts begins one."""  # noqa: D205, D209

    lease: Lease
    parts: Sequence[tuple[int, str, str]]
    receipts: Sequence[Entry] = ()
    asked: Sequence[Asked] = ()
    steps: int | None = None
    ending: Ending | None = None


Leases: TypeAlias = tuple[list[UUID], list[UUID], list[int]]
"""The first three arguments of the statements about batches: run, thread and epoch of each. The fourth is a seq."""

# Each statement finds its rows by their keys, one by one, and leaves the planner nothing to choose: plans outlive the
# sizes that they were made for. What is compared by IS NOT DISTINCT FROM can't lead it to another index than that of
# the key: of active runs say, or of all parts of a thread.
MINE = "(run.thread_id, run.epoch, run.status) IS NOT DISTINCT FROM ({0}.thread_id, {0}.epoch, 'running')"

HELD = f"""
    unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[]) AS lease (run_id, thread_id, epoch, seq)
    JOIN runs AS run ON run.id = lease.run_id AND {MINE.format("lease")}
"""

BUMP = f"""
    UPDATE threads SET revision = revision + 1,
           updated_at = CASE WHEN id = ANY($5::uuid[]) THEN clock_timestamp() ELSE updated_at END
    FROM (
        SELECT id AS thread_id FROM threads WHERE id IN (
            SELECT lease.thread_id FROM {HELD}
            WHERE (
                SELECT true FROM message_parts
                WHERE run_id = lease.run_id AND seq = lease.seq AND thread_id IS NOT DISTINCT FROM lease.thread_id
            ) IS NULL)
        ORDER BY id FOR NO KEY UPDATE
    ) AS due WHERE threads.id = due.thread_id
    RETURNING id, revision
"""
"""For the last seq of each batch. Threads are locked in the order of their ids, as by everybody who locks several."""

THERE = f"""
    SELECT lease.run_id, ARRAY(
        SELECT seq FROM message_parts
        WHERE run_id = lease.run_id AND seq >= lease.seq AND thread_id IS NOT DISTINCT FROM lease.thread_id
    ) AS seqs
    FROM {HELD}
"""
"""For the first seq of each batch: of those whose runs are still held, what is there from it on. Their threads are
locked, so nothing is added.
"""

COLUMNS = ("run_id", "seq", "message_id", "thread_id", "kind", "data", "revision")

INSERT_RECEIPTS = f"""
    INSERT INTO receipts (run_id, seq, thread_id, type, tool_call_id, data, cost_usd, hash)
    SELECT run.id, entry.seq, run.thread_id, entry.type, entry.tool_call_id, entry.data::jsonb, entry.cost_usd,
           entry.hash
    FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::text[], $6::text[], $7::text[], $8::numeric[],
                $9::bytea[])
      AS entry (run_id, thread_id, epoch, seq, type, tool_call_id, data, cost_usd, hash)
    JOIN runs AS run ON run.id = entry.run_id AND {MINE.format("entry")}
    ON CONFLICT DO NOTHING
"""

INSERT_ASKED = f"""
    INSERT INTO approvals (run_id, tool_call_id, thread_id, tool, args, parameters, digest, expires_at)
    SELECT run.id, asked.tool_call_id, run.thread_id, asked.tool, asked.args::jsonb, asked.parameters::jsonb,
           asked.digest, asked.expires_at
    FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::timestamptz[])
      AS asked (run_id, thread_id, epoch, tool_call_id, tool, args, parameters, digest, expires_at)
    JOIN runs AS run ON run.id = asked.run_id AND {MINE.format("asked")}
    ON CONFLICT DO NOTHING
"""

LOCK_RUNS = f"""
    SELECT run.id FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS lease (run_id, thread_id, epoch)
    JOIN runs AS run ON run.id = lease.run_id AND {MINE.format("lease")}
    ORDER BY run.id FOR NO KEY UPDATE OF run
"""
"""All runs that `STEP` and `END` will change: two statements would not lock them in the order of heartbeats."""

STEP = f"""
    UPDATE runs SET steps = begun.steps FROM (
        SELECT run.id, run.thread_id, begun.steps
        FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[]) AS begun (run_id, thread_id, epoch, steps)
        JOIN runs AS run ON run.id = begun.run_id AND {MINE.format("begun")}
        ORDER BY run.id FOR NO KEY UPDATE OF run
    ) AS begun WHERE runs.id = begun.id AND runs.thread_id = begun.thread_id
"""

END = f"""
    WITH ended AS (
        UPDATE runs SET status = ending.status, finish = ending.finish::jsonb, finished_at = clock_timestamp(),
               lease_owner = NULL, lease_expires_at = NULL
        FROM (
            SELECT run.id, run.thread_id, ending.status, ending.finish, ending.content, ending.seq
            FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::int[])
              AS ending (run_id, thread_id, epoch, status, finish, content, seq)
            JOIN runs AS run ON run.id = ending.run_id AND {MINE.format("ending")}
            ORDER BY run.id FOR NO KEY UPDATE OF run
        ) AS ending
        WHERE runs.id = ending.id AND runs.thread_id = ending.thread_id
        RETURNING runs.message_id, runs.thread_id, ending.status, ending.finish, ending.content, ending.seq
    )
    UPDATE messages SET status = ended.status, finish = ended.finish::jsonb, content = ended.content::jsonb,
           seq = ended.seq, revision = threads.revision, updated_at = clock_timestamp()
    FROM ended JOIN threads ON threads.id = ended.thread_id
    WHERE messages.id = ended.message_id AND messages.thread_id = ended.thread_id
    RETURNING messages.run_id, messages.thread_id
"""

WRITTEN_BEFORE = """
    SELECT lease.run_id FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[])
        AS lease (run_id, thread_id, epoch, seq)
    JOIN runs AS run ON run.id = lease.run_id AND run.thread_id = lease.thread_id AND run.epoch = lease.epoch
    JOIN message_parts AS there
      ON there.run_id = lease.run_id AND there.seq = lease.seq
     AND there.thread_id IS NOT DISTINCT FROM lease.thread_id
"""


async def append(driver: Driver, batches: Sequence[Batch], *, notify: bool = True) -> dict[UUID, int]:
    """Write all of it or nothing, and notify the listeners, unless the caller tells them after the commit (`wakes`).

    Returns, by run, how many parts were new.

    A run that the caller no longer holds is not in the answer, and nothing of it was written. Repeating a batch whose
    commit went unheard is harmless: its parts are there, so none is new. Of one run there may be one batch at a time,
    since rows are joined to leases by the run.
    """
    leases = _leases(batches)
    if len(set(leases[0])) < len(batches):
        raise ValueError("two batches of one run")
    last = [batch.parts[-1][0] for batch in batches]
    ended = [batch.lease.thread_id for batch in batches if batch.ending]
    async with driver.transaction(isolation="read_committed"):
        revisions = {row["id"]: row["revision"] for row in await driver.fetch(BUMP, *leases, last, ended)}
        fresh = await _insert(driver, batches, revisions) if revisions else {}
        if revisions:
            await _settle(driver, batches)
            if notify:
                await _notify(driver, list(revisions), ended=bool(ended))
        repeated = await driver.fetch(WRITTEN_BEFORE, *leases, last) if len(fresh) < len(batches) else []
    return {row["run_id"]: 0 for row in repeated} | fresh


async def of_run(
    driver: Driver, thread_id: UUID, run_id: UUID, *, after: int = -1, limit: int | None = None
) -> list[Part]:
    """The parts of a run of this thread with seq over `after`, in order."""
    query = """
        SELECT * FROM message_parts WHERE run_id = $1 AND seq > $2 AND thread_id IS NOT DISTINCT FROM $3
        ORDER BY run_id, seq LIMIT $4
    """
    return [rows.part(row) for row in await driver.fetch(query, run_id, after, thread_id, limit)]


def _leases(batches: Sequence[Batch]) -> Leases:
    return (
        [batch.lease.run_id for batch in batches],
        [batch.lease.thread_id for batch in batches],
        [batch.lease.epoch for batch in batches],
    )


async def _insert(driver: Driver, batches: Sequence[Batch], revisions: Mapping[UUID, int]) -> dict[UUID, int]:
    """Add the parts that are not there yet: by COPY, which costs least, in time and in WAL."""
    first = [batch.parts[0][0] for batch in batches]
    there = {row["run_id"]: row["seqs"] for row in await driver.fetch(THERE, *_leases(batches), first)}
    held = [batch for batch in batches if batch.lease.run_id in there and batch.lease.thread_id in revisions]
    new = {
        batch.lease.run_id: [part for part in batch.parts if part[0] not in there[batch.lease.run_id]] for batch in held
    }
    records = [
        (lease.run_id, seq, lease.message_id, lease.thread_id, kind, data, revisions[lease.thread_id])
        for lease in (batch.lease for batch in held)
        for seq, kind, data in new[lease.run_id]
    ]
    await driver.copy_records_to_table("message_parts", records=records, columns=COLUMNS)
    return {run_id: len(parts) for run_id, parts in new.items()}


async def _settle(driver: Driver, batches: Sequence[Batch]) -> None:
    """Receipts, what is to be approved of, rounds that begin, and the ends of runs."""
    entries = [
        (*_claim(batch), entry.seq, entry.type, entry.tool_call_id, entry.data, entry.cost_usd, entry.hash)
        for batch in batches
        for entry in batch.receipts
    ]
    if entries:
        await driver.execute(INSERT_RECEIPTS, *zip(*entries, strict=True))
    asked = [(*_claim(batch), *msgspec.structs.astuple(one)) for batch in batches for one in batch.asked]
    if asked:
        await driver.execute(INSERT_ASKED, *zip(*asked, strict=True))
    begun = [(*_claim(batch), batch.steps) for batch in batches if batch.steps is not None]
    endings = [(*_claim(batch), *_row(batch.ending)) for batch in batches if batch.ending]
    if begun and endings:
        changed = [_claim(batch) for batch in batches if batch.steps is not None or batch.ending]
        await driver.execute(LOCK_RUNS, *zip(*changed, strict=True))
    if begun:
        await driver.execute(STEP, *zip(*begun, strict=True))
    if endings:
        ended = await driver.fetch(END, *zip(*endings, strict=True))
        await ledger.settle(driver, {row["run_id"]: row["thread_id"] for row in ended})
        await thread_lists.stamp(driver, [batch.lease.thread_id for batch in batches if batch.ending], said=True)


def _claim(batch: Batch) -> tuple[UUID, UUID, int]:
    return batch.lease.run_id, batch.lease.thread_id, batch.lease.epoch


def _row(ending: Ending) -> tuple[str, str, str, int]:
    return ending.status, json_text(ending.finish), json_text(ending.content), ending.seq


async def _notify(driver: Driver, threads: Sequence[UUID], *, ended: bool) -> None:
    payload = ",".join(map(str, threads)) if len(threads) <= MOST_NAMED else EVERYTHING
    await driver.execute("SELECT pg_notify($1, $2)", THREADS_CHANNEL, payload)
    if ended:
        await driver.execute("SELECT pg_notify($1, '')", RUNS_CHANNEL)
