"""Durations in buckets: a histogram whose bounds grow by a fifth, from which percentiles are read."""

from collections.abc import Mapping

RATIO = 1.2
"""The bound of a bucket is at most this factor above all durations in it."""
BUCKET_SQL = f"ceil(ln(least(greatest({{0}}, 0), 1e12) + 1) / ln({RATIO}))::smallint"
"""SQL: the bucket of a number of milliseconds."""


def upper_bound(bucket: int) -> int:
    """The milliseconds that no duration in the bucket exceeds."""
    return round(RATIO**bucket - 1)


def percentile(calls: Mapping[int, int], share: float) -> int:
    """The milliseconds that this share of the calls did not exceed, as an upper bound. `calls` are numbers by bucket.

    Raises `ValueError` without a call.
    """
    wanted = share * sum(calls.values())
    reached = 0
    for bucket in sorted(calls):
        reached += calls[bucket]
        if reached >= wanted:
            return upper_bound(bucket)
    raise ValueError("no calls")
