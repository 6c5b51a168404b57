"""Observers: what one client watches, at once or through an outbox that can't grow without bound.

A frame goes straight to the connection while that takes it and nothing waits before it; what has to wait goes to the
outbox, which the pump empties. A subscription's cursor is the revision up to which frames were handed to either. When
the outbox is full, what it holds is dropped and the cursors go back; once the client has drained, it reads on from
there. One recovery path for late joiners, laggards and reconnects. Whoever is in doubt, because it may have changed who
may follow, is handed nothing until the guard has looked.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol, TypeAlias
from uuid import UUID, uuid4

import msgspec
import structlog

from khala.domain.access import Authorization
from khala.domain.errors import Unavailable
from khala.live.encoded_frame import EncodedFrame
from khala.live.heartbeat import Heartbeat
from khala.signals import metrics

log = structlog.get_logger()

MAX_OUTBOX_BYTES = 256 * 1024
"""What one client's outbox may hold."""
RETRY_INTERVAL_SECONDS = 0.5
"""Seconds before another try to read, when the database is away."""
GONE = "thread_not_found"
"""Why a deleted thread can't be followed."""
FORBIDDEN = "forbidden"
"""Why a thread can't be followed any more by somebody who could."""


class OutgoingFrame(msgspec.Struct, frozen=True):
    """An encoded frame on its way; `revision` is the topic's after it, None for frames of no topic's chain."""

    body: EncodedFrame
    revision: int | None = None
    subscription: "Subscription | None" = None
    since: int = 0


class CatchUpRead(msgspec.Struct, frozen=True):
    """What brings an observer up to date: a frame, none if nothing is missing, and under which access it was read."""

    body: EncodedFrame | None
    revision: int | None
    access_id: UUID | None


SendFrame: TypeAlias = Callable[[OutgoingFrame], Awaitable[None]]
"""Sends a frame, as soon as the client takes it."""
TryWrite: TypeAlias = Callable[[bytes], bool]
"""Sends a message of `EncodedFrame` now, or says that it has to wait."""


class SubscriptionSource(Protocol):
    """Where a subscription's frames come from: a hub."""

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        """What brings an observer up to date; None if the topic is gone."""

    async def authorizations(self, subscriptions: "list[Subscription]") -> list[Authorization | None]:
        """What the callers of these, which are all of this source, may do now."""

    def is_caught_up(self, subscription: "Subscription") -> bool:
        """It has read up to its cursor; whether that is where the topic's other observers are."""

    def recheck(self, subscription: "Subscription") -> None:
        """It may have changed whether its caller may follow."""

    def revoke(self, subscription: "Subscription", code: str) -> None:
        """End it, and say why."""


class Subscription:
    """One client's following of one topic."""

    # There are many, and each frame touches all of a topic's: what is small is quick.
    __slots__ = (
        "access_id",
        "behind",
        "caller",
        "client",
        "cursor",
        "ended",
        "expires_at",
        "had_presence",
        "source",
        "suspended",
        "topic_id",
    )

    def __init__(
        self, source: SubscriptionSource, client: "Observer", topic_id: UUID, cursor: int, authorization: Authorization
    ) -> None:
        self.source = source
        self.client = client
        self.topic_id = topic_id
        self.cursor = cursor
        self.caller = authorization.caller
        self.access_id = authorization.access_id
        self.expires_at: datetime | None = authorization.expires_at
        self.behind = True
        self.suspended = False
        self.ended = False
        self.had_presence = False
        """Whether it was ever told of somebody who is present."""

    @property
    def readable(self) -> bool:
        """Whether it is to read for itself now."""
        return self.behind and not self.suspended and not self.ended

    def offer(self, body: EncodedFrame, since: int, revision: int) -> None:
        """The topic's next frame: taken if it joins what was taken before, else the client will read for itself."""
        if self.behind or self.cursor >= revision:
            return
        if self.cursor != since or self.suspended:
            self.fall_back(self.cursor)
        else:
            self.cursor = revision
            if not self.client.try_send(body):
                self.client.enqueue(OutgoingFrame(body, revision, self, since))

    def fall_back(self, cursor: int) -> None:
        """Go back to this revision, and read on from there when the client has drained."""
        self.cursor = min(self.cursor, cursor)
        self.behind = True
        self.client.wake()

    def suspend(self) -> None:
        """Hand it nothing until it is trusted again; what waits in the outbox for it is dropped."""
        self.suspended = True
        self.client.drop_frames(self)

    def end(self) -> None:
        """Nothing more is offered, and what waits in the outbox for it is dropped."""
        self.ended = self.behind = True
        self.client.remove(self)

    def confirm(self, authorization: Authorization) -> None:
        """Resume: its caller may follow the topic under this authorization."""
        self.access_id = authorization.access_id
        self.expires_at = authorization.expires_at
        self.suspended = False
        self.client.wake()


class Observer:
    """One connection: its subscriptions and its outbox. `pump` sends what `write` could not.

    `left` is told of every subscription that ends, unless another takes its place.
    """

    def __init__(
        self,
        *,
        heartbeat: Heartbeat | None = None,
        write: TryWrite | None = None,
        on_left: Callable[[Subscription], None] = lambda _: None,
    ) -> None:
        self.heartbeat = heartbeat
        self.on_left = on_left
        self._write = write
        self._sending = False
        self.secret = uuid4()
        """What the connection's names in threads are made of."""
        self.subscriptions: dict[tuple[SubscriptionSource, UUID], Subscription] = {}
        self._outbox: deque[OutgoingFrame] = deque()
        self._bytes = 0
        self._presence: dict[Subscription, EncodedFrame] = {}
        self._woken = asyncio.Event()

    def count_topics(self, source: SubscriptionSource) -> int:
        """How many topics of this source it follows."""
        return sum(one.source is source for one in self.subscriptions.values())

    def wake(self) -> None:
        """There is something for the pump to do."""
        self._woken.set()

    def try_send(self, body: EncodedFrame) -> bool:
        """Send it now, unless others come before it or the client doesn't take it yet; whether it was sent."""
        if self._sending or self._outbox or self._write is None:
            return False
        return self._write(body.websocket_message)

    def send(self, out: OutgoingFrame) -> None:
        """Send a frame now, or queue it."""
        if not self.try_send(out.body):
            self.enqueue(out)

    def enqueue(self, out: OutgoingFrame) -> None:
        """Queue a frame, or drop the topics' frames if there is no room for it."""
        self._outbox.append(out)
        self._bytes += len(out.body)
        if self._bytes > MAX_OUTBOX_BYTES:
            self._drop_all()
        self._woken.set()

    def set_presence(self, subscription: Subscription, body: EncodedFrame) -> None:
        """Who is present in its thread: a frame that takes the place of one that was not sent yet."""
        self._presence[subscription] = body
        self._woken.set()

    def drop_frames(self, subscription: Subscription) -> None:
        """Take the topic's frames back out of the outbox; if any were there, it will have to read them again."""
        dropped = [out for out in self._outbox if out.subscription is subscription]
        if dropped:
            self._outbox = deque(out for out in self._outbox if out.subscription is not subscription)
            self._bytes -= sum(len(out.body) for out in dropped)
            subscription.fall_back(dropped[0].since)

    def remove(self, subscription: Subscription) -> None:
        """Nothing more is sent of it."""
        self.subscriptions.pop((subscription.source, subscription.topic_id), None)
        self._presence.pop(subscription, None)
        self.drop_frames(subscription)

    async def pump(self, send: SendFrame) -> None:
        """Send what is queued and let who fell behind catch up, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._flush(send)
            for subscription in [one for one in self.subscriptions.values() if one.readable]:
                await self._try_to_catch_up(subscription, send)
            if self._presence:
                await self._send_presence(send)

    async def _flush(self, send: SendFrame) -> None:
        while self._outbox:
            out = self._outbox.popleft()
            self._bytes -= len(out.body)
            await self._send(out, send)

    async def _send(self, out: OutgoingFrame, send: SendFrame) -> None:
        """Send a frame; whatever comes meanwhile waits behind it."""
        self._sending = True
        try:
            await send(out)
        finally:
            self._sending = False

    async def _send_presence(self, send: SendFrame) -> None:
        for subscription in list(self._presence):
            if not subscription.behind and not subscription.suspended and subscription in self._presence:
                await self._send(OutgoingFrame(self._presence.pop(subscription)), send)

    async def _try_to_catch_up(self, subscription: Subscription, send: SendFrame) -> None:
        try:
            await self._catch_up(subscription, send)
        except Unavailable as error:
            log.warning("catch_up_failed", topic_id=str(subscription.topic_id), error=str(error.__cause__))
            await asyncio.sleep(RETRY_INTERVAL_SECONDS)
        if subscription.readable:
            self._woken.set()

    async def _catch_up(self, subscription: Subscription, send: SendFrame) -> None:
        """One read from the cursor on; the pump comes again while that does not make it level with the others."""
        if not subscription.readable:
            return
        read = await subscription.source.read(subscription.topic_id, subscription.cursor)
        if subscription.ended:
            return
        if read is None:
            subscription.source.revoke(subscription, GONE)
        elif read.access_id != subscription.access_id:
            subscription.source.recheck(subscription)
        elif not subscription.suspended:
            await self._advance(subscription, read, send)

    async def _advance(self, subscription: Subscription, read: CatchUpRead, send: SendFrame) -> None:
        if read.revision is not None:
            subscription.cursor = read.revision
        subscription.behind = not subscription.source.is_caught_up(subscription)
        if read.body is not None:
            await self._send(OutgoingFrame(read.body, read.revision), send)

    def _drop_all(self) -> None:
        metrics.DROPPED_BACK.inc()
        kept = [out for out in self._outbox if out.subscription is None]
        for out in self._outbox:
            if out.subscription is not None:
                out.subscription.fall_back(out.since)
        self._outbox = deque(kept)
        self._bytes = sum(len(out.body) for out in kept)
