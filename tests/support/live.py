"""The live layer without a server: hubs, access guard and presence of one process, and observers that follow."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

from khala.domain.access import Caller
from khala.live.hub import Hub
from khala.live.listener import Listener
from khala.live.observer import Observer, OutgoingFrame, Subscription
from khala.live.service import LiveService
from khala.store.postgres.database import Database
from tests.support.store import CALLER


class FrameRecorder:
    """Records the frames that an observer receives; while `open` is not set, it does not read."""

    def __init__(self, live: LiveService) -> None:
        self.client: Observer = live.create_observer(write=self.write)
        self.frames: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self._changed = asyncio.Event()

    async def send(self, out: OutgoingFrame) -> None:
        """Send on behalf of the observer's pump."""
        while not self.write(out.body.websocket_message):
            await self.open.wait()

    def write(self, message: bytes) -> bool:
        """Write a message without the pump; returns whether it was accepted."""
        if self.open.is_set():
            self.frames.append(json.loads(payload(message)))
            self._changed.set()
        return self.open.is_set()

    async def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the last frame satisfies the condition; returns it."""
        async with asyncio.timeout(10):
            while not self.frames or not condition(self.frames[-1]):
                self._changed.clear()
                await self._changed.wait()
        return self.frames[-1]

    async def until(self, revision: int) -> dict[str, Any]:
        """Wait until the last frame brings this revision."""
        return await self.wait_for(lambda frame: frame.get("revision") == revision)

    async def wait_gone(self) -> dict[str, Any]:
        """Wait until the last frame says that the thread is gone."""
        return await self.wait_for(lambda frame: frame["type"] == "gone")


def payload(message: bytes) -> bytes:
    """The payload of a server's WebSocket message, which must be one whole text frame."""
    assert message[0] == 0x81
    assert message[1] < 128, "a server does not mask"
    start = {126: 4, 127: 10}.get(message[1], 2)
    size = message[1] if start == 2 else int.from_bytes(message[2:start])
    assert len(message) == start + size
    return message[start:]


async def follow(
    hub: Hub, db: Database, client: Observer, topic_id: UUID, caller: Caller = CALLER, *, after: int | None = None
) -> Subscription:
    """Authorize the caller, and follow the topic on this connection."""
    return hub.subscribe(client, topic_id, after, await hub.authorize(db, topic_id, caller))


@contextlib.asynccontextmanager
async def recording(live: LiveService, count: int) -> AsyncIterator[list[FrameRecorder]]:
    """So many recorders, while the loops of the process run."""
    recorders = [FrameRecorder(live) for _ in range(count)]
    loops = [asyncio.ensure_future(loop()) for loop in live.loops.values()]
    tasks = [*loops, *(asyncio.ensure_future(recorder.client.pump(recorder.send)) for recorder in recorders)]
    try:
        yield recorders
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


@contextlib.asynccontextmanager
async def process(db: Database, count: int = 0) -> AsyncIterator[tuple[LiveService, list[FrameRecorder]]]:
    """The live layer of one process, which is notified by its own listener, and so many recorders."""
    live = LiveService(db, db)
    listener = Listener(db.url, live.handlers, live.own_appends)
    listening = asyncio.create_task(listener.run())
    try:
        async with recording(live, count) as recorders:
            while not listener.connected:
                await asyncio.sleep(0.01)
            yield live, recorders
    finally:
        listening.cancel()
        await asyncio.wait({listening})
