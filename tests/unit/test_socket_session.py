"""The account of a connection, and the subscriptions that a new token extends."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from khala.api.threads.socket_session import SocketSession, _extends
from khala.domain import ids
from khala.domain.access import Caller
from khala.live.observer import Observer

USER, OTHER = ids.new(), ids.new()
NOW = datetime.now(UTC)
SOON, LATER = NOW + timedelta(hours=1), NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    ("new", "prolongs"),
    [
        (Caller(user_id=USER, expires_at=LATER), True),
        (Caller(user_id=USER), True),
        (Caller(user_id=USER, expires_at=NOW), False),
        (Caller(user_id=USER, expires_at=LATER, scopes=frozenset({"write"})), False),
        (Caller(user_id=OTHER), False),
        (Caller(user_id=OTHER, expires_at=LATER), False),
    ],
)
def test_only_the_same_account_extends_what_it_follows(new: Caller, *, prolongs: bool) -> None:
    assert _extends(new, Caller(user_id=USER, expires_at=SOON)) == prolongs
    assert not _extends(new, Caller(user_id=USER)), "a subscription without an expiry can't be extended"


@pytest.mark.parametrize(("ends", "user_id"), [(None, USER), (SOON, USER), (NOW - timedelta(seconds=1), None)])
def test_a_connection_acts_for_its_account_until_that_ends(ends: datetime | None, user_id: object) -> None:
    context: Any = SimpleNamespace(live=None)
    account = Caller(user_id=USER, name="Tassadar", expires_at=ends, network="203.0.113.0/24")
    current = SocketSession(context, Observer(), account)._current()
    assert (current.user_id, current.network) == (user_id, "203.0.113.0/24")
