"""Feeds: the two kinds of topics that observers can follow: threads, and thread lists of accounts.

Each topic has a revision of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

import msgspec

from khala.domain import frames
from khala.domain.access import Authorization, Caller
from khala.domain.frames import AccountDeltaFrame
from khala.domain.thread_changes import Delta
from khala.store.accounts import account_feed
from khala.store.postgres.database import Driver
from khala.store.runs.parts import RevisionParts
from khala.store.sharing import access
from khala.store.threads import thread_feed
from khala.store.threads.thread_feed import SnapshotNeeded, TopicGone, Unchanged

SNAPSHOT_MESSAGES = 100
"""Messages in a snapshot."""
OWNER_ONLY_ACCESS = UUID(int=0)
"""The `access_id` of topics that only their owner may ever follow."""


class FeedDelta(msgspec.Struct, frozen=True):
    """The changes after revision `since` up to `revision`, as a frame."""

    since: int
    revision: int
    frame: msgspec.Struct


FeedChange: TypeAlias = FeedDelta | SnapshotNeeded | TopicGone | Unchanged


class TopicRead(msgspec.Struct, frozen=True):
    """The result of one read of one topic, with the topic's `access_id` at that moment."""

    change: FeedChange
    access_id: UUID | None


class FeedSnapshot(msgspec.Struct, frozen=True):
    """A whole topic, as a frame."""

    revision: int
    frame: msgspec.Struct


class Feed(Protocol):
    """One kind of topic. All queries of one call see the same state."""

    async def read_changes_in_one_query(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """As `read_changes`, but without a transaction, and only for the topics that a single query suffices for."""

    async def read_changes(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """For each topic, the changes after the given revision. The number of queries does not depend on the topics."""

    async def read_snapshot(self, driver: Driver, topic_id: UUID, *, reset: bool) -> FeedSnapshot | None:
        """The whole topic, as a frame that is marked as a reset if `reset` is true. None if the topic is gone."""

    async def authorizations(
        self, driver: Driver, requests: Sequence[tuple[UUID, Caller]]
    ) -> list[Authorization | None]:
        """For each topic and caller, whether the caller may follow the topic now. One query."""

    def end_frame(self, topic_id: UUID, code: str) -> msgspec.Struct:
        """The last frame of a subscription that ends for this reason."""


class ThreadFeed:
    """Threads. A caller may follow a thread according to its access rules."""

    async def read_changes_in_one_query(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """See `Feed`."""
        return _topic_reads(await thread_feed.read_changes_in_one_query(driver, cursors))

    async def read_changes(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """See `Feed`."""
        return _topic_reads(await thread_feed.read_changes(driver, cursors))

    async def read_snapshot(self, driver: Driver, topic_id: UUID, *, reset: bool) -> FeedSnapshot | None:
        """See `Feed`."""
        snapshot = await thread_feed.read_snapshot(driver, topic_id, limit=SNAPSHOT_MESSAGES, reset=reset)
        return FeedSnapshot(snapshot.revision, frames.snapshot_frame(topic_id, snapshot))

    async def authorizations(
        self, driver: Driver, requests: Sequence[tuple[UUID, Caller]]
    ) -> list[Authorization | None]:
        """See `Feed`."""
        return await access.authorizations(driver, requests)

    def end_frame(self, topic_id: UUID, code: str) -> msgspec.Struct:
        """See `Feed`."""
        return frames.GoneFrame(thread_id=topic_id, code=code)


def parts_delta(thread_id: UUID, change: RevisionParts) -> FeedDelta:
    """The same change as `ThreadFeed` reads."""
    since = change.revision - 1
    delta = Delta(since=since, revision=change.revision, messages=(), parts=change.read())
    return FeedDelta(since, change.revision, frames.delta_frame(thread_id, delta))


def _topic_reads(reads: Mapping[UUID, thread_feed.ThreadRead]) -> dict[UUID, TopicRead]:
    return {
        thread_id: TopicRead(_thread_change(thread_id, read.change), read.access_id)
        for thread_id, read in reads.items()
    }


def _thread_change(thread_id: UUID, change: thread_feed.ThreadChange) -> FeedChange:
    if isinstance(change, Delta):
        return FeedDelta(change.since, change.revision, frames.delta_frame(thread_id, change))
    return change


class AccountFeed:
    """Thread lists. Only its user may follow a list, for as long as the credential is valid."""

    async def read_changes_in_one_query(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """See `Feed`. A thread list needs two queries, so the result is empty."""
        return {}

    async def read_changes(self, driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, TopicRead]:
        """See `Feed`."""
        changes = await account_feed.since(driver, cursors)
        return {user_id: TopicRead(_account_change(change), OWNER_ONLY_ACCESS) for user_id, change in changes.items()}

    async def read_snapshot(self, driver: Driver, topic_id: UUID, *, reset: bool) -> FeedSnapshot | None:
        """See `Feed`."""
        frame = await account_feed.full_list(driver, topic_id)
        return None if frame is None else FeedSnapshot(frame.revision, frame)

    async def authorizations(
        self, driver: Driver, requests: Sequence[tuple[UUID, Caller]]
    ) -> list[Authorization | None]:
        """See `Feed`."""
        valid = await account_feed.valid_credentials(driver, [caller for _, caller in requests])
        return [
            Authorization(caller=caller, access_id=OWNER_ONLY_ACCESS, role="owner", expires_at=caller.expires_at)
            if is_valid and caller.user_id == user_id
            else Authorization(caller=caller, access_id=OWNER_ONLY_ACCESS, role=None)
            for is_valid, (user_id, caller) in zip(valid, requests, strict=True)
        ]

    def end_frame(self, topic_id: UUID, code: str) -> msgspec.Struct:
        """See `Feed`."""
        return frames.ErrorFrame(code="unauthorized", message="You are no longer signed in to this account.")


def _account_change(change: account_feed.AccountChange) -> FeedChange:
    if isinstance(change, AccountDeltaFrame):
        return FeedDelta(change.since, change.revision, change)
    return change
