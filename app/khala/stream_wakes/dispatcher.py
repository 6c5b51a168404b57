"""The loop that wakes workers: it looks at subscriptions whose streams have changed or whose lease has lapsed.

A notification only says where to look. A lost one delays a wake until the next look at all subscriptions.
"""

import asyncio
import time
from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import structlog

from khala.domain.errors import Unavailable
from khala.live.polling import wait_until_set
from khala.store.postgres.database import Database
from khala.store.postgres.notifications import EVERYTHING
from khala.store.streams import wakes
from khala.store.streams.stream_rows import StreamLimits
from khala.store.streams.wakes import Wake
from khala.stream_wakes.webhook_sender import WebhookSender

log = structlog.get_logger()

MAX_CONCURRENT_DELIVERIES = 50
"""Requests to webhooks at the same time. Further wakes of webhooks begin when one has ended."""
LOOK_INTERVAL_SECONDS = 30.0
"""Seconds between two looks at all subscriptions."""
MIN_INTERVAL_SECONDS = 0.02
"""Seconds between two looks at changed streams, so that many appends share one."""
DUE_INTERVAL_SECONDS = 1.0
"""Seconds until subscriptions that are due are looked for again, if streams have changed."""
RETRY_SECONDS = 1.0
"""Seconds until the next look, if the database is unavailable."""
FIRST_ID = UUID(int=0)


class WakeDispatcher:
    """Begins wakes, and delivers those of webhooks. Every process with a listener may run one."""

    def __init__(self, db: Database, sender: WebhookSender, limits: StreamLimits) -> None:
        self._db = db
        self._sender = sender
        self._limits = limits
        self._changed_streams: set[UUID] = set()
        self._subscriptions: set[UUID] = set()
        self._everything = True
        self._wake = asyncio.Event()
        self._next_due = 0.0
        """The monotonic time at which subscriptions may be due."""
        self._looked_at = 0.0
        """The monotonic time of the last look at those that are due."""
        self._deferred: set[UUID] = set()
        self._deliveries = 0

    def handle_streams(self, payload: str) -> None:
        """Look at the subscriptions that name these streams."""
        self._add(self._changed_streams, payload)

    def handle_subscriptions(self, payload: str) -> None:
        """Look at these subscriptions."""
        self._add(self._subscriptions, payload)

    def _add(self, where: set[UUID], payload: str) -> None:
        if payload == EVERYTHING:
            self._everything = True
        else:
            where.update(map(UUID, payload.split(",")))
        self._wake.set()

    async def run(self) -> None:
        """Wake workers, for ever."""
        next_look = time.monotonic() + LOOK_INTERVAL_SECONDS
        async with asyncio.TaskGroup() as deliveries:
            while True:
                self._wake.clear()
                began = time.monotonic()
                try:
                    if not await self._look_at_streams():
                        looked_at = await self._look(deliveries)
                        self._next_due = time.monotonic() + await self._seconds_to_next(looked_at)
                        self._looked_at = began
                except Unavailable as error:
                    log.warning("wakes_failed", error=str(error.__cause__))
                    self._everything = True
                    self._next_due = began + RETRY_SECONDS
                await asyncio.sleep(began + MIN_INTERVAL_SECONDS - time.monotonic())
                await wait_until_set(self._wake, min(self._next_due, next_look) - time.monotonic())
                if time.monotonic() >= next_look:
                    self._everything = True
                    next_look = time.monotonic() + LOOK_INTERVAL_SECONDS

    async def _look_at_streams(self) -> bool:
        """Return whether there is nothing to do, because only streams have changed and no subscription names them."""
        # With the change of a stream, a wake may have begun elsewhere, whose lease lapses before the next one known.
        self._next_due = min(self._next_due, self._looked_at + DUE_INTERVAL_SECONDS)
        is_due = self._everything or self._subscriptions or time.monotonic() >= self._next_due
        if is_due or not self._changed_streams:
            return False
        streams, self._changed_streams = self._changed_streams, set()
        async with self._db.driver() as driver:
            self._subscriptions |= await wakes.find_changed(driver, streams)
        return not self._subscriptions

    async def _seconds_to_next(self, looked_at: datetime) -> float:
        async with self._db.driver() as driver:
            seconds = await wakes.seconds_to_next(driver, looked_at)
        return LOOK_INTERVAL_SECONDS if seconds is None else seconds

    async def _look(self, deliveries: asyncio.TaskGroup) -> datetime:
        """Look at all subscriptions about which there is news. Returns the time at which those looked at were due."""
        streams, self._changed_streams = self._changed_streams, set()
        found, self._subscriptions = self._subscriptions, set()
        everything, self._everything = self._everything, False
        async with self._db.driver() as driver:
            now = await wakes.read_time(driver)
            due = await wakes.find_due(driver, now)
            found |= due
            if streams and not everything:
                found |= await wakes.find_changed(driver, streams)
        await self._advance(found, deliveries)
        if everything:
            await self._advance_idle(deliveries)
        if len(due - self._deferred) == wakes.MAX_FOUND:
            self._wake.set()
        return now

    async def _advance_idle(self, deliveries: asyncio.TaskGroup) -> None:
        after = FIRST_ID
        while True:
            async with self._db.driver() as driver:
                found = await wakes.find_idle(driver, after)
            await self._advance(found, deliveries)
            if len(found) < wakes.MAX_FOUND:
                return
            after = found[-1]

    async def _advance(self, subscription_ids: Collection[UUID], deliveries: asyncio.TaskGroup) -> None:
        for subscription_id in subscription_ids:
            can_deliver = self._deliveries < MAX_CONCURRENT_DELIVERIES
            try:
                wake = await wakes.advance(self._db, subscription_id, self._limits, can_deliver=can_deliver)
            except Unavailable:
                raise
            except Exception:
                # One subscription holds up no other.
                log.exception("wake_failed", subscription_id=str(subscription_id))
                continue
            if wake == "deferred":
                self._deferred.add(subscription_id)
            elif wake is not None:
                self._deliveries += 1
                deliveries.create_task(self._deliver(wake))

    async def _deliver(self, wake: Wake) -> None:
        try:
            outcome = await self._sender.deliver(wake)
            await wakes.record_delivery(self._db, wake, outcome)
        except Unavailable as error:
            # The lease lapses, and another wake follows.
            log.warning("wake_not_recorded", error=str(error.__cause__))
        except Exception:
            log.exception("wake_failed", subscription_id=str(wake.subscription.id))
        finally:
            self._deliveries -= 1
        self._subscriptions |= self._deferred | {wake.subscription.id}
        self._deferred.clear()
        self._wake.set()
