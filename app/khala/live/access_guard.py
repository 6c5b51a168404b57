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
from khala.store.accounts.account_feed import valid_credentials
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    EVERYTHING,
)

log = structlog.get_logger()

PAUSE = 0.25
"""Seconds until a retry while the database is unavailable, and until an expiry is checked again."""
MOST = 500
"""Subscriptions or credentials per query."""


class Guard:
    """Rechecks this process's subscriptions when they expire, or when their access may have changed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._users: dict[UUID, set[Subscription]] = defaultdict(set)
        self._expiring: set[Subscription] = set()
        self._next_expiry = math.inf
        self._to_poll = False
        self._doubted: dict[Subscription, None] = {}
        self._wake = asyncio.Event()
        self.credential_notices = 0
        """Notices of ended credentials that were received."""

    def watch(self, subscription: Subscription) -> None:
        """Watch a subscription that has begun, or whose authorization or account has changed."""
        if subscription.caller.user_id is not None:
            self._users[subscription.caller.user_id].add(subscription)
        if subscription.expires_at is None:
            self._expiring.discard(subscription)
        else:
            self._expiring.add(subscription)
            # The database's clock may be behind this one, so don't recheck at once.
            self._expect(max(subscription.expires_at.timestamp(), time.time() + PAUSE))

    def forget(self, subscription: Subscription) -> None:
        """Stop watching a subscription that has ended."""
        self._doubted.pop(subscription, None)
        self._expiring.discard(subscription)
        self._leave_account(subscription)

    def recheck(self, subscription: Subscription) -> None:
        """Suspend the subscription until its caller's access is confirmed."""
        if not subscription.ended:
            subscription.suspend()
            self._doubted[subscription] = None
            self._wake.set()

    def renew(self, subscription: Subscription, account: Caller) -> None:
        """Recheck the subscription with a new credential of the same user."""
        subscription.caller = msgspec.structs.replace(
            subscription.caller,
            name=account.name,
            credential=account.credential,
            scopes=account.scopes,
            expires_at=account.expires_at,
        )
        self.recheck(subscription)

    def handle_notification(self, payload: str) -> None:
        """Recheck after a notification that credentials of these users, or of any user, have ended."""
        self.credential_notices += 1
        users = list(self._users) if payload == EVERYTHING else map(UUID, payload.split(","))
        for subscription in [one for user_id in users for one in self._users.get(user_id, ())]:
            self.recheck(subscription)

    def refresh_all(self) -> None:
        """Poll all credentials, because notifications may have been missed."""
        self._to_poll = True
        self._wake.set()

    async def run(self) -> None:
        """Recheck subscriptions, until cancelled."""
        while True:
            await self._rest()
            self._expire()
            try:
                if self._to_poll:
                    await self._poll()
                while self._doubted:
                    await self._check()
            except Unavailable as error:
                log.warning("access_recheck_failed", subscriptions=len(self._doubted), error=str(error.__cause__))
                await asyncio.sleep(PAUSE)

    async def _rest(self) -> None:
        self._wake.clear()
        if self._doubted or self._to_poll:
            return
        due = None if self._next_expiry == math.inf else max(0.0, self._next_expiry - time.time())
        try:
            async with asyncio.timeout(due):
                await self._wake.wait()
        except TimeoutError:
            return

    def _expect(self, at: float) -> None:
        if at < self._next_expiry:
            self._next_expiry = at
            self._wake.set()

    def _expire(self) -> None:
        """Recheck the subscriptions that have expired, and note when the next one does."""
        now = time.time()
        if now < self._next_expiry:
            return
        times = {one: one.expires_at.timestamp() for one in self._expiring if one.expires_at is not None}
        due = [one for one, at in times.items() if at <= now]
        self._next_expiry = min((at for at in times.values() if at > now), default=math.inf)
        for subscription in due:
            if not stands(subscription.caller):
                self._strip(subscription)
            self.recheck(subscription)

    async def _poll(self) -> None:
        self._to_poll = False
        try:
            await self._doubt_ended()
        except BaseException:
            self._to_poll = True
            raise

    async def _doubt_ended(self) -> None:
        """Recheck all subscriptions whose credentials have ended."""
        accounts: dict[tuple[UUID | None, UUID | None], list[Subscription]] = defaultdict(list)
        for subscription in [one for found in self._users.values() for one in found]:
            accounts[subscription.caller.user_id, subscription.caller.credential].append(subscription)
        for batch in _batches(accounts.values()):
            async with self._db.driver() as driver:
                found = await valid_credentials(driver, [subscriptions[0].caller for subscriptions in batch])
            for subscription in [one for ok, group in zip(found, batch, strict=True) if not ok for one in group]:
                self.recheck(subscription)

    async def _check(self) -> None:
        """Recheck one batch. A subscription that is doubted again meanwhile stays for the next batch."""
        batch = list(islice(self._doubted, MOST))
        for subscription in batch:
            del self._doubted[subscription]
        try:
            await self._strip_ended(batch)
            found = await self._authorizations(batch)
        except BaseException:
            self._doubted = {one: None for one in batch if not one.ended} | self._doubted
            raise
        for subscription, authorization in found:
            if subscription not in self._doubted and not subscription.ended:
                self._settle(subscription, authorization)

    async def _strip_ended(self, batch: list[Subscription]) -> None:
        """Remove the account from callers whose session or token has ended. Their keys may still give access."""
        signed_in = [one for one in batch if one.caller.user_id is not None]
        if not signed_in:
            return
        async with self._db.driver() as driver:
            found = await valid_credentials(driver, [one.caller for one in signed_in])
        for subscription, ok in zip(signed_in, found, strict=True):
            if not ok:
                self._strip(subscription)

    async def _authorizations(self, batch: list[Subscription]) -> list[tuple[Subscription, Authorization | None]]:
        sources: dict[SubscriptionSource, list[Subscription]] = defaultdict(list)
        for subscription in batch:
            sources[subscription.source].append(subscription)
        found = [(group, await source.authorizations(group)) for source, group in sources.items()]
        return [pair for group, authorizations in found for pair in zip(group, authorizations, strict=True)]

    def _settle(self, subscription: Subscription, authorization: Authorization | None) -> None:
        if authorization is None or authorization.role is None:
            subscription.source.revoke(subscription, GONE if authorization is None else FORBIDDEN)
            return
        subscription.confirm(authorization)
        self.watch(subscription)

    def _strip(self, subscription: Subscription) -> None:
        self._leave_account(subscription)
        subscription.caller = without_account(subscription.caller)

    def _leave_account(self, subscription: Subscription) -> None:
        user_id = subscription.caller.user_id
        if user_id is not None and user_id in self._users:
            self._users[user_id].discard(subscription)
            if not self._users[user_id]:
                del self._users[user_id]


def stands(caller: Caller) -> bool:
    """Whether the caller's credential has not expired yet."""
    return caller.expires_at is None or caller.expires_at > datetime.now(UTC)


def without_account(caller: Caller) -> Caller:
    """The caller without the account: with the keys alone."""
    return Caller(anon_key_hash=caller.anon_key_hash, share_key_hash=caller.share_key_hash, network=caller.network)


def _batches(groups: Iterable[list[Subscription]]) -> Iterable[list[list[Subscription]]]:
    remaining = iter(groups)
    while batch := list(islice(remaining, MOST)):
        yield batch
