"""Token buckets for rate limits."""


class TokenBucket:
    """Allows a burst of tokens, and then a rate per second. Times are monotonic seconds."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = burst
        self._updated_at = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` tokens, if there are enough. Returns whether they were taken."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated_at) * self._per_second)
        self._updated_at = now
        if self._tokens < cost:
            return False
        self._tokens -= cost
        return True

    @property
    def wait(self) -> float:
        """Seconds from the last `take` until there is a token; 0 if there is one already."""
        return max(0.0, 1 - self._tokens) / self._per_second
