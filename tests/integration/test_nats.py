"""Wake-ups over NATS: as fast as NOTIFY, and only delayed when a message or the server is lost."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import pytest

from khala.domain.parts import Finish, TokenUsage
from khala.live import fallback_poll, nats_bus
from khala.live.nats_bus import MAX_PENDING_BYTES, NatsBus
from khala.live.nats_url import NatsServers, parse
from khala.live.service import LiveService
from khala.store.postgres.database import (
    Database,
    driver_url,
)
from khala.store.postgres.notifications import (
    EVERYTHING,
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.runs.group_commit import WakeBus
from tests.support.client import Observer, Thread
from tests.support.live import follow, recording
from tests.support.nats import NatsServer, nats_server
from tests.support.observed_run import ObservedRun, assert_verified
from tests.support.postgres_proxy import proxy
from tests.support.server import Server, Worker, command, ended
from tests.support.store import lease_of, new_thread, writing

LOGIN = ("khala", "en-taro-adun")
NOBODY = f"nats://{LOGIN[0]}:{LOGIN[1]}@127.0.0.1:1"
SLACK = 5.0
"""Seconds that a busy machine may add to what is bounded."""


class ReceivedPayloads:
    """The payloads that a channel has received."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, payload: str) -> None:
        self.payloads.append(payload)
        self._news.set()

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        """Wait until the payloads meet the condition."""
        async with asyncio.timeout(20):
            while not condition(self.payloads):
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def connected_bus(server: NatsServer, **handlers: Callable[[str], None]) -> AsyncIterator[NatsBus]:
    """A connected bus with these handlers, by channel."""
    bus = NatsBus(parse(server.url()))
    task = asyncio.create_task(bus.run(handlers))
    try:
        await connected(bus)
        yield bus
    finally:
        task.cancel()
        await asyncio.wait({task})


async def connected(bus: WakeBus, *, really: bool = True) -> None:
    async with asyncio.timeout(20):
        while bus.connected is not really:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def notifications_on(database_url: str, channel: str) -> AsyncIterator[list[str]]:
    """The payloads that Postgres notifies on this channel."""
    payloads: list[str] = []
    connection = await asyncpg.connect(driver_url(database_url))
    await connection.add_listener(channel, lambda *word: payloads.append(str(word[-1])))
    try:
        yield payloads
    finally:
        await connection.close()


async def test_a_group_commit_is_published_by_nats_alone_and_by_notify_during_an_outage(
    db: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback_poll, "POLL_INTERVAL_SECONDS", 3600.0)  # so that only a wake-up can report the change
    lease = await lease_of(db, await new_thread(db))
    live = LiveService(db, db)
    with nats_server() as server:
        async with (
            connected_bus(server, **{THREADS_CHANNEL: live.threads.handle_notification}) as bus,
            notifications_on(database_url, THREADS_CHANNEL) as by_postgres,
            writing(db, bus=bus) as writer,
            recording(live, 1) as (recorder,),
        ):
            await follow(live.threads, db, recorder.client, lease.thread_id)
            await recorder.until(2)
            stream = writer.open(lease)
            stream.append_text("By NATS. ")
            await recorder.until(3)
            assert by_postgres == []
            server.kill()
            await connected(bus, really=False)
            stream.append_text("By NOTIFY. ")
            await stream.wait_written()
            async with asyncio.timeout(5):
                while not by_postgres:
                    await asyncio.sleep(0.01)
            assert by_postgres == [str(lease.thread_id)]
            server.start()
            await connected(bus)
            await stream.end("final", Finish(reason="stop", usage=TokenUsage()))
            await recorder.until(5)
            assert by_postgres == [str(lease.thread_id)]


class LossyBus:
    """The bus of a process that dies between each commit and its wake-up."""

    connected = True

    async def publish(self, channel: str, payload: str) -> None:
        """Say nothing."""


async def test_a_commit_without_a_wake_up_is_found_by_the_slow_poll(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    live = LiveService(db, db)
    async with writing(db, bus=LossyBus()) as writer, recording(live, 1) as (recorder,):
        await follow(live.threads, db, recorder.client, lease.thread_id)
        await recorder.until(2)
        stream = writer.open(lease)
        stream.append_text("Nobody is told of this.")
        await stream.wait_written()
        frame = await recorder.until(3)
    assert frame["parts"][0]["data"]["text"] == "Nobody is told of this."


class RecordingBus:
    """A bus that records the published messages."""

    connected = True

    def __init__(self) -> None:
        self.published: list[tuple[str, str]] = []

    async def publish(self, channel: str, payload: str) -> None:
        """Keep it."""
        self.published.append((channel, payload))


async def test_a_commit_without_an_acknowledgement_is_published_once_it_is_found(
    db: Database, database_url: str
) -> None:
    lease = await lease_of(db, await new_thread(db))
    bus = RecordingBus()
    async with proxy(database_url) as between:
        far = Database(between.url)
        async with writing(far, bus=bus) as writer:
            stream = writer.open(lease)
            between.mark = lease.run_id.bytes
            between.commits_to_lose = 1
            stream.append_text("Committed, and nobody heard.")
            await stream.wait_written()
            assert between.lost_commits == 1
            assert bus.published == [(THREADS_CHANNEL, str(lease.thread_id))]
            await stream.end("final", Finish(reason="stop", usage=TokenUsage()))
        await far.close()
    assert bus.published[1:] == [(THREADS_CHANNEL, str(lease.thread_id)), (RUNS_CHANNEL, "")]


async def test_after_a_restart_of_the_server_all_processes_reread_everything_and_get_messages_again() -> None:
    received = ReceivedPayloads()
    with nats_server() as server:
        async with (
            connected_bus(server, **{THREADS_CHANNEL: received}),
            connected_bus(server, **{THREADS_CHANNEL: ReceivedPayloads()}) as teller,
        ):
            assert received.payloads == [EVERYTHING]
            await teller.publish(THREADS_CHANNEL, "one")
            await received.until(lambda payloads: "one" in payloads)
            server.kill()
            await connected(teller, really=False)
            await teller.publish(THREADS_CHANNEL, "lost")
            server.start()
            # A reconnect of either side; after both, messages arrive.
            await received.until(lambda payloads: EVERYTHING in payloads[2:])
            await connected(teller)
            await teller.publish(THREADS_CHANNEL, "two")
            await received.until(lambda payloads: "two" in payloads)
    assert "lost" not in received.payloads


async def test_a_publisher_that_may_have_lost_messages_makes_all_reread_everything_once_reconnected() -> None:
    received = ReceivedPayloads()
    with nats_server() as server:
        async with connected_bus(server, **{THREADS_CHANNEL: received}), connected_bus(server) as teller:
            client = teller._client
            assert client is not None
            assert client._transport is not None
            client._transport.close()  # type: ignore[no-untyped-call]
            await received.until(lambda payloads: payloads == [EVERYTHING, EVERYTHING])


async def test_a_frozen_server_blocks_no_publisher_and_uses_little_memory() -> None:
    received = ReceivedPayloads()
    with nats_server() as server:
        async with connected_bus(server, **{THREADS_CHANNEL: received}) as bus:
            server.send_signal(signal.SIGSTOP)
            payload = "x" * 50_000
            async with asyncio.timeout(4):
                while bus.connected:
                    await bus.publish(THREADS_CHANNEL, payload)
                    await asyncio.sleep(0)
            await bus.publish(THREADS_CHANNEL, payload)
            client = bus._client
            assert client is not None
            assert client.pending_data_size < MAX_PENDING_BYTES + 2 * len(payload)
            server.send_signal(signal.SIGCONT)
            await connected(bus)
            await bus.publish(THREADS_CHANNEL, "after")
            await received.until(lambda payloads: "after" in payloads)


async def test_a_subscriber_that_cannot_keep_up_rereads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_bus, "MAX_PENDING_MESSAGES", 1)
    received = ReceivedPayloads()
    with nats_server() as server:
        async with connected_bus(server, **{THREADS_CHANNEL: received}) as bus:
            for _ in range(1000):  # without a pause: nothing here yields
                await bus.publish(THREADS_CHANNEL, "much")
            await received.until(lambda payloads: payloads.count(EVERYTHING) > 1)


async def test_an_invalid_message_is_ignored(db: Database) -> None:
    thread_id = await new_thread(db)
    live = LiveService(db, db)
    received = ReceivedPayloads()

    def notified(payload: str) -> None:
        live.threads.handle_notification(payload)
        received(payload)

    with nats_server() as server:
        async with connected_bus(server, **{THREADS_CHANNEL: notified}) as bus:
            client = bus._client
            assert client is not None
            for garbage in (b"", b"no id", b"\xff\xfe", b"x" * 100_000):
                await client.publish(f"khala.{THREADS_CHANNEL}", garbage)
            await bus.publish(THREADS_CHANNEL, str(thread_id))
            await received.until(lambda payloads: str(thread_id) in payloads)
    assert [UUID(result) for result in received.payloads[1:]] == [thread_id]


async def test_databases_that_share_a_server_do_not_receive_each_others_messages() -> None:
    received, other = ReceivedPayloads(), ReceivedPayloads()
    with nats_server() as server:
        elsewhere = NatsBus(parse(f"{server.url()}/elsewhere"))
        task = asyncio.create_task(elsewhere.run({THREADS_CHANNEL: other}))
        try:
            async with connected_bus(server, **{THREADS_CHANNEL: received}) as bus:
                await connected(elsewhere)
                await elsewhere.publish(THREADS_CHANNEL, "there")
                await bus.publish(THREADS_CHANNEL, "here")
                await received.until(lambda payloads: "here" in payloads)
                await other.until(lambda payloads: "there" in payloads)
        finally:
            task.cancel()
            await asyncio.wait({task})
    assert (received.payloads, other.payloads) == ([EVERYTHING, "here"], [EVERYTHING, "there"])


async def test_a_refused_connection_is_reported_without_the_password() -> None:
    with nats_server(login=LOGIN) as server:
        await NatsBus(parse(server.url(":".join(LOGIN)))).check()
        for url in (server.url("khala:wrong-secret"), server.url("wrong-secret"), server.url()):
            with pytest.raises(ConnectionError, match="Authorization Violation") as refused:
                await NatsBus(parse(url)).check()
            assert "secret" not in str(refused.value)
    with nats_server(token="t:o%k") as server:
        await NatsBus(NatsServers(servers=(server.url(),), token="t:o%k")).check()
        # A server that is down is passed over for another one.
        await NatsBus(NatsServers(servers=("nats://127.0.0.1:1", server.url()), token="t:o%k")).check()


def test_a_server_that_is_not_there_is_an_error_at_the_start(database_url: str) -> None:
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_WAKE_URL": NOBODY}
    for words in (("serve",), ("work",)):
        done = command(env | {"PORT": "0"}, *words)
        assert done.returncode == 1
        assert "KHALA_WAKE_URL: NATS at nats://127.0.0.1:1 is out of reach" in done.stderr
        assert LOGIN[1] not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


async def test_an_answer_crosses_processes_whole_while_the_server_is_killed_frozen_and_restarted(
    database_url: str, tmp_path: Path
) -> None:
    with nats_server(login=LOGIN) as nats:
        env = {
            "DATABASE_URL": database_url,
            "KHALA_MODEL": "demo",
            "KHALA_GRACE_SECONDS": "0",
            "KHALA_WAKE_URL": nats.url(":".join(LOGIN)),
        }
        web = Server(tmp_path / "web.log", env, "--no-executor")
        worker = Worker(tmp_path / "worker.log", env)
        with ended(web, worker):
            worker.start()
            web.start()
            worker.wait_for("Khala works as")
            async with httpx.AsyncClient(base_url=web.url, timeout=30) as http:
                thread = await Thread.create(http)
                one, two = Observer(web.socket_url, thread), Observer(web.socket_url, thread)
                async with one.following(), two.following():
                    await one.until(lambda view: view.revision is not None)
                    sent = await thread.send("/words=300 /pace=40")
                    answer = ObservedRun(thread, sent, (one, two), 300)
                    await answer.wait_for_word(40)
                    nats.kill()
                    await answer.wait_for_word(90)
                    nats.start()
                    await answer.wait_for_word(150)
                    nats.send_signal(signal.SIGSTOP)
                    await answer.wait_for_word(190)
                    nats.send_signal(signal.SIGCONT)
                    await answer.check_end()
        for process in (web, worker):
            assert "nats_disconnected" in process.log.read_text()
            assert LOGIN[1] not in process.log.read_text()
            assert not process.crashes()
        for observer in (one, two):
            pauses = [later - at for at, later in zip(observer.arrivals, observer.arrivals[1:], strict=False)]
            assert max(pauses) < fallback_poll.POLL_INTERVAL_SECONDS + SLACK
    assert_verified({"DATABASE_URL": database_url})
