"""The access guard: rechecks whether subscribers may still read what they follow.

A subscription that is being rechecked receives nothing until the database has confirmed its access. A subscription
without access ends. While the database is unavailable, rechecks wait and end no subscription.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from uuid import UUID

import msgspec
import structlog

from khala.domain.access import Authorization, Caller
from khala.domain.errors import Unavailable
from khala.live.observer import FORBIDDEN, GONE, Subscription, SubscriptionSource
from khala.live.polling import wait_until_set
from khala.store.accounts.account_feed import valid_credentials
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    EVERYTHING,
)

log = structlog.get_logger()

RETRY_INTERVAL_SECONDS = 0.25
"""Seconds before a retry while the database is unavailable, and before an expiry is checked again."""
MAX_PER_QUERY = 500
"""Subscriptions or credentials in one query."""


class AccessGuard:
    """Rechecks this process's subscriptions when they expire, or when their access may have changed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._users: dict[UUID, set[Subscription]] = defaultdict(set)
        self._expiring: set[Subscription] = set()
        self._next_expiry = math.inf
        self._poll_due = False
        self._pending: dict[Subscription, None] = {}
        self._wake = asyncio.Event()
        self.credential_notices = 0
        """The number of received notices that credentials have ended."""

    def watch(self, subscription: Subscription) -> None:
        """Watch a subscription that has begun, or whose authorization or account has changed."""
        if subscription.caller.user_id is not None:
            self._users[subscription.caller.user_id].add(subscription)
        if subscription.expires_at is None:
            self._expiring.discard(subscription)
        else:
            self._expiring.add(subscription)
            # The database's clock may be behind this one, so the recheck is not immediate.
            self._schedule_expiry(max(subscription.expires_at.timestamp(), time.time() + RETRY_INTERVAL_SECONDS))

    def unwatch(self, subscription: Subscription) -> None:
        """Stop watching the subscription, which has ended."""
        self._pending.pop(subscription, None)
        self._expiring.discard(subscription)
        self._stop_watching_account(subscription)

    def recheck(self, subscription: Subscription) -> None:
        """Suspend the subscription until its caller's access is confirmed."""
        if not subscription.ended:
            subscription.suspend()
            self._pending[subscription] = None
            self._wake.set()

    def renew(self, subscription: Subscription, account: Caller) -> None:
        """Recheck the subscription with a new credential of the same user, or another token of the same thread."""
        subscription.caller = msgspec.structs.replace(
            subscription.caller,
            name=account.name,
            credential=account.credential,
            scopes=account.scopes,
            expires_at=account.expires_at,
        )
        if account.only_thread is not None:
            subscription.caller = msgspec.structs.replace(
                subscription.caller, share_key_hash=account.share_key_hash, only_thread=account.only_thread
            )
        self.recheck(subscription)

    def handle_notification(self, payload: str) -> None:
        """Recheck the subscriptions of these users, or of all users: credentials of theirs may have ended."""
        self.credential_notices += 1
        user_ids = list(self._users) if payload == EVERYTHING else map(UUID, payload.split(","))
        for subscription in [each for user_id in user_ids for each in self._users.get(user_id, ())]:
            self.recheck(subscription)

    def refresh_all(self) -> None:
        """Check all credentials, because notifications may have been missed."""
        self._poll_due = True
        self._wake.set()

    async def run(self) -> None:
        """Recheck subscriptions, until cancelled."""
        while True:
            await self._wait()
            self._recheck_expired()
            try:
                if self._poll_due:
                    await self._poll()
                while self._pending:
                    await self._check_batch()
            except Unavailable as error:
                log.warning("access_recheck_failed", subscriptions=len(self._pending), error=str(error.__cause__))
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)

    async def _wait(self) -> None:
        self._wake.clear()
        if self._pending or self._poll_due:
            return
        due = None if self._next_expiry == math.inf else max(0.0, self._next_expiry - time.time())
        await wait_until_set(self._wake, due)

    def _schedule_expiry(self, at: float) -> None:
        if at < self._next_expiry:
            self._next_expiry = at
            self._wake.set()

    def _recheck_expired(self) -> None:
        """Recheck the subscriptions that have expired, and set the time of the next expiry."""
        now = time.time()
        if now < self._next_expiry:
            return
        times = {each: each.expires_at.timestamp() for each in self._expiring if each.expires_at is not None}
        expired = [subscription for subscription, expires_at in times.items() if expires_at <= now]
        self._next_expiry = min((expires_at for expires_at in times.values() if expires_at > now), default=math.inf)
        for subscription in expired:
            if not is_unexpired(subscription.caller):
                self._remove_account(subscription)
            self.recheck(subscription)

    async def _poll(self) -> None:
        self._poll_due = False
        try:
            await self._recheck_ended()
        except BaseException:
            self._poll_due = True
            raise

    async def _recheck_ended(self) -> None:
        """Recheck all subscriptions whose credentials have ended."""
        by_credential: dict[tuple[UUID | None, UUID | None], list[Subscription]] = defaultdict(list)
        for subscription in [each for subscriptions in self._users.values() for each in subscriptions]:
            by_credential[subscription.caller.user_id, subscription.caller.credential].append(subscription)
        for batch in _batches(by_credential.values()):
            async with self._db.driver() as driver:
                validity = await valid_credentials(driver, [subscriptions[0].caller for subscriptions in batch])
            for subscription in [
                each for valid, group in zip(validity, batch, strict=True) if not valid for each in group
            ]:
                self.recheck(subscription)

    async def _check_batch(self) -> None:
        """Check one batch. A subscription of which another recheck is requested meanwhile waits for the next batch."""
        batch = list(islice(self._pending, MAX_PER_QUERY))
        for subscription in batch:
            del self._pending[subscription]
        try:
            await self._remove_ended_accounts(batch)
            authorizations = await self._authorizations(batch)
        except BaseException:
            self._pending = {subscription: None for subscription in batch if not subscription.ended} | self._pending
            raise
        for subscription, authorization in authorizations:
            if subscription not in self._pending and not subscription.ended:
                self._settle(subscription, authorization)

    async def _remove_ended_accounts(self, batch: list[Subscription]) -> None:
        """Remove the account from callers whose session or token has ended. Their keys may still give access."""
        signed_in = [subscription for subscription in batch if subscription.caller.user_id is not None]
        if not signed_in:
            return
        async with self._db.driver() as driver:
            validity = await valid_credentials(driver, [subscription.caller for subscription in signed_in])
        for subscription, valid in zip(signed_in, validity, strict=True):
            if not valid:
                self._remove_account(subscription)

    async def _authorizations(self, batch: list[Subscription]) -> list[tuple[Subscription, Authorization | None]]:
        sources: dict[SubscriptionSource, list[Subscription]] = defaultdict(list)
        for subscription in batch:
            sources[subscription.source].append(subscription)
        groups = [(group, await source.authorizations(group)) for source, group in sources.items()]
        return [pair for group, authorizations in groups for pair in zip(group, authorizations, strict=True)]

    def _settle(self, subscription: Subscription, authorization: Authorization | None) -> None:
        if authorization is None or authorization.role is None:
            subscription.source.revoke(subscription, GONE if authorization is None else FORBIDDEN)
            return
        subscription.confirm(authorization)
        self.watch(subscription)

    def _remove_account(self, subscription: Subscription) -> None:
        self._stop_watching_account(subscription)
        subscription.caller = without_account(subscription.caller)

    def _stop_watching_account(self, subscription: Subscription) -> None:
        user_id = subscription.caller.user_id
        if user_id is not None and user_id in self._users:
            self._users[user_id].discard(subscription)
            if not self._users[user_id]:
                del self._users[user_id]


def is_unexpired(caller: Caller) -> bool:
    """Whether the caller's credential has no expiry, or has not expired yet."""
    return caller.expires_at is None or caller.expires_at > datetime.now(UTC)


def without_account(caller: Caller) -> Caller:
    """The caller without the account, with only the keys."""
    return Caller(
        anon_key_hash=caller.anon_key_hash,
        share_key_hash=caller.share_key_hash,
        network=caller.network,
        only_thread=caller.only_thread,
    )


def _batches(groups: Iterable[list[Subscription]]) -> Iterable[list[list[Subscription]]]:
    remaining = iter(groups)
    while batch := list(islice(remaining, MAX_PER_QUERY)):
        yield batch
