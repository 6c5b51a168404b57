"""Notifications that wait for their delivery: claims, what they say by then, and outcomes.

A notification is checked when it is sent, not when it is recorded: one about a call that has been decided, about a plan
that has been resumed, or for a person who has lost access or has the thread open, is dropped.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller
from khala.domain.push import (
    MAX_TITLE_CHARACTERS,
    TIME_TO_LIVE,
    UNBOUND_LIFETIME,
    PushKind,
    PushMessage,
    PushOutcome,
)
from khala.domain.tools import QUESTION_MARK
from khala.store.accounts import account_feed
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.push import push_subscriptions
from khala.store.sharing import access
from khala.store.threads.presence import PROCESS_TIMEOUT_SECONDS
from khala.store.threads.reset_marks import IS_PLAN, IS_RUN

NOW = "(clock_timestamp() + make_interval(secs => $1))"
"""The time. The argument is 0, except in tests."""
CLAIM = f"""
    UPDATE push_messages SET due_at = {NOW} + make_interval(secs => $3), claim_id = gen_random_uuid(),
           attempts = attempts + 1
    WHERE seq IN (
        SELECT seq FROM push_messages WHERE due_at <= {NOW} ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING seq, subscription_id, thread_id, run_id, plan_id, kind, claim_id, attempts,
              extract(epoch FROM {NOW} - created_at)::float8 AS age
"""
NEXT = f"SELECT extract(epoch FROM due_at - {NOW})::float8 FROM push_messages ORDER BY due_at LIMIT 1"
READ = f"""
    SELECT subscription.subject_id, subscription.anon_key_hash, subscription.credential, subscription.endpoint,
           subscription.public_key, subscription.auth, thread.title,
           EXISTS (SELECT FROM push_messages AS newer WHERE newer.subscription_id = $1 AND newer.thread_id = $2
                   AND newer.{{work}}_id = $3 AND newer.seq > $4 AND newer.kind = $5) AS is_superseded,
           news.is_waiting, news.tool, news.reason,
           EXISTS (SELECT FROM listings WHERE listings.thread_id = $2 AND listings.user_id = subscription.subject_id
                   AND {{is_read}}) AS is_read,
           EXISTS (SELECT FROM presences JOIN processes ON processes.id = presences.process_id
                   AND processes.beat_at > clock_timestamp() - interval '{PROCESS_TIMEOUT_SECONDS} s'
                   WHERE presences.thread_id = $2 AND presences.user_id = subscription.subject_id) AS is_present
    FROM push_subscriptions AS subscription JOIN threads AS thread ON thread.id = $2
    JOIN {{source}}
    CROSS JOIN LATERAL ({{news}}) AS news
    WHERE subscription.id = $1 AND (subscription.anon_key_hash IS NOT NULL OR subscription.credential IS NOT NULL
        OR subscription.confirmed_at > clock_timestamp() - interval '{UNBOUND_LIFETIME.days} days')
"""
CALLS = f"""
    SELECT count(*) > 0 AS is_waiting, NULL::text AS reason, CASE WHEN count(*) = 1 THEN
           max(tool) FILTER (WHERE strpos(tool_call_id, '{QUESTION_MARK}') = 0) END AS tool
    FROM approvals WHERE run_id = $3 AND approvals.thread_id = $2 AND state = 'pending'
"""
READ_RUN = READ.format(
    work="run",
    source=f"runs ON runs.id = $3 AND runs.thread_id = $2 AND {IS_RUN}",
    news=CALLS,
    is_read="said_revision <= read_revision",
)
PLAN_STATE = """
    SELECT plans.status = 'paused'
           AND (plans.state ->> 'pause_reason' <> 'requested' OR plans.edited_by IS NOT NULL) AS is_waiting,
           coalesce(plans.state ->> 'end', plans.state ->> 'pause_reason') AS reason, NULL::text AS tool
"""
READ_PLAN = READ.format(
    work="plan",
    source=f"plans ON plans.id = $3 AND plans.thread_id = $2 AND {IS_PLAN}",
    news=PLAN_STATE,
    is_read="plans.revision <= read_revision",
)
DROP = "DELETE FROM push_messages WHERE seq = $1 AND claim_id = $2 RETURNING seq"
DROP_ALL = "DELETE FROM push_messages WHERE subscription_id = $1"
POSTPONE = f"""
    UPDATE push_messages SET due_at = {NOW} + make_interval(secs => $4), claim_id = NULL
    WHERE seq = $2 AND claim_id = $3
"""


class ClaimedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A notification that this process delivers: about a run, or about a plan.

    `age`: seconds since the change that it tells.
    """

    seq: int
    subscription_id: UUID
    thread_id: UUID
    run_id: UUID | None
    plan_id: UUID | None
    kind: PushKind
    claim_id: UUID
    attempts: int
    age: float


class PreparedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A notification as it is now, and the browser that gets it."""

    endpoint: str
    public_key: bytes
    auth: bytes
    message: PushMessage


@retried
async def claim(db: Database, *, most: int, lease_seconds: float, ahead: float = 0) -> list[ClaimedMessage]:
    """Claim up to `most` notifications that are due, for `lease_seconds`."""
    async with db.driver() as driver, driver.transaction():
        return [ClaimedMessage(**row) for row in await driver.fetch(CLAIM, ahead, most, lease_seconds)]


async def seconds_until_next(driver: Driver, *, ahead: float = 0) -> float | None:
    """Seconds until a notification is due, negative if that is past. None if there is none."""
    seconds: float | None = await driver.fetchval(NEXT, ahead)
    return seconds


async def prepare(driver: Driver, claimed: ClaimedMessage) -> PreparedMessage | None:
    """Read what to send. None if there is nothing to tell this person by now, or they may not read it.

    Deletes the subscription of a session or an account that has ended.
    """
    query, work_id = (READ_RUN, claimed.run_id) if claimed.plan_id is None else (READ_PLAN, claimed.plan_id)
    key = claimed.subscription_id, claimed.thread_id, work_id
    row = await driver.fetchrow(query, *key, claimed.seq, claimed.kind)
    if row is None or not _is_news(claimed, row):
        return None
    user_id = row["subject_id"] if row["anon_key_hash"] is None else None
    person = Caller(user_id=user_id, credential=row["credential"], anon_key_hash=row["anon_key_hash"])
    if user_id is not None and not (await account_feed.valid_credentials(driver, [person]))[0]:
        await push_subscriptions.delete(driver, claimed.subscription_id)
        return None
    (found,) = await access.authorizations(driver, [(claimed.thread_id, person)])
    if found is None or not found.allows(_action(claimed)):
        return None
    message = _message(claimed, row)
    return PreparedMessage(endpoint=row["endpoint"], public_key=row["public_key"], auth=row["auth"], message=message)


def _action(claimed: ClaimedMessage) -> Action:
    """Return the action that the person must be allowed to take."""
    if claimed.kind == "answer":
        return Action.READ_THREAD
    return Action.DECIDE_APPROVAL if claimed.plan_id is None else Action.RUN_PLANS


def _message(claimed: ClaimedMessage, row: Mapping[str, Any]) -> PushMessage:
    return PushMessage(
        kind=claimed.kind,
        thread_id=str(claimed.thread_id),
        title=row["title"][:MAX_TITLE_CHARACTERS] if row["title"] else None,
        tool=row["tool"] if claimed.kind == "waiting" else None,
        plan_id=None if claimed.plan_id is None else str(claimed.plan_id),
        reason=row["reason"],
    )


def _is_news(claimed: ClaimedMessage, row: Mapping[str, Any]) -> bool:
    if row["is_superseded"] or row["is_present"] or claimed.age > TIME_TO_LIVE.total_seconds():
        return False
    return bool(row["is_waiting"]) if claimed.kind == "waiting" else not row["is_read"]


@retried
async def drop(db: Database, claimed: ClaimedMessage) -> None:
    """End a notification that nobody needs."""
    async with db.driver() as driver:
        await driver.fetchval(DROP, claimed.seq, claimed.claim_id)


@retried
async def record(db: Database, claimed: ClaimedMessage, outcome: PushOutcome, *, ahead: float = 0) -> None:
    """Store the outcome of an attempt. Nothing changes if the lease has lapsed and another attempt has followed."""
    async with db.driver() as driver, driver.transaction():
        if outcome.state == "gone":
            await push_subscriptions.delete(driver, claimed.subscription_id)
            await driver.execute(DROP_ALL, claimed.subscription_id)
        elif outcome.retry_seconds is not None:
            await driver.execute(POSTPONE, ahead, claimed.seq, claimed.claim_id, outcome.retry_seconds)
        elif outcome.state == "delivered":
            await push_subscriptions.record_success(driver, claimed.subscription_id)
            await driver.fetchval(DROP, claimed.seq, claimed.claim_id)
        else:
            if outcome.state == "refused":
                await push_subscriptions.record_failure(driver, claimed.subscription_id)
            await driver.fetchval(DROP, claimed.seq, claimed.claim_id)
