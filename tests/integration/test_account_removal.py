"""Deleting an account ends its rights at once, holds nobody's sends, and leaves nothing after the purge."""

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from khala.blobs.blob_service import BlobService
from khala.blobs.filesystem import FilesystemBlobStore
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.domain.access import Action, Caller
from khala.domain.errors import KhalaError, ThreadNotFound, Unauthorized
from khala.store.accounts import account_feed, account_removal, accounts
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database
from khala.store.schema.tables import metadata
from khala.store.sharing import access, invitations, sharing
from khala.store.threads import thread_pages, threads
from khala.store.tools import workspace_files
from tests.scale.meter import Usage, metered
from tests.support.blobs import store_blob
from tests.support.callers import Person, owned_thread, person
from tests.support.people import make_member
from tests.support.store import ask, batch, claim, write

FOR_EVER = RetentionPolicy(idle=timedelta(0))
FILL = """
    WITH made AS (
        INSERT INTO threads (id, owner_id) SELECT gen_random_uuid(), $1 FROM generate_series(1, $2::int) RETURNING id
    ), joined AS (
        INSERT INTO memberships (thread_id, user_id, role) SELECT id, $3, 'viewer' FROM made
    )
    INSERT INTO listings (user_id, thread_id, revision) SELECT unnest(ARRAY[$1, $3]), id, 1 FROM made
"""
"""Threads that are shared with another user."""
KEPT = {"audit", "budgets", "usage_ledger", "objects"}
"""Tables that outlive the account: the audit trail, and what is swept by its age."""


@pytest.fixture
async def owner(db: Database) -> Person:
    return await person(db, "Zeratul")


@pytest.fixture
def only_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves everything but the mark to the purge."""
    monkeypatch.setattr(account_removal, "MAX_FIRST_BATCHES", 0)


async def remains(db: Database, *keys: UUID) -> dict[str, int]:
    """By table, the number of rows that have one of these ids in any column."""
    found = {}
    async with db.driver() as driver:
        for table in metadata.sorted_tables:
            columns = [column.name for column in table.columns if column.type.__class__.__name__ == "Uuid"]
            where = " OR ".join(f"{name} = ANY($1::uuid[])" for name in columns)
            if columns and table.name not in KEPT:
                found[table.name] = await driver.fetchval(f"SELECT count(*) FROM {table.name} WHERE {where}", keys)
    return {table: count for table, count in found.items() if count}


async def fill(db: Database, owner: Person, other: Person, threads_count: int) -> None:
    async with db.driver() as driver:
        await driver.execute(FILL, owner.id, threads_count, other.id)


async def role(db: Database, thread_id: UUID, caller: Caller) -> str | None:
    async with db.driver() as driver:
        return (await access.authorize(driver, thread_id, caller, Action.READ_THREAD)).role


async def test_after_the_mark_the_account_and_its_threads_are_unusable(
    db: Database, owner: Person, only_mark: None
) -> None:
    other, host = await person(db, "Host"), await person(db, "Host")
    own, foreign = await owned_thread(db, owner), await owned_thread(db, host)
    await make_member(db, own, other.id, "editor", owner.caller)
    await make_member(db, foreign, owner.id, "editor", host.caller)
    invited_id = await owned_thread(db, owner)
    await sharing.set_role(db, invited_id, host.id, "viewer", owner.caller)
    await accounts.remove(db, owner.caller)
    for caller in (owner.caller, other.caller):
        with pytest.raises(ThreadNotFound):
            await role(db, own, caller)
        with pytest.raises(ThreadNotFound):
            await ask(db, own, caller=caller)
    with pytest.raises(KhalaError):
        await role(db, foreign, owner.caller)
    assert await role(db, foreign, host.caller) == "owner"
    for again in (threads.create(db, UUID(int=1), owner.caller, title=None, welcome=""),
                  threads.create(db, UUID(int=1), owner.caller, title=None, welcome="", lifetime=timedelta(days=1)),
                  accounts.remove(db, owner.caller)):  # fmt: skip
        with pytest.raises(KhalaError) as refused:
            await again
        assert refused.value.code in {"unauthorized", "forbidden"}
    with pytest.raises(KhalaError):
        await workspace_files.write(db, owner.id, "a.txt", b"late")
    assert await thread_pages.list_page(db, other.caller, before=None, limit=10) == []
    async with db.snapshot() as driver:
        assert await account_feed.full_list(driver, owner.id) is None
        assert await account_feed.valid_credentials(driver, [owner.caller]) == [False]
        seen = await account_feed.full_list(driver, other.id)
        assert seen is not None
        assert seen.threads == ()
        assert await invitations.of_user(driver, host.id) == []
    async with db.driver() as driver:
        user = await driver.fetchrow("SELECT name, email FROM users WHERE id = $1", owner.id)
    assert tuple(user) == (None, None)


@pytest.fixture
def blob_service(db: Database, tmp_path: Path) -> BlobService:
    return BlobService(db, FilesystemBlobStore(tmp_path / "blobs"), folder=tmp_path)


@pytest.mark.parametrize("size", [1, 7])
async def test_the_purge_leaves_no_row_and_no_blob_of_a_deleted_account(
    db: Database, owner: Person, blob_service: BlobService, only_mark: None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_BATCH_THREADS", "MAX_BATCH_MESSAGES", "MAX_BATCH_ROWS"):
        monkeypatch.setattr(account_removal, name, size)
    host = await person(db, "Host")
    foreign = [await owned_thread(db, host) for _ in range(2)]
    own = [await owned_thread(db, owner, welcome="Hello.") for _ in range(2)]
    await fill(db, owner, host, 20)
    for thread_id in foreign:
        await make_member(db, thread_id, owner.id, "editor", host.caller)
    for thread_id in (*foreign, *own):
        await ask(db, thread_id, caller=owner.caller)
    for claimed in await claim(db, most=3):
        await write(db, batch(claimed.lease, 0, "Some text."))
    blob = await store_blob(blob_service, own[0], b"gone")
    await workspace_files.write(db, owner.id, "a.txt", b"content")
    await accounts.remove(db, owner.caller)
    batches = 0
    while True:
        done = await retention._batch(db, account_removal.purge_next)
        if not done:
            break
        batches += 1
        assert sum(done.values()) <= 3 * size
    assert batches > 22 // size
    await purge(db, FOR_EVER)
    async with db.driver() as driver:
        await driver.execute("UPDATE threads SET deleted_at = now() - interval '2 days' WHERE deleted_at IS NOT NULL")
        await driver.execute("UPDATE listings SET changed_at = now() - interval '8 days' WHERE gone")
        await driver.execute("UPDATE objects SET touched_at = now() - interval '2 hours'")
        rest = "SELECT author_name, author_id FROM messages WHERE role = 'user'"
        messages = [tuple(row) for row in await driver.fetch(rest)]
    assert messages == [(None, owner.id)] * 2, "the messages in threads of others stay, without the name"
    async with db.driver() as driver:
        await driver.execute("UPDATE messages SET author_id = NULL")
        await driver.execute("UPDATE runs SET user_id = NULL")
    await purge(db, FOR_EVER)
    assert await remains(db, owner.id, *own) == {}
    await BlobGarbageCollector(db, blob_service.store).collect()
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM objects WHERE encode(sha256, 'hex') = $1", blob.sha256) == 0
        assert await driver.fetchval("SELECT count(*) FROM threads WHERE owner_id IS NULL") == 0
        assert await driver.fetchval("SELECT count(*) FROM threads WHERE owner_id = $1", host.id) == 2


async def cost_of_a_removal(db: Database, threads_count: int) -> Usage:
    owner, other = await person(db), await person(db)
    await fill(db, owner, other, threads_count)
    async with db.driver() as driver:
        await driver.execute("VACUUM ANALYZE")
    async with metered(db.url, counted_calls=1) as meter:
        return await meter.once(lambda: accounts.remove(meter.db, owner.caller))


async def test_the_request_costs_the_same_for_an_account_with_twenty_times_as_many_threads(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_removal, "MAX_BATCH_THREADS", 2)
    monkeypatch.setattr(account_removal, "MAX_FIRST_BATCHES", 4)
    await cost_of_a_removal(db, 20)
    small, large = await cost_of_a_removal(db, 20), await cost_of_a_removal(db, 400)
    assert large.buffers <= 1.4 * small.buffers
    assert large.rows <= 1.4 * small.rows


async def test_no_lock_is_held_from_one_batch_to_the_next(
    db: Database, owner: Person, only_mark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_removal, "MAX_BATCH_THREADS", 5)
    other = await person(db)
    foreign = await owned_thread(db, other)
    await fill(db, owner, other, 30)
    await accounts.remove(db, owner.caller)
    locks = """
        SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND locktype IN ('transactionid', 'tuple')
          AND backend_type = 'client backend'
    """
    for _ in range(6):
        assert await retention._batch(db, account_removal.purge_next) == {"account threads": 5}
        async with db.driver() as driver:
            assert await driver.fetchval(locks) == 0
        await ask(db, foreign, caller=other.caller)


async def test_a_purge_that_is_killed_in_a_batch_is_continued(db: Database, owner: Person, only_mark: None) -> None:
    other = await person(db)
    await fill(db, owner, other, 3)
    await accounts.remove(db, owner.caller)
    holder = await asyncpg.connect(db.url.replace("postgresql+asyncpg", "postgresql"))
    try:
        held = holder.transaction()
        await held.start()
        await holder.execute("SELECT FROM threads WHERE owner_id = $1 FOR UPDATE", owner.id)
        working = asyncio.create_task(retention._batch(db, account_removal.purge_next))
        async with asyncio.timeout(20):
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            while (pid := await holder.fetchval(waits)) is None:
                await asyncio.sleep(0.01)
        await holder.execute("SELECT pg_terminate_backend($1)", pid)
        await held.rollback()
        with pytest.raises(KhalaError):
            await working
    finally:
        await holder.close()
    done = await purge(db, FOR_EVER)
    assert done["account threads"] == 3
    assert done["accounts"] == 1
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM deleted_accounts") == 0
        assert await driver.fetchval("SELECT count(*) FROM users WHERE id = $1", owner.id) == 0


async def test_a_deletion_refuses_an_account_that_does_not_exist(db: Database, owner: Person) -> None:
    await accounts.remove(db, owner.caller)
    with pytest.raises(Unauthorized):
        await accounts.remove(db, owner.caller)
