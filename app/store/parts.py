"""The write path's one transaction: parts of many runs at once, idempotent by (run id, seq) and fenced by lease epoch.

Why it is safe: whoever changes a run's epoch or status holds its thread's row lock. The first statement here takes the
locks of all threads that are written to; the second one begins after that, so the epochs that it checks can't change
before the commit, and a run that was taken over is simply not joined.
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

import msgspec

from app.domain.chat import RunStatus
from app.domain.fold import Content
from app.domain.parts import Finish, Part, json_text
from app.store import ledger, listings, rows
from app.store.db import EVERYTHING, MOST_NAMED, RUNS_CHANNEL, THREADS_CHANNEL, Driver


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


Leases: TypeAlias = tuple[list[UUID], list[UUID], list[int], list[int]]
"""The first four arguments of every statement here: run, thread, epoch and last seq of each batch."""

HELD = """
    unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[]) AS lease (run_id, thread_id, epoch, last_seq)
    JOIN runs ON runs.id = lease.run_id AND runs.thread_id = lease.thread_id
             AND runs.epoch = lease.epoch AND runs.status = 'running'
"""

BUMP = f"""
    WITH due AS (
        SELECT DISTINCT runs.thread_id FROM {HELD}
        WHERE NOT EXISTS (SELECT FROM message_parts AS there
                          WHERE there.run_id = lease.run_id AND there.seq = lease.last_seq)
    )
    UPDATE threads SET revision = revision + 1, updated_at = clock_timestamp()
    FROM due WHERE threads.id = due.thread_id
    RETURNING threads.id
"""

INSERT = f"""
    INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision, created_at)
    SELECT part.run_id, part.seq, runs.message_id, runs.thread_id, part.kind, part.data::jsonb,
           threads.revision, clock_timestamp()
    FROM {HELD}
    JOIN threads ON threads.id = runs.thread_id
    JOIN unnest($5::uuid[], $6::int[], $7::text[], $8::text[]) AS part (run_id, seq, kind, data)
      ON part.run_id = runs.id
    ON CONFLICT DO NOTHING
    RETURNING run_id
"""

INSERT_RECEIPTS = f"""
    INSERT INTO receipts (run_id, seq, thread_id, type, tool_call_id, data, cost_usd, hash)
    SELECT entry.run_id, entry.seq, runs.thread_id, entry.type, entry.tool_call_id, entry.data::jsonb, entry.cost_usd,
           entry.hash
    FROM {HELD}
    JOIN unnest($5::uuid[], $6::int[], $7::text[], $8::text[], $9::text[], $10::numeric[], $11::bytea[])
      AS entry (run_id, seq, type, tool_call_id, data, cost_usd, hash) ON entry.run_id = runs.id
    ON CONFLICT DO NOTHING
"""

INSERT_ASKED = f"""
    INSERT INTO approvals (run_id, tool_call_id, thread_id, tool, args, parameters, digest, expires_at)
    SELECT asked.run_id, asked.tool_call_id, runs.thread_id, asked.tool, asked.args::jsonb, asked.parameters::jsonb,
           asked.digest, asked.expires_at
    FROM {HELD}
    JOIN unnest($5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::timestamptz[])
      AS asked (run_id, tool_call_id, tool, args, parameters, digest, expires_at) ON asked.run_id = runs.id
    ON CONFLICT DO NOTHING
"""

STEP = f"""
    UPDATE runs SET steps = begun.steps FROM (
        SELECT runs.id, begun.steps FROM {HELD}
        JOIN unnest($5::uuid[], $6::int[]) AS begun (run_id, steps) ON begun.run_id = runs.id
        ORDER BY runs.id FOR NO KEY UPDATE OF runs
    ) AS begun WHERE runs.id = begun.id
"""

END = f"""
    WITH ended AS (
        UPDATE runs SET status = ending.status, finish = ending.finish::jsonb, finished_at = clock_timestamp(),
               lease_owner = NULL, lease_expires_at = NULL
        FROM (
            SELECT runs.id, ending.* FROM {HELD}
            JOIN unnest($5::uuid[], $6::text[], $7::text[], $8::text[], $9::int[])
              AS ending (run_id, status, finish, content, seq) ON ending.run_id = runs.id
            ORDER BY runs.id FOR NO KEY UPDATE OF runs
        ) AS ending
        WHERE runs.id = ending.run_id
        RETURNING runs.message_id, runs.thread_id, ending.status, ending.finish, ending.content, ending.seq
    )
    UPDATE messages SET status = ended.status, finish = ended.finish::jsonb, content = ended.content::jsonb,
           seq = ended.seq, revision = threads.revision, updated_at = clock_timestamp()
    FROM ended JOIN threads ON threads.id = ended.thread_id
    WHERE messages.id = ended.message_id
    RETURNING messages.run_id
"""

WRITTEN_BEFORE = """
    SELECT lease.run_id FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[])
        AS lease (run_id, thread_id, epoch, last_seq)
    JOIN runs ON runs.id = lease.run_id AND runs.thread_id = lease.thread_id AND runs.epoch = lease.epoch
    JOIN message_parts AS there ON there.run_id = lease.run_id AND there.seq = lease.last_seq
"""


async def append(driver: Driver, batches: Sequence[Batch]) -> dict[UUID, int]:
    """Write all of it or nothing, and tell the listeners. Returns, by run, how many parts were new.

    A run that the caller no longer holds is not in the answer, and nothing of it was written. Repeating a batch whose
    commit went unheard is harmless: its parts are there, so none is new. Of one run there may be one batch at a time,
    since rows are joined to leases by the run.
    """
    leases = _leases(batches)
    if len(set(leases[0])) < len(batches):
        raise ValueError("two batches of one run")
    async with driver.transaction(isolation="read_committed"):
        threads = [row["id"] for row in await driver.fetch(BUMP, *leases)]
        fresh = await _insert(driver, leases, batches) if threads else {}
        if threads:
            await _settle(driver, leases, batches)
            await _notify(driver, threads, ended=any(batch.ending for batch in batches))
        repeated = await driver.fetch(WRITTEN_BEFORE, *leases) if len(fresh) < len(batches) else []
    return {row["run_id"]: 0 for row in repeated} | fresh


async def of_run(driver: Driver, run_id: UUID, *, after: int = -1, limit: int | None = None) -> list[Part]:
    """The run's parts with seq over `after`, in order."""
    query = "SELECT * FROM message_parts WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
    return [rows.part(row) for row in await driver.fetch(query, run_id, after, limit)]


def _leases(batches: Sequence[Batch]) -> Leases:
    return (
        [batch.lease.run_id for batch in batches],
        [batch.lease.thread_id for batch in batches],
        [batch.lease.epoch for batch in batches],
        [batch.parts[-1][0] for batch in batches],
    )


async def _insert(driver: Driver, leases: Leases, batches: Sequence[Batch]) -> dict[UUID, int]:
    flat = [(batch.lease.run_id, *part) for batch in batches for part in batch.parts]
    fresh: dict[UUID, int] = {}
    for row in await driver.fetch(INSERT, *leases, *zip(*flat, strict=True)):
        fresh[row["run_id"]] = fresh.get(row["run_id"], 0) + 1
    return fresh


async def _settle(driver: Driver, leases: Leases, batches: Sequence[Batch]) -> None:
    """Receipts, what is to be approved of, rounds that begin, and the ends of runs."""
    entries = [
        (batch.lease.run_id, entry.seq, entry.type, entry.tool_call_id, entry.data, entry.cost_usd, entry.hash)
        for batch in batches
        for entry in batch.receipts
    ]
    if entries:
        await driver.execute(INSERT_RECEIPTS, *leases, *zip(*entries, strict=True))
    asked = [(batch.lease.run_id, *msgspec.structs.astuple(one)) for batch in batches for one in batch.asked]
    if asked:
        await driver.execute(INSERT_ASKED, *leases, *zip(*asked, strict=True))
    begun = [(batch.lease.run_id, batch.steps) for batch in batches if batch.steps is not None]
    if begun:
        await driver.execute(STEP, *leases, *zip(*begun, strict=True))
    endings = [(batch.lease.run_id, *_row(batch.ending)) for batch in batches if batch.ending]
    if endings:
        ended = await driver.fetch(END, *leases, *zip(*endings, strict=True))
        await ledger.settle(driver, [row["run_id"] for row in ended])
        await listings.stamp(driver, [batch.lease.thread_id for batch in batches if batch.ending], said=True)


def _row(ending: Ending) -> tuple[str, str, str, int]:
    return ending.status, json_text(ending.finish), json_text(ending.content), ending.seq


async def _notify(driver: Driver, threads: Sequence[UUID], *, ended: bool) -> None:
    payload = ",".join(map(str, threads)) if len(threads) <= MOST_NAMED else EVERYTHING
    await driver.execute("SELECT pg_notify($1, $2)", THREADS_CHANNEL, payload)
    if ended:
        await driver.execute("SELECT pg_notify($1, '')", RUNS_CHANNEL)
