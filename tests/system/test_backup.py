"""Backup and restore: of a running server, into a new cluster, to the newest state and to a point in time."""

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import asyncpg
import httpx
import pytest

from khala.operations.programs import programs_version
from khala.store.embedded import EmbeddedPostgres, find_binaries
from tests.support.client import Observer, Thread, text_of
from tests.support.observed_run import assert_verified, notices, numbered, observed_run
from tests.support.providers import Reply, serving
from tests.support.s3 import BUCKET
from tests.support.s3 import serving as s3_serving
from tests.support.server import Server, command, ended
from tests.support.system_postgres import system_postgres

# Sets up two machines and runs a dozen programs.
pytestmark = pytest.mark.timeout(300)

WORDS = 60
SAID = tuple(f"word{number} " for number in range(1, 31))
"""What the model of the server that is lost says, before it falls silent: its answer is under way for ever."""
FILE = b"kept beside the database\n" * 50
LATE_FILE = b"came after the copy\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Settings of a server with a separate home, which also holds its blobs."""
    return {
        "KHALA_HOME": str(tmp_path / "home"),
        "KHALA_MODEL": "demo",
        "KHALA_LEASE_SECONDS": "2",
        "KHALA_GRACE_SECONDS": "0",
    }


@pytest.fixture
def elsewhere(env: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    """The same settings on another, empty machine."""
    return {**env, "DATABASE_URL": "", "KHALA_HOME": str(tmp_path / "elsewhere")}


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """A folder for archived WAL, which the Postgres user can write to."""
    path = Path("/dev/shm" if Path("/dev/shm").is_dir() else tmp_path, f"khala-test-archive-{os.getpid()}")
    path.mkdir()
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


async def run(env: Mapping[str, str], *words: object, within: float = 120.0) -> str:
    """Run a Khala command without blocking the event loop; returns its output."""
    done = await asyncio.to_thread(command, env, *map(str, words), within=within)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def backup(env: Mapping[str, str], kind: str, folder: Path, *words: object) -> Path:
    """Make a backup; returns its path."""
    return Path((await run(env, "backup", kind, folder, *words)).splitlines()[-1])


async def upload(thread: Thread, content: bytes) -> str:
    """Upload a file to the thread; returns the blob's id."""
    headers = {**thread.headers, "Content-Type": "text/plain"}
    made = await thread.http.post(f"/api/threads/{thread.id}/blobs", content=content, headers=headers)
    return str(made.raise_for_status().json()["blobId"])


async def read(thread: Thread, blob_id: str) -> httpx.Response:
    return await thread.http.get(f"/api/blobs/{blob_id}", headers=thread.headers)


def assert_well(env: Mapping[str, str]) -> None:
    """Assert that the doctor finds no problem."""
    done = command(env, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_dump_of_a_running_server_is_restored_on_a_new_machine_and_its_answer_continues(
    database_url: str, env: dict[str, str], elsewhere: dict[str, str], tmp_path: Path
) -> None:
    async with silent_model() as model:
        lost = Server(tmp_path / "lost.log", {**env, "DATABASE_URL": database_url, **model})
        found = Server(tmp_path / "found.log", elsewhere)
        with ended(lost, found):
            lost.start()
            async with observed_run(lost, words=WORDS) as answer:
                thread, observer = answer.thread, answer.observers[0]
                blob_id = await upload(thread, FILE)
                await answer.wait_for_word(20)
                made = await backup(lost.env, "dump", tmp_path / "backups")
                assert hashlib.sha256(FILE).hexdigest() in (made / "blobs").read_text().split()
                # Changes after the backup are lost with the machine, but observers have seen them.
                other = await Thread.create(thread.http)
                await thread.send("This never came to be.", options={"ifBusy": "queue"})
                await observer.until(lambda view: len(view.messages) == 5)
                lost.kill()
                assert "0 differences" in await run(elsewhere, "restore", "dump", made)
                found.start()
                async with httpx.AsyncClient(base_url=found.url, timeout=30) as http:
                    restored = Thread(http, thread.id, thread.key)
                    await assert_completed(restored, answer.run_id)
                    assert (await read(restored, blob_id)).content == FILE
                    assert (await http.get(f"/api/threads/{other.id}", headers=other.headers)).status_code == 404
                    await assert_resets_to_restored_state(found, restored, observer)
        assert not found.crashes()
        assert_well(elsewhere)


@contextlib.asynccontextmanager
async def silent_model() -> AsyncIterator[dict[str, str]]:
    """Settings for a model that streams some words and then hangs, without an end of the stream."""
    async with serving(default=lambda _: Reply(tokens=SAID, hang_after=len(SAID))) as provider:
        yield {
            "KHALA_MODEL": "openai:silent",
            "OPENAI_API_KEY": "sk-test",
            "OPENAI_BASE_URL": f"{provider.url}/v1",
        }


async def assert_completed(thread: Thread, run_id: str) -> None:
    """Assert that the run, which was interrupted, has ended with a whole answer."""
    assert (await thread.ended(run_id))["status"] == "final"
    message = (await thread.snapshot())["messages"][-1]
    assert text_of(message) == numbered(WORDS)
    assert notices(message) == ["resumed"]


async def assert_resets_to_restored_state(server: Server, thread: Thread, before: Observer) -> None:
    """Assert that a client with a cursor from the lost time gets a snapshot, and then has the restored state."""
    comes_back = Observer(server.socket_url, thread)
    comes_back.view.revision = before.view.revision
    comes_back.view.texts = dict.fromkeys(before.view.texts, "what was never said")
    async with comes_back.following():
        view = await comes_back.until(lambda view: view.snapshots == 1, within=10)
    assert text_of((await thread.snapshot())["messages"][-1]) in view.texts.values()
    assert "what was never said" not in view.texts.values()


async def enable_archiving(home: Path, archive: Path) -> None:
    """Configure the embedded Postgres to archive its WAL from its next start on."""
    postgres = await asyncio.to_thread(EmbeddedPostgres.start, home)
    connection = await asyncpg.connect(postgres.url)
    try:
        await connection.execute("ALTER SYSTEM SET archive_mode = on")
        await connection.execute(f"ALTER SYSTEM SET archive_command = 'test ! -f {archive}/%f && cp %p {archive}/%f'")
    finally:
        await connection.close()
        await asyncio.to_thread(postgres.stop)


async def test_a_point_in_time_is_restored_from_a_base_backup_and_archived_wal(
    env: dict[str, str], elsewhere: dict[str, str], archive: Path, tmp_path: Path
) -> None:
    home = Path(env["KHALA_HOME"])
    await enable_archiving(home, archive)
    postgres = await asyncio.to_thread(EmbeddedPostgres.start, home)
    try:
        async with silent_model() as model:
            lost = Server(tmp_path / "lost.log", {**env, "DATABASE_URL": "", **model})
            found = Server(tmp_path / "found.log", elsewhere)
            with ended(lost, found):
                lost.start()
                async with observed_run(lost, words=WORDS) as answer:
                    thread = answer.thread
                    kept = await upload(thread, FILE)
                    await answer.wait_for_word(20)
                    made = await backup(lost.env, "base", tmp_path / "backups")
                    other = await Thread.create(thread.http)
                    sent = await other.send("/words=7", options={"model": "demo"})
                    await other.ended(sent["runId"])
                    gone = await upload(other, LATE_FILE)
                    moment = await query_value(postgres.url, "SELECT clock_timestamp()::text")
                    await query_value(postgres.url, "DELETE FROM messages")
                    await until_archived(postgres.url)
                    lost.kill()
                data = Path(elsewhere["KHALA_HOME"], "postgres", "data")
                await run(elsewhere, "restore", "base", made, data, archive, moment)
                assert "0 differences" in await run(elsewhere, "restore", "settle", made)
                found.start()
                async with httpx.AsyncClient(base_url=found.url, timeout=30) as http:
                    restored, late = Thread(http, thread.id, thread.key), Thread(http, other.id, other.key)
                    assert text_of((await late.snapshot())["messages"][-1]) == numbered(7)
                    await assert_completed(restored, answer.run_id)
                    assert (await read(restored, kept)).content == FILE
                    assert (await read(late, gone)).status_code == 404
                    again = await upload(late, LATE_FILE)
                    assert (await read(late, again)).content == LATE_FILE, "the same content can be stored again"
            assert not found.crashes()
            assert_verified(elsewhere)
    finally:
        await asyncio.to_thread(postgres.stop)


async def query_value(url: str, query: str) -> str:
    """One value from the database."""
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval(query))
    finally:
        await connection.close()


async def until_archived(url: str) -> None:
    """Wait until all WAL before the current file is archived."""
    newest = "SELECT pg_walfile_name(pg_switch_wal())"
    before = await query_value(url, newest)
    async with asyncio.timeout(30):
        while await query_value(url, "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver") < before:
            await asyncio.sleep(0.05)


def run_refused(env: Mapping[str, str], *words: object) -> str:
    """The error output of a command that must fail."""
    done = command(env, *map(str, words))
    assert done.returncode != 0
    return done.stderr


async def test_backups_overwrite_nothing_report_missing_blobs_and_old_ones_are_deleted_with_their_blobs(
    database_url: str, env: dict[str, str], tmp_path: Path
) -> None:
    env["DATABASE_URL"] = database_url
    folder = tmp_path / "backups"
    name = await register_blob(database_url, FILE)
    error = run_refused(env, "backup", "dump", folder)
    assert f"1 of 1 blobs are missing in {folder}/blobs, among them {name}" in error
    assert [path.name for path in folder.iterdir()] == ["blobs"], "an incomplete backup is refused"
    write_blob(env, name, b"something else")
    assert f"blob {name} is damaged" in run_refused(env, "backup", "dump", folder)
    write_blob(env, name, FILE)
    made = await backup(env, "dump", folder)
    assert "not empty" in run_refused(env, "restore", "dump", made)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").touch()
    assert "not empty" in run_refused(env, "restore", "base", made, tmp_path / "data", tmp_path)
    made.rename(folder / "20010101T000000Z-dump")
    await query_value(database_url, "DELETE FROM objects")
    write_blob(env, await register_blob(database_url, LATE_FILE), LATE_FILE)
    made = await backup(env, "dump", folder, "--keep", 1)
    assert sorted(path.name for path in folder.iterdir()) == [made.name, "blobs"]
    assert [path.read_bytes() for path in (folder / "blobs").rglob("*") if path.is_file()] == [LATE_FILE]
    (folder / "lock").mkdir()
    (folder / "lock" / "pid").write_text(str(os.getpid()))
    assert "is running" in run_refused(env, "backup", "dump", folder)


async def register_blob(url: str, content: bytes) -> str:
    """The object name of a blob that the database lists as stored."""
    name = hashlib.sha256(content).hexdigest()
    await query_value(url, f"INSERT INTO objects (sha256, size, stored) VALUES ('\\x{name}', {len(content)}, true)")
    return name


def write_blob(env: Mapping[str, str], name: str, content: bytes) -> None:
    """Store these bytes under this name."""
    kept = Path(env["KHALA_HOME"], "blobs", name[:2], name)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)


async def test_blobs_are_copied_from_a_bucket_and_back_and_missing_ones_are_named(
    env: dict[str, str], tmp_path: Path
) -> None:
    names = {hashlib.sha256(content).hexdigest(): content for content in (FILE, b"")}
    lost = hashlib.sha256(LATE_FILE).hexdigest()
    (tmp_path / "list").write_text("".join(f"{name}\n" for name in (*names, lost)))
    with s3_serving() as s3:
        env |= s3.env
        bucket = s3.client()
        for name, content in names.items():
            bucket.put_object(Bucket=BUCKET, Key=f"blobs/{name}", Body=content)
        bucket.put_object(Bucket=BUCKET, Key="blobs/khala-owner", Body=b"no blob")
        assert blobs_command(env, "save", tmp_path / "saved") == "2 blobs copied"
        assert blobs_command(env, "save", tmp_path / "saved") == "0 blobs copied"
        for name in names:
            bucket.delete_object(Bucket=BUCKET, Key=f"blobs/{name}")
        put_back = blobs_command(env, "load", tmp_path / "saved", tmp_path / "list", tmp_path / "missing")
        assert put_back == "2 blobs put back, 1 missing"
        for name, content in names.items():
            assert bucket.get_object(Bucket=BUCKET, Key=f"blobs/{name}")["Body"].read() == content
    assert (tmp_path / "missing").read_text().split() == [lost]


def blobs_command(env: Mapping[str, str], *words: object) -> str:
    """The output of `khala blobs`."""
    done = command(env, "blobs", *map(str, words))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def test_a_server_of_another_major_version_is_backed_up_and_restored_by_its_own_programs(
    env: dict[str, str], tmp_path: Path
) -> None:
    with system_postgres() as postgres:
        for name in ("lost", "found"):
            await query_value(postgres.url("postgres"), f"CREATE DATABASE {name}")
        server = Server(tmp_path / "server.log", env | {"DATABASE_URL": postgres.url("lost")})
        with ended(server):
            server.start()
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                thread = await Thread.create(http)
                await thread.ended((await thread.send("/words=7"))["runId"])
                assert_well(server.env)
                made = await backup(server.env, "dump", tmp_path / "backups")
                server.kill()
                server.env["DATABASE_URL"] = postgres.url("found")
                assert "0 differences" in await run(server.env, "restore", "dump", made)
                server.start()
                assert text_of((await thread.snapshot())["messages"][-1]) == numbered(7)
            assert not server.crashes()
        along = find_binaries()
        error = run_refused({**server.env, "KHALA_PG_BIN": str(along)}, "backup", "dump", tmp_path / "backups")
        assert f"The server is Postgres {postgres.major}" in error
        assert f"{programs_version(along)} in {along}" in error
        assert f"postgresql-client-{postgres.major}" in error
