"""The feed of the Python client against servers that misbehave: gaps, floods, proxies, refused tokens."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import websockets
from websockets.asyncio.server import ServerConnection, serve

from khala.domain import ids
from khala_client import (
    AsyncKhala,
    ConnectionFailed,
    FollowOptions,
    KhalaError,
    RetryPolicy,
    ThreadUpdate,
    Unauthenticated,
    feed,
)
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = RetryPolicy(base_delay=0.02, max_delay=0.1)
TIME = "2026-01-01T00:00:00Z"
THREAD, RUN, ANSWER = (str(ids.new()) for _ in range(3))
WITHIN_SECONDS = 20.0
PROTOCOLS = [websockets.Subprotocol("khala.v1")]

Script = Callable[[ServerConnection, AsyncIterator[dict[str, Any]]], Awaitable[None]]

server = server_fixture()


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """A server of WebSockets that says hello and then follows the script, with the frames of the client."""

    async def handle(socket: ServerConnection) -> None:
        await send(socket, type="hello", protocol=1, heartbeatSeconds=25)

        async def received() -> AsyncIterator[dict[str, Any]]:
            async for message in socket:
                yield json.loads(message)

        with contextlib.suppress(websockets.ConnectionClosed):
            await script(socket, received())

    async with serve(handle, "127.0.0.1", 0, subprotocols=PROTOCOLS, compression=None) as running:
        yield f"http://127.0.0.1:{next(iter(running.sockets)).getsockname()[1]}"


async def send(socket: ServerConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def send_snapshot(socket: ServerConnection, revision: int, text: str = "") -> None:
    thread = {"id": THREAD, "visibility": "private", "revision": revision, "createdAt": TIME, "updatedAt": TIME}
    message: dict[str, Any] = {
        "id": ANSWER,
        "threadId": THREAD,
        "role": "assistant",
        "status": "streaming",
        "runId": RUN,
    }
    message |= {"seq": len(text), "content": [{"type": "text", "text": text}], "createdAt": TIME, "updatedAt": TIME}
    fields = {"revision": revision, "thread": thread, "messages": [message], "hasMore": False}
    await send(socket, type="snapshot", threadId=THREAD, **fields)


async def send_delta(socket: ServerConnection, since: int, seq: int, text: str) -> None:
    part = {"runId": RUN, "messageId": ANSWER, "seq": seq, "kind": "text-delta", "createdAt": TIME}
    parts = [part | {"data": {"text": text}}]
    fields = {"from": since, "revision": since + 1, "messages": [], "parts": parts}
    await send(socket, type="delta", threadId=THREAD, **fields)


async def until_text(url: str, text: str) -> list[ThreadUpdate]:
    """The updates until the answer has this text."""
    taken = []
    options = FollowOptions(transport="websocket")
    async with (
        asyncio.timeout(WITHIN_SECONDS),
        AsyncKhala(url, retry=QUICK) as khala,
        khala.thread(THREAD).follow(options=options) as updates,
    ):
        async for update in updates:
            taken.append(update)
            if update.state.messages[0].text == text:
                break
    return taken


async def test_missing_revisions_are_requested_again_on_the_same_connection() -> None:
    subscribed = []

    async def script(socket: ServerConnection, frames: AsyncIterator[dict[str, Any]]) -> None:
        subscribed.append((await anext(frames)).get("after"))
        await send_snapshot(socket, 5, "a")
        await send(socket, type="weather", threadId=THREAD, rain=True)
        await send_delta(socket, 6, 2, "c")
        await send_delta(socket, 7, 3, "d")
        subscribed.append((await anext(frames)).get("after"))
        for number, letter in enumerate("bcde"):
            await send_delta(socket, 5 + number, 1 + number, letter)
        await anext(frames)

    async with scripted(script) as url:
        updates = await until_text(url, "abcde")
    assert subscribed == [None, 5]
    assert [update.is_snapshot for update in updates] == [True, False, False, False, False]


async def test_revisions_that_never_come_are_replaced_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "REPAIR_TIMEOUT_SECONDS", 0.0)
    subscribed = []

    async def script(socket: ServerConnection, frames: AsyncIterator[dict[str, Any]]) -> None:
        subscribed.append((await anext(frames)).get("after"))
        await send_snapshot(socket, 5 + len(subscribed), "a" * len(subscribed))
        while len(subscribed) == 1:
            await send_delta(socket, 90, 90, "z")
            await asyncio.sleep(0)

    async with scripted(script) as url:
        updates = await until_text(url, "aa")
    assert subscribed == [None, None]
    assert updates[-1].is_snapshot


async def test_parts_that_are_missing_are_replaced_by_a_snapshot() -> None:
    subscribed = []

    async def script(socket: ServerConnection, frames: AsyncIterator[dict[str, Any]]) -> None:
        subscribed.append((await anext(frames)).get("after"))
        await send_snapshot(socket, 5, "a" * len(subscribed))
        await send_delta(socket, 5, 7, "z")
        await anext(frames)

    async with scripted(script) as url:
        await until_text(url, "aa")
    assert subscribed == [None, None]


async def test_a_slow_consumer_makes_the_server_wait() -> None:
    sent, stalled = 0, asyncio.Event()
    text = "x" * 100_000

    async def script(socket: ServerConnection, frames: AsyncIterator[dict[str, Any]]) -> None:
        nonlocal sent
        await anext(frames)
        await send_snapshot(socket, 1)
        for number in range(2_000):
            try:
                async with asyncio.timeout(1):
                    await send_delta(socket, 1 + number, number, text)
            except TimeoutError:
                stalled.set()
                return
            sent += 1

    async with scripted(script) as url, AsyncKhala(url) as khala, khala.thread(THREAD).follow() as updates:
        await anext(updates)
        async with asyncio.timeout(WITHIN_SECONDS):
            await stalled.wait()
    assert sent < 200, "frames of 100 kB that sockets and the client hold"


async def test_a_follow_ends_when_there_was_no_connection_for_too_long() -> None:
    policy = RetryPolicy(base_delay=0.01, max_delay=0.02, max_disconnected=0.3)
    async with AsyncKhala("http://127.0.0.1:9", retry=policy) as khala:
        phases: list[str] = []
        options = FollowOptions(on_connection=phases.append)
        async with asyncio.timeout(WITHIN_SECONDS):
            with pytest.raises(ConnectionFailed):
                await anext(khala.thread(THREAD).follow(options=options))
    assert phases[:3] == ["connecting", "waiting", "connecting"]


@contextlib.asynccontextmanager
async def without_upgrades(server_url: str) -> AsyncIterator[str]:
    """A proxy that answers 502 to each WebSocket, and forwards all else."""
    port = int(server_url.rpartition(":")[2])

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/api/ws" in head.splitlines()[0]:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            await _forward(head, reader, writer, port)
        writer.close()

    proxy = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with proxy:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"


async def _forward(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    behind, to_server = await asyncio.open_connection("127.0.0.1", port)
    to_server.write(head)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()

    pumps = [asyncio.create_task(pump(reader, to_server)), asyncio.create_task(pump(behind, writer))]
    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    for task in pumps:
        task.cancel()
    to_server.close()


async def test_events_are_used_where_there_is_no_socket(server: InProcessServer) -> None:
    async with without_upgrades(server.url) as url, AsyncKhala(url, retry=QUICK) as khala:
        thread = await khala.threads.create()
        run = await thread.send("/words=30 /pace=100")
        async with asyncio.timeout(WITHIN_SECONDS):
            pieces = [piece async for piece in run.stream_text()]
            assert "".join(pieces) == " ".join(f"word{number}" for number in range(1, 31))
        async with AsyncKhala(url, retry=RetryPolicy(max_disconnected=0)) as strict:
            options = FollowOptions(transport="websocket")
            updates = strict.thread(thread.id, anon_key=thread.anon_key).follow(options=options)
            with pytest.raises(ConnectionFailed):
                await anext(updates)


async def test_a_client_that_is_closed_ends_what_other_tasks_wait_for(server: InProcessServer) -> None:
    khala = AsyncKhala(server.url)
    thread = await khala.threads.create()
    before = asyncio.all_tasks()
    live = asyncio.Event()

    async def follow() -> None:
        async for _ in thread.follow():
            live.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(WITHIN_SECONDS):
        await live.wait()
        await khala.aclose()
        with pytest.raises(KhalaError) as raised:
            await following
    assert raised.value.code == "closed"
    with pytest.raises(KhalaError):
        await thread.snapshot()
    assert {task for task in asyncio.all_tasks() - before if "khala_client" in repr(task)} == set()


async def test_a_cancelled_follow_closes_its_socket(server: InProcessServer) -> None:
    async with AsyncKhala(server.url) as khala:
        thread = await khala.threads.create()
        live = asyncio.Event()

        async def follow() -> None:
            async with thread.follow() as updates:
                async for _ in updates:
                    live.set()

        following = asyncio.create_task(follow())
        async with asyncio.timeout(WITHIN_SECONDS):
            await live.wait()
            assert len(khala._core.http._sockets) == 1
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
        assert khala._core.http._sockets == set()


async def test_a_refused_token_is_renewed_once_for_requests_and_sockets(server: InProcessServer) -> None:
    calls = 0

    async def provider() -> str:
        nonlocal calls
        calls += 1
        return f"wrong-{calls}"

    async with AsyncKhala(server.url, token=provider, retry=QUICK) as khala:
        with pytest.raises(Unauthenticated):
            await khala.me.get()
        assert calls == 2
        with pytest.raises(Unauthenticated):
            await anext(khala.thread(THREAD).follow())
        assert calls == 3
