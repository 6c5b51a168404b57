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


class Ear:
    """What a client was sent, as a socket takes it; while `open` is not set, it does not read."""

    def __init__(self, live: LiveService) -> None:
        self.client: Observer = live.create_observer(write=self.write)
        self.frames: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self._heard = asyncio.Event()

    async def send(self, out: OutgoingFrame) -> None:
        """What the client's pump sends by."""
        while not self.write(out.body.websocket_message):
            await self.open.wait()

    def write(self, message: bytes) -> bool:
        """What is sent without the pump."""
        if self.open.is_set():
            self.frames.append(json.loads(payload(message)))
            self._heard.set()
        return self.open.is_set()

    async def hears(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the last frame is such a one."""
        async with asyncio.timeout(10):
            while not self.frames or not found(self.frames[-1]):
                self._heard.clear()
                await self._heard.wait()
        return self.frames[-1]

    async def until(self, revision: int) -> dict[str, Any]:
        """Wait until the last frame brings this revision."""
        return await self.hears(lambda frame: frame.get("revision") == revision)

    async def ends(self) -> dict[str, Any]:
        """Wait until the last frame says that the thread is gone."""
        return await self.hears(lambda frame: frame["type"] == "gone")


def payload(message: bytes) -> bytes:
    """What a server's WebSocket message says, if it is one whole text frame."""
    assert message[0] == 0x81
    assert message[1] < 128, "a server does not mask"
    start = {126: 4, 127: 10}.get(message[1], 2)
    size = message[1] if start == 2 else int.from_bytes(message[2:start])
    assert len(message) == start + size
    return message[start:]


async def follow(
    hub: Hub, db: Database, client: Observer, topic_id: UUID, caller: Caller = CALLER, *, after: int | None = None
) -> Subscription:
    """Let the caller in, and follow the topic on this connection."""
    return hub.subscribe(client, topic_id, after, await hub.authorize(db, topic_id, caller))


@contextlib.asynccontextmanager
async def listening(live: LiveService, count: int) -> AsyncIterator[list[Ear]]:
    """So many connections, while the loops of the process run."""
    ears = [Ear(live) for _ in range(count)]
    loops = [asyncio.ensure_future(loop()) for loop in live.loops.values()]
    tasks = [*loops, *(asyncio.ensure_future(ear.client.pump(ear.send)) for ear in ears)]
    try:
        yield ears
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


@contextlib.asynccontextmanager
async def process(db: Database, count: int = 0) -> AsyncIterator[tuple[LiveService, list[Ear]]]:
    """One process's live part, which hears of changes by its own listener, and so many connections to it."""
    live = LiveService(db, db)
    listener = Listener(db.url, live.handlers)
    hearing = asyncio.create_task(listener.run())
    try:
        async with listening(live, count) as ears:
            while not listener.connected:
                await asyncio.sleep(0.01)
            yield live, ears
    finally:
        hearing.cancel()
        await asyncio.wait({hearing})
