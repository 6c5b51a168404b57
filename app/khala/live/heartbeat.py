"""The heartbeat of a connection: pings the peer when it has been silent for some time."""

import time
from collections.abc import Callable


class Heartbeat:
    """Tracks when one connection last received something, in monotonic seconds. `ping` requests a sign of life."""

    def __init__(self, ping: Callable[[], None]) -> None:
        self.last_received_at = time.monotonic()
        self._pinged_at = 0.0
        self._ping = ping

    def record(self) -> None:
        """Record that something was received."""
        self.last_received_at = time.monotonic()

    def close(self) -> None:
        """Send no more pings: the connection is gone. Also drops the reference to it."""
        self._ping = _do_nothing

    def ping_if_silent(self, seconds: float) -> None:
        """Ping if nothing was received, and no ping sent, for this time."""
        now = time.monotonic()
        if now - max(self.last_received_at, self._pinged_at) >= seconds:
            self._pinged_at = now
            self._ping()


def _do_nothing() -> None:
    """Do nothing."""
