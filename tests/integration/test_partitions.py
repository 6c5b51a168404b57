"""`message_parts` split into partitions by `khala partition-parts`: writes and reads continue as before."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from khala.domain import ids
from khala.domain.fold import TextBlock
from khala.operations.partitions import FOLDER
from khala.store.operations import retention
from khala.store.operations.part_partitions import maintain_partitions
from khala.store.operations.retention import RetentionPolicy
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres import migrations
from khala.store.postgres.database import Database, driver_url
from khala.store.runs import parts
from khala.store.runs.leases import Lease
from khala.store.schema.autovacuum import INSERT_ONLY
from khala.store.threads import thread_feed, threads
from tests.support.in_process import khala
from tests.support.observed_run import observed_run
from tests.support.statements import nodes
from tests.support.store import CALLER, batch, ending, lease_of, new_thread, notice, write

BY_HASH = "partition_parts.sql"
BY_MONTH = "partition_parts_by_month.sql"
ALL = "SELECT * FROM message_parts ORDER BY run_id, seq"


async def run_script(database_url: str, script: str) -> None:
    """Run the script as psql does."""
    connection = await asyncpg.connect(driver_url(database_url))
    try:
        await connection.execute((FOLDER / script).read_text())
    finally:
        await connection.close()


async def fetch(db: Database, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
    async with db.driver() as driver:
        return [tuple(row) for row in await driver.fetch(query, *arguments)]


async def partitions(db: Database) -> list[str]:
    """The partitions that have rows."""
    return [
        name for (name,) in await fetch(db, "SELECT DISTINCT tableoid::regclass::text FROM message_parts ORDER BY 1")
    ]


@pytest.mark.parametrize("script", [BY_HASH, BY_MONTH])
async def test_after_a_split_earlier_parts_are_there_and_later_writes_are_fenced_and_idempotent(
    db: Database, database_url: str, script: str
) -> None:
    lease, other = [await lease_of(db, await new_thread(db)) for _ in range(2)]
    await write(db, batch(lease, 0, "Before. ", notice()), batch(other, 0, "Elsewhere."))
    before = await fetch(db, ALL)
    await run_script(database_url, script)
    assert await fetch(db, ALL) == before
    assert await migrations.differences(db) == [], "the doctor finds no difference of schema"
    more = batch(lease, 2, "After.")
    assert await write(db, more) == {lease.run_id: 1}
    assert await write(db, more) == {lease.run_id: 0}, "a repeated batch adds nothing"
    stale = Lease(run_id=lease.run_id, thread_id=lease.thread_id, message_id=lease.message_id, epoch=lease.epoch - 1)
    assert await write(db, batch(stale, 3, "Too late.")) == {}, "a lost lease writes nothing"
    content = (TextBlock(text="Before. "), *(await folded_content(db, lease.thread_id))[1:])
    assert await write(db, ending(lease, 3, content)) == {lease.run_id: 1}
    async with db.snapshot() as driver:
        found = await thread_feed.read_changes(driver, {lease.thread_id: 2, other.thread_id: 2})
    texts = {
        key: [part.seq for part in look.change.parts] for key, look in found.items() if hasattr(look.change, "parts")
    }
    assert texts == {lease.thread_id: [0, 1, 2, 3], other.thread_id: [0]}
    assert [found async for found in find_differences(db, VerifyProgress())] == []
    with pytest.raises(asyncpg.UniqueViolationError):
        await fetch(
            db, "INSERT INTO message_parts SELECT * FROM message_parts WHERE run_id = $1 AND seq = 0", lease.run_id
        )
    await threads.reset(db, lease.thread_id, CALLER, welcome="")
    await retention.purge(db, RetentionPolicy(idle=timedelta(0)))
    assert [row[0] for row in await fetch(db, ALL)] == [other.run_id]


@pytest.mark.parametrize("script", [BY_HASH, BY_MONTH])
async def test_a_purge_spares_rows_of_other_threads_at_the_same_place_of_another_partition(
    db: Database, database_url: str, script: str
) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(8)]
    await write(db, *(batch(lease, 0, "Some text.") for lease in leases))
    await run_script(database_url, script)
    if script == BY_MONTH:
        # A run of another year: its part is the first row of its partition, as the others' first one is of theirs.
        old = UUID("01800000-0000-7000-8000-000000000000")
        await fetch(db, "UPDATE message_parts SET run_id = $1 WHERE run_id = $2", old, leases[1].run_id)
        await fetch(db, "UPDATE runs SET id = $1 WHERE id = $2", old, leases[1].run_id)
    places = await fetch(db, "SELECT ctid::text FROM message_parts")
    assert len(set(places)) < len(places), "several rows have the same ctid"
    for lease in leases[:4]:
        await threads.remove(db, lease.thread_id, CALLER)
    done = await retention.purge(db, RetentionPolicy(idle=timedelta(0)))
    assert done["message_parts"] == 4
    left = await fetch(db, "SELECT thread_id FROM message_parts")
    assert {thread_id for (thread_id,) in left} == {lease.thread_id for lease in leases[4:]}


async def test_a_purge_that_finds_more_rows_at_the_same_place_of_its_own_threads_deletes_them_and_goes_on(
    db: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(8)]
    await write(db, *(batch(lease, 0, "Some text.") for lease in leases))
    await run_script(database_url, BY_HASH)
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 2)
    for lease in leases:
        await threads.remove(db, lease.thread_id, CALLER)
    done = await retention.purge(db, RetentionPolicy(idle=timedelta(0)))
    assert (done["message_parts"], done["runs"]) == (8, 8)
    assert await fetch(db, ALL) == []


@pytest.mark.parametrize("script", [BY_HASH, BY_MONTH])
async def test_old_parts_of_all_partitions_are_packed_and_verify(db: Database, database_url: str, script: str) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(8)]
    for lease in leases:
        await write(db, batch(lease, 0, "Kept."))
        await write(db, ending(lease, 1, (TextBlock(text="Kept."),)))
    await run_script(database_url, script)
    await fetch(db, "UPDATE runs SET finished_at = now() - interval '1 hour'")
    policy = RetentionPolicy(idle=timedelta(0), parts=timedelta(milliseconds=1))
    assert (await retention.purge(db, policy))["packed runs"] == 8
    assert await fetch(db, ALL) == []
    async with db.driver() as driver:
        found = [await parts.of_run(driver, lease.thread_id, lease.run_id) for lease in leases]
    assert [[part.kind for part in one] for one in found] == [["text-delta", "finish"]] * 8
    assert [found async for found in find_differences(db, VerifyProgress())] == []


OPTIONS = """
    SELECT relname::text, reloptions FROM pg_class
    WHERE relkind = 'r' AND (oid = 'message_parts'::regclass OR relispartition) ORDER BY 1
"""


@pytest.mark.parametrize("script", [BY_HASH, BY_MONTH])
async def test_all_partitions_are_vacuumed_as_the_whole_table_was_and_the_migration_sets_that_on_partitions(
    db: Database, database_url: str, script: str
) -> None:
    ((_, whole),) = await fetch(db, OPTIONS)
    assert whole == [f"{name}={value}" for name, value in INSERT_ONLY.items()]
    await run_script(database_url, script)
    split = await fetch(db, OPTIONS)
    assert len(split) > 3
    assert [options for _, options in split] == [whole] * len(split)
    await migrations.downgrade(db.url, "0008")
    assert {options for _, options in await fetch(db, OPTIONS)} == {None}
    await migrations.upgrade(db.url)
    assert await fetch(db, OPTIONS) == split


async def folded_content(db: Database, thread_id: UUID) -> Any:
    """The content of the thread's last message, folded from its parts."""
    async with db.snapshot() as driver:
        return (await thread_feed.read_snapshot(driver, thread_id, limit=10)).messages[-1].content


@pytest.mark.parametrize("script", [BY_HASH, BY_MONTH])
async def test_an_answer_streams_as_before(db: Database, database_url: str, script: str) -> None:
    await run_script(database_url, script)
    async with khala(database_url) as server, observed_run(server, words=60, pace=100) as answer:
        await answer.check_end()
    assert [found async for found in find_differences(db, VerifyProgress())] == []


async def test_a_read_of_the_feed_scans_only_the_partition_of_its_run(db: Database, database_url: str) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(8)]
    await write(db, *(batch(lease, 0, "Some text.") for lease in leases))
    await run_script(database_url, BY_HASH)
    assert len(await partitions(db)) > 1
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF, BUFFERS OFF) {thread_feed.CHANGES}"
    ((plan,),) = await fetch(db, explained, [leases[0].thread_id], [0])
    scanned = [node for node in nodes(json.loads(plan)[0]["Plan"]) if "message_parts" in node.get("Relation Name", "")]
    assert len({node["Relation Name"] for node in scanned if node["Actual Loops"] > 0}) == 1


async def test_dropping_a_month_deletes_the_parts_of_its_runs_and_keeps_the_answers(
    db: Database, database_url: str
) -> None:
    lease = await lease_of(db, await new_thread(db))
    await write(db, batch(lease, 0, "Kept."))
    await write(db, ending(lease, 1, (TextBlock(text="Kept."),)))
    await run_script(database_url, BY_MONTH)
    now = datetime.now(UTC)
    (this,) = await partitions(db)
    assert this == f"message_parts_{now:%Y_%m}"
    ((ahead,),) = await fetch(
        db, "SELECT to_regclass($1) IS NOT NULL", f"message_parts_{now + timedelta(days=61):%Y_%m}"
    )
    assert ahead, "the partitions of the next months exist"
    await fetch(db, f"DROP TABLE {this}")
    assert await fetch(db, ALL) == []
    (kept,) = await folded_content(db, lease.thread_id)
    assert kept.text == "Kept."
    assert [found async for found in find_differences(db, VerifyProgress())], (
        "verify reports the missing parts, as docs/scaling.md says"
    )


async def months(db: Database) -> list[str]:
    """The partitions of months."""
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'message_parts'::regclass ORDER BY 1"
    return [name for (name,) in await fetch(db, query) if name != "message_parts_other"]


def month(ahead: int) -> str:
    """The name of the partition so many months after the current one."""
    now = datetime.now(UTC)
    year, index = divmod(now.year * 12 + now.month - 1 + ahead, 12)
    return f"message_parts_{year:04}_{index + 1:02}"


async def old_answer(db: Database) -> tuple[Lease, UUID]:
    """A finished answer whose run has an id of half a year ago, and that id."""
    lease = await lease_of(db, await new_thread(db))
    await write(db, batch(lease, 0, "Kept."))
    await write(db, ending(lease, 1, (TextBlock(text="Kept."),)))
    random = lease.run_id.int & ((1 << 80) - 1)
    old = UUID(int=ids.before(datetime.now(UTC) - timedelta(days=180)).int | random)
    await fetch(
        db, "UPDATE runs SET id = $2, finished_at = now() - interval '180 days' WHERE id = $1", lease.run_id, old
    )
    await fetch(db, "UPDATE messages SET run_id = $2 WHERE run_id = $1", lease.run_id, old)
    await fetch(
        db,
        "UPDATE message_parts SET run_id = $2, created_at = now() - interval '180 days' WHERE run_id = $1",
        lease.run_id,
        old,
    )
    return lease, old


async def test_partitions_of_the_next_months_are_created_and_parts_of_a_new_month_are_not_lost_without_one(
    db: Database, database_url: str
) -> None:
    await run_script(database_url, BY_MONTH)
    assert {month(0), month(1), month(2)} <= set(await months(db))
    await fetch(db, f"DROP TABLE {month(1)}, {month(2)}")
    await maintain_partitions(db)
    assert {month(0), month(1), month(2)} <= set(await months(db))
    made = await months(db)
    await maintain_partitions(db)
    assert await months(db) == made
    options = {tuple(found) for _, found in await fetch(db, OPTIONS)}
    assert options == {tuple(f"{name}={value}" for name, value in INSERT_ONLY.items())}


async def test_a_past_month_is_dropped_when_its_parts_are_packed_and_verify_reports_nothing(
    db: Database, database_url: str
) -> None:
    lease, run_id = await old_answer(db)
    await run_script(database_url, BY_MONTH)
    (past,) = await partitions(db)
    await maintain_partitions(db)
    assert past in await months(db), "it has parts"
    policy = RetentionPolicy(idle=timedelta(0), parts=timedelta(days=30))
    assert (await retention.purge(db, policy))["packed runs"] == 1
    await fetch(db, "VACUUM message_parts")
    await maintain_partitions(db)
    assert past not in await months(db)
    assert min(await months(db)) >= month(0), "empty months of the past are dropped, too"
    assert month(0) in await months(db)
    async with db.driver() as driver:
        found = await parts.of_run(driver, lease.thread_id, run_id)
    assert [part.kind for part in found] == ["text-delta", "finish"]
    assert [found async for found in find_differences(db, VerifyProgress())] == []


async def test_a_partition_that_is_in_use_is_not_waited_for_and_dropped_later(db: Database, database_url: str) -> None:
    await old_answer(db)
    await run_script(database_url, BY_MONTH)
    (past,) = await partitions(db)
    await fetch(db, "DELETE FROM message_parts")
    await fetch(db, "VACUUM message_parts")
    async with db.snapshot() as driver:
        await driver.fetch(ALL)
        await maintain_partitions(db)
        assert past in await months(db)
    await maintain_partitions(db)
    assert past not in await months(db)


async def test_a_partition_with_one_late_part_is_not_dropped(db: Database, database_url: str) -> None:
    await old_answer(db)
    await run_script(database_url, BY_MONTH)
    (past,) = await partitions(db)
    await fetch(db, "DELETE FROM message_parts WHERE seq = 0")
    await fetch(db, "VACUUM message_parts")
    await maintain_partitions(db)
    assert past in await months(db)


@pytest.mark.parametrize("script", [None, BY_HASH])
async def test_without_monthly_partitions_nothing_is_maintained(
    db: Database, database_url: str, script: str | None
) -> None:
    if script is not None:
        await run_script(database_url, script)
    query = "SELECT count(*) FROM pg_class WHERE relname LIKE 'message_parts%'"
    before = await fetch(db, query)
    await maintain_partitions(db)
    assert await fetch(db, query) == before
