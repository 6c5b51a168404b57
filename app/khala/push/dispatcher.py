"""The loop that delivers notifications to push services.

Each process that serves requests runs one. They share the work by leases in the database. A notification of Postgres
only says that there may be something to do: a lost one delays a delivery until the next poll.
"""

import asyncio
import random

import structlog

from khala.domain.errors import Unavailable
from khala.domain.push import judge
from khala.live.polling import poll
from khala.push.push_sender import ATTEMPT_TIMEOUT_SECONDS, PushSender
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.store.push import push_messages
from khala.store.push.push_messages import ClaimedMessage

log = structlog.get_logger()

MAX_CONCURRENT_ATTEMPTS = 32
"""Attempts of one process at the same time."""
LEASE_SECONDS = 6 * ATTEMPT_TIMEOUT_SECONDS
POLL_INTERVAL_SECONDS = 30.0
"""Seconds between two looks without a notification."""
RETRY_SECONDS = 1.0
"""Seconds until the next look if the database is unavailable."""


class PushDispatcher:
    """Delivers the notifications in the outbox. `ahead` is added to the time, in seconds: a test may let it pass."""

    def __init__(self, db: Database, sender: PushSender) -> None:
        self._db = db
        self.sender = sender
        self._wake = asyncio.Event()
        self.ahead = 0.0

    def handle_notification(self, _: str) -> None:
        """Look for notifications to deliver."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver notifications, for ever."""
        await poll(self._wake, self.look, failure_event="push_unavailable", retry_seconds=RETRY_SECONDS)

    async def look(self) -> float:
        """Deliver what is due, at most `MAX_CONCURRENT_ATTEMPTS`. Returns the seconds until the next look."""
        options = {"lease_seconds": LEASE_SECONDS, "ahead": self.ahead}
        claimed = await push_messages.claim(self._db, most=MAX_CONCURRENT_ATTEMPTS, **options)
        async with asyncio.TaskGroup() as attempts:
            for message in claimed:
                attempts.create_task(self._deliver(message))
        if len(claimed) == MAX_CONCURRENT_ATTEMPTS:
            return 0.0
        async with self._db.driver() as driver:
            seconds = await push_messages.seconds_until_next(driver, ahead=self.ahead)
        return POLL_INTERVAL_SECONDS if seconds is None else min(max(0.0, seconds), POLL_INTERVAL_SECONDS)

    async def _deliver(self, claimed: ClaimedMessage) -> None:
        try:
            async with self._db.driver() as driver:
                prepared = await push_messages.prepare(driver, claimed)
            response = None if prepared is None else await self.sender.send(prepared)
            if response is None:
                metrics.PUSH_DELIVERIES.labels("dropped").inc()
                return await push_messages.drop(self._db, claimed)
            options = {"attempts": claimed.attempts, "retry_after": response.retry_after, "jitter": random.random()}
            outcome = judge(response.status, **options)  # type: ignore[arg-type]
            await push_messages.record(self._db, claimed, outcome, ahead=self.ahead)
            metrics.PUSH_DELIVERIES.labels(outcome.state).inc()
        except Unavailable as error:
            # The lease lapses, and another attempt follows.
            log.warning("push_not_recorded", error=str(error.__cause__))
        except Exception:
            # One notification holds up no other.
            log.exception("push_delivery_failed", subscription_id=str(claimed.subscription_id))
