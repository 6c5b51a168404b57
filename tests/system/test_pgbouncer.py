"""Khala with a Postgres behind PgBouncer in transaction pooling mode."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from khala.doctor import pooler_checks as doctor
from khala.store.postgres.database import Database
from tests.support.agents import act, call
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.observed_run import assert_verified, observed_run, observed_thread
from tests.support.pgbouncer import SERVER_CONNECTIONS, Pooler, pooler
from tests.support.server import command

PREPARED = "SELECT count(*) FROM pg_prepared_statements"


@pytest.fixture
def pgbouncer(database_url: str, tmp_path: Path) -> Iterator[Pooler]:
    with pooler(database_url, tmp_path) as found:
        yield found


@pytest.fixture
def env(database_url: str, pgbouncer: Pooler) -> dict[str, str]:
    return {"DATABASE_URL": pgbouncer.url, "DATABASE_DIRECT_URL": database_url}


@pytest.fixture
async def server(database_url: str, env: dict[str, str]) -> AsyncIterator[InProcessServer]:
    direct = env["DATABASE_DIRECT_URL"]
    async with khala(database_url, DATABASE_URL=env["DATABASE_URL"], DATABASE_DIRECT_URL=direct) as inside:
        yield inside


async def test_many_answers_stream_at_once_over_few_connections(server: InProcessServer, env: dict[str, str]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3 * SERVER_CONNECTIONS):
            tasks.create_task(_stream_answer(server))
    assert_verified(env)


async def _stream_answer(server: InProcessServer) -> None:
    async with observed_run(server, words=60, pace=120) as answer:
        await answer.check_end()


async def test_a_cancel_ends_the_answer_at_once(server: InProcessServer) -> None:
    async with observed_run(server, words=2000) as answer:
        await answer.wait_for_word(20)
        path = f"/api/runs/{answer.run_id}/cancel"
        (await server.http.post(path, headers=answer.thread.headers)).raise_for_status()
        assert (await answer.thread.ended(answer.run_id, within=10))["status"] == "canceled"
        for observer in answer.observers:
            await observer.until(lambda view: answer.answer in view.finished, within=10)


async def test_a_call_waits_for_approval_and_continues_after_it(server: InProcessServer) -> None:
    thread = await server.thread()
    text = call("write_file", path="a.txt", content="hi") + " /then " + call("delete_file", path="a.txt")
    agent = await act(thread, text)
    await agent.status("blocked")
    waiting = (await agent.cards())[-1]["toolCallId"]
    assert (await agent.decide(waiting, approved=True)).json()["state"] == "approved"
    assert (await agent.ended())["status"] == "final"
    assert await agent.states() == ["completed", "completed"]


async def test_the_thread_list_and_presence_are_followed(server: InProcessServer, pgbouncer: Pooler) -> None:
    db = Database(pgbouncer.url, direct_url=server.database_url, pool_size=4)
    artanis = await person(db, "Artanis")
    thread_id = await owned_thread(db, artanis)
    thread = Thread(server.http, str(thread_id), "")
    thread.headers = artanis.headers
    async with (
        socket(server, additional_headers=artanis.headers) as listing,
        socket(server, additional_headers=artanis.headers) as here,
        socket(server, additional_headers=artanis.headers) as there,
    ):
        await listing.send({"type": "watch"})
        assert (await listing.until("account"))["whole"]
        for feed in (here, there):
            await feed.send({"type": "subscribe", "threadId": str(thread_id)})
            await feed.until("snapshot")
        await here.send({"type": "presence", "threadId": str(thread_id), "state": {"typing": True}})
        assert (await there.until("presence"))["participants"][0]["name"] == "Artanis"
        sent = await thread.send("/words=5")
        changed = await listing.until("account")
        assert [entry["thread"]["id"] for entry in changed["threads"]] == [str(thread_id)]
        await thread.ended(sent["runId"])
    await db.close()


async def test_no_session_state_stays_on_the_server_connections(server: InProcessServer, pgbouncer: Pooler) -> None:
    async with observed_thread(server) as (thread, *_):
        await thread.ended((await thread.send("/words=20"))["runId"])
    db = Database(pgbouncer.url, direct_url=server.database_url, pool_size=2)
    async with db.driver() as driver, driver.transaction():
        assert await driver.fetchval(PREPARED) == 0
        row = await driver.fetchrow("SELECT current_setting('jit'), current_setting('transaction_isolation')")
        assert tuple(row) == ("off", "read committed")
        assert await driver.fetchval("SHOW idle_in_transaction_session_timeout") == "5s"
    async with db.driver() as driver:
        assert await driver.fetchval("SHOW idle_in_transaction_session_timeout") == "0"
    await db.close()


async def test_an_outage_of_the_pooler_loses_no_text(
    database_url: str, env: dict[str, str], server: InProcessServer, pgbouncer: Pooler
) -> None:
    async with observed_run(server, words=120) as answer:
        await answer.wait_for_word(20)
        pgbouncer.kill()
        await asyncio.sleep(1)
        pgbouncer.start()
        await answer.check_end()
    assert_verified(env)


def test_the_commands_work_through_it(env: dict[str, str]) -> None:
    done = command({**env, "KHALA_MODEL": "demo"}, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pooler: DATABASE_URL leads to a pooler, DATABASE_DIRECT_URL to Postgres" in done.stdout
    assert "schema: at " in done.stdout


async def test_the_doctor_reports_a_url_that_must_not_lead_to_the_pooler(
    database_url: str, tmp_path: Path, pgbouncer: Pooler
) -> None:
    again, sessions = f"{pgbouncer.url}?application_name=again", tmp_path / "sessions"
    sessions.mkdir()
    assert await doctor_finding(pgbouncer.url) == ("bad", "DATABASE_URL leads to a transaction pooler")
    assert await doctor_finding(pgbouncer.url, again) == ("bad", "DATABASE_DIRECT_URL leads to a transaction pooler")
    assert await doctor_finding(database_url, pgbouncer.url) == (
        "bad",
        "DATABASE_DIRECT_URL leads to a transaction pooler",
    )
    assert await doctor_finding(database_url) == ("ok", "none")
    with pooler(database_url, sessions, mode="session") as kept:
        assert await doctor_finding(kept.url) == ("ok", "DATABASE_URL leads to a session pooler")
        assert await doctor_finding(database_url, kept.url) == (
            "warn",
            "DATABASE_URL leads to Postgres itself, and statements are not prepared, which costs CPU without need",
        )


async def doctor_finding(url: str, direct_url: str | None = None) -> tuple[str, str]:
    """The doctor's finding about the database, without its advice."""
    db = Database(url, direct_url=direct_url)
    finding = await doctor.finding(db)
    await db.close()
    return finding.state, finding.says.partition(":")[0]
