"""Rows of subscriptions to streams: how one is found and locked, and its streams with their cursors."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.streams.name_patterns import ANY, ONE
from khala.domain.streams.subscriptions import (
    MAX_LISTED_STREAMS,
    StreamCursor,
    SubscriptionConfig,
    SubscriptionError,
    WakeState,
)
from khala.store.postgres.database import Driver
from khala.store.streams.stream_rows import StreamSpace

IS_OPEN = "NOT EXISTS (SELECT FROM deleted_accounts WHERE deleted_accounts.user_id = subscription.user_id)"
"""Not of an account that is being deleted."""
SELECT = f"""
    SELECT subscription.*, clock_timestamp() AS now FROM stream_subscriptions AS subscription WHERE {IS_OPEN}
"""
READ = f"{SELECT} AND space_id = $1 AND name = $2"
LOCK = f"{READ} FOR NO KEY UPDATE OF subscription"
LOCK_ID = f"{SELECT} AND id = $1 FOR NO KEY UPDATE OF subscription"
CURSORS = """
    SELECT coalesce(streams.name, link.name) AS name, coalesce(link.explicit, false) AS explicit,
           streams.id AS stream_id, streams.tail,
           CASE WHEN streams.id IS NULL THEN 0 WHEN link.stream_id = streams.id THEN link.acked_position
                ELSE streams.start_position END AS acked
    FROM (SELECT * FROM streams WHERE space_id = $2 AND name IS NOT NULL AND deleted_at IS NULL
            AND coalesce(expires_at > clock_timestamp(), true)) AS streams
    FULL JOIN (SELECT * FROM stream_links WHERE subscription_id = $1) AS link ON link.name = streams.name
    WHERE (link.explicit OR '/' || streams.name ~ $3) AND coalesce(coalesce(streams.name, link.name) = ANY ($5), true)
    ORDER BY coalesce(streams.tail > CASE WHEN link.stream_id = streams.id THEN link.acked_position
                                          ELSE streams.start_position END, false) DESC, 1
    LIMIT $4
"""
"""The streams of a subscription, those with pending contents first. A stream that is newer than the subscription has no
link yet: nothing of it is acknowledged."""
SAVE = """
    UPDATE stream_subscriptions
    SET generation = $2, wake_id = $3, holder = $4, due_at = $5, failures = $6 WHERE id = $1
"""
SAVE_LINKS = """
    INSERT INTO stream_links (subscription_id, name, explicit, stream_id, acked_position)
    SELECT $1, * FROM unnest($2::text[], $3::bool[], $4::uuid[], $5::bigint[])
    ON CONFLICT (subscription_id, name) DO UPDATE SET explicit = stream_links.explicit OR excluded.explicit,
        stream_id = excluded.stream_id, acked_position = excluded.acked_position
"""


class StoredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, as at the time of a read."""

    id: UUID
    space: StreamSpace
    name: str
    config: SubscriptionConfig
    digest: bytes
    url: str
    token_key: bytes
    state: WakeState
    created_at: datetime
    read_at: datetime


def stored_subscription(row: Mapping[Any, Any]) -> StoredSubscription:
    """Return a row of `stream_subscriptions`."""
    return StoredSubscription(
        id=row["id"],
        space=StreamSpace(row["user_id"]),
        name=row["name"],
        config=msgspec.json.decode(row["config"], type=SubscriptionConfig),
        digest=row["config_digest"],
        url=row["url"],
        token_key=row["token_key"],
        state=WakeState(
            generation=row["generation"],
            wake_id=row["wake_id"],
            holder=row["holder"],
            due_at=row["due_at"],
            failures=row["failures"],
        ),
        created_at=row["created_at"],
        read_at=row["now"],
    )


async def read(driver: Driver, space: StreamSpace, name: str, *, lock: bool = False) -> StoredSubscription:
    """Return the subscription of this name in the space. Raises `SubscriptionError`."""
    return _found(await driver.fetchrow(LOCK if lock else READ, space.id, name))


async def lock_id(driver: Driver, subscription_id: UUID) -> StoredSubscription:
    """Lock the subscription until the transaction ends. Raises `SubscriptionError`."""
    return _found(await driver.fetchrow(LOCK_ID, subscription_id))


def _found(row: Mapping[Any, Any] | None) -> StoredSubscription:
    if row is None:
        raise SubscriptionError("SUBSCRIPTION_NOT_FOUND", "There is no such subscription.", status=404)
    return stored_subscription(row)


async def read_cursors(
    driver: Driver,
    subscription: StoredSubscription,
    *,
    names: Sequence[str] | None = None,
    most: int = MAX_LISTED_STREAMS,
) -> list[StreamCursor]:
    """Return the streams of the subscription, at most so many, those with pending contents first.

    With `names`, only streams of these names.
    """
    pattern = subscription.config.pattern
    regex = None if pattern is None else regular_expression(pattern)
    rows = await driver.fetch(CURSORS, subscription.id, subscription.space.id, regex, most, names)
    return [
        StreamCursor(
            name=row["name"],
            link_type="explicit" if row["explicit"] else "glob",
            stream_id=row["stream_id"],
            acked=row["acked"],
            tail=row["tail"],
        )
        for row in rows
    ]


async def save(driver: Driver, subscription: StoredSubscription, state: WakeState) -> StoredSubscription:
    """Store the state of the locked subscription."""
    if state == subscription.state:
        return subscription
    await driver.execute(
        SAVE, subscription.id, state.generation, state.wake_id, state.holder, state.due_at, state.failures
    )
    return msgspec.structs.replace(subscription, state=state)


async def save_cursors(driver: Driver, subscription_id: UUID, cursors: Sequence[StreamCursor]) -> None:
    """Store cursors of the locked subscription."""
    rows = [(each.name, each.link_type == "explicit", each.stream_id, each.acked) for each in cursors]
    if rows:
        await driver.execute(SAVE_LINKS, subscription_id, *zip(*rows, strict=True))


def regular_expression(pattern: str) -> str:
    """Return a regular expression of Postgres that matches a slash and a name if the pattern matches the name."""
    expression = ""
    for segment in pattern.split("/"):
        one = {ONE: "/[^/]*", ANY: "(?:/[^/]*)*"}.get(segment)
        expression += f"/{re.escape(segment)}" if one is None else one
    return f"^{expression}$"
