"""Resets mark what a thread contains, at the same cost for any size. The purge deletes it later, in bounded batches."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from khala.blobs.blob_service import BlobService
from khala.blobs.filesystem import FilesystemBlobStore
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.accounts import User
from khala.domain.chat import RunOptions
from khala.domain.errors import BlobNotFound, InvalidInput, RunNotFound
from khala.domain.fold import TextBlock
from khala.store.operations import archive_rows, retention, run_purge
from khala.store.operations.account_export import export_lines
from khala.store.operations.retention import RetentionPolicy, count_due, purge
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from khala.store.runs import runs
from khala.store.runs.leases import Lease
from khala.store.threads import messages, sends, thread_feed, threads
from khala.store.threads.sends import SendRequest
from khala.store.tools import approvals
from tests.scale.meter import Usage, metered
from tests.support.blobs import store_blob
from tests.support.callers import owned_thread, person
from tests.support.store import CALLER, HIGH_LIMITS, ask, batch, claim, ending, lease_of, new_thread, write

FOR_EVER = RetentionPolicy(idle=timedelta(0))
TABLES = ("messages", "message_parts", "receipts", "runs", "blobs", "detail_tokens")
FILL = """
    WITH answers AS (
        SELECT n, gen_random_uuid() AS question, gen_random_uuid() AS answer, gen_random_uuid() AS run
        FROM generate_series(1, $2::int) AS n
    ), written AS (
        INSERT INTO messages (id, thread_id, position, role, status, run_id, seq, content, revision)
        SELECT question, $1::uuid, 2 * n, 'user', 'final', NULL, 0, '[]'::jsonb, 1 FROM answers
        UNION ALL SELECT answer, $1::uuid, 2 * n + 1, 'assistant', 'final', run, 0, '[]', 1 FROM answers
    ), made AS (
        INSERT INTO runs (id, thread_id, message_id, user_message_id, position, fairness_key, status, options)
        SELECT run, $1::uuid, answer, question, 2 * n, $1::uuid, 'final', '{}' FROM answers
    ), charged AS (
        INSERT INTO receipts (run_id, seq, thread_id, type, data) SELECT run, 0, $1::uuid, 'model', '{}' FROM answers
    )
    INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
    SELECT run, seq, answer, $1::uuid, 'text-delta', '{}', 1 FROM answers, generate_series(0, 9) AS seq
"""


@pytest.fixture
def blob_service(db: Database, tmp_path: Path) -> BlobService:
    return BlobService(db, FilesystemBlobStore(tmp_path / "blobs"), folder=tmp_path)


async def answered(db: Database, thread_id: UUID, caller: Caller = CALLER) -> Lease:
    """A question with a finished answer."""
    sent = await ask(db, thread_id, caller=caller)
    lease = next(one.lease for one in await claim(db) if one.lease.run_id == sent.run_id)
    await write(db, batch(lease, 0, "Some ", "text."))
    await write(db, ending(lease, 2, (TextBlock(text="Some text."),)))
    return lease


async def rows_of(db: Database, thread_id: UUID) -> dict[str, int]:
    async with db.driver() as driver:
        query = "SELECT count(*) FROM {} WHERE thread_id = $1"
        return {table: await driver.fetchval(query.format(table), thread_id) for table in TABLES}


async def texts(db: Database, thread_id: UUID) -> list[UUID]:
    async with db.snapshot() as driver:
        return [message.id for message in (await thread_feed.read_snapshot(driver, thread_id, limit=100)).messages]


async def differences(db: Database) -> list[object]:
    return [found async for found in find_differences(db, VerifyProgress())]


async def cost_of_a_reset(db: Database, answers: int) -> tuple[Usage, int]:
    """The cost, and the rows written, of a reset of a thread with so many answers."""
    thread_id = await new_thread(db, welcome="Hello.")
    async with db.driver() as driver:
        await driver.execute(FILL, thread_id, answers)
        await driver.execute("VACUUM ANALYZE")
    written = "SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()"
    async with metered(db.url, counted_calls=1) as meter:
        before = await read_late(db, written)
        usage = await meter.once(lambda: threads.reset(meter.db, thread_id, CALLER, welcome="Hello."))
        return usage, await read_late(db, written) - before


async def read_late(db: Database, query: str) -> int:
    async with db.driver() as driver:
        await driver.execute("SELECT pg_stat_force_next_flush()")
    async with db.driver() as driver:
        await driver.execute("SELECT pg_stat_clear_snapshot()")
        return int(await driver.fetchval(query))


async def test_a_reset_costs_the_same_for_a_thread_twenty_times_as_large(db: Database) -> None:
    await cost_of_a_reset(db, 5)  # warms the caches of the catalog
    small, small_rows = await cost_of_a_reset(db, 20)
    large, large_rows = await cost_of_a_reset(db, 400)
    assert 0 < small_rows == large_rows < 20
    assert large.rows <= small.rows + 20
    assert large.buffers <= small.buffers + 60, "the indexes of the larger thread have one more level"


async def test_readers_see_nothing_that_a_reset_has_deleted(db: Database, blob_service: BlobService) -> None:
    thread_id = await new_thread(db, welcome="Hello.")
    lease, blob = await answered(db, thread_id), await store_blob(blob_service, thread_id, b"gone")
    active = await lease_of(db, thread_id)
    old = await texts(db, thread_id)
    assert len(old) == 5
    reset = await threads.reset(db, thread_id, CALLER, welcome="Hello.")
    assert (await rows_of(db, thread_id))["messages"] == 6, "nothing is purged yet"
    (welcome,) = await texts(db, thread_id)
    assert welcome not in old
    assert await differences(db) == []
    async with db.snapshot() as driver:
        with pytest.raises(InvalidInput):
            await thread_feed.read_older(driver, thread_id, before=old[-1], limit=10)
        assert (await thread_feed.read_older(driver, thread_id, before=welcome, limit=10))[0] == ()
        assert await messages.read_path(driver, thread_id, old[-1], max_messages=9, max_bytes=999) == []
        found = (await thread_feed.read_changes(driver, {thread_id: reset.revision - 1}))[thread_id]
        assert isinstance(found.change, thread_feed.SnapshotNeeded)
    for run in (lease, active):
        for read in (runs.get(db, run.run_id, CALLER), runs.cancel(db, run.run_id, CALLER),
                     approvals.get_question(db, run.run_id, "call", CALLER)):  # fmt: skip
            with pytest.raises(RunNotFound):
                await read
    with pytest.raises(BlobNotFound):
        await blob_service.find(blob.blob_id)
    with pytest.raises(RunNotFound):
        await store_blob(blob_service, thread_id, run_id=lease.run_id)
    question = SendRequest(thread_id=thread_id, message_id=old[1], text="?", options=RunOptions())
    with pytest.raises(InvalidInput):
        await sends.regenerate(db, question, ids.new(), CALLER, HIGH_LIMITS)
    with pytest.raises(InvalidInput):
        await threads.update_thread(db, thread_id, CALLER, active_leaf=old[1])
    assert await write(db, batch(active, 0, "Too late.")) == {}


async def test_exports_contain_nothing_that_a_reset_has_deleted(db: Database, blob_service: BlobService) -> None:
    who = await person(db)
    thread_id = await owned_thread(db, who, welcome="Hello.")
    await answered(db, thread_id, who.caller)
    await store_blob(blob_service, thread_id, b"gone")
    await threads.reset(db, thread_id, who.caller, welcome="")
    assert (await rows_of(db, thread_id))["messages"] == 3
    user = User(id=who.id, name=None, email=None, password=False, identities=(), created_at=datetime.now(UTC))
    exported = b"".join([line async for line in export_lines(db, user)])
    assert exported.count(b'{"type":"thread"') == 1
    assert not [kind for kind in ("message", "run", "part", "receipt") if f'{{"type":"{kind}"'.encode() in exported]
    async with db.snapshot() as driver:
        for kind in archive_rows.KINDS:
            if kind.table.name in TABLES or kind.name in {"approval", "charge"}:
                assert await driver.fetch(kind.query, who.id) == [], kind.name
        assert await driver.fetch(archive_rows.OBJECTS, who.id) == []


async def test_a_message_id_from_before_a_reset_is_free_again(db: Database) -> None:
    thread_id = await new_thread(db, welcome="Hello.")
    question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
    before, _ = await sends.send(db, question, CALLER, HIGH_LIMITS)
    await threads.reset(db, thread_id, CALLER, welcome="Hello.")
    after, new = await sends.send(db, question, CALLER, HIGH_LIMITS)
    assert new
    assert after.run_id != before.run_id
    assert await sends.send(db, question, CALLER, HIGH_LIMITS) == (after, False)
    await purge(db, FOR_EVER)
    assert await sends.send(db, question, CALLER, HIGH_LIMITS) == (after, False)
    assert len(await texts(db, thread_id)) == 3


@pytest.mark.parametrize("welcome", ["", "Hello."])
async def test_a_purge_deletes_what_is_marked_in_batches_and_nothing_else(
    db: Database, blob_service: BlobService, welcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 3)
    monkeypatch.setattr(run_purge, "MAX_BATCH_RUNS", 2)
    thread_id, other = await new_thread(db, welcome="Hello."), await new_thread(db, welcome="Hello.")
    for place in (thread_id, other):
        await answered(db, place)
        await answered(db, place)
        await store_blob(blob_service, place, b"kept", run_id=(await lease_of(db, place)).run_id)
    kept = await rows_of(db, other)
    async with db.driver() as driver:
        await driver.execute(FILL.replace("2 * n", "100 + 2 * n"), thread_id, 3)
    await threads.reset(db, thread_id, CALLER, welcome=welcome)
    blob = await store_blob(blob_service, thread_id, b"new")
    expected = await count_due(db, FOR_EVER)
    deleted: dict[str, int] = dict.fromkeys(expected, 0)
    sent: list[UUID] = []
    while done := await retention._batch(db, retention._purge_reset):
        assert sum(done.values()) <= 3
        deleted = {kind: count + done.get(kind, 0) for kind, count in deleted.items()}
        if len(sent) < 8:
            sent.append((await ask(db, thread_id)).user_message_id)
        assert await differences(db) == []
    assert deleted == expected
    seen = await texts(db, thread_id)
    assert set(sent) <= set(seen), "no message after the reset is purged"
    assert len(seen) == 2 * len(sent) + bool(welcome)
    left = await rows_of(db, thread_id)
    assert left == {"messages": len(seen), "runs": len(sent), "blobs": 1} | dict.fromkeys(
        ("message_parts", "receipts", "detail_tokens"), 0
    )
    assert (await blob_service.find(blob.blob_id)).id == blob.blob_id
    assert await rows_of(db, other) == kept
    assert await differences(db) == []


async def test_a_purge_of_a_reset_waits_for_no_lock_of_the_thread_and_takes_none(db: Database) -> None:
    thread_id = await new_thread(db, welcome="Hello.")
    await answered(db, thread_id)
    await threads.reset(db, thread_id, CALLER, welcome="")
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR UPDATE", thread_id)
        async with asyncio.timeout(10):
            done: Mapping[str, int] = await purge(db, FOR_EVER)
    assert (done["messages"], done["message_parts"], done["runs"]) == (3, 3, 1)


async def test_a_second_reset_before_the_purge_marks_everything_again(db: Database) -> None:
    thread_id = await new_thread(db, welcome="Hello.")
    for _ in range(2):
        await answered(db, thread_id)
        await threads.reset(db, thread_id, CALLER, welcome="Hello.")
        assert len(await texts(db, thread_id)) == 1
    assert (await purge(db, FOR_EVER))["messages"] == 6
    assert (await rows_of(db, thread_id))["messages"] == 1


async def test_a_thread_that_is_reset_and_deleted_leaves_no_mark(db: Database) -> None:
    thread_id = await new_thread(db, welcome="Hello.")
    await answered(db, thread_id)
    await threads.reset(db, thread_id, CALLER, welcome="Hello.")
    await threads.remove(db, thread_id, CALLER)
    await purge(db, FOR_EVER)
    assert set((await rows_of(db, thread_id)).values()) == {0}
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM thread_resets") == 0
