"""The decision after a failed model call: retry after a delay, use the next model, or give up. Pure."""

from typing import TypeAlias

import msgspec

from khala.domain.backoff import Backoff
from khala.models.port import ModelFailed

MAX_TRIES = 3
"""Calls per model."""
MAX_RETRY_AFTER_SECONDS = 30.0
"""If a provider asks for a longer wait, the next model is called at once."""
RETRY_TIMEOUT_SECONDS = 60.0
"""Time since the first call after which no more wait begins."""
JITTER = 0.25
BACKOFF = Backoff(first_seconds=0.5, min_factor=1 - JITTER, max_factor=1 + JITTER)


class Wait(msgspec.Struct, frozen=True):
    """Call the same model again after this delay."""

    seconds: float


class SwitchModel(msgspec.Struct, frozen=True):
    """Call the next model at once. Its tries are counted anew."""


class GiveUp(msgspec.Struct, frozen=True):
    """Report the failure."""


RetryDecision: TypeAlias = Wait | SwitchModel | GiveUp


def decide(failure: ModelFailed, *, tries: int, elapsed: float, jitter: float, more_models: bool) -> RetryDecision:
    """Decide how to continue after `failure`.

    `tries`: calls of this model so far, at least 1. `elapsed`: seconds since the first call of the run. `jitter`: a
    random number of [0, 1), which spreads waits by ±25 %. `more_models`: whether a model follows this one in the list.
    A failure in the middle of an answer is not retried: people have read its text, and a second answer would differ.
    """
    if failure.midstream:
        return GiveUp()
    seconds = _wait(failure, tries, jitter)
    if failure.retryable and tries < MAX_TRIES and seconds is not None and elapsed + seconds <= RETRY_TIMEOUT_SECONDS:
        return Wait(seconds)
    return SwitchModel() if more_models else GiveUp()


def _wait(failure: ModelFailed, tries: int, jitter: float) -> float | None:
    """Seconds before the next call; None if the provider asks for more than `MAX_RETRY_AFTER_SECONDS`."""
    if failure.retry_after is None:
        return BACKOFF.delay(tries, jitter)
    # Jitter only adds, so that no call is earlier than asked and waiting runs do not all retry at the same time.
    return failure.retry_after + JITTER * jitter if failure.retry_after <= MAX_RETRY_AFTER_SECONDS else None
