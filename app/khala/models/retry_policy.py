"""The decision after a failed model call: retry after a delay, use the next model, or give up. Pure."""

from typing import TypeAlias

import msgspec

from khala.domain.backoff import Backoff
from khala.models.port import ModelFailed

MAX_TRIES = 3
"""Calls per model."""
MAX_RETRY_AFTER_SECONDS = 30.0
"""Seconds. A provider that asks for a longer wait is left for the next model at once."""
RETRY_TIMEOUT_SECONDS = 60.0
"""Seconds since the first call after which no more waiting is begun."""
JITTER = 0.25
BACKOFF = Backoff(first_seconds=0.5, min_factor=1 - JITTER, max_factor=1 + JITTER)


class Wait(msgspec.Struct, frozen=True):
    """Call the same model again after so many seconds."""

    seconds: float


class SwitchModel(msgspec.Struct, frozen=True):
    """Call the next model, at once; its tries count from one."""


class GiveUp(msgspec.Struct, frozen=True):
    """The failure stands."""


RetryDecision: TypeAlias = Wait | SwitchModel | GiveUp


def decide(failure: ModelFailed, *, tries: int, elapsed: float, jitter: float, more_models: bool) -> RetryDecision:
    """Decide how to continue after `failure`.

    `tries`: calls of this model so far, at least 1. `elapsed`: seconds since the first call of the run. `jitter`: a
    random number of [0, 1), which spreads waits by ±25 %. `more_models`: the list goes on after this model.
    Nothing is retried once text has come: the reader has seen it, and a second answer would not go on from there.
    """
    if failure.midstream:
        return GiveUp()
    seconds = _wait(failure, tries, jitter)
    if failure.retryable and tries < MAX_TRIES and seconds is not None and elapsed + seconds <= RETRY_TIMEOUT_SECONDS:
        return Wait(seconds)
    return SwitchModel() if more_models else GiveUp()


def _wait(failure: ModelFailed, tries: int, jitter: float) -> float | None:
    """Seconds before the next call, or None where the provider asks for more than a reader would wait."""
    if failure.retry_after is None:
        return BACKOFF.delay(tries, jitter)
    # Never earlier than asked: the jitter only adds, so that many waiting runs don't come back at one instant.
    return failure.retry_after + JITTER * jitter if failure.retry_after <= MAX_RETRY_AFTER_SECONDS else None
