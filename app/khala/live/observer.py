"""Observers: one client's subscriptions, with a bounded outbox.

A frame goes straight to the connection while the connection takes it and no other frame waits. Frames that have to wait
go to the outbox, which the pump empties. A subscription's cursor is the revision up to which frames were handed to
either. When the outbox is full, its frames are dropped and the cursors go back; once the client has drained, it reads
on from there. Late joiners, laggards and reconnects share this one recovery path. A subscription whose access may have
changed is suspended: it gets nothing until the access guard has checked it.
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
"""Bytes that one client's outbox may hold."""
RETRY_INTERVAL_SECONDS = 0.5
"""Seconds before a failed read is retried."""
GONE = "thread_not_found"
"""The reason code of a subscription to a thread that was deleted."""
FORBIDDEN = "forbidden"
"""The reason code of a subscription whose caller has lost access."""


class OutgoingFrame(msgspec.Struct, frozen=True):
    """An encoded frame in an outbox; `revision` is the topic's after it, None for frames outside of a topic's chain."""

    body: EncodedFrame
    revision: int | None = None
    subscription: "Subscription | None" = None
    since: int = 0


class CatchUpRead(msgspec.Struct, frozen=True):
    """The result of a catch-up read: a frame, none if nothing is missing, and the topic's `access_id` at the read."""

    body: EncodedFrame | None
    revision: int | None
    access_id: UUID | None


SendFrame: TypeAlias = Callable[[OutgoingFrame], Awaitable[None]]
"""Sends a frame as soon as the client takes it."""
TryWrite: TypeAlias = Callable[[bytes], bool]
"""Sends a WebSocket message now, or returns False if it has to wait."""


class SubscriptionSource(Protocol):
    """The source of a subscription's frames: a hub."""

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        """Read what an observer lacks; None if the topic is gone."""

    async def authorizations(self, subscriptions: "list[Subscription]") -> list[Authorization | None]:
        """The current authorizations of the callers of these subscriptions, which are all of this source."""

    def is_caught_up(self, subscription: "Subscription") -> bool:
        """Whether the subscription, which has read up to its cursor, is where the topic's others are."""

    def recheck(self, subscription: "Subscription") -> None:
        """Check again whether the caller may follow."""

    def revoke(self, subscription: "Subscription", code: str) -> None:
        """End the subscription, and send the reason."""


class Subscription:
    """One observer following one topic."""

    # There are many, and each frame touches all of its topic: small objects are faster.
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
        """Whether the last presence list that was sent had an entry."""

    @property
    def readable(self) -> bool:
        """Whether it has to catch up by a read of its own now."""
        return self.behind and not self.suspended and not self.ended

    def offer(self, body: EncodedFrame, since: int, revision: int) -> None:
        """Take the topic's next frame if it follows the cursor; else the observer will catch up."""
        if self.behind or self.cursor >= revision:
            return
        if self.cursor != since or self.suspended:
            self.fall_back(self.cursor)
        else:
            self.cursor = revision
            if not self.client.try_send(body):
                self.client.enqueue(OutgoingFrame(body, revision, self, since))

    def fall_back(self, cursor: int) -> None:
        """Go back to this revision, and read on from there once the client has drained."""
        self.cursor = min(self.cursor, cursor)
        self.behind = True
        self.client.wake()

    def suspend(self) -> None:
        """Get nothing until `confirm`; frames in the outbox are dropped."""
        self.suspended = True
        self.client.drop_frames(self)

    def end(self) -> None:
        """End: no more frames are taken, and those in the outbox are dropped."""
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

    `on_left` is called with every subscription that ends, unless another takes its place.
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
        """The secret from which the connection's participant ids are derived."""
        self.subscriptions: dict[tuple[SubscriptionSource, UUID], Subscription] = {}
        self._outbox: deque[OutgoingFrame] = deque()
        self._bytes = 0
        self._presence: dict[Subscription, EncodedFrame] = {}
        self._woken = asyncio.Event()

    def count_topics(self, source: SubscriptionSource) -> int:
        """The number of topics of this source that it follows."""
        return sum(one.source is source for one in self.subscriptions.values())

    def wake(self) -> None:
        """Wake the pump: there is something to do."""
        self._woken.set()

    def try_send(self, body: EncodedFrame) -> bool:
        """Send a frame now, unless others wait or the connection does not take it. Returns whether it was sent."""
        if self._sending or self._outbox or self._write is None:
            return False
        return self._write(body.websocket_message)

    def send(self, out: OutgoingFrame) -> None:
        """Send a frame now, or enqueue it."""
        if not self.try_send(out.body):
            self.enqueue(out)

    def enqueue(self, out: OutgoingFrame) -> None:
        """Add a frame to the outbox; if it is over its limit then, drop all frames of topics."""
        self._outbox.append(out)
        self._bytes += len(out.body)
        if self._bytes > MAX_OUTBOX_BYTES:
            self._drop_all()
        self._woken.set()

    def set_presence(self, subscription: Subscription, body: EncodedFrame) -> None:
        """Send this presence list of the subscription's thread; it replaces one that was not sent yet."""
        self._presence[subscription] = body
        self._woken.set()

    def drop_frames(self, subscription: Subscription) -> None:
        """Drop the subscription's frames from the outbox; if there were any, it will read them again."""
        dropped = [out for out in self._outbox if out.subscription is subscription]
        if dropped:
            self._outbox = deque(out for out in self._outbox if out.subscription is not subscription)
            self._bytes -= sum(len(out.body) for out in dropped)
            subscription.fall_back(dropped[0].since)

    def remove(self, subscription: Subscription) -> None:
        """Remove the subscription and all that waits for it."""
        self.subscriptions.pop((subscription.source, subscription.topic_id), None)
        self._presence.pop(subscription, None)
        self.drop_frames(subscription)

    async def pump(self, send: SendFrame) -> None:
        """Send the outbox, and catch up for subscriptions that are behind, for ever."""
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
        """Send a frame; frames that come meanwhile wait behind it."""
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
        """One read from the cursor on; the pump repeats it until the subscription has caught up."""
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
