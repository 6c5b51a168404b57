"""The appends of this process: their parts are delivered to its observers without being read from the database.

Postgres notifies this process of them, too. Such a notification needs no read. It is recognised by the backend that
sent it, and by its threads.
"""

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol
from uuid import UUID

from khala.live.feeds import FeedDelta, parts_delta
from khala.store.postgres.notifications import EVERYTHING, MAX_IDS_PER_PAYLOAD
from khala.store.runs.parts import AppendResult

MAX_EXPECTED = 64
"""Notifications that may be expected at once. One that is no longer expected leads to a read."""


class ThreadDelivery(Protocol):
    """The hub, which delivers the changes of threads to observers."""

    def receive(self, topic_id: UUID, revision: int, change: Callable[[], FeedDelta]) -> None:
        """Deliver the change to this revision from the one before."""

    def refresh(self, topic_id: UUID) -> None:
        """Read the thread, and deliver what has changed."""


class OwnAppends:
    """Passes the committed parts of this process to the hub, and recognises the notifications of them."""

    def __init__(self, hub: ThreadDelivery) -> None:
        self._hub = hub
        self._expected: deque[OwnAppend] = deque(maxlen=MAX_EXPECTED)

    def begin(self, pid: int | None, thread_ids: Collection[UUID]) -> "OwnAppend":
        """See `LocalFeed`. Without a `pid`, no notification is expected."""
        append = OwnAppend(self, self._hub, pid, thread_ids)
        if pid is not None:
            self._expected.append(append)
        return append

    def take(self, pid: int, payload: str) -> bool:
        """Whether this notification was expected, so that it needs no read. It is expected no longer.

        It may be of an earlier transaction of the same backend. Then the append's own notification leads to the read.
        """
        for append in self._expected:
            if append.pid == pid and append.covers(payload):
                self._expected.remove(append)
                return True
        return False

    def discard(self, append: "OwnAppend") -> None:
        """Expect no notification of this append."""
        if append in self._expected:
            self._expected.remove(append)

    def clear(self) -> None:
        """Expect no notification: some may have been lost, and everything is read again."""
        self._expected.clear()


class OwnAppend:
    """One append of this process."""

    def __init__(self, appends: OwnAppends, hub: ThreadDelivery, pid: int | None, thread_ids: Collection[UUID]) -> None:
        self._appends = appends
        self._hub = hub
        self.pid = pid
        self._thread_ids = thread_ids

    def covers(self, payload: str) -> bool:
        """Whether a notification names no other threads than those of this append."""
        if payload == EVERYTHING:
            return len(self._thread_ids) > MAX_IDS_PER_PAYLOAD
        return {str(thread_id) for thread_id in self._thread_ids}.issuperset(payload.split(","))

    def end(self, result: AppendResult | None) -> None:
        """See `OpenAppend`. Threads that may have changed otherwise are read."""
        if result is None or not any(result.stored.values()):
            self._appends.discard(self)
        for thread_id in self._thread_ids:
            if result is not None and thread_id in result.revisions:
                change = result.revisions[thread_id]
                self._hub.receive(thread_id, change.revision, partial(parts_delta, thread_id, change))
            else:
                self._hub.refresh(thread_id)
