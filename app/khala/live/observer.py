"""Observers: one client's subscriptions, with a bounded outbox.

A frame is written to the connection at once if no other frame waits and the connection takes it. Otherwise it is put
into the outbox, which the pump empties. A subscription's cursor is the revision up to which frames were written or put
into the outbox. When the outbox is full, its frames are dropped and the cursors are set back; when the outbox is empty,
the pump reads the changes from there on. Late joiners, laggards and reconnects share this one recovery path. A
subscription whose access may have changed is suspended: it gets no frames until the access guard has checked it.
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
"""The maximum size of one client's outbox."""
RETRY_INTERVAL_SECONDS = 0.5
"""Seconds before a failed read is retried."""
GONE = "thread_not_found"
"""The reason code for the end of a subscription to a thread that was deleted."""
FORBIDDEN = "forbidden"
"""The reason code for the end of a subscription whose caller has lost access."""


class OutgoingFrame(msgspec.Struct, frozen=True):
    """An encoded frame in an outbox. It takes the subscription's topic from revision `since` to `revision`.

    Without `subscription`, the frame is not a topic's delta, and is never dropped.
    """

    body: EncodedFrame
    revision: int | None = None
    subscription: "Subscription | None" = None
    since: int = 0


class CatchUpRead(msgspec.Struct, frozen=True):
    """The result of a catch-up read: a frame, None if nothing is missing, and the topic's `access_id` at the read."""

    body: EncodedFrame | None
    revision: int | None
    access_id: UUID | None


SendFrame: TypeAlias = Callable[[OutgoingFrame], Awaitable[None]]
"""Sends a frame, and returns when the client has taken it."""
TryWrite: TypeAlias = Callable[[bytes], bool]
"""Sends a WebSocket message now, or returns False if it has to wait."""


class SubscriptionSource(Protocol):
    """The source of a subscription's frames: a hub."""

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        """Read the changes that an observer lacks. None if the topic is gone."""

    async def authorizations(self, subscriptions: "list[Subscription]") -> list[Authorization | None]:
        """The current authorizations of the callers of these subscriptions, which all have this source."""

    def is_caught_up(self, subscription: "Subscription") -> bool:
        """Whether the subscription's cursor has reached the revision of the topic's other subscriptions."""

    def recheck(self, subscription: "Subscription") -> None:
        """Recheck whether the caller may follow the topic."""

    def revoke(self, subscription: "Subscription", code: str) -> None:
        """End the subscription, and send the reason code."""


class Subscription:
    """One observer following one topic."""

    # There are many subscriptions, and each frame touches all of its topic's, so small objects are faster.
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
        """Whether the last presence list sent was not empty."""

    @property
    def needs_read(self) -> bool:
        """Whether the subscription has to catch up by a read, and may do so now."""
        return self.behind and not self.suspended and not self.ended

    def offer(self, body: EncodedFrame, since: int, revision: int) -> None:
        """Send the topic's next frame if it follows the cursor. Otherwise the subscription falls back to a read."""
        if self.behind or self.cursor >= revision:
            return
        if self.cursor != since or self.suspended:
            self.fall_back(self.cursor)
        else:
            self.cursor = revision
            if not self.client.try_send(body):
                self.client.enqueue(OutgoingFrame(body, revision, self, since))

    def fall_back(self, cursor: int) -> None:
        """Set the cursor back to this revision. The pump catches up from there when the outbox is empty."""
        self.cursor = min(self.cursor, cursor)
        self.behind = True
        self.client.wake()

    def suspend(self) -> None:
        """Receive no frames until `confirm`. Frames in the outbox are dropped."""
        self.suspended = True
        self.client.drop_frames(self)

    def end(self) -> None:
        """End the subscription. It receives no more frames, and those in the outbox are dropped."""
        self.ended = self.behind = True
        self.client.remove(self)

    def confirm(self, authorization: Authorization) -> None:
        """Resume under this authorization, by which the caller may follow the topic."""
        self.access_id = authorization.access_id
        self.expires_at = authorization.expires_at
        self.suspended = False
        self.client.wake()


class Observer:
    """One connection: its subscriptions and its outbox. `pump` sends the frames that `write` does not take.

    `on_ended` is called with every subscription that ends, unless a new one for the same topic replaces it.
    """

    def __init__(
        self,
        *,
        heartbeat: Heartbeat | None = None,
        write: TryWrite | None = None,
        on_ended: Callable[[Subscription], None] = lambda _: None,
    ) -> None:
        self.heartbeat = heartbeat
        self.on_ended = on_ended
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
        """The number of topics of this source that the client follows."""
        return sum(subscription.source is source for subscription in self.subscriptions.values())

    def wake(self) -> None:
        """Wake the pump."""
        self._woken.set()

    def try_send(self, body: EncodedFrame) -> bool:
        """Send a frame now, unless others wait or the connection can't take it. Returns whether it was sent."""
        if self._sending or self._outbox or self._write is None:
            return False
        return self._write(body.websocket_message)

    def send(self, out: OutgoingFrame) -> None:
        """Send a frame now, or enqueue it."""
        if not self.try_send(out.body):
            self.enqueue(out)

    def enqueue(self, out: OutgoingFrame) -> None:
        """Add a frame to the outbox. If the outbox is then over its limit, all frames of topics are dropped."""
        self._outbox.append(out)
        self._bytes += len(out.body)
        if self._bytes > MAX_OUTBOX_BYTES:
            self._drop_all()
        self._woken.set()

    def set_presence(self, subscription: Subscription, body: EncodedFrame) -> None:
        """Send this presence list of the subscription's thread. It replaces a list that was not sent yet."""
        self._presence[subscription] = body
        self._woken.set()

    def drop_frames(self, subscription: Subscription) -> None:
        """Drop the subscription's frames from the outbox. If there were any, the subscription falls back."""
        dropped = [out for out in self._outbox if out.subscription is subscription]
        if dropped:
            self._outbox = deque(out for out in self._outbox if out.subscription is not subscription)
            self._bytes -= sum(len(out.body) for out in dropped)
            subscription.fall_back(dropped[0].since)

    def remove(self, subscription: Subscription) -> None:
        """Remove the subscription and its waiting frames."""
        self.subscriptions.pop((subscription.source, subscription.topic_id), None)
        self._presence.pop(subscription, None)
        self.drop_frames(subscription)

    async def pump(self, send: SendFrame) -> None:
        """Send the outbox, and catch up for subscriptions that are behind, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._flush(send)
            for subscription in [each for each in self.subscriptions.values() if each.needs_read]:
                await self._try_to_catch_up(subscription, send)
            if self._presence:
                await self._send_presence(send)

    async def _flush(self, send: SendFrame) -> None:
        while self._outbox:
            out = self._outbox.popleft()
            self._bytes -= len(out.body)
            await self._send(out, send)

    async def _send(self, out: OutgoingFrame, send: SendFrame) -> None:
        """Send a frame. Frames that arrive meanwhile wait in the outbox."""
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
        if subscription.needs_read:
            self._woken.set()

    async def _catch_up(self, subscription: Subscription, send: SendFrame) -> None:
        """Read once from the cursor on. The pump repeats it until the subscription has caught up."""
        if not subscription.needs_read:
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
        others = [out for out in self._outbox if out.subscription is None]
        for out in self._outbox:
            if out.subscription is not None:
                out.subscription.fall_back(out.since)
        self._outbox = deque(others)
        self._bytes = sum(len(out.body) for out in others)
