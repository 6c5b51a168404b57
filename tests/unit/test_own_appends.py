"""Which notifications of Postgres a process expects because of its own appends."""

from collections.abc import Callable
from uuid import UUID

from khala.domain import ids
from khala.live.feeds import FeedDelta
from khala.live.own_appends import MAX_EXPECTED, OwnAppends
from khala.store.postgres.notifications import EVERYTHING, MAX_IDS_PER_PAYLOAD
from khala.store.runs.parts import AppendResult

PID, OTHER_PID = 7, 8
RUN = ids.new()
BUSY = AppendResult({}, frozenset({RUN}))
STORED = AppendResult({RUN: 1})


class Refreshes:
    """A hub that only records which threads are to be read."""

    def __init__(self) -> None:
        self.refreshed: list[UUID] = []

    def receive(self, topic_id: UUID, revision: int, change: Callable[[], FeedDelta]) -> None:
        raise AssertionError("no append of these tests has a revision")

    def refresh(self, topic_id: UUID) -> None:
        self.refreshed.append(topic_id)


def test_the_notification_of_an_append_is_taken_once() -> None:
    appends, thread = OwnAppends(Refreshes()), ids.new()
    appends.begin(PID, {thread, ids.new()}).end(STORED)
    assert not appends.take(OTHER_PID, str(thread))
    assert not appends.take(PID, f"{thread},{ids.new()}"), "it names a thread of somebody else"
    assert not appends.take(PID, EVERYTHING)
    assert appends.take(PID, str(thread))
    assert not appends.take(PID, str(thread))


def test_an_append_of_many_threads_notifies_of_everything() -> None:
    appends = OwnAppends(Refreshes())
    appends.begin(PID, {ids.new() for _ in range(MAX_IDS_PER_PAYLOAD + 1)}).end(STORED)
    assert appends.take(PID, EVERYTHING)


def test_threads_that_may_have_changed_otherwise_are_read() -> None:
    hub, thread = Refreshes(), ids.new()
    appends = OwnAppends(hub)
    for result in (STORED, BUSY, None):
        appends.begin(PID, {thread}).end(result)
    assert hub.refreshed == [thread] * 3


def test_an_append_that_stored_nothing_or_failed_expects_no_notification() -> None:
    appends, thread = OwnAppends(Refreshes()), ids.new()
    for result in (BUSY, None):
        appends.begin(PID, {thread}).end(result)
        assert not appends.take(PID, str(thread))


def test_without_a_backend_nothing_is_expected() -> None:
    appends, thread = OwnAppends(Refreshes()), ids.new()
    appends.begin(None, {thread}).end(STORED)
    assert not appends.take(PID, str(thread))


def test_after_a_reconnect_nothing_is_expected() -> None:
    appends, thread = OwnAppends(Refreshes()), ids.new()
    appends.begin(PID, {thread}).end(STORED)
    appends.clear()
    assert not appends.take(PID, str(thread))


def test_expected_notifications_are_bounded() -> None:
    appends, first = OwnAppends(Refreshes()), ids.new()
    appends.begin(PID, {first}).end(STORED)
    last = first
    for _ in range(MAX_EXPECTED):
        last = ids.new()
        appends.begin(PID, {last}).end(STORED)
    assert not appends.take(PID, str(first))
    assert appends.take(PID, str(last))
