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

    def level(self, subscription: "Subscription") -> bool:
        """It has read up to its cursor; whether that is where the topic's other observers are."""

    def doubt(self, subscription: "Subscription") -> None:
        """It may have changed whether its caller may follow."""

    def cut(self, subscription: "Subscription", code: str) -> None:
        """End it, and say why."""


class Subscription:
    """One client's following of one topic."""

    # There are many, and each frame touches all of a topic's: what is small is quick.
    __slots__ = (
        "access_id",
        "accompanied",
        "behind",
        "caller",
        "client",
        "cursor",
        "doubted",
        "ended",
        "expires_at",
        "source",
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
        self.doubted = False
        self.ended = False
        self.accompanied = False
        """Whether it was ever told of somebody who is present."""

    @property
    def readable(self) -> bool:
        """Whether it is to read for itself now."""
        return self.behind and not self.doubted and not self.ended

    def offer(self, body: EncodedFrame, since: int, revision: int) -> None:
        """The topic's next frame: taken if it joins what was taken before, else the client will read for itself."""
        if self.behind or self.cursor >= revision:
            return
        if self.cursor != since or self.doubted:
            self.fall_back(self.cursor)
        else:
            self.cursor = revision
            if not self.client.sent(body):
                self.client.queue(OutgoingFrame(body, revision, self, since))

    def fall_back(self, cursor: int) -> None:
        """Go back to this revision, and read on from there when the client has drained."""
        self.cursor = min(self.cursor, cursor)
        self.behind = True
        self.client.wake()

    def hold(self) -> None:
        """Hand it nothing until it is trusted again; what waits in the outbox for it is dropped."""
        self.doubted = True
        self.client.drop(self)

    def end(self) -> None:
        """Nothing more is offered, and what waits in the outbox for it is dropped."""
        self.ended = self.behind = True
        self.client.forget(self)

    def confirm(self, authorization: Authorization) -> None:
        """Resume: its caller may follow the topic under this authorization."""
        self.access_id = authorization.access_id
        self.expires_at = authorization.expires_at
        self.doubted = False
        self.client.wake()


class Observer:
    """One connection: its subscriptions and its outbox. `pump` sends what `write` could not.

    `left` is told of every subscription that ends, unless another takes its place.
    """

    def __init__(
        self,
        *,
        pulse: Heartbeat | None = None,
        write: TryWrite | None = None,
        left: Callable[[Subscription], None] = lambda _: None,
    ) -> None:
        self.pulse = pulse
        self.left = left
        self._write = write
        self._sending = False
        self.secret = uuid4()
        """What the connection's names in threads are made of."""
        self.subscriptions: dict[tuple[SubscriptionSource, UUID], Subscription] = {}
        self._outbox: deque[OutgoingFrame] = deque()
        self._bytes = 0
        self._company: dict[Subscription, EncodedFrame] = {}
        self._woken = asyncio.Event()

    def following(self, source: SubscriptionSource) -> int:
        """How many topics of this source it follows."""
        return sum(one.source is source for one in self.subscriptions.values())

    def wake(self) -> None:
        """There is something for the pump to do."""
        self._woken.set()

    def sent(self, body: EncodedFrame) -> bool:
        """Send it now, unless others come before it or the client doesn't take it yet; whether it was sent."""
        if self._sending or self._outbox or self._write is None:
            return False
        return self._write(body.message)

    def put(self, out: OutgoingFrame) -> None:
        """Send a frame now, or queue it."""
        if not self.sent(out.body):
            self.queue(out)

    def queue(self, out: OutgoingFrame) -> None:
        """Queue a frame, or drop the topics' frames if there is no room for it."""
        self._outbox.append(out)
        self._bytes += len(out.body)
        if self._bytes > MAX_OUTBOX_BYTES:
            self._drop_all()
        self._woken.set()

    def accompany(self, subscription: Subscription, body: EncodedFrame) -> None:
        """Who is present in its thread: a frame that takes the place of one that was not sent yet."""
        self._company[subscription] = body
        self._woken.set()

    def drop(self, subscription: Subscription) -> None:
        """Take the topic's frames back out of the outbox; if any were there, it will have to read them again."""
        dropped = [out for out in self._outbox if out.subscription is subscription]
        if dropped:
            self._outbox = deque(out for out in self._outbox if out.subscription is not subscription)
            self._bytes -= sum(len(out.body) for out in dropped)
            subscription.fall_back(dropped[0].since)

    def forget(self, subscription: Subscription) -> None:
        """Nothing more is sent of it."""
        self.subscriptions.pop((subscription.source, subscription.topic_id), None)
        self._company.pop(subscription, None)
        self.drop(subscription)

    async def pump(self, send: SendFrame) -> None:
        """Send what is queued and let who fell behind catch up, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._flush(send)
            for subscription in [one for one in self.subscriptions.values() if one.readable]:
                await self._try_to_catch_up(subscription, send)
            if self._company:
                await self._tell_company(send)

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

    async def _tell_company(self, send: SendFrame) -> None:
        for subscription in list(self._company):
            if not subscription.behind and not subscription.doubted and subscription in self._company:
                await self._send(OutgoingFrame(self._company.pop(subscription)), send)

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
            subscription.source.cut(subscription, GONE)
        elif read.access_id != subscription.access_id:
            subscription.source.doubt(subscription)
        elif not subscription.doubted:
            await self._take(subscription, read, send)

    async def _take(self, subscription: Subscription, read: CatchUpRead, send: SendFrame) -> None:
        if read.revision is not None:
            subscription.cursor = read.revision
        subscription.behind = not subscription.source.level(subscription)
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
