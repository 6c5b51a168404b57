"""The hub: reads all changed topics at once, encodes each frame once, and hands it to every observer."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias, assert_never
from uuid import UUID

import msgspec
import structlog

from khala.domain.access import Action, Authorization, Caller
from khala.domain.errors import Unavailable
from khala.live.access_guard import AccessGuard
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
MAX_RECEIVED = 8
"""Changes of a topic that wait to be delivered. With more of them, the topic is read."""


ReceivedChanges: TypeAlias = dict[UUID, list[tuple[int, Callable[[], FeedDelta]]]]
"""By topic, the revisions whose changes this process has committed, in order, and what creates their deltas."""


class Topic:
    """A watched topic: its subscriptions, and the revision up to which it was delivered to them (-1 at first).

    Invariant: every subscription that is neither behind nor suspended was authorised at this `access_id` or a later
    one. A change of access makes a revision, and every read up to that revision compares the `access_id`.
    """

    def __init__(self) -> None:
        self.revision = -1
        self.access_id: UUID | None = None
        self.subscriptions: set[Subscription] = set()


class Hub:
    """All subscriptions to one feed. The hub reads changes through `db`; observers catch up through `reader`."""

    def __init__(
        self, db: Database, reader: CatchUpReader, feed: Feed, guard: AccessGuard, deliveries: DeliveryRecorder
    ) -> None:
        self._db = db
        self._reader = reader
        self._feed = feed
        self._guard = guard
        self._deliveries = deliveries
        self._topics: dict[UUID, Topic] = {}
        self._changed: set[UUID] = set()
        self._received: ReceivedChanges = {}
        self._wake = asyncio.Event()
        self._all_changed = False

    async def authorize(self, db: Database, topic_id: UUID, caller: Caller) -> Authorization:
        """The caller's access to the topic. Raises `ThreadNotFound`, and `Forbidden` if they may not read it."""
        notices = self._guard.credential_notices
        async with db.driver() as driver:
            (authorization,) = await self._feed.authorizations(driver, [(topic_id, caller)])
        return msgspec.structs.replace(access.require(authorization, Action.READ_THREAD), credential_notices=notices)

    def subscribe(
        self, client: Observer, topic_id: UUID, after: int | None, authorization: Authorization
    ) -> Subscription:
        """Subscribe the connection to the topic. The pump catches up from `after`, or by a snapshot without it.

        Replaces an earlier subscription of the connection to the topic.
        """
        previous = self.find_subscription(client, topic_id)
        if previous is not None:
            self._end(previous)
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
        """End the connection's subscription to the topic, if there is one."""
        subscription = self.find_subscription(client, topic_id)
        if subscription is not None:
            self._end(subscription)
            client.on_ended(subscription)

    def find_subscription(self, client: Observer, topic_id: UUID) -> Subscription | None:
        """The connection's subscription to the topic, if there is one."""
        return client.subscriptions.get((self, topic_id))

    def close(self, client: Observer) -> None:
        """End all subscriptions of this connection to the feed, because the connection has ended."""
        for source, topic_id in list(client.subscriptions):
            if source is self:
                self.unsubscribe(client, topic_id)

    def revoke(self, subscription: Subscription, code: str) -> None:
        """End the subscription, drop its frames from the outbox, and send a last frame with the reason code."""
        self._end(subscription)
        subscription.client.on_ended(subscription)
        subscription.client.send(OutgoingFrame(EncodedFrame.encode(self._feed.end_frame(subscription.topic_id, code))))

    def recheck(self, subscription: Subscription) -> None:
        """Recheck whether the caller may follow the topic. Until then the subscription is suspended."""
        self._guard.recheck(subscription)

    async def authorizations(self, subscriptions: list[Subscription]) -> list[Authorization | None]:
        """The current authorizations of these subscriptions' callers."""
        async with self._db.driver() as driver:
            return await self._feed.authorizations(driver, [(each.topic_id, each.caller) for each in subscriptions])

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        """Read the changes that an observer lacks: see `CatchUpReader.read`."""
        return await self._reader.read(self._feed, topic_id, after)

    def is_caught_up(self, subscription: Subscription) -> bool:
        """Whether the subscription is at the topic's revision, or ahead of it.

        If the topic has no other subscription, or was never delivered, its revision becomes that of this one.
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
        """Handle a notification that these topics have changed, or that any topic may have changed."""
        if payload == EVERYTHING:
            self.refresh_all()
            return
        self._changed.update(topic_id for topic_id in map(UUID, payload.split(",")) if topic_id in self._topics)
        if self._changed:
            self._wake.set()

    def receive(self, topic_id: UUID, revision: int, change: Callable[[], FeedDelta]) -> None:
        """Deliver the change to this revision from the one before, which this process has committed.

        If it does not directly follow what was delivered, the topic is read instead.
        """
        if topic_id not in self._topics:
            return
        received = self._received.setdefault(topic_id, [])
        if len(received) < MAX_RECEIVED:
            received.append((revision, change))
        else:
            self._changed.add(topic_id)
        self._wake.set()

    def refresh(self, topic_id: UUID) -> None:
        """Read the topic again, because it may have changed."""
        if topic_id in self._topics:
            self._mark_changed({topic_id})

    def refresh_all(self) -> None:
        """Read all topics again, because any of them may have changed."""
        self._all_changed = True
        self._wake.set()

    async def run(self) -> None:
        """Read and deliver changed topics, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed = set(self._topics) if self._all_changed else self._changed
            received = self._received
            self._changed, self._received, self._all_changed = set(), {}, False
            try:
                changed |= await self._deliver_received(received)
                await self._read_changes(changed)
            except Unavailable as error:
                metrics.FEED_FAILED.inc()
                log.warning("feed_read_failed", topics=len(changed), error=str(error.__cause__))
                self._mark_changed(changed)
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            except Exception:
                self._mark_changed(changed | received.keys())
                raise

    def _end(self, subscription: Subscription) -> None:
        """Remove the subscription, and its topic if it was the last one."""
        subscription.end()
        self._guard.unwatch(subscription)
        topic = self._topics.get(subscription.topic_id)
        if topic is None:
            return
        topic.subscriptions.discard(subscription)
        metrics.SUBSCRIPTIONS.dec()
        if not topic.subscriptions:
            del self._topics[subscription.topic_id]

    def _mark_changed(self, topics: set[UUID]) -> None:
        self._changed |= topics
        self._wake.set()

    async def _deliver_received(self, received: ReceivedChanges) -> set[UUID]:
        """Deliver the changes that directly follow what was delivered. Returns the topics that are to be read."""
        began = time.monotonic()
        delivered = []
        behind = set()
        for topic_id, changes in received.items():
            for revision, change in changes:
                topic = self._topics.get(topic_id)
                if topic is None or revision <= topic.revision:
                    continue
                if revision > topic.revision + 1:
                    behind.add(topic_id)
                    break
                # A change of access has a revision of its own, so there was none since the last read.
                read = TopicRead(change(), None)
                await self._deliver_topic(topic, read)
                delivered.append(read)
        if delivered:
            metrics.FEED_OWN_TOPICS.observe(len(delivered))
        self._deliveries.record(delivered, began)
        return behind

    async def _read_changes(self, changed: set[UUID]) -> None:
        """Read and deliver the changed topics: mostly by one query, as a transaction costs two more round trips."""
        remaining = {topic_id: self._topics[topic_id].revision for topic_id in changed & self._topics.keys()}
        # Behind a pooler, sessions lack Khala's settings, so that every read needs a transaction.
        if remaining and not self._db.pooled:
            began = time.monotonic()
            async with self._db.driver() as driver:
                reads = await self._feed.read_changes_in_one_query(driver, remaining)
            await self._deliver(remaining, reads, began)
            remaining = {topic_id: after for topic_id, after in remaining.items() if topic_id not in reads}
        if remaining:
            began = time.monotonic()
            async with self._db.snapshot() as driver:
                reads = await self._feed.read_changes(driver, remaining)
            await self._deliver(remaining, reads, began)

    async def _deliver(self, cursors: Mapping[UUID, int], reads: Mapping[UUID, TopicRead], began: float) -> None:
        """Deliver topics that were read from these cursors on. The read began at `began` (monotonic seconds)."""
        for topic_id, read in reads.items():
            topic = self._topics.get(topic_id)
            if topic is not None and topic.revision == cursors[topic_id]:
                await self._deliver_topic(topic, read)
            elif topic is not None:
                # A catch-up has moved the topic on meanwhile, perhaps not as far as this read: so it is read again.
                self._mark_changed({topic_id})
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
        """Recheck the subscriptions that were authorised at another `access_id` than this one, the topic's new one."""
        topic.access_id = access_id
        for subscription in [each for each in topic.subscriptions if each.access_id != access_id]:
            self._guard.recheck(subscription)

    async def _broadcast(self, topic: Topic, frame: EncodedFrame, since: int, revision: int) -> None:
        for count, subscription in enumerate(list(topic.subscriptions), 1):
            subscription.offer(frame, since, revision)
            if count % BROADCAST_CHUNK == 0:
                await asyncio.sleep(0)
