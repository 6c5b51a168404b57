"""The usage rollup: adds receipts up by day, so that spend and slow tools are read without reading receipts.

Receipts are append-only and have a time. The rollup has counted all that are older than `counted_until`; each step
counts those of the next hour at most, and moves that time in the same transaction, so nothing is counted twice. It
stays `SETTLE_SECONDS` behind: a transaction that commits later would not be counted, and statements may take 30 s.
Receipts that an import brings have old times, and are not counted: that money was spent elsewhere.

The spend of the last days by user is counted in windows, too, so that its list is read in order. The first step of a
day adds up its windows anew, and so does one after a step of an earlier version, which counts no windows.

The counts stay when a thread is deleted before or after: they are the operator's accounts.
"""

import asyncio
import random
from datetime import datetime, timedelta

import structlog

from khala.domain import ids
from khala.domain.durations import BUCKET_SQL
from khala.domain.errors import Unavailable
from khala.store.console import executors
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried

log = structlog.get_logger()

INTERVAL_SECONDS = 60.0
"""Seconds between two rounds, on average."""
SETTLE_SECONDS = 90
STEP = timedelta(hours=1)
MAX_STEPS = 300
"""Steps of one round: the first ones of an old deployment count its history, at most a year of it."""
MAX_HISTORY = timedelta(days=366)
BLOB_INTERVAL = timedelta(hours=1)
BLOB_TIMEOUT_SECONDS = 600

LOCK = "SELECT *, clock_timestamp() AS now FROM usage_rollup WHERE id = 1 FOR NO KEY UPDATE SKIP LOCKED"
FIRST_RUN = "SELECT id FROM runs ORDER BY id LIMIT 1"
MOVE = "UPDATE usage_rollup SET counted_until = $1, windows_until = $1, windows_day = $2 WHERE id = 1"

_NUMBER = "CASE WHEN jsonb_typeof({0}) = 'number' THEN least(greatest(({0})::numeric, 0), 1e12)::bigint ELSE 0 END"
"""SQL: a number of a receipt. An import may have brought anything."""
_TEXT = "left(coalesce({0}, ''), 200)"

WINDOW_DAYS = (30, 90, 366)
"""Days of each window, with the last one counted. Shorter periods are added up when they are read."""
WINDOW_TIMEOUT_SECONDS = 600
_COUNTED = "count(*), sum(usd), sum(input_tokens), sum(output_tokens)"
_ADDED = """
    calls = known.calls + excluded.calls, usd = known.usd + excluded.usd,
    input_tokens = known.input_tokens + excluded.input_tokens,
    output_tokens = known.output_tokens + excluded.output_tokens
"""
CLEAR_WINDOWS = "DELETE FROM spend_windows"
FILL_WINDOWS = """
    INSERT INTO spend_windows (days, user_id, calls, usd, input_tokens, output_tokens)
    SELECT span.days, spent.user_id, sum(calls), sum(usd), sum(input_tokens), sum(output_tokens)
    FROM unnest($2::smallint[]) AS span (days) JOIN spend_user_days AS spent ON spent.day > $1::date - span.days
    GROUP BY span.days, spent.user_id
"""
SPEND = f"""
    WITH calls AS MATERIALIZED (
        SELECT (receipt.created_at AT TIME ZONE 'UTC')::date AS day,
               coalesce((SELECT user_id FROM runs WHERE runs.id = receipt.run_id),
                        '00000000-0000-0000-0000-000000000000') AS user_id,
               {_TEXT.format("receipt.data ->> 'provider'")} AS provider,
               {_TEXT.format("receipt.data ->> 'model'")} AS model,
               coalesce(receipt.cost_usd, 0) AS usd,
               {_NUMBER.format("receipt.data -> 'usage' -> 'inputTokens'")} AS input_tokens,
               {_NUMBER.format("receipt.data -> 'usage' -> 'outputTokens'")} AS output_tokens
        FROM receipts AS receipt
        WHERE receipt.created_at >= $1 AND receipt.created_at < $2 AND receipt.type = 'model'
        UNION ALL
        SELECT (receipt.created_at AT TIME ZONE 'UTC')::date,
               coalesce(receipt.user_id, '00000000-0000-0000-0000-000000000000'),
               {_TEXT.format("receipt.data ->> 'provider'")}, {_TEXT.format("receipt.data ->> 'model'")},
               coalesce(receipt.cost_usd, 0), {_NUMBER.format("receipt.data -> 'usage' -> 'inputTokens'")},
               {_NUMBER.format("receipt.data -> 'usage' -> 'outputTokens'")}
        FROM usage_receipts AS receipt WHERE receipt.created_at >= $1 AND receipt.created_at < $2
    ), by_user AS (
        INSERT INTO spend_user_days AS known (user_id, day, provider, model, calls, usd, input_tokens, output_tokens)
        SELECT user_id, day, provider, model, {_COUNTED} FROM calls GROUP BY user_id, day, provider, model
        ON CONFLICT (user_id, day, provider, model) DO UPDATE SET {_ADDED}
    ), by_window AS (
        INSERT INTO spend_windows AS known (days, user_id, calls, usd, input_tokens, output_tokens)
        SELECT span.days, calls.user_id, {_COUNTED}
        FROM calls JOIN unnest($4::smallint[]) AS span (days) ON calls.day > $3::date - span.days
        GROUP BY span.days, calls.user_id
        ON CONFLICT (days, user_id) DO UPDATE SET {_ADDED}
    )
    INSERT INTO spend_days AS known (day, provider, model, calls, usd, input_tokens, output_tokens)
    SELECT day, provider, model, {_COUNTED} FROM calls GROUP BY day, provider, model
    ON CONFLICT (day, provider, model) DO UPDATE SET {_ADDED}
"""
"""Counts the receipts of a step. $3 and $4: the last day of the windows, and the days of those to which it adds."""
TOOLS = f"""
    WITH calls AS MATERIALIZED (
        SELECT (created_at AT TIME ZONE 'UTC')::date AS day, {_TEXT.format("data ->> 'tool'")} AS tool,
               {_TEXT.format("data ->> 'source'")} AS source, run_id,
               data ->> 'outcome' IS DISTINCT FROM 'ok' AS failed, {_NUMBER.format("data -> 'durationMs'")} AS ms
        FROM receipts WHERE created_at >= $1 AND created_at < $2 AND type = 'tool' AND data ->> 'source' IS NOT NULL
    )
    INSERT INTO tool_days AS known (day, tool, source, bucket, calls, failures, total_ms, max_ms, slowest_run_id)
    SELECT day, tool, source, {BUCKET_SQL.format("ms")} AS bucket, count(*), count(*) FILTER (WHERE failed), sum(ms),
           max(ms), (array_agg(run_id ORDER BY ms DESC))[1]
    FROM calls GROUP BY day, tool, source, bucket
    ON CONFLICT (day, tool, source, bucket) DO UPDATE SET calls = known.calls + excluded.calls,
        failures = known.failures + excluded.failures, total_ms = known.total_ms + excluded.total_ms,
        max_ms = greatest(known.max_ms, excluded.max_ms),
        slowest_run_id = CASE WHEN excluded.max_ms > known.max_ms THEN excluded.slowest_run_id
                              ELSE known.slowest_run_id END
"""
"""Calls that no tool executed have no source, and are left out: their names are what a model has made up."""
BLOB_OWNERS = """
    INSERT INTO blob_owners (owner_id, blobs, bytes)
    SELECT owner_id, count(*), sum(size) FROM (
        SELECT coalesce(threads.owner_id, '00000000-0000-0000-0000-000000000000') AS owner_id, blobs.size
        FROM blobs JOIN threads ON threads.id = blobs.thread_id
        UNION ALL
        SELECT user_id, size FROM folder_files
    ) AS stored GROUP BY 1
"""
OBJECTS = """
    UPDATE usage_rollup SET blobs_counted_at = clock_timestamp(), objects = counted.objects, bytes = counted.bytes,
           orphans = counted.orphans, orphan_bytes = counted.orphan_bytes
    FROM (
        SELECT count(*) AS objects, coalesce(sum(size), 0) AS bytes,
               count(*) FILTER (WHERE orphan) AS orphans,
               coalesce(sum(size) FILTER (WHERE orphan), 0) AS orphan_bytes
        FROM (
            SELECT size, NOT EXISTS (SELECT FROM blobs WHERE blobs.sha256 = objects.sha256)
                     AND NOT EXISTS (SELECT FROM folder_files WHERE folder_files.sha256 = objects.sha256) AS orphan
            FROM objects WHERE stored
        ) AS stored_objects
    ) AS counted
    WHERE usage_rollup.id = 1
"""


class UsageRollup:
    """The loop that counts. Any number of processes may run it; one of them counts at a time."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self) -> None:
        """Count regularly, for ever."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS * random.uniform(0.5, 1.5))
            try:
                await count_receipts(self._db)
                await count_blobs(self._db)
                async with self._db.driver() as driver:
                    await executors.forget(driver)
            except Unavailable as error:
                log.warning("usage_not_counted", error=str(error.__cause__))


async def count_receipts(db: Database, *, settle_seconds: float = SETTLE_SECONDS) -> int:
    """Count all receipts that are older than `settle_seconds`, in at most `MAX_STEPS` steps. Returns the steps."""
    for step in range(MAX_STEPS):
        if not await _count_next(db, settle_seconds):
            return step
    return MAX_STEPS


@retried
async def _count_next(db: Database, settle_seconds: float) -> bool:
    """Count the receipts of the next step. False if there are none yet, or another process counts."""
    async with db.driver() as driver, driver.transaction():
        state = await driver.fetchrow(LOCK)
        if state is None:
            return False
        end: datetime = state["now"] - timedelta(seconds=settle_seconds)
        begin: datetime = state["counted_until"] or await _first_time(driver, end)
        until = min(begin + STEP, end)
        if until <= begin:
            return False
        today = state["now"].date()
        continues = (state["windows_day"], state["windows_until"]) == (today, state["counted_until"])
        await driver.execute(SPEND, begin, until, today, WINDOW_DAYS if continues else ())
        if not continues:
            await driver.execute(CLEAR_WINDOWS)
            await driver.execute(FILL_WINDOWS, today, WINDOW_DAYS, timeout=WINDOW_TIMEOUT_SECONDS)
        await driver.execute(TOOLS, begin, until)
        await driver.execute(MOVE, until, today)
        return until < end


async def _first_time(driver: Driver, end: datetime) -> datetime:
    """The time from which on there are receipts, if none was counted yet."""
    first = await driver.fetchval(FIRST_RUN)
    earliest = end - MAX_HISTORY
    return end - STEP if first is None else min(max(ids.created_at(first), earliest), end - STEP)


@retried
async def count_blobs(db: Database, *, interval: timedelta = BLOB_INTERVAL) -> bool:
    """Count the blobs of all owners, if that was longer than `interval` ago. Returns whether it did."""
    async with db.driver() as driver, driver.transaction():
        state = await driver.fetchrow(LOCK)
        if state is None:
            return False
        counted_at = state["blobs_counted_at"]
        if counted_at is not None and state["now"] - counted_at < interval:
            return False
        await driver.execute("DELETE FROM blob_owners")
        await driver.execute(BLOB_OWNERS, timeout=BLOB_TIMEOUT_SECONDS)
        await driver.execute(OBJECTS, timeout=BLOB_TIMEOUT_SECONDS)
        return True
