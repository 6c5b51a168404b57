"""The hub: reads all changed topics at once, encodes each frame once, and hands it to every observer."""

import asyncio
import time
from collections.abc import Mapping
from typing import assert_never
from uuid import UUID

import msgspec
import structlog

from khala.domain.access import Action, Authorization, Caller
from khala.domain.errors import Unavailable
from khala.live.access_guard import Guard
from khala.live.catch_up_reader import CatchUpReader
from khala.live.delivery_metrics import DeliveryRecorder
from khala.live.encoded_frame import EncodedFrame
from khala.live.feeds import Feed, FeedDelta, TopicRead
from khala.live.observer import GONE, CatchUpRead, Observer, OutgoingFrame, Subscription
from khala.signals import metrics
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    EVERYTHING,
)
from khala.store.sharing import access
from khala.store.threads.thread_feed import SnapshotNeeded, TopicGone, Unchanged

log = structlog.get_logger()

RETRY_INTERVAL_SECONDS = 0.25
"""Seconds before a failed read is retried."""
BROADCAST_CHUNK = 200
"""Subscriptions that are served before other tasks get a turn."""


class Topic:
    """A watched topic: its subscriptions, and the revision up to which they were served (-1 at first).

    Invariant: every subscription that is neither behind nor suspended was authorised at this `access_id` or a later
    one. A change of access makes a revision, and every read up to that revision compares the `access_id`.
    """

    def __init__(self) -> None:
        self.revision = -1
        self.access_id: UUID | None = None
        self.subscriptions: set[Subscription] = set()


class Hub:
    """All subscriptions to one feed. The hub reads through `db`; observers that catch up read by `reader`."""

    def __init__(
        self, db: Database, reader: CatchUpReader, feed: Feed, guard: Guard, deliveries: DeliveryRecorder
    ) -> None:
        self._db = db
        self._reader = reader
        self._feed = feed
        self._guard = guard
        self._deliveries = deliveries
        self._topics: dict[UUID, Topic] = {}
        self._woken: set[UUID] = set()
        self._wake = asyncio.Event()
        self._all = False

    async def authorize(self, db: Database, topic_id: UUID, caller: Caller) -> Authorization:
        """The caller's access to the topic. Raises `ThreadNotFound`, and `Forbidden` if they may not read it."""
        notices = self._guard.credential_notices
        async with db.driver() as driver:
            (authorization,) = await self._feed.authorizations(driver, [(topic_id, caller)])
        return msgspec.structs.replace(access.require(authorization, Action.READ_THREAD), credential_notices=notices)

    def subscribe(
        self, client: Observer, topic_id: UUID, after: int | None, authorization: Authorization
    ) -> Subscription:
        """Follow the topic on this connection. The pump catches up from `after`, or by a snapshot without it."""
        earlier = self.find_subscription(client, topic_id)
        if earlier is not None:
            self._end(earlier)
        cursor = -1 if after is None else after
        topic = self._topics.setdefault(topic_id, Topic())
        subscription = Subscription(self, client, topic_id, cursor, authorization)
        client.subscriptions[self, topic_id] = subscription
        topic.subscriptions.add(subscription)
        metrics.SUBSCRIPTIONS.inc()
        self._guard.watch(subscription)
        notified_since = authorization.credential_notices != self._guard.credential_notices
        if notified_since and authorization.caller.user_id is not None:
            self._guard.recheck(subscription)
        client.wake()
        return subscription

    def unsubscribe(self, client: Observer, topic_id: UUID) -> None:
        """Stop following the topic on this connection."""
        subscription = self.find_subscription(client, topic_id)
        if subscription is not None:
            self._end(subscription)
            client.on_left(subscription)

    def find_subscription(self, client: Observer, topic_id: UUID) -> Subscription | None:
        """The connection's subscription to the topic, if there is one."""
        return client.subscriptions.get((self, topic_id))

    def close(self, client: Observer) -> None:
        """End all subscriptions of this connection to the feed: the connection is gone."""
        for source, topic_id in list(client.subscriptions):
            if source is self:
                self.unsubscribe(client, topic_id)

    def revoke(self, subscription: Subscription, code: str) -> None:
        """End the subscription, drop its frames from the outbox, and send a last frame with the reason."""
        self._end(subscription)
        subscription.client.on_left(subscription)
        subscription.client.send(OutgoingFrame(EncodedFrame.encode(self._feed.end_frame(subscription.topic_id, code))))

    def recheck(self, subscription: Subscription) -> None:
        """Check again whether the caller may follow; until then the subscription gets nothing."""
        self._guard.recheck(subscription)

    async def authorizations(self, subscriptions: list[Subscription]) -> list[Authorization | None]:
        """The current authorizations of these subscriptions' callers."""
        async with self._db.driver() as driver:
            return await self._feed.authorizations(driver, [(one.topic_id, one.caller) for one in subscriptions])

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        """Read what an observer lacks: see `CatchUpReader.read`."""
        return await self._reader.read(self._feed, topic_id, after)

    def is_caught_up(self, subscription: Subscription) -> bool:
        """Whether the subscription is at the topic's revision, or ahead of it.

        A topic that no other subscription follows, or that was never served, takes the revision of this one.
        """
        topic = self._topics[subscription.topic_id]
        if topic.revision < 0 or len(topic.subscriptions) == 1:
            topic.revision = max(topic.revision, subscription.cursor)
        return subscription.cursor >= topic.revision

    @property
    def is_watched(self) -> bool:
        """Whether there is any subscription."""
        return bool(self._topics)

    def handle_notification(self, payload: str) -> None:
        """Handle a notification: these topics have changed, or any may have."""
        if payload == EVERYTHING:
            self.refresh_all()
            return
        self._woken.update(topic_id for topic_id in map(UUID, payload.split(",")) if topic_id in self._topics)
        if self._woken:
            self._wake.set()

    def refresh_all(self) -> None:
        """Read all topics again: any may have changed."""
        self._all = True
        self._wake.set()

    async def run(self) -> None:
        """Serve changed topics, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            woken = set(self._topics) if self._all else self._woken & self._topics.keys()
            self._woken, self._all = set(), False
            try:
                await self._read_changes(woken)
            except Unavailable as error:
                metrics.FEED_FAILED.inc()
                log.warning("feed_read_failed", topics=len(woken), error=str(error.__cause__))
                self._wake_again(woken)
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            except Exception:
                self._wake_again(woken)
                raise

    def _end(self, subscription: Subscription) -> None:
        """Remove the subscription, and its topic with the last one."""
        subscription.end()
        self._guard.forget(subscription)
        topic = self._topics.get(subscription.topic_id)
        if topic is None:
            return
        topic.subscriptions.discard(subscription)
        metrics.SUBSCRIPTIONS.dec()
        if not topic.subscriptions:
            del self._topics[subscription.topic_id]

    def _wake_again(self, topics: set[UUID]) -> None:
        self._woken |= topics
        self._wake.set()

    async def _read_changes(self, woken: set[UUID]) -> None:
        """Read the changed topics and serve them: mostly by one query, as a transaction costs two more round trips."""
        rest = {topic_id: self._topics[topic_id].revision for topic_id in woken}
        # Behind a pooler, only a transaction has the settings that a session lacks.
        if rest and not self._db.pooled:
            began = time.monotonic()
            async with self._db.driver() as driver:
                reads = await self._feed.read_changes_in_one_query(driver, rest)
            await self._deliver(rest, reads, began)
            rest = {topic_id: after for topic_id, after in rest.items() if topic_id not in reads}
        if rest:
            began = time.monotonic()
            async with self._db.snapshot() as driver:
                reads = await self._feed.read_changes(driver, rest)
            await self._deliver(rest, reads, began)

    async def _deliver(self, cursors: Mapping[UUID, int], reads: Mapping[UUID, TopicRead], began: float) -> None:
        """Serve topics that were read from these cursors on; the read began at `began` (monotonic seconds)."""
        for topic_id, read in reads.items():
            topic = self._topics.get(topic_id)
            if topic is not None and topic.revision == cursors[topic_id]:
                await self._deliver_topic(topic, read)
            elif topic is not None:
                # A catch-up has moved the topic meanwhile, perhaps not as far as this read has seen: read again.
                self._wake_again({topic_id})
        if reads:
            metrics.FEED_TOPICS.observe(len(reads))
        self._deliveries.record(reads.values(), began)

    async def _deliver_topic(self, topic: Topic, read: TopicRead) -> None:
        if read.access_id is not None and topic.access_id != read.access_id:
            self._recheck_unauthorized(topic, read.access_id)
        match read.change:
            case FeedDelta() as delta:
                topic.revision = delta.revision
                await self._broadcast(topic, EncodedFrame.encode(delta.frame), delta.since, delta.revision)
            case SnapshotNeeded():
                topic.revision = read.change.revision
                for subscription in topic.subscriptions:
                    subscription.fall_back(subscription.cursor)
            case TopicGone():
                for subscription in list(topic.subscriptions):
                    self.revoke(subscription, GONE)
            case Unchanged():
                pass
            case _:
                assert_never(read.change)

    def _recheck_unauthorized(self, topic: Topic, access_id: UUID) -> None:
        """Suspend the subscriptions that were authorised at another `access_id` than the frames from now on."""
        topic.access_id = access_id
        for subscription in [one for one in topic.subscriptions if one.access_id != access_id]:
            self._guard.recheck(subscription)

    async def _broadcast(self, topic: Topic, body: EncodedFrame, since: int, revision: int) -> None:
        for count, subscription in enumerate(list(topic.subscriptions), 1):
            subscription.offer(body, since, revision)
            if count % BROADCAST_CHUNK == 0:
                await asyncio.sleep(0)
