"""How slowly a request's body may come: decides when a client has had long enough."""

import msgspec

MIN_BODY_BYTES_PER_SECOND = 16 * 1024
"""Bytes a second that a body must reach on average: 20 MiB take at most 21 minutes."""
MAX_BODY_SECONDS = 1800.0
"""Seconds that a body may take in all, whatever its size."""


class TransferRatePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The slowest body that is still read. All times count only while the server waits for the client."""

    pause: float = 30.0
    """Seconds without a byte; also what a body may take beyond what its size allows for."""
    rate: int = MIN_BODY_BYTES_PER_SECOND
    most: float = MAX_BODY_SECONDS

    def left(self, waited: float, received: int) -> float:
        """Seconds until the next bytes are overdue, after so many seconds of waiting for so many bytes."""
        return min(self.pause, self.pause + received / self.rate - waited, self.most - waited)
