"""Faults in the middle of an answer: the text that a client has seen stays, and continues without gap or repetition."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest

from khala.domain import ids
from tests.support.client import Observer, Thread, text_of
from tests.support.core_waits import CoreWaits, core_waits
from tests.support.in_process import khala
from tests.support.observed_run import ObservedRun, assert_verified, notices, numbered, observed_run, observed_thread
from tests.support.postgres_proxy import proxy
from tests.support.server import CRASHES, Process, Server, Worker, ended

OUTAGE = 2.0
"""Seconds; twice the lease."""
LEASE = 1.5
SLOW_SECONDS = 8.0
"""How long the slow observer reads nothing."""
MOST_GROWTH = 24 << 20
"""Bytes by which a server may grow while one of its observers does not read."""
SENDS = 60
STALL = 5.0
"""Seconds; `idle_in_transaction_session_timeout` of a connection."""


@pytest.fixture(autouse=True)
def nothing_crashes(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Assert that the log has no sign of a crash. Where Khala runs in this process, its log is the test's output."""
    yield
    captured = capfd.readouterr()
    assert not [line for line in (captured.out + captured.err).splitlines() if any(sign in line for sign in CRASHES)]


@pytest.fixture
def lease() -> float:
    """The lease of a run in seconds."""
    return LEASE


@pytest.fixture
def env(database_url: str, lease: float) -> dict[str, str]:
    """Settings of a process with a short lease."""
    return {
        "DATABASE_URL": database_url,
        "KHALA_MODEL": "demo",
        "KHALA_LEASE_SECONDS": str(lease),
        "KHALA_GRACE_SECONDS": "0.5",
    }


@pytest.fixture
def servers(env: Mapping[str, str], tmp_path: Path) -> Iterator[tuple[Server, Worker, Worker]]:
    """`khala serve --no-executor` and two `khala work`, all of them ready."""
    server = Server(tmp_path / "server.log", env, "--no-executor")
    workers = Worker(tmp_path / "one.log", env), Worker(tmp_path / "two.log", env)
    with ended(server, *workers):
        server.begin()
        for worker in workers:
            worker.start()
        server.wait_until_ready()
        for worker in workers:
            assert worker.id
        yield server, *workers
        assert not [line for process in (server, *workers) for line in process.crashes()]


async def holder(database_url: str, run_id: str, workers: tuple[Worker, ...]) -> tuple[Worker, Worker]:
    """The worker that holds the run's lease, and the other worker."""
    owner = await fetchval(database_url, "SELECT lease_owner FROM runs WHERE id = $1", run_id)
    held, other = sorted(workers, key=lambda worker: worker.id != owner)
    assert held.id == owner
    return held, other


async def fetchval(database_url: str, query: str, *arguments: object) -> object:
    """One value from the database."""
    connection = await asyncpg.connect(database_url)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def until_gone(process: Process, *, within: float) -> int:
    """Wait until a process ends by itself; returns its exit code."""
    async with asyncio.timeout(within):
        while (code := process.ended_with()) is None:
            await asyncio.sleep(0.02)
    return code


async def test_a_killed_executor_is_replaced_and_the_answer_continues_where_it_was(
    servers: tuple[Server, Worker, Worker], env: Mapping[str, str], database_url: str
) -> None:
    server, *workers = servers
    async with observed_run(server) as answer:
        await answer.wait_for_word(60)
        held, _ = await holder(database_url, answer.run_id, tuple(workers))
        held.kill()
        killed, seen = time.monotonic(), answer.known_text()
        await answer.observers[0].until(lambda view: len(view.text(answer.answer)) > len(seen) + 200)
        # The lease, the interval of the sweep that finds it lapsed, and the model's first words.
        assert time.monotonic() - killed < LEASE + 1 + 1.5
        message = await answer.check_end()
        assert text_of(message).startswith(seen)
        assert notices(message) == ["resumed"]
    assert_verified(env)


async def test_a_frozen_and_replaced_executor_cannot_write_any_more(
    servers: tuple[Server, Worker, Worker], env: Mapping[str, str], database_url: str
) -> None:
    server, *workers = servers
    async with observed_run(server) as answer:
        await answer.wait_for_word(60)
        held, _ = await holder(database_url, answer.run_id, tuple(workers))
        held.send_signal(signal.SIGSTOP)
        try:
            await answer.wait_for_word(150)
        finally:
            held.send_signal(signal.SIGCONT)
        message = await answer.check_end()
        assert notices(message) == ["resumed"]
        held.wait_for('lost"', within=5)
        assert await fetchval(database_url, "SELECT epoch FROM runs WHERE id = $1", answer.run_id) == 2
    assert_verified(env)


async def test_after_a_restart_of_a_killed_server_its_observers_continue_from_their_cursors(
    own_server: Server, database_url: str
) -> None:
    async with observed_run(own_server) as answer:
        await answer.wait_for_word(60)
        await asyncio.to_thread(own_server.restart)
        message = await answer.check_end()
        assert notices(message) == ["resumed"]
        for observer in answer.observers:
            assert observer.connects == 2
            assert observer.view.snapshots == 1
    assert not own_server.crashes()
    assert_verified({"DATABASE_URL": database_url})


async def test_after_a_restart_of_a_killed_postgres_the_same_server_continues(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = {"KHALA_HOME": str(home), "KHALA_MODEL": "demo", "KHALA_GRACE_SECONDS": "0", "DATABASE_URL": ""}
    server = Server(tmp_path / "server.log", settings)
    with ended(server):
        server.start()
        async with observed_run(server) as answer:
            await answer.wait_for_word(60)
            postmaster = psutil.Process(int((home / "postgres/data/postmaster.pid").read_text().split()[0]))
            postmaster.kill()
            await answer.check_end()
        assert not postmaster.is_running()
        assert not server.crashes()
        assert_verified(settings)


async def test_a_lost_listen_connection_delays_observers_by_less_than_the_slow_poll(database_url: str) -> None:
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'khala listener' "
    async with khala(database_url) as server, observed_run(server, words=300) as answer:
        for word in (60, 120, 180):
            await answer.wait_for_word(word)
            # The listener must have reconnected, or nothing would be terminated here.
            assert await fetchval(database_url, f"{cut} AND datname = current_database()") == 1
        await answer.check_end()
        for observer in answer.observers:
            assert longest_pause(observer) < 3
    assert_verified({"DATABASE_URL": database_url})


def longest_pause(observer: Observer, waits: CoreWaits | None = None) -> float:
    """The longest interval between two frames in seconds, without the time in which processes waited for a core."""
    return max(
        later - earlier - (waits.between(earlier, later) if waits else 0)
        for earlier, later in zip(observer.arrivals, observer.arrivals[1:], strict=False)
    )


async def test_a_flush_whose_acknowledgement_is_lost_is_repeated_without_an_effect(database_url: str) -> None:
    async with proxy(database_url) as between, khala(between.url) as server, observed_run(server, words=480) as answer:
        for word in (20, 90, 160):
            await answer.wait_for_word(word)
            between.commits_to_lose = 1
            async with asyncio.timeout(15):
                while between.commits_to_lose:  # else two of them coincide on a slow machine
                    await asyncio.sleep(0.01)
        between.mark, between.commits_to_lose = b'"reason"', 1
        await answer.check_end()
        assert between.lost_commits == 4
        await assert_every_revision_is_of_one_flush(database_url, answer)
    assert_verified({"DATABASE_URL": database_url})


async def assert_every_revision_is_of_one_flush(database_url: str, answer: ObservedRun) -> None:
    """Assert that every revision of the thread after the send has parts."""
    query = """
        SELECT threads.revision - (SELECT revision FROM messages WHERE id = user_message_id)
             - (SELECT count(DISTINCT revision) FROM message_parts WHERE run_id = runs.id)
        FROM runs JOIN threads ON threads.id = thread_id WHERE runs.id = $1
    """
    assert await fetchval(database_url, query, answer.run_id) == 0


async def test_lost_database_connections_and_an_outage_longer_than_the_lease_lose_no_text(database_url: str) -> None:
    async with (
        proxy(database_url) as between,
        khala(between.url, KHALA_LEASE_SECONDS="1") as server,
        observed_run(server) as answer,
    ):
        for word in (30, 60, 90):
            await answer.wait_for_word(word)
            await between.cut()
        await answer.wait_for_word(120)
        async with between.outage():
            await asyncio.sleep(OUTAGE)
        message = await answer.check_end()
        assert notices(message) == []
        await assert_works(answer.thread)
    assert_verified({"DATABASE_URL": database_url})


async def assert_works(thread: Thread) -> None:
    """Assert that another question is answered within 3 seconds."""
    sent = await thread.send("/words=20 /pace=100")
    assert (await thread.ended(sent["runId"], within=3))["status"] == "final"


async def test_an_executor_whose_own_lease_lapsed_continues_its_run(database_url: str) -> None:
    lapse = """
        WITH lapsed AS (UPDATE runs SET lease_expires_at = now() - interval '1 hour' WHERE status = 'running')
        SELECT pg_notify('khala_runs', '')::text
    """
    async with khala(database_url) as server, observed_run(server) as answer:
        await answer.wait_for_word(60)
        # as after missed heartbeats, whether a sweep or a heartbeat comes next
        for _ in range(20):
            await fetchval(database_url, lapse)
            await asyncio.sleep(0.02)
        message = await answer.check_end()
        assert notices(message) == []
        await assert_works(answer.thread)
    assert_verified({"DATABASE_URL": database_url})


async def test_a_slow_observer_delays_no_other_one_and_misses_nothing(own_server: Server, database_url: str) -> None:
    async with (
        observed_thread(own_server) as (thread, quick, _),
        core_waits(database_url, own_server.pid, os.getpid()) as waits,
    ):
        slow = Observer(own_server.socket_url, thread, receive_buffer=8192)
        async with slow.following():
            await slow.until(lambda view: view.revision is not None)
            slow.pause()
            before = psutil.Process(own_server.pid).memory_info().rss
            answers, most = await send_long_answers(own_server, thread, quick, waits)
            assert most - before < MOST_GROWTH
            assert longest_pause(quick, waits) < 1
            assert answers[-1] not in slow.view.finished
            slow.resume()
            await slow.until(lambda view: answers[-1] in view.finished, within=5)
            stored = {message["id"]: text_of(message) for message in (await thread.snapshot())["messages"]}
            for answer in answers:
                assert stored[answer] == quick.view.text(answer) == slow.view.text(answer)
            # Its queued frames were dropped and read again at once.
            assert slow.view.snapshots == 2 or slow.view.max_delta_revisions > 10 * quick.view.max_delta_revisions
            assert slow.connects == 1
    assert not own_server.crashes()
    assert_verified({"DATABASE_URL": database_url})


async def send_long_answers(server: Server, thread: Thread, quick: Observer, waits: CoreWaits) -> tuple[list[str], int]:
    """Send long, fast answers while the slow observer sleeps; returns their ids and the server's peak memory."""
    answers: list[str] = []
    most = 0
    end = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < end:
        sent = await thread.send("/words=20000 /pace=10000")
        answers.append(sent["assistantMessageId"])
        run = await thread.ended(sent["runId"])
        assert run["status"] == "final"
        stored_at = time.monotonic()
        await quick.until(lambda view: answers[-1] in view.finished)
        assert time.monotonic() - stored_at - waits.between(stored_at) < 1
        assert quick.view.text(answers[-1]) == numbered(20000)
        most = max(most, psutil.Process(server.pid).memory_info().rss)
    return answers, most


async def test_an_observer_that_reconnects_all_the_time_misses_nothing(database_url: str) -> None:
    async with khala(database_url) as server, observed_run(server) as answer:
        restless = answer.observers[1]
        while answer.answer not in restless.view.finished:
            await asyncio.sleep(0.1)
            await restless.drop()
        await answer.check_end()
        assert restless.connects > 15
        assert restless.view.snapshots == 1
    assert_verified({"DATABASE_URL": database_url})


@pytest.mark.parametrize("lease", [30.0])
async def test_a_worker_that_is_told_to_stop_hands_its_run_over(
    servers: tuple[Server, Worker, Worker], env: Mapping[str, str], database_url: str
) -> None:
    server, *workers = servers
    pids = (process.pid for process in (server, *workers))
    async with observed_run(server) as answer, core_waits(database_url, os.getpid(), *pids) as waits:
        await answer.wait_for_word(60)
        held, other = await holder(database_url, answer.run_id, tuple(workers))
        held.send_signal(signal.SIGTERM)
        assert await until_gone(held, within=3) == 0
        seen = answer.known_text()
        assert await fetchval(database_url, "SELECT status FROM runs WHERE id = $1", answer.run_id) == "running"
        message = await answer.check_end()
        assert text_of(message).startswith(seen)
        assert notices(message) == ["resumed"]
        assert other.running()
        assert longest_pause(answer.observers[0], waits) < 1, "the worker released its lease of 30 s"
    assert_verified(env)


async def test_a_worker_with_enough_grace_ends_its_run_before_it_stops(
    env: Mapping[str, str], database_url: str, tmp_path: Path
) -> None:
    server = Server(tmp_path / "server.log", env, "--no-executor")
    worker = Worker(tmp_path / "worker.log", {**env, "KHALA_GRACE_SECONDS": "20"})
    with ended(server, worker):
        worker.start()
        server.start()
        async with observed_run(server, words=180) as answer:
            await answer.wait_for_word(60)
            worker.send_signal(signal.SIGTERM)
            message = await answer.check_end()
            assert notices(message) == []
            assert await until_gone(worker, within=3) == 0
        assert not [*server.crashes(), *worker.crashes()]
    assert_verified(env)


async def test_a_cancel_from_another_process_reaches_a_silent_model_at_once(
    servers: tuple[Server, Worker, Worker], env: Mapping[str, str], database_url: str
) -> None:
    server, *workers = servers
    pids = (process.pid for process in (server, *workers))
    async with (
        observed_run(server, words=300, more="/hang=20") as answer,
        core_waits(database_url, os.getpid(), *pids) as waits,
    ):
        await answer.wait_for_word(19)
        await holder(database_url, answer.run_id, tuple(workers))
        began = time.monotonic()
        response = await answer.thread.http.post(f"/api/runs/{answer.run_id}/cancel", headers=answer.thread.headers)
        assert response.status_code == 202
        message = await answer.check_end(status="canceled", text=numbered(20) + " ")
        assert time.monotonic() - began - waits.between(began) < 2, "the model is silent for 20 s"
        parts = await answer.thread.parts(answer.run_id)
        assert parts[-1]["data"]["reason"] == message["finish"]["reason"] == "canceled"
        again = await answer.thread.http.post(f"/api/runs/{answer.run_id}/cancel", headers=answer.thread.headers)
        assert again.status_code == 200
        # The thread accepts the next question, and no frame of the old answer arrives any more.
        sent = await answer.thread.send("/words=50 /pace=100")
        await answer.thread.ended(sent["runId"])
        assert await answer.thread.parts(answer.run_id) == parts
    assert_verified(env)


async def all_sent(thread: Thread, bodies: list[dict[str, str]], database_url: str) -> list[httpx.Response]:
    """Send all of them at once. An answer of 503 is accepted, and retried, only on a machine that stalls transactions.

    Postgres ends a transaction of which it hears nothing for `STALL` seconds.
    """
    busy: list[httpx.Response] = []

    async def send(body: dict[str, str]) -> httpx.Response:
        async with asyncio.timeout(60):
            while (answer := await thread.post("send", body)).status_code == 503:
                busy.append(answer)
                await asyncio.sleep(int(answer.headers["Retry-After"]))
            return answer

    async with core_waits(database_url, os.getpid()) as waits:
        began = time.monotonic()
        answers = await asyncio.gather(*(send(body) for body in bodies))
        assert not busy or waits.between(began) > STALL, busy[0].text
    return answers


async def test_one_of_many_sends_at_once_is_accepted_and_the_others_get_a_conflict(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        body = {"text": "/words=60 /pace=60"}
        bodies = [body | {"messageId": str(ids.new())} for _ in range(SENDS)]
        answers = await all_sent(thread, bodies, database_url)
        assert sorted(answer.status_code for answer in answers) == [202] + [409] * (SENDS - 1)
        assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"run_active"}
        await thread.ended(next(answer.json()["runId"] for answer in answers if answer.status_code == 202))
    assert_verified({"DATABASE_URL": database_url})


async def test_the_same_send_many_times_at_once_is_one_run(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        body = {"text": "/words=60 /pace=60", "messageId": str(ids.new())}
        answers = await all_sent(thread, [body] * SENDS, database_url)
        assert sorted(answer.status_code for answer in answers) == [200] * (SENDS - 1) + [202]
        first = answers[0].json()
        assert all(answer.json() == first for answer in answers)
        assert (await thread.ended(first["runId"]))["status"] == "final"
    assert await fetchval(database_url, "SELECT count(*) FROM runs") == 1
    assert_verified({"DATABASE_URL": database_url})
