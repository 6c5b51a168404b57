"""Readiness when writes are impossible (full disks, read-only databases), and the doctor's findings then."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from khala import components, settings
from khala.api.operations import readiness
from khala.blobs import blob_service
from khala.doctor import examine
from khala.store.embedded import EmbeddedPostgres
from khala.store.postgres import write_check
from khala.store.postgres.database import Database, driver_url
from tests.support.disks import mounts, small_disk
from tests.support.in_process import InProcessServer, khala

WITHIN = 20.0


@pytest.fixture(autouse=True)
def no_probe_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request start a new probe."""
    monkeypatch.setattr(readiness, "PROBE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(blob_service, "CHECK_VALID_SECONDS", 0.0)


async def until_ready_status(inside: InProcessServer, status: int) -> dict[str, Any]:
    """The body of the readiness response, once it has this status."""
    async with asyncio.timeout(WITHIN):
        while (answer := await inside.http.get("/api/health/ready")).status_code != status:
            await asyncio.sleep(0.05)
    return dict(answer.json())


async def findings(url: str, **env: str) -> dict[str, str]:
    """The state of each finding of the doctor."""
    chosen = settings.from_environment({"DATABASE_URL": url, "KHALA_MODEL": "demo"} | env)
    async with components.open_database(chosen) as db, components.open_blobs(chosen, db) as blobs:
        return {found.what: found.state for found in await examine(chosen, db, blobs)}


@mounts
async def test_a_server_whose_postgres_has_a_full_disk_is_not_ready_until_there_is_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=300) as disk:
        postgres = await asyncio.to_thread(EmbeddedPostgres.start, disk.path)
        try:
            async with khala(postgres.url, with_executor=False) as inside:
                assert (await until_ready_status(inside, 200))["writable"] is True
                disk.fill()
                health = await until_ready_status(inside, 503)
                assert (health["ok"], health["database"], health["writable"]) == (False, True, False)
                assert (await inside.http.get("/api/health/live")).status_code == 200
                assert (await findings(postgres.url))["writes"] == "bad"
                disk.free()
                assert (await until_ready_status(inside, 200))["writable"] is True
                assert (await findings(postgres.url))["writes"] == "ok"
                await inside.thread()
        finally:
            await asyncio.to_thread(postgres.stop)


@mounts
async def test_a_server_whose_blob_folder_is_full_is_not_ready_until_there_is_space(
    database_url: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=8) as disk:
        home = str(disk.path / "home")
        async with khala(database_url, with_executor=False, KHALA_HOME=home) as inside:
            assert (await until_ready_status(inside, 200))["disk"] is True
            disk.fill()
            health = await until_ready_status(inside, 503)
            assert (health["ok"], health["writable"], health["disk"], health["blobs"]) == (False, True, False, False)
            disk.free()
            assert (await until_ready_status(inside, 200))["disk"] is True


@mounts
async def test_a_full_disk_for_temporary_files_is_reported_by_readiness_and_doctor(
    database_url: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "home" / "spool", mebibytes=4) as disk:
        home = str(tmp_path / "home")
        async with khala(database_url, with_executor=False, KHALA_HOME=home) as inside:
            assert (await findings(database_url, KHALA_HOME=home))["files"] == "ok"
            disk.fill()
            health = await until_ready_status(inside, 503)
            assert (health["disk"], health["blobs"]) == (False, True)
            found = await findings(database_url, KHALA_HOME=home)
            assert (found["files"], found["blobs"], found["writes"]) == ("bad", "ok", "ok")


async def test_a_server_whose_database_became_read_only_is_not_ready(database_url: str) -> None:
    async def say(command: str) -> None:
        connection = await asyncpg.connect(
            driver_url(database_url), server_settings={"default_transaction_read_only": "off"}
        )
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(command.format(name=name))
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()",
            name,
        )
        await connection.close()

    async with khala(database_url, with_executor=False) as inside:
        await until_ready_status(inside, 200)
        await say('ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        health = await until_ready_status(inside, 503)
        async with asyncio.timeout(WITHIN):
            while not health["database"]:
                health = await until_ready_status(inside, 503)
        assert (health["ok"], health["writable"]) == (False, False)
        assert (await findings(database_url))["writes"] == "bad"
        await say('ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await until_ready_status(inside, 200)


async def test_the_probe_leaves_nothing_behind(db: Database) -> None:
    async with db.driver() as driver:
        tuples = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_all_tables"
        await driver.execute("SELECT pg_stat_force_next_flush()")
        before = await driver.fetchval(tuples)
    assert [await write_check.find_write_problem(db) for _ in range(20)] == [None] * 20
    async with db.driver() as driver:
        await driver.execute("SELECT pg_stat_force_next_flush()")
        assert await driver.fetchval(tuples) == before
        assert await driver.fetchval("SELECT count(*) FROM pg_ls_dir('pg_snapshots')") == 0


async def test_concurrent_readiness_requests_share_one_probe(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_INTERVAL_SECONDS", 60.0)
    probes: list[Database] = []

    async def counted(db: Database) -> str | None:
        probes.append(db)
        return await write_check.find_write_problem(db)

    monkeypatch.setattr(readiness, "find_write_problem", counted)
    async with khala(database_url, with_executor=False) as inside:
        answers = await asyncio.gather(*(inside.http.get("/api/health/ready") for _ in range(50)))
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert (await inside.http.get("/api/health/ready")).json()["writable"] is True
    assert len(probes) == 1
