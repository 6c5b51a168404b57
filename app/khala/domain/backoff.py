"""Delays between retries: exponential backoff with jitter. Pure: random numbers are arguments."""

import msgspec

MAX_DOUBLINGS = 60
"""Bounds the exponent, so that any number of failures gives a finite delay."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The delays of one kind of retry, in seconds.

    The delay begins at `first_seconds` and doubles with each failure in a row, up to `max_seconds`. Then it is
    multiplied by a random factor between `min_factor` and `max_factor`, so that clients that failed at the same time do
    not retry at the same time.
    """

    first_seconds: float
    max_seconds: float = float("inf")
    min_factor: float = 1.0
    max_factor: float = 1.0

    def delay(self, failures: int, jitter: float = 0.0) -> float:
        """Seconds before the next attempt. `failures` counts the failures in a row (at least 1).

        `jitter` is a random number from 0 to 1, which chooses the factor.
        """
        seconds = min(self.max_seconds, self.first_seconds * 2.0 ** min(failures - 1, MAX_DOUBLINGS))
        return seconds * (self.min_factor + (self.max_factor - self.min_factor) * jitter)
