"""How long to wait before the next try: longer each time, and never the same for all."""

import random

FIRST = 0.2
LONGEST = 30.0
WELL = 30.0
"""Seconds after which a connection is taken for a good one, whatever was before."""


class Backoff:
    """Waits of one connection, in seconds."""

    def __init__(self) -> None:
        self._wait = 0.0

    def after(self, lasted: float) -> float:
        """The wait after a connection, or a try, that lasted so long."""
        if lasted >= WELL:
            self._wait = 0.0
        self._wait = min(LONGEST, self._wait * 2 or FIRST)
        return self._wait * random.uniform(0.5, 1.0)
