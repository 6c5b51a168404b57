"""What follows from an attempt to deliver an event, without I/O."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.webhooks import (
    MAX_AGE,
    MAX_ATTEMPTS,
    MAX_FAILING,
    MAX_RETRY_AFTER_SECONDS,
    PAUSE,
    DeliveryAttempt,
    EndpointHealth,
    judge,
    parse_retry_after,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("120", 120),
        (" 7 ", 7),
        ("9" * 20, None),
        ("Sat, 31 Jan 2026 12:00:30 GMT", 30),
        ("Sat, 31 Jan 2026 11:00:00 GMT", 0),
    ],
)
def test_retry_after_has_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOW) == seconds


@given(
    statuses=st.lists(st.sampled_from([200, 302, 410, 429, 500, 503, None]), min_size=1, max_size=200),
    asked=st.one_of(st.none(), st.floats(0, 1e9)),
    jitter=st.floats(0, 1),
    step=st.floats(1, 90_000),
)
def test_an_event_is_given_up_and_an_endpoint_disabled_within_their_bounds(
    statuses: list[int | None], asked: float | None, jitter: float, step: float
) -> None:
    health, now, attempts, first = EndpointHealth(), NOW, 0, NOW
    last_success = NOW
    for status in statuses:
        if attempts == 0:
            first = now
        attempts += 1
        attempt = DeliveryAttempt(duration_ms=1, status=status, error=None if status else "none", retry_after=asked)
        judged = judge(attempt, health, attempts=attempts, first_attempt_at=first, now=now, jitter=jitter)
        assert (judged.state == "delivered") == (status == 200)
        assert (judged.due_at is None) == (judged.state != "pending")
        if judged.state == "pending":
            assert attempts < MAX_ATTEMPTS
            assert now - first < MAX_AGE
            assert judged.due_at is not None
            assert now < judged.due_at <= now + timedelta(hours=4)
        if judged.health.paused_until is not None:
            longest = max(MAX_RETRY_AFTER_SECONDS, PAUSE.max_seconds * PAUSE.max_factor)
            assert judged.health.paused_until <= now + timedelta(seconds=longest)
        if status == 200:
            assert judged.health == EndpointHealth(disabled_reason=health.disabled_reason)
            last_success = now
        elif judged.health.disabled_reason and not health.disabled_reason:
            assert status == 410 or now - last_success >= MAX_FAILING
        health = judged.health
        attempts = 0 if judged.state != "pending" else attempts
        now += timedelta(seconds=step)
