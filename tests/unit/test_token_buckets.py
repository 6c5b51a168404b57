"""Token buckets."""

from hypothesis import given
from hypothesis import strategies as st

from khala.domain.token_bucket import TokenBucket


def test_a_bucket_grants_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(3, 2.0)
    assert [bucket.take(100.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert bucket.wait == 0.5
    assert [bucket.take(100.5), bucket.take(100.5)] == [True, False]
    assert [bucket.take(200.0) for _ in range(4)] == [True] * 3 + [False]


@given(st.lists(st.floats(0, 2), max_size=200))
def test_no_interval_gets_more_than_the_burst_and_its_share(pauses: list[float]) -> None:
    bucket, now, taken = TokenBucket(5, 3.0), 1000.0, 0
    for pause in pauses:
        now += pause
        taken += bucket.take(now)
    assert taken <= 5 + 3.0 * sum(pauses) + 1e-6


@given(st.lists(st.floats(0, 0.3), min_size=20, max_size=200))
def test_continuous_requests_get_no_more_than_the_burst_and_their_share(pauses: list[float]) -> None:
    bucket, now, taken = TokenBucket(2, 1.0), 1000.0, 0
    for pause in pauses:
        now += pause
        taken += sum(bucket.take(now) for _ in range(3))
    assert taken <= 2 + sum(pauses) + 1e-6


def test_refused_requests_do_not_refill_the_bucket_twice() -> None:
    bucket = TokenBucket(1, 1.0)
    assert bucket.take(100.0)
    assert [bucket.take(100.0 + at / 10) for at in range(1, 10)] == [False] * 9
    assert bucket.take(101.0)
