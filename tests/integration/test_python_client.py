"""The Python client against a running server, on real sockets that are cut."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from khala_client import (
    AsyncKhala,
    FollowOptions,
    Khala,
    KhalaError,
    NotFound,
    RetryPolicy,
    RunOptions,
    ThreadState,
)
from tests.support.answer_dropping import losing_answers
from tests.support.forwarder import Forwarder
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN_SECONDS = 20.0
QUICK = RetryPolicy(base_delay=0.02, max_delay=0.1)

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def khala(server: InProcessServer) -> AsyncIterator[AsyncKhala]:
    async with AsyncKhala(server.url, retry=QUICK) as client:
        yield client


def words(count: int) -> str:
    return " ".join(f"word{number}" for number in range(1, count + 1))


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_an_answer_is_streamed_as_it_is_stored(khala: AsyncKhala, transport: str) -> None:
    thread = await khala.threads.create(title="One")
    run = await thread.send("/words=40 /pace=200")
    options = FollowOptions(transport=transport)  # type: ignore[arg-type]
    pieces = [piece async for piece in run.stream_text(options=options)]
    assert "".join(pieces) == words(40)
    assert len(pieces) > 1
    result = await run.result(timeout=30)
    assert (result.text, result.finish.reason) == (words(40), "stop")
    assert (await run.get()).status == "final"


async def test_a_stream_survives_connections_that_are_cut(server: InProcessServer) -> None:
    forwarder = Forwarder(int(server.url.rpartition(":")[2]))
    forwarder.up()
    try:
        async with AsyncKhala(forwarder.url, retry=QUICK) as khala:
            run = await (await khala.threads.create()).send("/words=150 /pace=150")
            text, cuts = "", 0
            async for piece in run.stream_text():
                text += piece
                if cuts < 5 and len(text) > 100 * (cuts + 1):
                    cuts += forwarder.cut() > 0
    finally:
        forwarder.down()
    assert (text, cuts) == (words(150), 5)


async def test_a_send_whose_answer_is_lost_is_stored_once(server: InProcessServer) -> None:
    async with AsyncKhala(server.url) as direct, losing_answers(server.url, 2) as proxy:
        thread = await direct.threads.create()
        async with AsyncKhala(proxy.url, retry=QUICK) as khala:
            run = await khala.thread(thread.id, anon_key=thread.anon_key).send("/words=5")
        assert proxy.lost == 2
        found = await direct.thread(thread.id, anon_key=thread.anon_key).run(run.id)
        assert (await found.result(timeout=30)).text == words(5)
        assert len((await thread.snapshot()).messages) == 3, "the welcome, the question and one answer"


async def test_a_follow_continues_from_a_stored_state_in_another_client(
    khala: AsyncKhala, server: InProcessServer
) -> None:
    thread = await khala.threads.create()
    run = await thread.send("/words=100 /pace=200")
    stored = b""
    async with thread.follow() as updates:
        async for update in updates:
            answer = update.state.message(run.message_id)
            if answer is not None and len(answer.text) > 60:
                stored = update.state.to_json()
                break
    async with AsyncKhala(server.url) as other:
        again = other.thread(thread.id, anon_key=thread.anon_key)
        async with again.follow(after=ThreadState.from_json(stored)) as updates:
            async for update in updates:
                assert not update.is_snapshot
                answer = update.state.message(run.message_id)
                if answer is not None and answer.has_ended:
                    break
        assert answer is not None
        assert answer.text == words(100)
        snapshot = await again.snapshot()
        assert [one.content for one in snapshot.messages] == [one.content for one in update.state.messages]


async def test_a_stream_that_was_interrupted_has_no_end_that_looks_like_one(khala: AsyncKhala) -> None:
    run = await (await khala.threads.create()).send("/words=2000 /pace=20")
    text = run.stream_text()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            _ = [piece async for piece in text]
    with pytest.raises(KhalaError) as raised:
        _ = [piece async for piece in text]
    assert raised.value.code == "interrupted"
    await run.cancel()


async def test_a_deleted_thread_ends_its_streams(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    run = await thread.send("/words=2000 /pace=50")
    text = run.stream_text()
    await anext(text)
    await thread.delete()
    with pytest.raises(NotFound):
        _ = [piece async for piece in text]
    with pytest.raises(NotFound):
        _ = [update async for update in thread.follow()]
    with pytest.raises(NotFound):
        await thread.delete()


async def test_a_reset_replaces_the_state_and_ends_the_streams_of_runs(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    run = await thread.send("/words=5")
    await run.result(timeout=WITHIN_SECONDS)
    async with asyncio.timeout(WITHIN_SECONDS), thread.follow() as updates:
        assert len((await anext(updates)).state.messages) == 3
        await thread.reset()
        async for update in updates:
            if update.is_reset:
                break
    assert (update.is_snapshot, [one.role for one in update.state.messages]) == (True, ["assistant"])
    with pytest.raises(NotFound):
        _ = [piece async for piece in run.stream_text()]


async def test_the_client_without_asyncio_does_the_same(server: InProcessServer) -> None:
    def use() -> tuple[str, str, int]:
        with Khala(server.url, anon_key="k" * 40, retry=QUICK) as khala:
            thread = khala.threads.create()
            khala.threads.create()
            run = thread.send("/words=30 /pace=200", RunOptions(if_busy="queue"))
            text = "".join(run.stream_text())
            for update in thread.follow():
                if update.is_snapshot:
                    break
            return text, run.result(timeout=30).text, len(list(khala.threads.list(page_size=1)))

    assert await asyncio.to_thread(use) == (words(30), words(30), 2)


async def test_the_client_without_asyncio_is_closed_and_interrupted_at_any_time(server: InProcessServer) -> None:
    def use() -> None:
        before = threading.active_count()
        khala = Khala(server.url, retry=QUICK)
        thread = khala.threads.create()
        run = thread.send("/words=5000 /pace=20")
        with run.stream_text() as text:
            next(text)
        waiting = run.stream_text()
        next(waiting)
        ended: list[BaseException] = []

        def read() -> None:
            try:
                list(waiting)
            except KhalaError as error:
                ended.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        khala.close()
        reader.join(WITHIN_SECONDS)
        khala.close()
        assert [error.code for error in ended if isinstance(error, KhalaError)] == ["closed"]
        with pytest.raises(KhalaError):
            thread.snapshot()
        waiting.close()
        assert threading.active_count() == before
        again = Khala(server.url, retry=QUICK)
        again.thread(thread.id, anon_key=thread.anon_key).run(run.id).cancel()
        del again
        gc.collect()
        assert threading.active_count() == before, "a client that is forgotten ends its thread"

    await asyncio.to_thread(use)


async def test_files_are_uploaded_and_downloaded_as_streams(khala: AsyncKhala, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789abcdef" * 100_000)
    thread = await khala.threads.create()
    blob = await thread.upload(path, name="a.txt", media_type="text/plain")
    assert (blob.name, blob.size) == ("a.txt", 1_600_000)
    assert b"".join([piece async for piece in thread.download(blob)]) == path.read_bytes()
    pieces = await thread.upload([b"one ", b"two"], name="b.txt")
    assert b"".join([piece async for piece in thread.download(pieces.blob_id)]) == b"one two"
    run = await thread.send("/words=3", attachments=[blob, pieces])
    await run.result(timeout=30)
