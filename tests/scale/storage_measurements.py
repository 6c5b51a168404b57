"""Measurements of storage: the bytes of a message before and after its parts are packed, and the cost of packing."""

import time
from datetime import timedelta

from khala.store.operations.part_packing import PACKED_RUNS
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Driver
from tests.scale.figures import Figure
from tests.scale.stage import ScaleStage

MESSAGE_TARGET_BYTES = 1_400.0
ANSWER_SIZE = "answers of 1 KB"
PACK_ALL = RetentionPolicy(idle=timedelta(0), parts=timedelta(milliseconds=1))
"""Packs the parts of all runs that have ended."""

TABLE_BYTES = """
    SELECT sum(pg_total_relation_size(relid))
    FROM (SELECT relid FROM pg_partition_tree($1::text::regclass) UNION SELECT $1::text::regclass) AS parts
"""
"""A table that is not partitioned has no partition tree."""
WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
MESSAGES_COVERED = {
    "messages": "count(*) FROM messages",
    "message_parts": "2 * count(*) FROM message_parts WHERE seq = 0",
    "receipts": "2 * count(*) FROM receipts WHERE seq = 0",
    "runs": "2 * count(*) FROM runs",
    "usage_ledger": "2 * count(DISTINCT run_id) FROM usage_ledger",
}
"""By table, the number of messages that its rows belong to. A run has two: a question and its answer."""
PACKED_COVERED = {name: MESSAGES_COVERED[name] for name in ("messages", "receipts", "runs")}
"""As above, for old messages: their entries of the ledger are deleted after a week, and their parts are packed."""


async def measure_message_bytes(stage: ScaleStage) -> list[Figure]:
    """Bytes on disk (heap, TOAST and indexes) for each message, by table, of answers of about 1,000 characters.

    The rows of each table are divided by the messages that they belong to: old entries of the ledger are gone. The
    filler's tables and indexes are denser than those of a deployment that is in use.
    """
    async with stage.connection() as driver:
        figures = await _by_table(driver, "bytes a message, not packed", MESSAGES_COVERED)
    whole = sum(figure.value for figure in figures)
    return [Figure(name="bytes a message, not packed", size=ANSWER_SIZE, value=whole, unit="bytes"), *figures]


async def measure_packing(stage: ScaleStage) -> list[Figure]:
    """Pack the parts of all runs that have ended. Then the bytes for each message, as before packing.

    The tables are rewritten before their sizes are read: the space of deleted rows is free for later ones.
    """
    async with stage.connection() as driver:
        await driver.execute("CHECKPOINT")
        parts, before = await driver.fetchval("SELECT count(*) FROM message_parts"), await driver.fetchval(WAL)
        began = time.monotonic()
        packed = 0
        while newly := (await purge(stage.db, PACK_ALL))[PACKED_RUNS]:
            packed += newly
        seconds = time.monotonic() - began
        parts -= await driver.fetchval("SELECT count(*) FROM message_parts")
        wal = await driver.fetchval(WAL) - before
        assert packed > 0
        for table in PACKED_COVERED:
            await driver.execute(f"VACUUM (FULL, ANALYZE) {table}")
        figures = await _by_table(driver, "bytes a message", PACKED_COVERED)
    whole = sum(figure.value for figure in figures)
    size = f"{packed:,} runs"
    return [
        Figure(name="bytes a message", size=ANSWER_SIZE, value=whole, unit="bytes", target=MESSAGE_TARGET_BYTES),
        *figures,
        Figure(name="packing", size=size, value=parts / seconds, unit="parts/s"),
        Figure(name="WAL of packing a part", size=size, value=wal / parts, unit="bytes"),
    ]


async def _by_table(driver: Driver, name: str, covered: dict[str, str]) -> list[Figure]:
    figures = []
    for table, messages in covered.items():
        size = int(await driver.fetchval(TABLE_BYTES, table))
        count = await driver.fetchval(f"SELECT {messages}")
        figures.append(Figure(name=f"{name}, {table}", size=ANSWER_SIZE, value=size / count, unit="bytes"))
    return figures
