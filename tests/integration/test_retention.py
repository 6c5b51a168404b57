"""Retention deletes expired and unneeded rows once, in bounded batches, and nothing else."""

import asyncio
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from khala.domain import ids
from khala.domain.access import Action, Caller, key_hash
from khala.domain.errors import ThreadNotFound
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy, count_due, purge
from khala.store.postgres.database import Database
from khala.store.sharing import access
from khala.store.threads import threads
from tests.scale.meter import metered
from tests.support.callers import owned_thread, person
from tests.support.server import command
from tests.support.statements import recorded
from tests.support.store import CALLER, ask, batch, lease_of, new_thread, write

WEEK = RetentionPolicy(idle=timedelta(days=7))
FOR_EVER = RetentionPolicy(idle=timedelta(0))


async def backdate(db: Database, thread_id: UUID, *columns: str, days: int = 8) -> None:
    assert set(columns) <= {"created_at", "updated_at", "deleted_at"}
    changes = ", ".join(f"{column} = now() - interval '{days} days'" for column in columns)
    async with db.driver() as driver:
        await driver.execute(f"UPDATE threads SET {changes} WHERE id = $1", thread_id)


async def idle_thread(db: Database) -> UUID:
    thread_id = await new_thread(db, welcome="Hello.")
    await backdate(db, thread_id, "created_at", "updated_at")
    return thread_id


async def count(db: Database, table: str, thread_id: UUID | None = None) -> int:
    async with db.driver() as driver:
        where = "" if thread_id is None else " WHERE thread_id = $1"
        return int(await driver.fetchval(f"SELECT count(*) FROM {table}{where}", *([thread_id] if thread_id else [])))


async def is_open(db: Database, thread_id: UUID, caller: Caller = CALLER) -> bool:
    async with db.driver() as driver:
        try:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        except ThreadNotFound:
            return False
    return True


async def fill(db: Database, thread_id: UUID, many: int) -> None:
    """Insert a run with so many parts and receipts into the thread."""
    run_id = ids.new()
    rows = {
        "runs": "(id, thread_id, message_id, user_message_id, position, fairness_key, status, options)"
                " SELECT $1, $2, $1, $1, 0, $1, 'final', '{}' FROM generate_series(1, least(1, $3::int))",
        "message_parts": "(run_id, seq, message_id, thread_id, kind, data, revision) "
                         "SELECT $1, n, $1, $2, 'text-delta', '{}', 1 FROM generate_series(1, $3::int) AS n",
        "receipts": "(run_id, seq, thread_id, type, data) SELECT $1, n, $2, 'model', '{}'"
                    " FROM generate_series(1, $3::int) AS n",
    }  # fmt: skip
    async with db.driver() as driver:
        for table, values in rows.items():
            await driver.execute(f"INSERT INTO {table} {values}", run_id, thread_id, many)


async def test_an_idle_thread_without_an_owner_is_closed_and_emptied(db: Database) -> None:
    idle = await idle_thread(db)
    done = await purge(db, WEEK)
    assert (done["idle threads"], done["messages"], done["threads"]) == (1, 1, 0)
    assert not await is_open(db, idle)
    assert await count(db, "messages", idle) == 0
    assert await count(db, "threads") == 1  # so that its id can't be used again
    assert set((await purge(db, WEEK)).values()) == {0}


async def test_a_purge_with_nothing_to_do_is_one_statement(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await new_thread(db, welcome="Hello.")
    with recorded(monkeypatch) as statements:
        other = Database(db.url)
        try:
            assert set((await purge(other, WEEK)).values()) == {0}
        finally:
            await other.close()
    assert len([statement for statement in statements if "deleted_accounts" in statement]) == 1
    assert not [statement for statement in statements if "DELETE" in statement or "advisory" in statement]


async def test_threads_that_are_owned_or_new_or_active_stay(db: Database) -> None:
    owner = await person(db)
    owned = await owned_thread(db, owner, welcome="Hello.")
    await backdate(db, owned, "created_at", "updated_at")
    fresh, active, changed = await new_thread(db), await new_thread(db), await new_thread(db)
    await backdate(db, active, "created_at", "updated_at")
    await ask(db, active)
    await backdate(db, changed, "created_at", "updated_at")
    await threads.update_thread(db, changed, CALLER, title="Aiur")
    almost = await new_thread(db)
    await backdate(db, almost, "created_at", "updated_at", days=6)
    assert (await purge(db, WEEK))["idle threads"] == 0
    for thread_id in (fresh, active, changed, almost):
        assert await is_open(db, thread_id)
    assert await is_open(db, owned, owner.caller)


async def test_with_zero_days_idle_threads_are_kept_for_ever(db: Database) -> None:
    idle = await idle_thread(db)
    assert (await count_due(db, FOR_EVER))["idle threads"] == 0
    assert set((await purge(db, FOR_EVER)).values()) == {0}
    assert await is_open(db, idle)


async def test_the_rows_of_a_deleted_thread_are_purged_and_those_of_others_stay(db: Database) -> None:
    lease, other = await lease_of(db, await new_thread(db)), await lease_of(db, await new_thread(db))
    for each_lease in (lease, other):
        await write(db, batch(each_lease, 0, "one", "two"))
    async with db.driver() as driver:
        gone, kept = [
            await driver.fetchval("SELECT thread_id FROM runs WHERE id = $1", held_lease.run_id)
            for held_lease in (lease, other)
        ]
    await fill(db, gone, 25)
    await fill(db, kept, 25)
    await threads.remove(db, gone, CALLER)
    expected = await count_due(db, WEEK)
    assert (expected["message_parts"], expected["receipts"]) == (27, 25)
    assert await purge(db, WEEK) == expected
    for table, left in (("message_parts", 27), ("messages", 2), ("receipts", 25), ("runs", 2)):
        assert (await count(db, table, gone), await count(db, table, kept)) == (0, left)


async def test_parts_are_purged_of_a_thread_whose_runs_the_previous_version_has_deleted_with_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 2)
    lease = await lease_of(db, await new_thread(db))
    await write(db, batch(lease, 0, "one", "two", "three"))
    await threads.remove(db, lease.thread_id, CALLER)
    async with db.driver() as driver:
        await driver.execute("DELETE FROM runs")
    expected = await count_due(db, WEEK)
    assert (expected["message_parts"], expected["messages"]) == (3, 2)
    assert await purge(db, WEEK) == expected
    assert (await count(db, "message_parts"), await count(db, "messages")) == (0, 0)


async def test_a_batch_has_a_maximum_of_rows(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 10)
    gone = await new_thread(db)
    await fill(db, gone, 25)
    await threads.remove(db, gone, CALLER)
    purge_contents = partial(retention._purge_threads, retention.UNPURGED)
    batches = [await retention._batch(db, purge_contents) for _ in range(6)]
    assert [sum(batch.values()) for batch in batches] == [10, 10, 10, 10, 10, 1]
    assert sum(batch.get("receipts", 0) for batch in batches) == 25
    monkeypatch.setattr(retention, "MAX_BATCH_THREADS", 1)
    for _ in range(3):
        await idle_thread(db)
    close_idle = partial(retention._close_idle, WEEK)
    closed = [await retention._batch(db, close_idle) for _ in range(4)]
    assert [batch.get("idle threads", 0) for batch in closed] == [1, 1, 1, 0]


async def test_a_purge_takes_as_many_batches_as_it_needs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 10)
    gone = await new_thread(db)
    await fill(db, gone, 95)
    await threads.remove(db, gone, CALLER)
    idle = [await idle_thread(db) for _ in range(5)]
    done = await purge(db, WEEK)
    assert (done["message_parts"], done["receipts"], done["idle threads"], done["messages"]) == (95, 95, 5, 5)
    assert not any([await is_open(db, thread_id) for thread_id in idle])


async def test_purges_at_once_delete_each_row_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 10)
    gone, many = await new_thread(db), 300
    await fill(db, gone, many)
    await threads.remove(db, gone, CALLER)
    for _ in range(10):
        await idle_thread(db)
    other = Database(db.url)
    try:
        found = list(await asyncio.gather(purge(db, WEEK), purge(other, WEEK), purge(db, WEEK)))
    finally:
        await other.close()
    found.append(await purge(db, WEEK))
    done = {kind: sum(result[kind] for result in found) for kind in found[0]}
    assert (done["message_parts"], done["receipts"], done["idle threads"]) == (many, many, 10)
    assert done["messages"] == 10
    assert set((await count_due(db, WEEK)).values()) == {0}


async def test_a_purge_does_nothing_while_another_one_runs(db: Database) -> None:
    gone = await new_thread(db, welcome="Hello.")
    await threads.remove(db, gone, CALLER)
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT pg_advisory_xact_lock($1)", retention.PURGE_LOCK_KEY)
        assert set((await purge(db, WEEK)).values()) == {0}
    assert (await purge(db, WEEK))["messages"] == 1


async def test_a_deleted_threads_row_is_purged_after_a_day_and_not_before(db: Database) -> None:
    young, old = await new_thread(db), await new_thread(db)
    for thread_id in (young, old):
        await threads.remove(db, thread_id, CALLER)
    await backdate(db, old, "deleted_at", days=2)
    assert (await purge(db, WEEK))["threads"] == 1
    assert await count(db, "threads") == 1


@pytest.mark.parametrize("table", ["message_parts", "messages", "receipts"])
async def test_a_deleted_threads_row_is_purged_after_its_contents(
    db: Database, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 1)
    gone = await new_thread(db, welcome="Hello.")
    await fill(db, gone, 1)
    await threads.remove(db, gone, CALLER)
    await backdate(db, gone, "deleted_at", days=2)
    async with db.driver() as driver:
        for other in {"message_parts", "messages", "receipts"} - {table}:
            await driver.execute(f"DELETE FROM {other} WHERE thread_id = $1", gone)
    # A row that was added after the purge of the contents.
    async with db.driver() as driver:
        await driver.execute(retention.MARK_PURGED, [gone])
    deleted = [await retention._batch(db, partial(retention._purge_threads, retention.OUTDATED)) for _ in range(3)]
    assert [batch.get("threads", 0) for batch in deleted] == [0, 0, 1], "the row goes last, after the run"
    assert await count(db, table, gone) == 0


async def test_a_purge_reads_the_contents_of_purged_threads_no_more(db: Database) -> None:
    gone = await new_thread(db, welcome="Hello.")
    await threads.remove(db, gone, CALLER)
    assert (await purge(db, WEEK))["messages"] == 1
    late = await new_thread(db, welcome="Hello.")
    async with db.driver() as driver:
        await driver.execute("UPDATE messages SET thread_id = $1 WHERE thread_id = $2", gone, late)
    assert (await purge(db, WEEK))["messages"] == 0
    await backdate(db, gone, "deleted_at", days=2)
    done = await purge(db, WEEK)
    assert (done["messages"], done["threads"]) == (1, 1), "what was added in between goes before the row"


async def test_expired_rows_are_deleted_and_valid_ones_stay(db: Database) -> None:
    who = await person(db)
    rows = {
        "sessions": "INSERT INTO sessions (id, user_id, secret_hash, expires_at)"
                    " SELECT gen_random_uuid(), $1, $2 || n::text::bytea, now() + n * interval '1 hour'",
        "oidc_logins": "INSERT INTO oidc_logins (state_hash, nonce, verifier, return_to, user_id, expires_at)"
                       " SELECT $2 || n::text::bytea, 'n', 'v', '/', $1, now() + n * interval '1 hour'",
        "oauth_grants": "INSERT INTO oauth_grants (id, user_id, client_id, client_name, redirect_uri, resource, scopes,"
                        " family_hash, challenge, code_hash, expires_at)"
                        " SELECT gen_random_uuid(), $1, 'c', 'n', 'r', 'r', '{}', $2 || n::text::bytea, 'c', '',"
                        " now() + n * interval '1 hour'",
        "api_tokens": "INSERT INTO api_tokens (id, user_id, name, secret_hash, scopes, expires_at)"
                      " SELECT gen_random_uuid(), $1, 'n', $2 || n::text::bytea, '{read}', now() + n * interval '31 d'",
    }  # fmt: skip
    async with db.driver() as driver:
        for query in rows.values():
            await driver.execute(f"{query} FROM unnest(ARRAY[-1, 1]) AS n", who.id, key_hash("secret"))
    done = await purge(db, WEEK)
    assert {kind: number for kind, number in done.items() if number} == dict.fromkeys(rows, 1)
    assert [await count(db, table) for table in rows] == [1, 1, 1, 2]


async def test_clients_without_access_are_deleted_after_a_day_or_long_after_their_last_use(db: Database) -> None:
    who = await person(db)
    clients = {
        "new": (0, None), "unused": (2, None), "allowed": (200, 200), "used": (200, 80), "forgotten": (200, 91),
    }  # fmt: skip
    async with db.driver() as driver:
        for client_id, (created, used) in clients.items():
            await driver.execute(
                "INSERT INTO oauth_clients (id, name, redirect_uris, created_at, used_at)"
                " VALUES ($1, 'n', '{}', now() - $2 * interval '1 day', now() - $3 * interval '1 day')",
                client_id, created, used,
            )  # fmt: skip
        await driver.execute(
            "INSERT INTO oauth_grants (id, user_id, client_id, client_name, redirect_uri, resource, scopes,"
            " family_hash, challenge, code_hash, expires_at)"
            " VALUES (gen_random_uuid(), $1, 'allowed', 'n', 'r', 'r', '{}', '', 'c', '', now() + interval '1 day')",
            who.id,
        )
    assert (await purge(db, WEEK))["oauth_clients"] == 2
    async with db.driver() as driver:
        left = {row["id"] for row in await driver.fetch("SELECT id FROM oauth_clients")}
    assert left == {"new", "allowed", "used"}


async def test_registrations_at_issuers_without_accounts_are_deleted_after_a_day(db: Database) -> None:
    who = await person(db)
    clients = {"new": (0, None), "unused": (2, None), "in-use": (200, None), "expired": (200, 1)}
    async with db.driver() as driver:
        for issuer, (created, expired) in clients.items():
            await driver.execute(
                "INSERT INTO mcp_clients (issuer, redirect_uri, client, created_at, expires_at)"
                " VALUES ($1, 'r', '', now() - $2 * interval '1 day', now() - $3 * interval '1 day')",
                issuer, created, expired,
            )  # fmt: skip
        for issuer in ("in-use", "expired"):
            await driver.execute(
                "INSERT INTO mcp_accounts (id, user_id, server, resource, issuer, client_id, tokens)"
                " VALUES (gen_random_uuid(), $1, $2, 'r', $2, 'c', '')",
                who.id, issuer,
            )  # fmt: skip
    assert (await purge(db, WEEK))["mcp_clients"] == 2
    async with db.driver() as driver:
        left = {row["issuer"] for row in await driver.fetch("SELECT issuer FROM mcp_clients")}
    assert left == {"new", "in-use"}


async def test_a_dry_run_deletes_nothing_and_counts_what_a_real_run_deletes(db: Database, database_url: str) -> None:
    idle, gone = await idle_thread(db), await new_thread(db)
    await fill(db, gone, 1200)
    await threads.remove(db, gone, CALLER)
    env = {"DATABASE_URL": database_url}
    dry = await asyncio.to_thread(command, env, "purge", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    lines = dry.stdout.splitlines()
    assert lines[-1] == "Nothing was deleted."
    counts = {
        kind: int(number.replace(",", "")) for number, kind in (line.strip().split(" ", 1) for line in lines[:-1])
    }
    assert (counts["idle threads"], counts["message parts"], counts["receipts"]) == (1, 1200, 1200)
    assert await is_open(db, idle)
    assert await count(db, "message_parts", gone) == 1200
    kept = await asyncio.to_thread(command, env | {"KHALA_ANON_DAYS": "9"}, "purge")
    assert kept.returncode == 0, kept.stderr
    assert await is_open(db, idle)
    real = await asyncio.to_thread(command, env, "purge")
    assert real.stdout.splitlines()[-1] == "Deleted."
    assert not await is_open(db, idle)
    assert await count(db, "message_parts") == 0


async def test_a_purge_with_nothing_to_do_scans_no_table_after_one_that_deleted_many_rows(db: Database) -> None:
    """Statistics are older than the previous purge, and let the planner expect many expired rows."""
    user = await person(db)
    async with db.driver() as driver:
        await driver.execute(
            "INSERT INTO listings (user_id, thread_id, revision, gone, changed_at)"
            " SELECT $1, gen_random_uuid(), n, n % 2 = 0, now() - interval '8 days' FROM generate_series(1, 6000) AS n",
            user.id,
        )
        await driver.execute("VACUUM ANALYZE")
    assert (await purge(db, WEEK))["listings"] == 3000
    async with metered(db.url, counted_calls=1) as meter:
        usage = await meter.repeated(lambda: purge(meter.db, WEEK))
    assert usage.rows < 1000
