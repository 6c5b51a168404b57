"""The decision after a failed call, as a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.models.port import ModelFailed
from khala.models.retry_policy import GiveUp, RetryDecision, SwitchModel, Wait, decide


def decided(
    failure: ModelFailed, *, tries: int = 1, elapsed: float = 0.0, jitter: float = 0.5, more: bool = True
) -> RetryDecision:
    return decide(failure, tries=tries, elapsed=elapsed, jitter=jitter, more_models=more)


def failed(code: str, retry_after: float | None = None, midstream: bool = False) -> ModelFailed:
    retryable = code not in ("refused", "context_exceeded")
    return ModelFailed(code, "It failed.", retryable=retryable, retry_after=retry_after, midstream=midstream)


RETRYABLE = ("rate_limited", "overloaded", "unavailable", "connection_lost", "timeout", "invalid_response")
FINAL = ("refused", "context_exceeded")


@pytest.mark.parametrize("code", RETRYABLE)
@pytest.mark.parametrize(
    ("tries", "expected"), [(1, Wait(0.5)), (2, Wait(1.0)), (3, SwitchModel()), (4, SwitchModel())]
)
def test_a_temporary_failure_is_tried_three_times_with_growing_waits(
    code: str, tries: int, expected: RetryDecision
) -> None:
    assert decided(failed(code), tries=tries) == expected


@pytest.mark.parametrize("code", FINAL)
def test_a_permanent_failure_goes_to_the_next_model_at_once(code: str) -> None:
    assert decided(failed(code)) == SwitchModel()
    assert decided(failed(code), more=False) == GiveUp()


@pytest.mark.parametrize("code", RETRYABLE + FINAL)
@pytest.mark.parametrize("more", [True, False])
def test_no_call_is_retried_after_its_first_text(code: str, more: bool) -> None:
    assert decided(failed(code, midstream=True), more=more) == GiveUp()


@pytest.mark.parametrize(
    ("requested", "more", "expected"),
    [
        (0.0, True, Wait(0.125)),
        (7.0, True, Wait(7.125)),
        (30.0, False, Wait(30.125)),
        (30.1, True, SwitchModel()),
        (3600.0, False, GiveUp()),
    ],
)
def test_a_requested_wait_is_respected_unless_it_is_too_long(
    requested: float, more: bool, expected: RetryDecision
) -> None:
    assert decided(failed("rate_limited", retry_after=requested), more=more) == expected


def test_the_last_model_fails_for_good_after_its_third_try() -> None:
    assert decided(failed("overloaded"), tries=3, more=False) == GiveUp()


def test_no_wait_starts_after_a_minute() -> None:
    assert decided(failed("overloaded"), elapsed=59.0) == Wait(0.5)
    assert decided(failed("overloaded"), elapsed=60.0) == SwitchModel()
    assert decided(failed("rate_limited", retry_after=20.0), elapsed=45.0, more=False) == GiveUp()


@given(st.sampled_from(RETRYABLE), st.integers(1, 2), st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_a_wait_by_a_quarter(code: str, tries: int, jitter: float) -> None:
    found = decided(failed(code), tries=tries, jitter=jitter)
    base = 0.5 * 2 ** (tries - 1)
    assert isinstance(found, Wait)
    assert 0.75 * base <= found.seconds <= 1.25 * base


@given(st.floats(0, 30), st.floats(0, 1, exclude_max=True))
def test_a_retry_never_comes_earlier_than_the_provider_asked(requested: float, jitter: float) -> None:
    found = decided(failed("rate_limited", retry_after=requested), jitter=jitter)
    assert isinstance(found, Wait)
    assert requested <= found.seconds <= requested + 0.25
