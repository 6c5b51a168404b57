"""Observers: what one client watches, through an outbox that can't grow without bound.

A subscription's cursor is the revision up to which frames were handed to the outbox. When the outbox is full, what it
holds is dropped and the cursors go back; once the client has drained, it reads on from there. One recovery path for
late joiners, laggards and reconnects.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias
from uuid import UUID

import msgspec
import structlog

from app.domain import frames
from app.domain.errors import Unavailable

log = structlog.get_logger()

MOST_BYTES = 256 * 1024
"""What one client's outbox may hold."""
PAUSE = 0.5
"""Seconds before another try to read, when the database is away."""
GONE = "thread_not_found"
"""Why a deleted thread can't be followed."""


class Out(msgspec.Struct, frozen=True):
    """An encoded frame on its way; `revision` is the thread's after it, None for frames of no thread's chain."""

    body: str
    revision: int | None = None
    subscription: "Subscription | None" = None
    since: int = 0


Send: TypeAlias = Callable[[Out], Awaitable[None]]


class Source(Protocol):
    """Where a client's frames come from: the hub."""

    async def read(self, thread_id: UUID, after: int) -> Out | None:
        """What brings an observer up to date; an empty body if nothing is missing, None if the thread is gone."""

    def level(self, subscription: "Subscription", *, whole: bool) -> bool:
        """It has read up to its cursor, and if `whole` there was no more; whether that is what its thread's have."""

    def leave(self, subscription: "Subscription") -> None:
        """Its thread is gone."""


class Subscription:
    """One client's following of one thread."""

    def __init__(self, client: "Client", thread_id: UUID, cursor: int) -> None:
        self.client = client
        self.thread_id = thread_id
        self.cursor = cursor
        self.behind = True

    def offer(self, body: str, since: int, revision: int) -> None:
        """The thread's next frame: taken if it joins what was taken before, else the client will read for itself."""
        if self.behind or self.cursor >= revision:
            return
        if self.cursor != since:
            self.fall_back(self.cursor)
        else:
            self.cursor = revision
            self.client.put(Out(body, revision, self, since))

    def fall_back(self, cursor: int) -> None:
        """Go back to this revision, and read on from there when the client has drained."""
        self.cursor = min(self.cursor, cursor)
        self.behind = True
        self.client.wake()


class Client:
    """One connection: its subscriptions and its outbox. `pump` is its one writer."""

    def __init__(self, source: Source) -> None:
        self.subscriptions: dict[UUID, Subscription] = {}
        self._source = source
        self._outbox: deque[Out] = deque()
        self._bytes = 0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There is something for the pump to do."""
        self._woken.set()

    def put(self, out: Out) -> None:
        """Queue a frame, or drop the threads' frames if there is no room for it."""
        self._outbox.append(out)
        self._bytes += len(out.body)
        if self._bytes > MOST_BYTES:
            self._drop()
        self._woken.set()

    async def pump(self, send: Send) -> None:
        """Send what is queued and let who fell behind catch up, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._flush(send)
            for subscription in [one for one in self.subscriptions.values() if one.behind]:
                await self._try_to_catch_up(subscription, send)

    async def _flush(self, send: Send) -> None:
        while self._outbox:
            out = self._outbox.popleft()
            self._bytes -= len(out.body)
            if out.subscription is None or self.subscriptions.get(out.subscription.thread_id) is out.subscription:
                await send(out)

    async def _try_to_catch_up(self, subscription: Subscription, send: Send) -> None:
        try:
            await self._catch_up(subscription, send)
        except Unavailable as error:
            log.warning("catch_up_failed", thread_id=str(subscription.thread_id), error=str(error.__cause__))
            await asyncio.sleep(PAUSE)
        if subscription.behind:
            self._woken.set()

    async def _catch_up(self, subscription: Subscription, send: Send) -> None:
        """One read from the cursor on; the pump comes again while that does not make it level with the others."""
        out = await self._source.read(subscription.thread_id, subscription.cursor)
        if self.subscriptions.get(subscription.thread_id) is not subscription:
            subscription.behind = False
            return
        if out is None:
            self._lose(subscription)
            await send(Out(gone(subscription.thread_id)))
            return
        if out.revision is not None:
            subscription.cursor = out.revision
        subscription.behind = not self._source.level(subscription, whole=not out.body)
        if out.body:
            await send(out)

    def _lose(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.thread_id, None)
        subscription.behind = False
        self._source.leave(subscription)

    def _drop(self) -> None:
        kept = [out for out in self._outbox if out.subscription is None]
        for out in self._outbox:
            if out.subscription is not None:
                out.subscription.fall_back(out.since)
        self._outbox = deque(kept)
        self._bytes = sum(len(out.body) for out in kept)


def gone(thread_id: UUID) -> str:
    """The frame that says that the thread was deleted."""
    return frames.encode(frames.Gone(thread_id=thread_id, code=GONE))
