"""The doctor: it finds each problem on a real Postgres, and reports it with a remedy."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from pgvector.sqlalchemy import Vector
from sqlalchemy import Column, MetaData, Table, Uuid, text

from khala import settings as configuration
from khala.components import open_blobs
from khala.doctor import Finding, database_checks, environment_checks, examine, workload_checks
from khala.doctor import configuration_checks as chosen
from khala.store.postgres import migrations
from khala.store.postgres.database import Database
from tests.support import postgres
from tests.support.event_endpoint import new_endpoint
from tests.support.nats import nats_server
from tests.support.providers import Reply, serving
from tests.support.server import command
from tests.support.store import ask, claim, new_thread

DEMO = {"KHALA_MODEL": "demo"}


@asynccontextmanager
async def altered_database(database_url: str, *changes: str) -> AsyncIterator[Database]:
    """The database, with settings that apply to all new connections."""
    name = database_name(database_url)
    for change in changes:
        await postgres.execute(database_url, f'ALTER DATABASE "{name}" {change}')
    db = Database(database_url)
    try:
        yield db
    finally:
        await db.close()


def database_name(url: str) -> str:
    return url.rsplit("/", 1)[-1].split("?")[0]


def assert_finding(found: Finding, state: str, *words: str) -> None:
    """Assert that the finding has this state, and that its text contains all these words."""
    assert found.state == state, found
    assert all(word in found.says for word in words), found.says


async def test_a_healthy_database_has_good_findings(db: Database, tmp_path: Path) -> None:
    settings = configuration.from_environment({"KHALA_HOME": str(tmp_path), **DEMO})
    async with open_blobs(settings, db) as blob_service:
        found = await examine(settings, db, blob_service)
    assert {finding.what: finding.says for finding in found if finding.state == "bad"} == {}
    assert {"database", "durability", "connections", "clock", "schema", "notify", "runs", "disk", "settings"} <= {
        result.what for result in found
    }


async def test_commits_that_are_not_durable_are_bad(database_url: str) -> None:
    async with altered_database(database_url, "SET synchronous_commit = off") as db:
        assert_finding(await database_checks.durability(db), "bad", "synchronous_commit is off", "RESET")


@pytest.mark.parametrize("name", database_checks.FATAL)
def test_a_required_setting_that_is_off_is_reported_by_name(name: str) -> None:
    found = dict.fromkeys(database_checks.FATAL, "on") | {"wal_level": "replica", "archive_mode": "off"}
    assert_finding(database_checks.judge_durability(found), "ok")
    assert_finding(
        database_checks.judge_durability(found | {name: "off"}), "bad", f"{name} is off", database_checks.FATAL[name]
    )


def test_a_wal_level_without_base_backups_is_reported() -> None:
    found = dict.fromkeys(database_checks.FATAL, "on") | {"wal_level": "minimal", "archive_mode": "off"}
    assert_finding(database_checks.judge_durability(found), "warn", "wal_level = replica")


async def test_programs_get_json_and_an_exit_code(database_url: str) -> None:
    async with altered_database(database_url, "SET synchronous_commit = off"):
        env = {"DATABASE_URL": database_url, **DEMO}
        done = await asyncio.to_thread(command, env, "doctor", "--json", "--call", "--processes", "1")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is False
    found = {result["what"]: result for result in report["findings"]}
    assert {name for name, result in found.items() if result["state"] == "bad"} == {"durability"}
    assert "needed are 1 × " in found["connections"]["says"]
    assert "answered in" in found["model demo"]["says"]


async def test_a_database_that_takes_no_writes_is_bad(database_url: str) -> None:
    async with altered_database(database_url, "SET default_transaction_read_only = on") as db:
        assert_finding(await database_checks.server(db), "bad", "takes no writes", "RESET")


async def test_a_database_that_cannot_store_every_character_is_bad(postgres_url: str, database_url: str) -> None:
    name = f"{database_name(database_url)}_ascii"
    made = f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C' LOCALE_PROVIDER libc"
    await postgres.execute(postgres_url, made)
    db = Database(postgres.named(postgres_url, name))
    try:
        assert_finding(await database_checks.server(db), "bad", "SQL_ASCII", "ENCODING 'UTF8'")
    finally:
        await db.close()
        await postgres.execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def test_too_few_connections_for_all_processes_are_bad(db: Database) -> None:
    async with db.driver() as driver:
        most = int(await driver.fetchval("SHOW max_connections"))
    assert_finding(await database_checks.connections(db, 1, 10), "ok", "10")
    assert_finding(
        await database_checks.connections(db, most, 10), "bad", f"{most} × 10", "max_connections", "KHALA_POOL_SIZE"
    )


async def test_the_connection_limit_of_the_role_counts(postgres_url: str, database_url: str) -> None:
    role = f"{database_name(database_url)}_role"
    await postgres.execute(postgres_url, f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT 12')
    try:
        async with altered_database(database_url, "SET jit = off") as db, db.transaction() as connection:
            await connection.execute(text(f'SET ROLE "{role}"'))
            row = (await connection.execute(text(database_checks.CONNECTIONS))).one()
        assert row.of_role == 12
        assert row.of_database is None
    finally:
        await postgres.execute(postgres_url, f'DROP ROLE "{role}"')


async def test_a_clock_difference_is_bad_and_reported_in_seconds(db: Database) -> None:
    assert_finding(await database_checks.clock(db), "ok")
    for wrong in (-90.0, 90.0):
        found = await database_checks.clock(db, now=lambda wrong=wrong: time.time() + wrong)  # type: ignore[misc]
        assert_finding(found, "bad", "90 s", "time service")


async def test_pgvector_is_required_only_if_a_column_has_its_type(database_url: str) -> None:
    without = "SELECT * FROM pg_catalog.pg_available_extensions WHERE name <> 'vector'"
    await postgres.execute(database_url, f"CREATE VIEW public.pg_available_extensions AS {without}")
    memories = MetaData()
    Table("memories", memories, Column("id", Uuid), Column("embedding", Vector(3)))
    async with altered_database(database_url, "SET search_path = public, pg_catalog") as db:
        assert_finding(await database_checks.pgvector(db), "ok", "not available", "no table needs it")
        assert_finding(await database_checks.pgvector(db, memories), "bad", "memories.embedding", "install pgvector")


async def test_a_slow_database_is_reported(db: Database) -> None:
    assert_finding(await database_checks.speed(db, slow=10), "ok")
    assert_finding(await database_checks.speed(db, slow=0), "warn", "near its database")


async def test_a_missing_old_newer_or_manually_changed_schema_is_reported(postgres_url: str, db: Database) -> None:
    name = f"{database_name(db.url)}_bare"
    await postgres.execute(postgres_url, f'CREATE DATABASE "{name}"')
    bare = Database(postgres.named(postgres_url, name))
    try:
        assert_finding(await database_checks.schema(bare), "bad", "khala migrate")
        assert_finding(await workload_checks.runs(bare, 10), "ok", "no schema")
    finally:
        await bare.close()
        await postgres.execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)')
    await postgres.execute(db.url, "ALTER TABLE threads ADD COLUMN stray text")
    assert_finding(await database_checks.schema(db), "bad", "stray", "by hand")
    await postgres.execute(db.url, "UPDATE alembic_version SET version_num = '0000'")
    assert_finding(await database_checks.schema(db), "warn", "newer")


async def test_a_program_does_not_change_the_schema_of_a_newer_version(db: Database) -> None:
    await postgres.execute(db.url, "UPDATE alembic_version SET version_num = '9999'")
    await migrations.upgrade(db.url)
    assert await migrations.current(db) == "9999"


async def test_runs_that_are_not_claimed_or_have_a_lapsed_lease_are_reported(db: Database) -> None:
    assert_finding(await workload_checks.runs(db, 10), "ok", "0 queued")
    thread_id = await new_thread(db)
    await ask(db, thread_id)
    assert_finding(await workload_checks.runs(db, 10), "ok", "1 queued")
    assert_finding(await workload_checks.runs(db, 10, late=0), "warn", "the oldest has waited", "khala work")
    await claim(db, lease=0.01)
    # A queued one that waits for the one before it could not have begun.
    await ask(db, thread_id)
    await asyncio.sleep(0.02)
    assert_finding(await workload_checks.runs(db, 0.01), "ok", "1 queued, 1 running")
    assert_finding(await workload_checks.runs(db, 0.01, late=0), "warn", "not renewed", "khala work")


async def test_webhooks_that_are_disabled_or_late_are_reported(db: Database) -> None:
    assert_finding(await workload_checks.webhooks(db), "ok", "0 events waiting")
    endpoint = await new_endpoint(db, "http://127.0.0.1:9/")
    await new_thread(db)
    assert_finding(await workload_checks.webhooks(db), "ok", "1 events waiting")
    assert_finding(await workload_checks.webhooks(db, late=0), "warn", "the oldest", "webhooks_failed")
    async with db.driver() as driver:
        await driver.execute(
            "UPDATE webhook_endpoints SET is_enabled = false, disabled_reason = '410' WHERE id = $1", endpoint.id
        )
    assert_finding(await workload_checks.webhooks(db), "warn", "1 webhooks were disabled", "khala webhooks list")


async def test_an_idle_transaction_is_reported_with_the_command_that_ends_it(db: Database, database_url: str) -> None:
    other = await asyncpg.connect(database_url, server_settings={"application_name": "somebody"})
    try:
        assert_finding(await workload_checks.transactions(db, longest=0), "ok")
        async with other.transaction():
            await other.execute("SELECT 1")
            terminate = f"pg_terminate_backend({other.get_server_pid()})"
            assert_finding(await workload_checks.transactions(db, longest=0), "warn", "somebody", terminate)
    finally:
        await other.close()


async def test_a_transaction_for_whose_lock_a_statement_waits_is_reported_with_the_command_that_ends_it(
    db: Database, database_url: str
) -> None:
    thread_id = await new_thread(db)
    lock = "SELECT FROM threads WHERE id = $1 FOR UPDATE"
    holder = await asyncpg.connect(database_url, server_settings={"application_name": "somebody"})
    waiter = await asyncpg.connect(database_url)
    try:
        async with holder.transaction():
            await holder.execute(lock, thread_id)
            waiting = asyncio.create_task(waiter.execute(lock, thread_id))
            terminate = f"pg_terminate_backend({holder.get_server_pid()})"
            async with asyncio.timeout(10):
                while (finding := await workload_checks.transactions(db, longest_wait=0)).state == "ok":
                    await asyncio.sleep(0.02)
            assert_finding(finding, "warn", "somebody", "for a lock", terminate)
            assert_finding(await workload_checks.transactions(db), "ok")
        await waiting
        assert_finding(await workload_checks.transactions(db, longest_wait=0), "ok")
    finally:
        await holder.close()
        await waiter.close()


async def test_an_unreachable_database_is_a_finding_of_each_check_that_queries_it(tmp_path: Path) -> None:
    settings = configuration.from_environment({"KHALA_HOME": str(tmp_path), **DEMO})
    db = Database("postgresql://khala@127.0.0.1:1/khala")
    try:
        async with open_blobs(settings, db) as blob_service:
            found = {finding.what: finding for finding in await examine(settings, db, blob_service)}
    finally:
        await db.close()
    assert {name for name, finding in found.items() if finding.state == "bad"} == {
        "database", "speed", "durability", "pooler", "connections", "clock", "pgvector", "schema", "notify",
        "transactions", "runs", "webhooks", "search", "writes",
    }  # fmt: skip
    assert "refused" in found["database"].says or "onnect" in found["database"].says


async def test_a_blob_store_that_cannot_be_written_is_bad(db: Database, tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where a folder should be")
    settings = configuration.from_environment({"KHALA_HOME": str(tmp_path), **DEMO})
    async with open_blobs(settings, db) as blob_service:
        assert_finding(await environment_checks.blobs(settings, blob_service), "bad", str(tmp_path / "blobs"))


async def test_an_unreachable_wake_up_server_is_reported_by_name() -> None:
    assert_finding(await environment_checks.wake(configuration.from_environment(DEMO)), "ok", "Postgres")
    with nats_server() as server:
        named = configuration.from_environment({"KHALA_WAKE_URL": server.url("name:secret"), **DEMO})
        assert_finding(await environment_checks.wake(named), "ok", server.url())
        server.kill()
        gone = await environment_checks.wake(named)
    assert_finding(gone, "bad", server.url(), "out of reach")
    assert "secret" not in gone.says


async def test_a_disk_that_is_nearly_full_is_bad(tmp_path: Path) -> None:
    settings = configuration.from_environment({"KHALA_HOME": str(tmp_path / "not" / "yet"), **DEMO})
    (found,) = environment_checks.disks(settings, least=1 << 62)
    assert_finding(found, "bad", str(tmp_path), "free disk space")


async def test_each_model_is_called_if_requested() -> None:
    refusal = Reply(status=400, message="no such model for key sk-abcdefghijklmnopqrstuv")
    async with serving(Reply(), refusal) as server:
        env = {
            "OPENAI_API_KEY": "sk-test",
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "KHALA_MODEL": "openai:good",
            "KHALA_FALLBACK_MODELS": "openai:gone,anthropic:keyless,demo",
        }
        settings = configuration.from_environment(env)
        good, gone, keyless, demo = await environment_checks.models(settings, call=True)
        assert_finding(good, "ok", "answered in")
        assert_finding(gone, "bad", "refused")
        assert "sk-abcdef" not in gone.says
        assert_finding(keyless, "bad", "ANTHROPIC_API_KEY")
        assert_finding(demo, "ok", "answered in")
        calls_before = len(server.calls)
        assert [finding.state for finding in await environment_checks.models(settings, call=False)] == [
            "ok",
            "ok",
            "bad",
            "ok",
        ]
        assert len(server.calls) == calls_before == 2


REAL = {"OPENAI_API_KEY": "sk-test", "KHALA_MODEL": "openai:gpt"}
PUBLIC = {"KHALA_PUBLIC_URL": "https://chat.example.com", "KHALA_TRUSTED_PROXIES": "127.0.0.1"}


@pytest.mark.parametrize(
    ("env", "state", "words"),
    [
        (REAL, "ok", ("no known risk",)),
        (REAL | PUBLIC, "ok", ("no known risk",)),
        (REAL | {"HOST": "0.0.0.0"}, "warn", ("HOST", "TLS", "KHALA_PUBLIC_URL")),
        (REAL | {"KHALA_PUBLIC_URL": "http://chat.example.com"}, "bad", ("KHALA_PUBLIC_URL", "overheard")),
        (REAL | {"KHALA_PUBLIC_URL": "http://localhost:8000"}, "ok", ("no known risk",)),
        (REAL | {"KHALA_PUBLIC_URL": "https://chat.example.com"}, "bad", ("KHALA_TRUSTED_PROXIES", "one machine")),
        (REAL | PUBLIC | {"KHALA_TRUSTED_PROXIES": "0.0.0.0/0"}, "bad", ("KHALA_TRUSTED_PROXIES", "limits")),
        (REAL | {"KHALA_ORIGINS": "*"}, "warn", ("KHALA_ORIGINS",)),
        (REAL | PUBLIC | {"KHALA_HOSTS": "*"}, "warn", ("KHALA_HOSTS", "every name")),
        (DEMO | PUBLIC, "warn", ("KHALA_MODEL", "only the demo")),
        (REAL | {"KHALA_ANON_TOTAL_USD_PER_DAY": "0"}, "warn", ("KHALA_ANON_TOTAL_USD_PER_DAY",)),
        (REAL | {"KHALA_USER_TOTAL_USD_PER_DAY": "0"}, "warn", ("KHALA_USER_TOTAL_USD_PER_DAY",)),
        (DEMO | {"KHALA_USER_TOTAL_USD_PER_DAY": "0"}, "ok", ("no known risk",)),
        (REAL | {"KHALA_RUN_USD": "0", "KHALA_RUN_SECONDS": "0"}, "warn", ("KHALA_RUN_USD", "for ever")),
        (REAL | {"OPENAI_BASE_URL": "http://llm.example.com/v1"}, "warn", ("openai", "llm.example.com")),
        (REAL | {"OPENAI_BASE_URL": "http://127.0.0.1:11434/v1"}, "ok", ("no known risk",)),
        (REAL | {"KHALA_LEASE_SECONDS": "2"}, "warn", ("KHALA_LEASE_SECONDS", "10")),
    ],
)
def test_a_risky_setting_is_reported(env: dict[str, str], state: str, words: tuple[str, ...]) -> None:
    (found,) = chosen.findings(configuration.from_environment(env))
    assert found.state == state, found
    assert all(word in f"{found.what} {found.says}" for word in words), found


def test_a_command_that_is_missing_or_lets_visitors_act_with_our_rights_is_reported(tmp_path: Path) -> None:
    commands = {
        "missing": {"argv": ["no-such-program"]},
        "open": {"argv": ["cat"], "guests": True},
        "caged": {"argv": ["cat"], "guests": True, "sandbox": True},
        "fine": {"argv": ["cat"]},
    }
    path = tmp_path / "commands.json"
    path.write_text(json.dumps({"commands": commands}))
    found = chosen.findings(configuration.from_environment(REAL | {"KHALA_COMMANDS": str(path)}))
    assert [(one.what.rpartition(" ")[2], one.state) for one in found] == [("missing", "warn"), ("open", "warn")]
