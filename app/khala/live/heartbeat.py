"""The pulse of a connection: when it was last heard, and a way to ask."""

import time
from collections.abc import Callable


class Heartbeat:
    """Times are monotonic seconds. `ping` asks the other side for a sign of life."""

    def __init__(self, ping: Callable[[], None]) -> None:
        self.heard_at = time.monotonic()
        self._asked_at = 0.0
        self._ping = ping

    def beat(self) -> None:
        """Something was heard."""
        self.heard_at = time.monotonic()

    def end(self) -> None:
        """The connection is gone: nobody is asked any more, nor kept by being asked."""
        self._ping = _nobody

    def ask(self, every: float) -> None:
        """Ping, if nothing was heard and nothing asked for this time."""
        now = time.monotonic()
        if now - max(self.heard_at, self._asked_at) >= every:
            self._asked_at = now
            self._ping()


def _nobody() -> None:
    """Ask nobody."""
