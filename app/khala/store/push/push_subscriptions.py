"""Subscriptions to push notifications: the browsers of accounts, and of guests by their key."""

import hashlib
from datetime import datetime
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.errors import NotFound
from khala.domain.push import MAX_FAILURES, MAX_SUBSCRIPTIONS
from khala.store.accounts import account_marks
from khala.store.memories.memory_settings import subject_of
from khala.store.postgres.database import Database, Driver, affected
from khala.store.postgres.retries import retried
from khala.store.tools import workspace_owners

OPENS_THREAD = "SELECT EXISTS (SELECT FROM threads WHERE anon_key_hash = $1 AND deleted_at IS NULL)"
SET = """
    INSERT INTO push_subscriptions (id, subject_id, anon_key_hash, credential, endpoint, public_key, auth, answers)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (id) DO UPDATE SET credential = excluded.credential, public_key = excluded.public_key,
        auth = excluded.auth, answers = excluded.answers, failures = 0, confirmed_at = now()
    RETURNING id, answers, created_at
"""
DROP_OTHER_ACCOUNTS = """
    WITH locked AS MATERIALIZED (
        SELECT id FROM push_subscriptions
        WHERE endpoint = $1 AND (subject_id = $2 OR anon_key_hash IS NULL) ORDER BY id FOR UPDATE)
    DELETE FROM push_subscriptions USING locked
    WHERE push_subscriptions.id = locked.id AND subject_id <> $2 AND auth = $3
"""
"""Somebody else signed in to this browser. Whoever knows only its address, and not its secret, ends nothing."""
DROP_OLDEST = f"""
    DELETE FROM push_subscriptions WHERE id = (
        SELECT id FROM push_subscriptions WHERE subject_id = $1 ORDER BY confirmed_at DESC, id
        OFFSET {MAX_SUBSCRIPTIONS} LIMIT 1)
"""
DELETE_OWN = "DELETE FROM push_subscriptions WHERE id = $1 AND subject_id = $2"
DELETE = "DELETE FROM push_subscriptions WHERE id = $1"
REMOVE_ALL = """
    WITH locked AS MATERIALIZED (SELECT id FROM push_subscriptions WHERE subject_id = $1 ORDER BY id FOR UPDATE)
    DELETE FROM push_subscriptions USING locked WHERE push_subscriptions.id = locked.id
"""
SUCCEED = "UPDATE push_subscriptions SET failures = 0 WHERE id = $1 AND failures > 0"
FAIL = "UPDATE push_subscriptions SET failures = failures + 1 WHERE id = $1 RETURNING failures"


class BrowserEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a browser at its push service, its keys, and which notifications it gets."""

    endpoint: str
    public_key: bytes
    auth: bytes
    answers: bool


class StoredPushSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A browser's subscription."""

    id: UUID
    answers: bool
    created_at: datetime


def subscription_id(subject_id: UUID, endpoint: str) -> UUID:
    """The id of this person's subscription with this endpoint."""
    return UUID(bytes=hashlib.sha256(subject_id.bytes + endpoint.encode()).digest()[:16], version=5)


@retried
async def subscribe(db: Database, caller: Caller, browser: BrowserEndpoint) -> StoredPushSubscription:
    """Store or confirm the browser's subscription. Of more than `MAX_SUBSCRIPTIONS`, those confirmed first are deleted.

    A browser has one account: the subscriptions of others with it are deleted. Those of guests' keys stay.

    Raises `Unauthorized` without an account and key, also if the account was deleted, and `NotFound` for a key that
    opens no thread.
    """
    subject_id = subject_of(caller)
    key_hash = None if caller.user_id is not None else caller.anon_key_hash
    async with db.driver() as driver, driver.transaction():
        if caller.user_id is not None:
            await account_marks.lock_account(driver, caller.user_id)
        elif not await driver.fetchval(OPENS_THREAD, key_hash):
            raise NotFound("This key opens no thread.")
        await workspace_owners.lock(driver, subject_id)
        key = subscription_id(subject_id, browser.endpoint)
        values = browser.endpoint, browser.public_key, browser.auth, browser.answers
        await driver.execute(DROP_OTHER_ACCOUNTS, browser.endpoint, subject_id, browser.auth)
        row = await driver.fetchrow(SET, key, subject_id, key_hash, caller.credential, *values)
        await driver.execute(DROP_OLDEST, subject_id)
    assert row is not None
    return StoredPushSubscription(**row)


@retried
async def unsubscribe(db: Database, caller: Caller, subscription: UUID) -> None:
    """Delete the caller's subscription. Raises `Unauthorized`, and `NotFound` if they have none with this id."""
    async with db.driver() as driver:
        if not affected(await driver.execute(DELETE_OWN, subscription, subject_of(caller))):
            raise NotFound("There is no such subscription.")


async def delete(driver: Driver, subscription: UUID) -> None:
    """Delete a subscription that has ended."""
    await driver.execute(DELETE, subscription)


async def remove_all(driver: Driver, subject_id: UUID) -> None:
    """Delete all subscriptions of this account, in the caller's transaction, which holds the user's lock."""
    await driver.execute(REMOVE_ALL, subject_id)


async def record_success(driver: Driver, subscription: UUID) -> None:
    """Record that the push service has accepted a notification."""
    await driver.execute(SUCCEED, subscription)


async def record_failure(driver: Driver, subscription: UUID) -> None:
    """Record that the push service has refused a notification. After `MAX_FAILURES` the subscription is deleted."""
    failures = await driver.fetchval(FAIL, subscription)
    if failures is not None and failures >= MAX_FAILURES:
        await delete(driver, subscription)
