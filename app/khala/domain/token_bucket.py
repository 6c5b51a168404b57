"""Token buckets for rate limits."""


class TokenBucket:
    """Allows a burst, and then a rate per second. Times are monotonic seconds."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take so many tokens, if there are enough. Returns whether they were taken."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < cost:
            return False
        self._left -= cost
        return True

    @property
    def wait(self) -> float:
        """Seconds from the last `take` until there is a token; 0 if there is one already."""
        return max(0.0, 1 - self._left) / self._per_second
