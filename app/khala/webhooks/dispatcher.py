"""The loop that delivers events to webhooks.

Each process that serves requests may run one. They share the work by leases in the database. A notification only says
that there may be something to do: a lost one delays a delivery until the next poll.
"""

import asyncio
import random
import time
from uuid import UUID

import structlog

from khala.domain.errors import Unavailable
from khala.live.polling import poll
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.store.webhooks import deliveries
from khala.store.webhooks.deliveries import EventDelivery, WaitingEndpoint
from khala.store.webhooks.endpoints import StoredEndpoint
from khala.webhooks.event_sender import ATTEMPT_TIMEOUT_SECONDS, EventSender

log = structlog.get_logger()

MAX_CONCURRENT_ATTEMPTS = 64
"""Attempts of one process at the same time."""
MAX_CONCURRENT_FAILING = MAX_CONCURRENT_ATTEMPTS // 2
"""Those of them to endpoints that fail, so that these do not delay others."""
LEASE_SECONDS = 3 * ATTEMPT_TIMEOUT_SECONDS
POLL_INTERVAL_SECONDS = 30.0
"""Seconds between two looks without a notification."""
RETRY_SECONDS = 1.0
"""Seconds until the next look at an endpoint that is busy, or at all if the database is unavailable."""


class WebhookDispatcher:
    """Delivers the events in the outbox. `ahead` is added to the time, in seconds: a test may let it pass."""

    def __init__(self, db: Database, sender: EventSender) -> None:
        self._db = db
        self._sender = sender
        self._wake = asyncio.Event()
        self._busy_until: dict[UUID, float] = {}
        self._active = 0
        self._active_failing = 0
        self.ahead = 0.0

    def handle_notification(self, _: str) -> None:
        """Look for deliveries."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver events, for ever."""
        async with asyncio.TaskGroup() as attempts:
            await poll(
                self._wake, lambda: self.look(attempts), failure_event="webhooks_failed", retry_seconds=RETRY_SECONDS
            )

    def _now(self) -> float:
        return time.monotonic() + self.ahead

    async def look(self, attempts: asyncio.TaskGroup) -> float:
        """Begin the attempts that are due. Returns the seconds until the next look; 0 if there may be more already."""
        async with self._db.driver() as driver:
            found = await deliveries.look(driver, ahead=self.ahead)
        now = self._now()
        self._busy_until = {key: until for key, until in self._busy_until.items() if until > now}
        next_look = POLL_INTERVAL_SECONDS
        for endpoint in found:
            seconds = max(endpoint.seconds, self._busy_until.get(endpoint.id, now) - now)
            if seconds <= 0 and (room := self._room(endpoint)) > 0:
                next_look = min(next_look, 0 if await self._try_claim(endpoint, room, attempts) else RETRY_SECONDS)
            elif seconds > 0:
                next_look = min(next_look, seconds)
        return next_look

    def _room(self, endpoint: WaitingEndpoint) -> int:
        """The attempts that may begin now. When others end, the loop looks again."""
        room = MAX_CONCURRENT_ATTEMPTS - self._active
        return min(room, MAX_CONCURRENT_FAILING - self._active_failing) if endpoint.fails else room

    async def _try_claim(self, endpoint: WaitingEndpoint, room: int, attempts: asyncio.TaskGroup) -> bool:
        try:
            return await self._claim(endpoint, room, attempts)
        except Unavailable:
            raise
        except Exception:
            # One endpoint holds up no other.
            log.exception("webhook_claim_failed", webhook_id=str(endpoint.id))
            self._busy_until[endpoint.id] = self._now() + POLL_INTERVAL_SECONDS
            return False

    async def _claim(self, endpoint: WaitingEndpoint, room: int, attempts: asyncio.TaskGroup) -> bool:
        """Begin attempts to deliver to the endpoint. Returns whether there may be more for it."""
        claim = await deliveries.claim(self._db, endpoint.id, most=room, lease_seconds=LEASE_SECONDS, ahead=self.ahead)
        if claim is None or claim.is_full:
            self._busy_until[endpoint.id] = self._now() + RETRY_SECONDS
            return False
        for delivery in claim.deliveries:
            self._active += 1
            self._active_failing += endpoint.fails
            attempts.create_task(self._deliver(claim.endpoint, delivery, fails=endpoint.fails))
        return True

    async def _deliver(self, endpoint: StoredEndpoint, delivery: EventDelivery, *, fails: bool) -> None:
        try:
            attempt = await self._sender.send(endpoint, delivery)
            judged = await deliveries.record(self._db, delivery, attempt, jitter=random.random(), ahead=self.ahead)
            if judged is not None:
                metrics.WEBHOOK_DELIVERIES.labels(judged.state).inc()
                if judged.health.disabled_reason is not None:
                    reason = judged.health.disabled_reason
                    log.warning("webhook_disabled", webhook_id=str(endpoint.id), reason=reason)
        except Unavailable as error:
            # The lease lapses, and another attempt follows.
            log.warning("webhook_delivery_not_recorded", error=str(error.__cause__))
        except Exception:
            # One delivery holds up no other.
            log.exception("webhook_delivery_failed", webhook_id=str(endpoint.id))
        finally:
            self._active -= 1
            self._active_failing -= fails
            self._busy_until.pop(endpoint.id, None)
            self._wake.set()
