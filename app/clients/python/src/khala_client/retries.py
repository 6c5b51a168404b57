"""The policy by which requests and connections are tried again: exponential back-off with full jitter."""

import random

import msgspec

from khala_client.errors import KhalaError, RateLimited, ServerError

MAX_RATE_LIMIT_SECONDS = 60.0
"""A follow waits no longer for a rate limit before it tries again."""
MAX_EXPONENT = 30
"""The ceiling of a wait is computed from no larger exponent, so that it stays a finite number."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and for how long a transient error is tried again. Times are seconds.

    Before retry number n (from 0), the client waits a random time between 0 and `min(max_delay, base_delay · 2ⁿ)`, or
    longer if the server says so by `Retry-After`. A request fails after `max_attempts` tries, or if the next wait would
    end after `max_elapsed`. A follow has no limit of attempts: it ends if it has no connection for
    `max_disconnected` (None: never).
    """

    max_attempts: int = 8
    base_delay: float = 0.5
    max_delay: float = 8.0
    max_elapsed: float = 60.0
    max_disconnected: float | None = 600.0

    def __post_init__(self) -> None:
        positive = self.max_attempts >= 1 and self.base_delay >= 0 and self.max_delay >= 0 and self.max_elapsed >= 0
        if not positive or (self.max_disconnected is not None and self.max_disconnected < 0):
            raise ValueError("A retry policy has at least one attempt, and no negative times.")

    def delay(self, attempt: int, error: KhalaError | None = None) -> float:
        """Seconds to wait after attempt number `attempt` (from 0) failed with this error."""
        ceiling = min(self.max_delay, self.base_delay * 2 ** min(attempt, MAX_EXPONENT))
        asked = error.retry_after or 0.0 if isinstance(error, ServerError) else 0.0
        return max(random.uniform(0, ceiling), asked)

    def follow_delay(self, attempt: int, error: KhalaError) -> float | None:
        """Seconds that a follow waits after this error, None if it ends. It waits for rate limits, too."""
        if isinstance(error, RateLimited) and error.code != "budget_exhausted":
            return max(self.delay(attempt), min(error.retry_after or 0.0, MAX_RATE_LIMIT_SECONDS))
        return self.delay(attempt, error) if error.is_transient else None

    def is_over(self, seconds: float) -> bool:
        """Whether a follow ends after so many seconds without a connection."""
        return self.max_disconnected is not None and seconds > self.max_disconnected


NO_RETRIES = RetryPolicy(max_attempts=1)
"""Each request is sent once."""
