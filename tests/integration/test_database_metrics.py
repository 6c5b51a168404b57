"""Metrics of a database that grows: waits for locks, the purge and its backlog, sizes and dead rows of tables."""

import asyncio
import json
from datetime import timedelta
from typing import Literal

import asyncpg
import pytest

from khala.operations.partitions import script
from khala.signals import metrics
from khala.store.operations import retention, retention_loop
from khala.store.operations.database_statistics import BACKLOG, TABLES, TableStatistics, read_activity, read_storage
from khala.store.operations.retention import RetentionPolicy
from khala.store.operations.retention_loop import RetentionLoop
from khala.store.postgres.database import Database, driver_url
from khala.store.schema.tables import metadata
from khala.store.threads import threads
from khala.telemetry import gauges
from khala.telemetry.gauges import Gauges
from tests.support.statements import nodes
from tests.support.store import CALLER, batch, lease_of, new_thread, write

POLICY = RetentionPolicy(idle=timedelta(0))


def counted(name: str, **labels: str) -> float:
    """A metric of this process."""
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def samples(own: Gauges) -> dict[str, float]:
    """The first sample of each metric."""
    return {family.name: family.samples[0].value for family in own.collect() if family.samples}


async def test_a_statement_that_waits_for_a_lock_and_the_transaction_that_holds_it_are_seen(
    db: Database, database_url: str
) -> None:
    thread_id = await new_thread(db)
    query = "SELECT FROM threads WHERE id = $1 FOR UPDATE"
    holder, waiter = [await asyncpg.connect(driver_url(database_url)) for _ in range(2)]
    try:
        async with holder.transaction():
            await holder.execute(query, thread_id)
            waiting = asyncio.create_task(waiter.execute(query, thread_id))
            async with asyncio.timeout(10), db.driver() as driver:
                while not (activity := await read_activity(driver)).longest_lock_wait:
                    await asyncio.sleep(0.01)
            assert activity.lock_waiters == 1
            assert activity.oldest_transaction >= activity.longest_lock_wait
        await waiting
        async with db.driver() as driver:
            after = await read_activity(driver)
        assert (after.lock_waiters, after.longest_lock_wait) == (0, 0)
    finally:
        await holder.close()
        await waiter.close()


async def test_deleted_threads_are_the_backlog_until_they_are_purged(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Gauges({"inner": db}, lease_seconds=10)
    for _ in range(2):
        await threads.remove(db, await new_thread(db), CALLER)
    async with db.driver() as driver:
        await driver.execute("UPDATE threads SET deleted_at = now() - interval '100 seconds'")
    await threads.reset(db, await new_thread(db), CALLER, welcome="")
    await own.refresh()
    assert samples(own)["khala_purge_backlog_threads"] == 3
    assert 100 <= samples(own)["khala_purge_backlog_seconds"] < 200
    await retention.purge(db, POLICY)
    monkeypatch.setattr(gauges, "MIN_REFRESH_INTERVAL_SECONDS", 0.0)
    await own.refresh()
    assert samples(own)["khala_purge_backlog_threads"] == 3, "the backlog is read once a minute"
    monkeypatch.setattr(gauges, "MIN_STORAGE_INTERVAL_SECONDS", 0.0)
    await own.refresh()
    assert samples(own)["khala_purge_backlog_threads"] == 0
    assert samples(own)["khala_purge_backlog_seconds"] == 0


async def test_the_backlog_is_read_from_its_index(db: Database) -> None:
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SET LOCAL enable_seqscan = off")
        plan = json.loads(await driver.fetchval(f"EXPLAIN (FORMAT JSON) {BACKLOG}"))
    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "threads"]
    assert [node.get("Index Name") for node in scans] == ["threads_unpurged_idx"]


async def test_the_loop_counts_its_purges_and_the_rows_that_it_deletes(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_loop, "PURGE_INTERVAL_SECONDS", 0.01)
    lease = await lease_of(db, await new_thread(db))
    await write(db, batch(lease, 0, "Some text."))
    await threads.remove(db, lease.thread_id, CALLER)
    parts, purges = counted("khala_purged_rows_total", kind="message_parts"), counted("khala_purge_seconds_count")
    loop = asyncio.create_task(RetentionLoop(db, POLICY).run())
    async with asyncio.timeout(20):
        while counted("khala_purge_seconds_count") < purges + 2:
            await asyncio.sleep(0.01)
    loop.cancel()
    assert counted("khala_purged_rows_total", kind="message_parts") == parts + 1


async def table(db: Database, name: str) -> TableStatistics:
    async with db.driver() as driver:
        (found,) = [one for one in (await read_storage(driver)).tables if one.name == name]
    return found


@pytest.mark.parametrize("by", [None, "month", "hash"])
async def test_a_table_is_measured_with_its_partitions_and_indexes(
    db: Database, by: Literal["month", "hash"] | None
) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(8)]
    await write(db, *(batch(lease, 0, "Some text.") for lease in leases))
    connection = await asyncpg.connect(driver_url(db.url))
    try:
        if by is not None:
            await connection.execute(script(by))
        await connection.execute("CREATE TABLE of_the_operator (id int)")
        # Otherwise the counts of the copy, or of the connection that wrote, arrive after those of the vacuum.
        await connection.execute("SELECT pg_stat_force_next_flush()")
        async with asyncio.timeout(20):
            while (await table(db, "message_parts")).live_rows < len(leases):
                await asyncio.sleep(0.05)
        await connection.execute("VACUUM ANALYZE message_parts")
        await connection.execute("DELETE FROM message_parts WHERE run_id = $1", leases[0].run_id)
        await connection.execute("SELECT pg_stat_force_next_flush()")
    finally:
        await connection.close()
    async with asyncio.timeout(20):
        while (parts := await table(db, "message_parts")).dead_rows < 1:
            await asyncio.sleep(0.05)
    assert (parts.live_rows, parts.dead_rows) == (7, 1)
    assert parts.table_bytes >= 8192
    assert parts.index_bytes >= 2 * 8192, "the index has a page of its own and one of the tree"
    assert parts.transaction_age >= 0
    async with db.driver() as driver:
        found = await read_storage(driver)
    assert {one.name for one in found.tables} == set(metadata.tables), "partitions and other tables have no labels"
    assert found.database_bytes > 1 << 20


async def test_a_locked_table_delays_no_measurement(db: Database, database_url: str) -> None:
    holder = await asyncpg.connect(driver_url(database_url))
    try:
        async with holder.transaction():
            await holder.execute("LOCK TABLE message_parts, runs IN ACCESS EXCLUSIVE MODE")
            async with asyncio.timeout(5), db.driver() as driver:
                assert await driver.fetch(TABLES, sorted(metadata.tables))
    finally:
        await holder.close()
