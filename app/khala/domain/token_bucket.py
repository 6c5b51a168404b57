"""Token buckets: how often somebody may do something."""


class TokenBucket:
    """So many at once, and so many a second after that. Times are monotonic seconds."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Whether so much more is within the budget; if so, it is taken."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < cost:
            return False
        self._left -= cost
        return True

    @property
    def wait(self) -> float:
        """Seconds after the last look until there is one more; 0 if there is."""
        return max(0.0, 1 - self._left) / self._per_second
