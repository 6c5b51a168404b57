"""The pulse of a connection: when it was last heard, and a way to ask."""

import time
from collections.abc import Callable


class Heartbeat:
    """Times are monotonic seconds. `ping` asks the other side for a sign of life."""

    def __init__(self, ping: Callable[[], None]) -> None:
        self.last_heard_at = time.monotonic()
        self._pinged_at = 0.0
        self._ping = ping

    def record(self) -> None:
        """Something was heard."""
        self.last_heard_at = time.monotonic()

    def close(self) -> None:
        """The connection is gone: nobody is asked any more, nor kept by being asked."""
        self._ping = _nobody

    def ping_if_silent(self, seconds: float) -> None:
        """Ping, if nothing was heard and nothing asked for this time."""
        now = time.monotonic()
        if now - max(self.last_heard_at, self._pinged_at) >= seconds:
            self._pinged_at = now
            self._ping()


def _nobody() -> None:
    """Ask nobody."""
