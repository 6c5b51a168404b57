"""The hub: reads all threads that have changed in one go, encodes each frame once, and hands it to every observer."""

import asyncio
from typing import assert_never
from uuid import UUID

import structlog

from app.domain import frames
from app.domain.chat import Delta
from app.domain.errors import Unavailable
from app.live.observer import Client, Out, Subscription, gone
from app.live.reader import Reader
from app.store import changes
from app.store.db import EVERYTHING, Database

log = structlog.get_logger()

POLL = 5.0
"""Seconds after which all watched threads are looked at anyhow: a lost NOTIFY costs seconds, never data."""
PAUSE = 0.25
"""Seconds before another try to read, when the database is away."""
SWEEP = 500
"""Observers served in one go before others get their turn."""


class Topic:
    """A watched thread: the revision up to which its observers were told, -1 at first, and who they are."""

    def __init__(self) -> None:
        self.revision = -1
        self.observers: set[Subscription] = set()


class Hub:
    """All observers of this process. The feed reads through `db`; observers that catch up read by `reader`."""

    def __init__(self, db: Database, reader: Reader) -> None:
        self._db = db
        self._reader = reader
        self._topics: dict[UUID, Topic] = {}
        self._woken: set[UUID] = set()
        self._wake = asyncio.Event()
        self._all = False

    def client(self) -> Client:
        """A new connection without subscriptions."""
        return Client(self)

    def join(self, client: Client, thread_id: UUID, after: int | None) -> None:
        """Follow the thread on this connection: its pump catches up from `after` or by a snapshot, and goes on."""
        self.part(client, thread_id)
        cursor = -1 if after is None else after
        topic = self._topics.setdefault(thread_id, Topic())
        subscription = Subscription(client, thread_id, cursor)
        client.subscriptions[thread_id] = subscription
        topic.observers.add(subscription)
        client.wake()

    def part(self, client: Client, thread_id: UUID) -> None:
        """Follow the thread no more on this connection."""
        subscription = client.subscriptions.pop(thread_id, None)
        if subscription is not None:
            self.leave(subscription)

    def close(self, client: Client) -> None:
        """The connection is gone."""
        for thread_id in list(client.subscriptions):
            self.part(client, thread_id)

    def leave(self, subscription: Subscription) -> None:
        """This observer is gone; the last one takes the topic along."""
        topic = self._topics.get(subscription.thread_id)
        if topic is None:
            return
        topic.observers.discard(subscription)
        if not topic.observers:
            del self._topics[subscription.thread_id]

    async def read(self, thread_id: UUID, after: int) -> Out | None:
        """What brings an observer up to date: see `Reader.read`."""
        return await self._reader.read(thread_id, after)

    def level(self, subscription: Subscription, *, whole: bool) -> bool:
        """A thread of which nobody was told yet, or that nobody else watches, is followed from where this one is."""
        topic = self._topics[subscription.thread_id]
        if topic.revision < 0 or len(topic.observers) == 1:
            topic.revision = max(topic.revision, subscription.cursor)
        if whole and subscription.cursor < topic.revision:
            # The thread has less than its observers were told, since it was deleted and made anew: look again.
            self.notified(str(subscription.thread_id))
        return subscription.cursor >= topic.revision

    def notified(self, payload: str) -> None:
        """The listener's word that these threads have changed, or that any may have."""
        if payload == EVERYTHING:
            self._all = True
        else:
            self._woken.update(thread_id for thread_id in map(UUID, payload.split(",")) if thread_id in self._topics)
        if self._all or self._woken:
            self._wake.set()

    async def run(self) -> None:
        """Tell observers what has changed, for ever."""
        while True:
            await self._rest()
            woken = set(self._topics) if self._all else self._woken & self._topics.keys()
            self._woken, self._all = set(), False
            try:
                await self._tell(woken)
            except Unavailable as error:
                log.warning("feed_failed", threads=len(woken), error=str(error.__cause__))
                self._woken |= woken
                await asyncio.sleep(PAUSE)
            except Exception:
                self._woken |= woken
                raise

    async def _rest(self) -> None:
        if self._woken or self._all:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(POLL):
                await self._wake.wait()
        except TimeoutError:
            self._all = True

    async def _tell(self, woken: set[UUID]) -> None:
        cursors = {thread_id: self._topics[thread_id].revision for thread_id in woken}
        if not cursors:
            return
        async with self._db.snapshot() as driver:
            found = await changes.since(driver, cursors)
        for thread_id, change in found.items():
            topic = self._topics.get(thread_id)
            if topic is not None and topic.revision == cursors[thread_id]:
                await self._pass_on(thread_id, topic, change)
            elif topic is not None:
                # Its first reader has moved it meanwhile, perhaps not as far as this read has seen: look again.
                self._woken.add(thread_id)

    async def _pass_on(self, thread_id: UUID, topic: Topic, change: changes.Change) -> None:
        match change:
            case Delta():
                topic.revision = change.revision
                body = frames.delta(thread_id, change)
                await self._broadcast(topic, body, change.since, change.revision)
            case changes.Behind():
                topic.revision = change.revision
                for observer in topic.observers:
                    observer.fall_back(observer.cursor)
            case changes.Gone():
                for observer in list(topic.observers):
                    observer.client.subscriptions.pop(thread_id, None)
                    observer.client.put(Out(gone(thread_id)))
                    self.leave(observer)
            case changes.Unchanged():
                pass
            case _:
                assert_never(change)

    async def _broadcast(self, topic: Topic, body: str, since: int, revision: int) -> None:
        for count, observer in enumerate(list(topic.observers), 1):
            observer.offer(body, since, revision)
            if count % SWEEP == 0:
                await asyncio.sleep(0)
