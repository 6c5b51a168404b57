"""Percentiles of durations in buckets are upper bounds within a fifth."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.durations import RATIO, percentile, upper_bound


def bucket(milliseconds: int) -> int:
    """As `BUCKET_SQL`, without its limit."""
    return math.ceil(math.log(milliseconds + 1) / math.log(RATIO))


@given(st.lists(st.integers(0, 10_000_000), min_size=1), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_percentile_is_at_most_a_fifth_above_the_true_one(durations: list[int], share: float) -> None:
    buckets: dict[int, int] = {}
    for each in durations:
        buckets[bucket(each)] = buckets.get(bucket(each), 0) + 1
    true = sorted(durations)[math.ceil(share * len(durations)) - 1]
    found = percentile(buckets, share)
    assert true - 1 <= found <= (true + 1) * RATIO + 1


def test_no_calls_have_no_percentile() -> None:
    assert upper_bound(0) == 0
    with pytest.raises(ValueError, match="no calls"):
        percentile({}, 0.5)
