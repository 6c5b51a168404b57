"""Delays between retries."""

import pytest

from khala.domain.backoff import Backoff


def test_the_delay_doubles_with_each_failure_up_to_the_maximum() -> None:
    backoff = Backoff(first_seconds=0.1, max_seconds=1.0)
    assert [backoff.delay(failures) for failures in range(1, 6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])


def test_any_number_of_failures_gives_a_finite_delay() -> None:
    assert Backoff(first_seconds=0.1, max_seconds=30.0).delay(1_000_000) == 30.0


@pytest.mark.parametrize(("jitter", "expected"), [(0.0, 1.0), (0.5, 1.5), (1.0, 2.0)])
def test_jitter_chooses_a_factor_between_the_bounds(jitter: float, expected: float) -> None:
    assert Backoff(first_seconds=1.0, min_factor=1.0, max_factor=2.0).delay(1, jitter) == expected
